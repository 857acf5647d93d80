"""The operations, and the groups of this process.

A group is made in each actor (`init_collective_group`), or declared by the driver
(`create_collective_group`): then each actor joins at its first operation.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

from rayshim._core import current
from rayshim.util.collective import types
from rayshim.util.collective.backend_registry import _global_registry
from rayshim.util.collective.collective_group.base_collective_group import BaseGroup
from rayshim.util.collective.collective_group.nccl_collective_group import NCCLGroup
from rayshim.util.collective.collective_group.rendezvous import GroupKeys
from rayshim.util.collective.collective_group.torch_gloo_collective_group import (
    DEFAULT_TIMEOUT_MS,
    TorchGLOOGroup,
)
from rayshim.util.collective.tensor_checks import (
    check_rank,
    check_tensor,
    check_tensors,
)

logger = logging.getLogger("rayshim")

_global_registry.put("NCCL", NCCLGroup)
_global_registry.put("GLOO", TorchGLOOGroup)

#: Groups that this process is a member of, by name.
_groups: dict[str, BaseGroup] = {}
_lock = threading.Lock()
#: Key of what `create_collective_group` declared.
_DECLARED = "declared"


def nccl_available() -> bool:
    """Whether the backend NCCL can be used: False."""
    return is_backend_available("NCCL")


def gloo_available() -> bool:
    """Whether the backend gloo can be used: torch is installed."""
    return is_backend_available("GLOO")


def is_backend_available(backend: str) -> bool:
    """Whether a backend is registered and can be used in this process.

    Args:
        backend: its name, in any case.
    """
    return _global_registry.check(backend)


def is_group_initialized(group_name: str) -> bool:
    """Whether this process is a member of the group."""
    return group_name in _groups


def init_collective_group(
    world_size: int,
    rank: int,
    backend: str = types.Backend.NCCL,
    group_name: str = "default",
    gloo_timeout: int = DEFAULT_TIMEOUT_MS,
) -> None:
    """Join a group, in an actor or task; waits for the other members.

    Args:
        world_size: number of members.
        rank: number of this one, from 0.
        backend: "gloo", or a registered one.
        group_name: name of the group in its namespace.
        gloo_timeout: milliseconds for the start and each operation.

    Raises:
        RuntimeError: not in an actor or task, already a member, or the backend cannot
            be used; the message says what to install.
        TimeoutError: other members did not come in time.
    """
    _check_inside_actor()
    if not group_name:
        raise ValueError(f"group_name '{group_name}' needs to be a string.")
    if not 0 <= rank < world_size:
        raise AssertionError(
            f"rank {rank} of collective group {group_name!r}: it must be between 0 and "
            f"{world_size - 1} (world_size={world_size})"
        )
    with _lock:
        if group_name in _groups:
            raise RuntimeError("Trying to initialize a group a second time.")
        _groups[group_name] = _join(backend, world_size, rank, group_name, gloo_timeout)


def create_collective_group(
    actors: list[Any],
    world_size: int,
    ranks: list[int],
    backend: str = types.Backend.NCCL,
    group_name: str = "default",
    gloo_timeout: int = DEFAULT_TIMEOUT_MS,
) -> None:
    """Declare a group of actors; each joins at its first operation.

    Args:
        actors: handles.
        world_size: number of members.
        ranks: number of each actor.
        backend: "gloo", or one that is registered here and in the actors.
        group_name: name of the group in its namespace.
        gloo_timeout: milliseconds for the start and each operation.

    Raises:
        RuntimeError: the group was declared before, ranks and actors do not fit, or the
            backend cannot be used.
    """
    keys = GroupKeys(group_name)
    if keys.get(_DECLARED) is not None:
        raise RuntimeError("Trying to initialize a group twice.")
    if len(ranks) != len(actors):
        raise RuntimeError(
            "Each actor should correspond to one rank. Got "
            f"'{len(ranks)}' ranks but '{len(actors)}' actors"
        )
    if set(ranks) != set(range(len(ranks))):
        raise RuntimeError(
            f"Ranks must be a permutation from 0 to '{len(ranks)}'. Got "
            f"'{', '.join(map(str, ranks))}'."
        )
    if world_size <= 0:
        raise RuntimeError(f"World size must be greater than zero. Got '{world_size}'.")
    if world_size < len(ranks):
        raise RuntimeError(
            f"Ranks cannot be greater than world_size. Got '{world_size}' for "
            f"'{len(ranks)}' actors."
        )
    _check_backend(backend)
    declared = {
        "ranks": {
            actor._actor_id.hex(): rank
            for actor, rank in zip(actors, ranks, strict=True)
        },
        "world_size": world_size,
        "backend": str(backend),
        "gloo_timeout": gloo_timeout,
    }
    if not keys.put(_DECLARED, json.dumps(declared).encode(), overwrite=False):
        raise RuntimeError("Trying to initialize a group twice.")


def destroy_collective_group(group_name: str = "default") -> None:
    """Leave a group; its name can be used anew when all members have left."""
    _check_inside_actor()
    with _lock:
        group = _groups.pop(group_name, None)
    if group is None:
        logger.warning("The group '%s' does not exist.", group_name)
        return
    group.destroy_group()
    GroupKeys(group_name).delete(_DECLARED)


def get_rank(group_name: str = "default") -> int:
    """The number of this process in a group; -1 if it is no member."""
    _check_inside_actor()
    group = _groups.get(group_name)
    return -1 if group is None else group.rank


def get_collective_group_size(group_name: str = "default") -> int:
    """The number of members of a group; -1 if this process is none."""
    _check_inside_actor()
    group = _groups.get(group_name)
    return -1 if group is None else group.world_size


def allreduce(
    tensor: Any,
    group_name: str = "default",
    op: types.ReduceOp = types.ReduceOp.SUM,
) -> None:
    """Reduce the tensors of all members, in place; all have the result.

    Args:
        tensor: numpy array or torch tensor, of one shape and type in all members.
        group_name: the group.
        op: how.
    """
    check_tensor(tensor)
    options = types.AllReduceOptions(reduceOp=op)
    get_group_handle(group_name).allreduce([tensor], options)


def barrier(group_name: str = "default") -> None:
    """Wait until all members are here."""
    get_group_handle(group_name).barrier(types.BarrierOptions())


def reduce(
    tensor: Any,
    dst_rank: int = 0,
    group_name: str = "default",
    op: types.ReduceOp = types.ReduceOp.SUM,
) -> None:
    """Reduce the tensors of all members; ``dst_rank`` has the result in place."""
    check_tensor(tensor)
    group = get_group_handle(group_name)
    check_rank(group, dst_rank)
    options = types.ReduceOptions(reduceOp=op, root_rank=dst_rank)
    group.reduce([tensor], options)


def broadcast(tensor: Any, src_rank: int = 0, group_name: str = "default") -> None:
    """Fill the tensor of each member with that of ``src_rank``."""
    check_tensor(tensor)
    group = get_group_handle(group_name)
    check_rank(group, src_rank)
    group.broadcast([tensor], types.BroadcastOptions(root_rank=src_rank))


def allgather(tensor_list: list[Any], tensor: Any, group_name: str = "default") -> None:
    """Fill a list with the tensors of all members, by rank.

    Args:
        tensor_list: as many tensors as there are members; they are filled.
        tensor: that of this member.
        group_name: the group.

    Raises:
        RuntimeError: the list has another length.
    """
    check_tensor(tensor)
    check_tensors(tensor_list)
    group = get_group_handle(group_name)
    _check_length(tensor_list, group)
    group.allgather([tensor_list], [tensor], types.AllGatherOptions())


def reducescatter(
    tensor: Any,
    tensor_list: list[Any],
    group_name: str = "default",
    op: types.ReduceOp = types.ReduceOp.SUM,
) -> None:
    """Reduce lists of tensors; each member has the result of its rank in ``tensor``.

    Raises:
        RuntimeError: the list has not as many tensors as there are members.
    """
    check_tensor(tensor)
    check_tensors(tensor_list)
    group = get_group_handle(group_name)
    _check_length(tensor_list, group)
    options = types.ReduceScatterOptions(reduceOp=op)
    group.reducescatter([tensor], [tensor_list], options)


def send(tensor: Any, dst_rank: int, group_name: str = "default") -> None:
    """Send a tensor to another member, which calls `recv`."""
    check_tensor(tensor)
    group = get_group_handle(group_name)
    check_rank(group, dst_rank)
    if dst_rank == group.rank:
        raise RuntimeError(f"The destination rank '{dst_rank}' is self.")
    group.send([tensor], types.SendOptions(dst_rank=dst_rank))


def recv(tensor: Any, src_rank: int, group_name: str = "default") -> None:
    """Fill a tensor with what another member sends."""
    check_tensor(tensor)
    group = get_group_handle(group_name)
    check_rank(group, src_rank)
    if src_rank == group.rank:
        raise RuntimeError(f"The destination rank '{src_rank}' is self.")
    group.recv([tensor], types.RecvOptions(src_rank=src_rank))


def allreduce_multigpu(
    tensor_list: list[Any],
    group_name: str = "default",
    op: types.ReduceOp = types.ReduceOp.SUM,
) -> None:
    """Not available, as in Ray without NCCL: use `allreduce`."""
    _refuse_multigpu("allreduce")


def reduce_multigpu(
    tensor_list: list[Any],
    dst_rank: int = 0,
    dst_tensor: int = 0,
    group_name: str = "default",
    op: types.ReduceOp = types.ReduceOp.SUM,
) -> None:
    """Not available, as in Ray without NCCL: use `reduce`."""
    _refuse_multigpu("reduce")


def broadcast_multigpu(
    tensor_list: list[Any],
    src_rank: int = 0,
    src_tensor: int = 0,
    group_name: str = "default",
) -> None:
    """Not available, as in Ray without NCCL: use `broadcast`."""
    _refuse_multigpu("broadcast")


def allgather_multigpu(
    output_tensor_lists: list[list[Any]],
    input_tensor_list: list[Any],
    group_name: str = "default",
) -> None:
    """Not available, as in Ray without NCCL: use `allgather`."""
    _refuse_multigpu("allgather")


def reducescatter_multigpu(
    output_tensor_list: list[Any],
    input_tensor_lists: list[list[Any]],
    group_name: str = "default",
    op: types.ReduceOp = types.ReduceOp.SUM,
) -> None:
    """Not available, as in Ray without NCCL: use `reducescatter`."""
    _refuse_multigpu("reducescatter")


def send_multigpu(
    tensor: Any,
    dst_rank: int,
    dst_gpu_index: int,
    group_name: str = "default",
    n_elements: int = 0,
) -> None:
    """Not available, as in Ray without NCCL: use `send`."""
    _refuse_multigpu("send")


def recv_multigpu(
    tensor: Any,
    src_rank: int,
    src_gpu_index: int,
    group_name: str = "default",
    n_elements: int = 0,
) -> None:
    """Not available, as in Ray without NCCL: use `recv`."""
    _refuse_multigpu("recv")


def synchronize(gpu_id: int) -> None:
    """Not available, as in Ray without NCCL."""
    raise RuntimeError("synchronize call requires CUDA and NCCL.")


def get_group_handle(group_name: str = "default") -> BaseGroup:
    """The group itself; a declared one is joined.

    Raises:
        RuntimeError: this process is no member.
    """
    group = _groups.get(group_name)
    if group is not None:
        return group
    _check_inside_actor()
    with _lock:
        group = _groups.get(group_name)
        if group is None:
            group = _groups[group_name] = _join_declared(group_name)
    return group


def _join_declared(group_name: str) -> BaseGroup:
    found = GroupKeys(group_name).get(_DECLARED)
    executor = current.require_peer().executor
    actor = executor.actor if executor is not None else None
    if found is not None and actor is not None:
        declared = json.loads(found)
        rank = declared["ranks"].get(actor.actor_id.hex())
        if rank is not None:
            return _join(
                declared["backend"],
                declared["world_size"],
                rank,
                group_name,
                declared["gloo_timeout"],
            )
    raise RuntimeError(
        f"The collective group '{group_name}' is not initialized in the process. Call "
        "init_collective_group() in each actor, or create_collective_group() with "
        "these actors in the driver."
    )


def _join(
    backend: str, world_size: int, rank: int, group_name: str, gloo_timeout: int
) -> BaseGroup:
    _check_backend(backend)
    kind: Any = _global_registry.get(backend)
    if kind is TorchGLOOGroup:
        group: BaseGroup = kind(world_size, rank, group_name, gloo_timeout)
    else:
        group = kind(world_size, rank, group_name)
    return group


def _check_backend(backend: str) -> None:
    name = backend.upper()
    if not _global_registry.is_registered(name):
        raise RuntimeError(
            f"Backend {name} is not registered. Please register it using "
            f"register_collective_backend('{name}', YourBackendClass), here and in "
            "each actor."
        )
    if _global_registry.check(name):
        return
    hint = {
        "GLOO": "torch is not installed: pip install 'rayshim[collective]'",
        "NCCL": "there are no groups of GPUs; use backend='gloo', or call "
        "torch.distributed with NCCL in the actors yourself",
    }.get(name, "see its check_backend_availability()")
    raise RuntimeError(f"Backend {name} is not available: {hint}.")


def _check_inside_actor() -> None:
    peer = current.peer
    if peer is None or peer.executor is None:
        raise RuntimeError(
            "The collective APIs shall be only used inside a Ray actor or task."
        )


def _check_length(tensor_list: list[Any], group: BaseGroup) -> None:
    if len(tensor_list) != group.world_size:
        raise RuntimeError(
            "The length of the tensor list operands to allgather or reducescatter must "
            f"be equal to world_size: got {len(tensor_list)}, not {group.world_size}."
        )


def _refuse_multigpu(name: str) -> None:
    raise RuntimeError(
        f"Multigpu calls requires NCCL and Cupy, which are not used here: call "
        f"{name}() of ray.util.collective with one tensor on the CPU."
    )
