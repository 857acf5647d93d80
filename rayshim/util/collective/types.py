"""Names of backends and reductions, and what groups are told with each operation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from importlib.util import find_spec

#: Stands for the timeout of the group.
unset_timeout_ms = timedelta(milliseconds=-1)


def torch_available() -> bool:
    """Whether torch is installed; it is not imported for that."""
    return find_spec("torch") is not None


def cupy_available() -> bool:
    """Whether arrays of cupy are taken: never, as they need GPUs."""
    return False


class Backend:
    """Name of a backend: ``Backend("gloo")`` is ``"GLOO"``.

    Args:
        name: in any case; "torch_gloo" is "gloo".

    Raises:
        ValueError: nobody registered such a backend.
    """

    NCCL = "NCCL"
    GLOO = "GLOO"
    UNRECOGNIZED = "unrecognized"

    def __new__(cls, name: str) -> str:  # type: ignore[misc]  # Ray's is a str, too
        upper = name.upper()
        if upper == "TORCH_GLOO":
            return Backend.GLOO
        found: str = getattr(Backend, upper, Backend.UNRECOGNIZED)
        if found == Backend.UNRECOGNIZED:
            raise ValueError(
                f"Unrecognized backend: '{name}'. Only NCCL and GLOO are supported, "
                "and what register_collective_backend() was called with"
            )
        return found


class ReduceOp(Enum):
    """How values are made one."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3


@dataclass
class AllReduceOptions:
    """Of an allreduce."""

    reduceOp: ReduceOp = ReduceOp.SUM
    timeout_ms: timedelta = unset_timeout_ms


@dataclass
class BarrierOptions:
    """Of a barrier."""

    timeout_ms: timedelta = unset_timeout_ms


@dataclass
class ReduceOptions:
    """Of a reduce: who gets the result."""

    reduceOp: ReduceOp = ReduceOp.SUM
    root_rank: int = 0
    root_tensor: int = 0
    timeout_ms: timedelta = unset_timeout_ms


@dataclass
class AllGatherOptions:
    """Of an allgather."""

    timeout_ms: timedelta = unset_timeout_ms


@dataclass
class BroadcastOptions:
    """Of a broadcast: whose values are sent."""

    root_rank: int = 0
    root_tensor: int = 0
    timeout_ms: timedelta = unset_timeout_ms


@dataclass
class ReduceScatterOptions:
    """Of a reducescatter."""

    reduceOp: ReduceOp = ReduceOp.SUM
    timeout_ms: timedelta = unset_timeout_ms


@dataclass
class SendOptions:
    """Of a send: to whom."""

    dst_rank: int = 0
    dst_gpu_index: int = 0
    n_elements: int = 0
    timeout_ms: timedelta = unset_timeout_ms


@dataclass
class RecvOptions:
    """Of a recv: from whom."""

    src_rank: int = 0
    src_gpu_index: int = 0
    n_elements: int = 0
    timeout_ms: timedelta = unset_timeout_ms
