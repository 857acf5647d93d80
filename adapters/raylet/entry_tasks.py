"""The tasks that an engine has for leases, where there is an engine.

All that is said here of a lease without a task, or without an engine, does nothing: the
entries of :class:`.head_leases.LeasePlacer` say the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayshim.adapters.raylet.lease_engine import Engine

if TYPE_CHECKING:
    from rayshim.adapters.raylet.head_nodes import KnownNode
    from rayshim.adapters.raylet.lease_entry import LeaseEntry


class EntryTasks:
    """Keeps the tasks as the entries are.

    Args:
        engine: Which may come, fail and go.
    """

    __slots__ = ("_engine", "_taskless")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Lease id -> entry without a task, since its node is not ready.
        self._taskless: dict[bytes, LeaseEntry] = {}

    def has(self, entry: LeaseEntry) -> bool:
        """Whether there is a task for it."""
        tasks = self._engine.tasks
        return tasks is not None and tasks.has(entry.request.lease_id)

    def add(self, entry: LeaseEntry) -> None:
        """Makes a task, unless there is one, or its node is not ready."""
        tasks, lease_id = self._engine.tasks, entry.request.lease_id
        if tasks is None or tasks.has(lease_id):
            return
        if entry.node and not tasks.has_node(entry.node):
            self._taskless[lease_id] = entry
            return
        self._taskless.pop(lease_id, None)
        with self._engine:
            tasks.add(lease_id, entry.need, entry.priority, entry.request.label)
            if entry.is_granted:
                tasks.granted(lease_id)
            elif entry.is_stuck:
                tasks.stuck(lease_id)

    def add_late(self) -> None:
        """Makes tasks of those whose node is ready now."""
        for entry in list(self._taskless.values()):
            self.add(entry)

    def wake(self, entry: LeaseEntry) -> bool:
        """Has the engine look for a node; False if it does not know the lease."""
        with self._engine as tasks:
            if tasks is not None and tasks.has(entry.request.lease_id):
                tasks.wake(entry.request.lease_id)
                return True
        return False

    def stuck(self, entry: LeaseEntry) -> None:
        """The node cannot grant it."""
        with self._engine as tasks:
            if tasks is not None and self.has(entry):
                tasks.stuck(entry.request.lease_id)

    def release(self, entry: LeaseEntry) -> None:
        """It is at no node any more; it may go to another one at once."""
        with self._engine as tasks:
            if tasks is not None and self.has(entry):
                tasks.release(entry.request.lease_id)

    def move(self, entry: LeaseEntry, node_id: str) -> None:
        """It goes to another node."""
        with self._engine as tasks:
            if tasks is not None and self.has(entry):
                tasks.move(entry.request.lease_id, node_id)

    def settle(self, entry: LeaseEntry, was_at: str) -> None:
        """It stays at its node, wherever it was sent."""
        with self._engine as tasks:
            if tasks is None or not tasks.has_node(entry.node):
                return
            if not self.has(entry):
                self.add(entry)
            elif was_at != entry.node:
                tasks.move(entry.request.lease_id, entry.node)

    def granted(self, entry: LeaseEntry) -> None:
        """Its node has granted it."""
        with self._engine as tasks:
            if tasks is not None and self.has(entry):
                tasks.granted(entry.request.lease_id)

    def forget(self, lease_id: bytes) -> None:
        """It is over."""
        self._taskless.pop(lease_id, None)
        with self._engine as tasks:
            if tasks is not None:
                tasks.forget(lease_id)

    # Nodes.

    def node_joined(self, node: KnownNode, is_usable: bool) -> None:
        """A node is there."""
        with self._engine as tasks:
            if tasks is not None:
                tasks.nodes.join(node.node_id, node.total, is_usable)

    def node_usable(self, node: KnownNode, is_usable: bool) -> None:
        """A node may get work, or may not for now."""
        with self._engine as tasks:
            if tasks is not None:
                tasks.nodes.set_usable(node.node_id, is_usable)

    def node_told(self, node: KnownNode) -> None:
        """A node said what it has free."""
        with self._engine as tasks:
            if tasks is not None:
                tasks.nodes.told(node.node_id, node.total, node.free)

    def node_left(self, node_id: str) -> None:
        """A node is dead."""
        with self._engine as tasks:
            if tasks is not None:
                tasks.nodes.left(node_id)
