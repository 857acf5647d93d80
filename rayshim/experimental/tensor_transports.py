"""Ray's direct transports of tensors, as far as a program names them.

Tensors travel through the shared store: what a method returns is copied there once,
and seen by everybody on the node. There are no other transports, so registering one,
or memory for one, is an error that says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass
class CommunicatorMetadata:
    """What a transport has to know of the two actors; subclasses have fields."""


@dataclass
class TensorTransportMetadata:
    """What a transport has to know of tensors.

    Args:
        tensor_meta: shape and type of each tensor.
        tensor_device: where all of them are, such as "cpu".
    """

    tensor_meta: list[Any]
    tensor_device: str | None = None


class TensorTransportManager(ABC):
    """What a program derives its own transports from; none can be registered."""

    @abstractmethod
    def tensor_transport_backend(self) -> str:
        """Name of the transport."""

    @staticmethod
    @abstractmethod
    def is_one_sided() -> bool:
        """Whether the receiver transfers alone."""

    @staticmethod
    @abstractmethod
    def can_abort_transport() -> bool:
        """Whether a transfer can be ended."""

    @abstractmethod
    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Whether an actor can use the transport."""

    @abstractmethod
    def extract_tensor_transport_metadata(
        self, obj_id: str, rdt_object: Any
    ) -> TensorTransportMetadata:
        """What has to be known of an object's tensors."""

    @abstractmethod
    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        """What has to be known of two actors."""

    @abstractmethod
    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Receive tensors."""

    @abstractmethod
    def send_multiple_tensors(
        self,
        tensors: list[Any],
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
    ) -> None:
        """Send tensors."""

    @abstractmethod
    def garbage_collect(
        self,
        obj_id: str,
        tensor_transport_meta: TensorTransportMetadata,
        tensors: list[Any],
    ) -> None:
        """Give up what was kept for an object."""

    @abstractmethod
    def abort_transport(
        self, obj_id: str, communicator_metadata: CommunicatorMetadata
    ) -> None:
        """End a transfer."""


def register_tensor_transport(
    transport_name: str,
    devices: list[str],
    transport_manager_class: type,
    data_type: type,
) -> NoReturn:
    """Not supported.

    Raises:
        ValueError: the class is no `TensorTransportManager`.
        NotImplementedError: always else.
    """
    if not issubclass(transport_manager_class, TensorTransportManager):
        raise ValueError(
            f"transport_manager_class {transport_manager_class.__name__} must be a "
            "subclass of TensorTransportManager."
        )
    _refuse(f"register_tensor_transport({transport_name!r})")


def register_nixl_memory(tensor: Any) -> NoReturn:
    """Not supported.

    Raises:
        NotImplementedError: always.
    """
    _refuse("register_nixl_memory()")


def deregister_nixl_memory(tensor: Any) -> NoReturn:
    """Not supported, as `register_nixl_memory` is not.

    Raises:
        NotImplementedError: always.
    """
    _refuse("deregister_nixl_memory()")


def register_nixl_memory_pool(size: int, device: str) -> NoReturn:
    """Not supported.

    Raises:
        NotImplementedError: always.
    """
    _refuse("register_nixl_memory_pool()")


def set_nixl_cuda_stream(stream: Any) -> NoReturn:
    """Not supported.

    Raises:
        NotImplementedError: always.
    """
    _refuse("set_nixl_cuda_stream()")


def set_target_for_ref(ref: Any, target: list[Any]) -> NoReturn:
    """Not supported: copy what ``ray.get(ref)`` gives into the tensors.

    Raises:
        NotImplementedError: always.
    """
    _refuse("set_target_for_ref()")


def set_target_device_for_ref(ref: Any, target_device: str) -> NoReturn:
    """Not supported: move what ``ray.get(ref)`` gives.

    Raises:
        NotImplementedError: always.
    """
    _refuse("set_target_device_for_ref()")


def wait_tensor_freed(tensor: Any, timeout: float | None = None) -> None:
    """Return at once: an object never refers to the tensor that it was made of.

    Args:
        tensor: one that was returned or stored, and may be written to again.
        timeout: seconds; nothing is waited for.
    """


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}: tensors travel through the shared store only; leave it out, and "
        "tensor_transport of methods and put(), too. Collective operations between "
        "actors are in ray.util.collective (backend='gloo')."
    )
