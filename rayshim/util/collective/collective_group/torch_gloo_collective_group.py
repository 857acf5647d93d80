"""Groups on the CPU, by gloo of torch.

Each group has a process group of its own: the default one of ``torch.distributed``
stays the program's. Members find each other through the key-value store; there is no
store of torch's that listens. On one node gloo uses the loopback device.
"""

from __future__ import annotations

import time
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rayshim.util.collective.collective_group.base_collective_group import BaseGroup
from rayshim.util.collective.collective_group.rendezvous import GroupKeys, meet
from rayshim.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    Backend,
    BarrierOptions,
    BroadcastOptions,
    RecvOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    SendOptions,
)

if TYPE_CHECKING:
    import torch

#: Milliseconds that the members and each operation may take.
DEFAULT_TIMEOUT_MS = 30_000


class TorchGLOOGroup(BaseGroup):
    """A group whose operations run in gloo.

    Args:
        world_size, rank, group_name: see `BaseGroup`.
        gloo_timeout: milliseconds for the start, and for each operation.

    Raises:
        ImportError: torch is not installed.
        TimeoutError: other members did not come in time.
    """

    def __init__(
        self,
        world_size: int,
        rank: int,
        group_name: str,
        gloo_timeout: int | None = None,
    ) -> None:
        # Its stubs know neither groups nor stores.
        dist: Any = import_module("torch.distributed")
        super().__init__(world_size, rank, group_name)
        timeout_s = (gloo_timeout or DEFAULT_TIMEOUT_MS) / 1000
        self._keys = GroupKeys(group_name)
        meeting = meet(self._keys, world_size, rank, timeout_s)
        self._prefix = meeting.prefix
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        host = "127.0.0.1" if meeting.one_node else self._keys._peer.node_ip
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        store = _key_store(self._keys, meeting.prefix, timeout_s)
        self._group: Any = dist.ProcessGroupGloo(store, rank, world_size, options)
        self._group.barrier().wait()
        if rank == 0:
            # Everybody is connected: nobody reads these again.
            self._keys.delete(meeting.prefix, by_prefix=True)
            self._keys.delete("go")

    def destroy_group(self) -> None:
        """Close the connections."""
        self._group = None

    @classmethod
    def backend(cls) -> str:
        """``"GLOO"``."""
        return Backend.GLOO

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Whether torch is installed."""
        return find_spec("torch") is not None

    def allreduce(
        self, tensor: list[Any], allreduce_options: AllReduceOptions | None = None
    ) -> None:
        """Reduce the tensors of all in place."""
        options = allreduce_options or AllReduceOptions()
        with _InPlace(tensor[0]) as values:
            self._group.allreduce(values, _reduction(options.reduceOp)).wait()

    def barrier(self, barrier_options: BarrierOptions | None = None) -> None:
        """Wait until all are here."""
        self._group.barrier().wait()

    def reduce(
        self, tensor: list[Any], reduce_options: ReduceOptions | None = None
    ) -> None:
        """Reduce the tensors of all in place at the root, and leave those of others."""
        options = reduce_options or ReduceOptions()
        kind = _reduction(options.reduceOp)
        if self._rank == options.root_rank:
            with _InPlace(tensor[0]) as values:
                self._group.reduce(values, options.root_rank, kind).wait()
        else:
            self._group.reduce(_copy_of(tensor[0]), options.root_rank, kind).wait()

    def allgather(
        self,
        tensor_list: list[list[Any]],
        tensor: list[Any],
        allgather_options: AllGatherOptions | None = None,
    ) -> None:
        """Fill the list with the tensors of all, by rank."""
        held = [_InPlace(item) for item in tensor_list[0]]
        values = [item.values for item in held]
        self._group.allgather(values, _readable(tensor[0])).wait()
        for item in held:
            item.write_back()

    def broadcast(
        self, tensor: list[Any], broadcast_options: BroadcastOptions | None = None
    ) -> None:
        """Fill the tensor with the root's."""
        options = broadcast_options or BroadcastOptions()
        if self._rank == options.root_rank:
            self._group.broadcast(_readable(tensor[0]), options.root_rank).wait()
            return
        with _InPlace(tensor[0]) as values:
            self._group.broadcast(values, options.root_rank).wait()

    def reducescatter(
        self,
        tensor: list[Any],
        tensor_list: list[list[Any]],
        reducescatter_options: ReduceScatterOptions | None = None,
    ) -> None:
        """Fill the tensor with the reduction of all members' tensors of this rank."""
        options = reducescatter_options or ReduceScatterOptions()
        kind = _reduction(options.reduceOp)
        with _InPlace(tensor[0]) as output:
            for root, item in enumerate(tensor_list[0]):
                values = _copy_of(item)
                if root == self._rank and output.shape != values.shape:
                    raise ValueError(
                        f"reducescatter: the output has shape {tuple(output.shape)}, "
                        f"tensor {root} of the list {tuple(values.shape)}"
                    )
                self._group.reduce(values, root, kind).wait()
                if root == self._rank:
                    output.copy_(values)

    def send(self, tensor: list[Any], send_options: SendOptions) -> None:
        """Send a tensor to another member."""
        values = _readable(tensor[0])
        self._group.send([values], send_options.dst_rank, 0).wait()

    def recv(self, tensor: list[Any], recv_options: RecvOptions) -> None:
        """Fill a tensor with what another member sends."""
        with _InPlace(tensor[0]) as values:
            self._group.recv([values], recv_options.src_rank, 0).wait()


class _InPlace:
    """A contiguous tensor for gloo whose values end up in the caller's tensor.

    Raises:
        ValueError: the caller's array cannot be written.
        TypeError: it is neither an array nor a tensor.
    """

    def __init__(self, target: Any) -> None:
        flags = getattr(target, "flags", None)
        if flags is not None and not flags.writeable:
            raise ValueError(
                "the array cannot be written: it is a view of the shared store, as "
                "arguments and results of ray.get() are. Pass a copy: array.copy()"
            )
        self._target = _tensor(target)
        self.values = self._target.contiguous()

    def write_back(self) -> None:
        """Put the values into the caller's tensor, if they are not there."""
        if self.values is not self._target:
            self._target.copy_(self.values)

    def __enter__(self) -> torch.Tensor:
        return self.values

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.write_back()


def _tensor(value: Any) -> torch.Tensor:
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise ValueError(
                f"backend gloo works on the CPU, the tensor is on {value.device}: pass "
                "tensor.cpu()"
            )
        return value.detach()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    raise TypeError(
        f"backend gloo takes torch.Tensor and numpy.ndarray, not {type(value)}"
    )


def _readable(value: Any) -> torch.Tensor:
    """A contiguous tensor of the values; a copy if torch cannot use the memory."""
    flags = getattr(value, "flags", None)
    if flags is not None and not flags.writeable:
        value = value.copy()
    return _tensor(value).contiguous()


def _copy_of(value: Any) -> torch.Tensor:
    flags = getattr(value, "flags", None)
    if flags is not None and not flags.writeable:
        return _readable(value)
    return _tensor(value).clone().contiguous()


def _reduction(kind: ReduceOp) -> Any:
    import torch.distributed as dist

    return getattr(dist.ReduceOp, kind.name)


def _key_store(keys: GroupKeys, prefix: str, timeout_s: float) -> Any:
    """What gloo exchanges its addresses through."""
    dist: Any = import_module("torch.distributed")

    class KeyStore(dist.Store):  # type: ignore[misc]  # not in the stubs
        """A store of torch's in the key-value store of the session."""

        def set(self, key: str, value: Any) -> None:
            keys.put(
                prefix + key, value if isinstance(value, bytes) else value.encode()
            )

        def get(self, key: str) -> bytes:
            found = keys.wait(prefix + key, time.monotonic() + timeout_s)
            if found is None:
                raise TimeoutError(f"a member of the group did not say {key!r} in time")
            return found

        def wait(self, names: list[str], timeout: timedelta | None = None) -> None:
            for name in names:
                self.get(name)

        def check(self, names: list[str]) -> bool:
            return all(keys.get(prefix + name) is not None for name in names)

        def delete_key(self, key: str) -> bool:
            known = keys.get(prefix + key) is not None
            keys.delete(prefix + key)
            return known

    return KeyStore()
