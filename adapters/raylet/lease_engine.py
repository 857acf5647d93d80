"""Leases as tasks of an engine, which is Dask's scheduler.

Nothing of Dask is imported here: :mod:`rayshim.adapters.dask.lease_tasks` is what the
engine service hands over once Dask runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Protocol

logger = logging.getLogger(__name__)


class NodeTasks(Protocol):
    """The nodes as an engine knows them."""

    def join(self, node_id: str, total: Mapping[str, int], is_usable: bool) -> None:
        """A node is there."""

    def told(
        self, node_id: str, total: Mapping[str, int], free: Mapping[str, int]
    ) -> None:
        """A node said what it has free."""

    def set_usable(self, node_id: str, is_usable: bool) -> None:
        """A node may get work, or may not for now."""

    def left(self, node_id: str) -> None:
        """A node is dead."""


class Tasks(Protocol):
    """Leases as tasks of an engine (:mod:`rayshim.adapters.dask.lease_tasks`)."""

    #: ``decide(lease_id)``: the node for a lease, or empty.
    decide: Callable[[bytes], str]
    #: ``sent(lease_id, node_id)``: the engine gave the lease to a node.
    sent: Callable[[bytes, str], None]
    #: ``on_ready(node_id)``: a node may get tasks.
    on_ready: Callable[[str], None]
    #: The engine dropped tasks or nodes by itself.
    on_lost: Callable[[], None]

    @property
    def nodes(self) -> NodeTasks:
        """The nodes."""

    def has_node(self, node_id: str) -> bool:
        """Whether a node may get tasks."""

    def has(self, lease_id: bytes) -> bool:
        """Whether there is a task for a lease."""

    def add(
        self,
        lease_id: bytes,
        need: Mapping[str, int],
        priority: tuple[int, int],
        label: str,
    ) -> None:
        """Makes a task, which goes to a node at once if there is one for it."""

    def wake(self, lease_id: bytes) -> None:
        """Has the engine look for a node again."""

    def release(self, lease_id: bytes) -> None:
        """Takes a task off its node; it may go to another one at once."""

    def stuck(self, lease_id: bytes) -> None:
        """The node of a task cannot grant it."""

    def move(self, lease_id: bytes, node_id: str) -> None:
        """Gives a task to another node."""

    def granted(self, lease_id: bytes) -> None:
        """The node of a task has granted it."""

    def forget(self, lease_id: bytes) -> None:
        """The lease is over."""

    def states(self) -> Iterator[tuple[bytes, str, str]]:
        """Each lease, the state of its task, and its node."""


class Engine:
    """The tasks, if there are any; what fails in a ``with`` block ends their use.

    The entries of the placer say all that the tasks say, so that leases go on.

    Args:
        on_failed: Called when their use has ended.
    """

    __slots__ = ("_on_failed", "tasks")

    def __init__(self, on_failed: Callable[[], None]) -> None:
        self._on_failed = on_failed
        #: None before Dask runs, without it, and after it failed.
        self.tasks: Tasks | None = None

    def __enter__(self) -> Tasks | None:
        return self.tasks

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self.tasks is None or not isinstance(error, Exception):
            return False
        logger.error(
            "Dask's scheduler failed; leases are placed without it from now on",
            exc_info=error,
        )
        self.tasks = None
        self._on_failed()
        return True
