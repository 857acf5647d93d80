"""How tensors travel between the actors of a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_DEVICES = ("default", "cpu", "gpu", "cuda")
_TRANSPORTS = ("auto", "nccl", "shm", "accelerator")


@dataclass(slots=True)
class ChannelOutputType:
    """How the result of a node travels.

    Args:
        transport: "" (any value), "auto" or "shm".
        device: "default": where the sender has it; "cpu".
    """

    transport: str = ""
    device: str = "default"
    static_shape: bool = False
    direct_return: bool = False

    def requires_accelerator(self) -> bool:
        """Whether it needs GPUs: never."""
        return False


def choose_transport(
    transport: Any, device: str, *, static_shape: bool, direct_return: bool
) -> ChannelOutputType:
    """Check what `DAGNode.with_tensor_transport` was given.

    Raises:
        ValueError: no such transport or device.
        NotImplementedError: one that needs GPUs.
    """
    if device not in _DEVICES:
        valid = ", ".join(f"'{name}'" for name in _DEVICES)
        raise ValueError(f"Invalid device '{device}'. Valid options are: {valid}.")
    named = isinstance(transport, str)
    if named and transport not in _TRANSPORTS:
        raise ValueError(
            f"Invalid transport type: {transport}. Transport must be one of 'auto', "
            "'nccl', 'shm', 'accelerator' or an instance of Communicator type."
        )
    if not named or transport in ("nccl", "accelerator"):
        raise NotImplementedError(
            f"with_tensor_transport({transport!r}): tensors travel through the shared "
            "store only; use transport='auto' or 'shm', and "
            "ray.util.collective for collective operations"
        )
    if device in ("gpu", "cuda"):
        raise NotImplementedError(
            f"with_tensor_transport(device={device!r}): tensors arrive on the CPU; "
            "move them in the method that gets them (tensor.to('cuda'))"
        )
    return ChannelOutputType(transport, device, static_shape, direct_return)
