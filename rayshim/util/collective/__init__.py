"""Collective operations between actors: allreduce, broadcast, send, and the like.

The backend "gloo" works through ``torch.distributed`` on the CPU, with numpy arrays and
torch tensors, in place as in Ray; it needs the extra ``rayshim[collective]``. Other
backends can be registered (`register_collective_backend`).

Example:
    >>> @ray.remote  # doctest: +SKIP
    ... class Worker:
    ...     def __init__(self, rank):
    ...         init_collective_group(2, rank, backend="gloo")
    ...     def sum(self, values):
    ...         values = values.copy()
    ...         allreduce(values)
    ...         return values
"""

from __future__ import annotations

from rayshim.util.collective.backend_registry import register_collective_backend
from rayshim.util.collective.collective import (
    allgather,
    allgather_multigpu,
    allreduce,
    allreduce_multigpu,
    barrier,
    broadcast,
    broadcast_multigpu,
    create_collective_group,
    destroy_collective_group,
    get_collective_group_size,
    get_group_handle,
    get_rank,
    gloo_available,
    init_collective_group,
    is_backend_available,
    is_group_initialized,
    nccl_available,
    recv,
    recv_multigpu,
    reduce,
    reduce_multigpu,
    reducescatter,
    reducescatter_multigpu,
    send,
    send_multigpu,
)

__all__ = [
    "allgather",
    "allgather_multigpu",
    "allreduce",
    "allreduce_multigpu",
    "barrier",
    "broadcast",
    "broadcast_multigpu",
    "create_collective_group",
    "destroy_collective_group",
    "get_collective_group_size",
    "get_group_handle",
    "get_rank",
    "gloo_available",
    "init_collective_group",
    "is_backend_available",
    "is_group_initialized",
    "nccl_available",
    "recv",
    "recv_multigpu",
    "reduce",
    "reduce_multigpu",
    "reducescatter",
    "reducescatter_multigpu",
    "register_collective_backend",
    "send",
    "send_multigpu",
]
