"""Makes groups of actors from the driver."""

from __future__ import annotations

import uuid
from typing import Any

from rayshim._core.api import get
from rayshim.exceptions import ActorDiedError
from rayshim.experimental.collective.communicator import CommunicatorHandle
from rayshim.util.collective import collective as groups
from rayshim.util.collective.types import Backend

#: Groups that this process made, by name.
_made: dict[str, CommunicatorHandle] = {}


def create_collective_group(
    actors: list[Any], backend: str, name: str | None = None
) -> CommunicatorHandle:
    """Make a group; all actors have joined it when this returns.

    The operations of `rayshim.util.collective` take its name. An actor is in one group
    of a backend at a time.

    Args:
        actors: handles, by rank.
        backend: "gloo", or a registered one.
        name: None chooses one.

    Raises:
        RuntimeError: an actor is in a group already, or the backend cannot be used.
        ValueError: an actor comes twice, or there is no such backend.
    """
    kind = str(Backend(backend))
    name = name or str(uuid.uuid4())
    for actor in actors:
        if get_collective_groups([actor], kind):
            raise RuntimeError(
                f"Actor {actor} already in group for backend {kind}. Actors can "
                "currently only participate in at most one group per backend: destroy "
                "the other one first."
            )
    if len(set(actors)) != len(actors):
        raise ValueError(f"All actors must be unique, got: {actors}")
    groups._check_backend(kind)
    get(
        [
            actor.__ray_call__.remote(_join, len(actors), rank, kind, name)
            for rank, actor in enumerate(actors)
        ]
    )
    handle = CommunicatorHandle(actors, name, kind)
    _made[name] = handle
    return handle


def get_collective_groups(
    actors: list[Any], backend: str | None = None
) -> list[CommunicatorHandle]:
    """The groups made here that all these actors are members of.

    Args:
        actors: handles; none gives all groups.
        backend: None gives those of all backends.
    """
    kind = None if backend is None else str(Backend(backend))
    wanted = set(actors or ())
    return [
        handle
        for handle in _made.values()
        if wanted <= set(handle.actors) and kind in (None, handle.backend)
    ]


def destroy_collective_group(group_or_name: CommunicatorHandle | str) -> None:
    """End a group; its actors can be in another one then.

    Raises:
        ValueError: no such group was made here.
    """
    if isinstance(group_or_name, CommunicatorHandle):
        name = group_or_name.name
    elif isinstance(group_or_name, str):
        name = group_or_name
    else:
        raise ValueError("Expected CommunicatorHandle or str (group name).")
    handle = _made.pop(name, None)
    if handle is None:
        raise ValueError(f"No group with name {name} found.")
    refs = [actor.__ray_call__.remote(_leave, name) for actor in handle.actors]
    for ref in refs:
        try:
            get(ref)
        except ActorDiedError:
            # What is dead has left.
            continue


def destroy_all_collective_groups() -> None:
    """End all groups that were made here."""
    for name in list(_made):
        destroy_collective_group(name)


def _join(_actor: Any, world_size: int, rank: int, backend: str, name: str) -> None:
    groups.init_collective_group(world_size, rank, backend, group_name=name)


def _leave(_actor: Any, name: str) -> None:
    groups.destroy_collective_group(name)
