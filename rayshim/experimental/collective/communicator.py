"""Groups as their members and the driver know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rayshim.util.collective.types import Backend


@dataclass
class Communicator:
    """A group that this process is a member of.

    Args:
        name: name of the group.
        rank: number of this process.
        backend: name of the backend.
    """

    name: str
    rank: int
    backend: str


class CommunicatorHandle:
    """A group of actors, as `create_collective_group` gives it.

    Args:
        actors: the members by rank.
        name: name of the group.
        backend: name of the backend.
    """

    def __init__(self, actors: list[Any], name: str, backend: str) -> None:
        self._actors = list(actors)
        self._name = name
        self._backend = str(Backend(backend))

    def get_rank(self, actor: Any) -> int:
        """The number of an actor; -1 if it is no member."""
        return self._actors.index(actor) if actor in self._actors else -1

    @property
    def actors(self) -> list[Any]:
        """The members by rank."""
        return list(self._actors)

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._name

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self._backend
