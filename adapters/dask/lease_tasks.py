"""What the placer of leases says to Dask's scheduler, and hears from it.

A lease task is made, woken, moved, marked as granted and forgotten here. Which node it
goes to is decided by the placer (:attr:`LeaseTasks.decide`) when the scheduler asks;
that it went there is told when the scheduler sends it (:attr:`LeaseTasks.sent`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dask._task_spec import DataNode
from distributed.scheduler import TaskState

from rayshim.adapters.dask.lease_scheduler import (
    LEASE,
    NODE,
    NODE_RESOURCE,
    LeaseScheduler,
)
from rayshim.adapters.dask.node_workers import NodeWorkers, address_of
from rayshim.adapters.dask.stealing import SpillbackStealing

#: The client of the scheduler that wants all lease tasks.
CLIENT = "rayshim-leases"
#: Kinds of lease tasks whose facts are kept once.
MAX_KINDS = 1000
#: Nothing runs: who asked for the lease runs what it likes on it.
_SPEC = DataNode("lease", None)


def key_of(lease_id: bytes) -> str:
    """The key of a lease's task."""
    return LEASE + lease_id.hex()


def _lease_of(key: str) -> bytes:
    return bytes.fromhex(key.removeprefix(LEASE))


class LeaseTasks:
    """Lease tasks in Dask's scheduler.

    Args:
        scheduler: It.
    """

    def __init__(self, scheduler: LeaseScheduler) -> None:
        self._scheduler = scheduler
        #: ``decide(lease_id)``: the node for a lease, or empty.
        self.decide: Callable[[bytes], str] = lambda lease_id: ""
        #: ``sent(lease_id, node_id)``: the scheduler gave the lease to a node.
        self.sent: Callable[[bytes, str], None] = lambda lease_id, node_id: None
        #: ``on_ready(node_id)``: a node may get tasks.
        self.on_ready: Callable[[str], None] = lambda node_id: None
        #: The scheduler dropped tasks or nodes by itself (a user restarted it).
        self.on_lost: Callable[[], None] = lambda: None
        self.nodes = NodeWorkers(
            scheduler,
            self._message,
            lambda node_id: self.on_ready(node_id),
            lambda: self.on_lost(),
        )
        #: Label and need -> restrictions and annotations.
        self._kinds: dict[
            tuple[object, ...], tuple[dict[str, float], dict[str, Any]]
        ] = {}
        scheduler.decide_node = self._decide

    @property
    def stealing(self) -> SpillbackStealing:
        """The scheduler's extension."""
        found: SpillbackStealing = self._scheduler.extensions["stealing"]
        return found

    # From the scheduler.

    def _decide(self, key: str) -> str:
        node_id = self.decide(_lease_of(key))
        return address_of(node_id) if node_id else ""

    def _message(self, address: str, message: dict[str, Any]) -> None:
        # "free-keys": the placer has taken the lease back before it said so here.
        if message.get("op") == "compute-task":
            self.sent(_lease_of(message["key"]), address.removeprefix(NODE))

    # From the placer.

    def has_node(self, node_id: str) -> bool:
        """Whether a node may get tasks."""
        return self.nodes.is_ready(node_id)

    def has(self, lease_id: bytes) -> bool:
        """Whether there is a task for a lease."""
        return key_of(lease_id) in self._scheduler.tasks

    def add(
        self,
        lease_id: bytes,
        need: Mapping[str, int],
        priority: tuple[int, int],
        label: str,
    ) -> None:
        """Makes a task, which goes to a node at once if there is one for it."""
        key = key_of(lease_id)
        scheduler = self._scheduler
        ts = scheduler.new_task(key, _SPEC, "released")
        ts.prefix.duration_average = 0.0  # Of no weight beside Dask's own tasks.
        ts.priority = (*priority, 0)
        ts.resource_restrictions, ts.annotations = self._facts(need, label)
        scheduler.client_desires_keys([key], CLIENT)
        self._recommend(key, "waiting")

    def _facts(
        self, need: Mapping[str, int], label: str
    ) -> tuple[dict[str, float], dict[str, Any]]:
        """What tasks of one kind share, as there may be very many of them."""
        kind = (label, *need.items())
        found = self._kinds.get(kind)
        if found is None:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            found = {NODE_RESOURCE: 0, **need}, {"label": label}
            self._kinds[kind] = found
        return found

    def wake(self, lease_id: bytes) -> None:
        """Has the scheduler look for a node again."""
        self._recommend(key_of(lease_id), "processing")

    def release(self, lease_id: bytes) -> None:
        """Takes a task off its node; it may go to another one at once."""
        self._recommend(key_of(lease_id), "released")

    def stuck(self, lease_id: bytes) -> None:
        """The node of a task cannot grant it."""
        self.stealing.put_key_in_stealable(self._task(lease_id))

    def move(self, lease_id: bytes, node_id: str) -> None:
        """Gives a task to another node."""
        ts = self._task(lease_id)
        if ts.processing_on is None:
            self.wake(lease_id)
        elif ts.processing_on.address != address_of(node_id):
            self.stealing.move(ts, address_of(node_id))
        else:
            self.stealing.remove_key_from_stealable(ts)

    def granted(self, lease_id: bytes) -> None:
        """The node of a task has granted it."""
        ts = self._task(lease_id)
        ws = ts.processing_on
        if ws is not None and ts not in ws.long_running:
            assert ts.run_id is not None
            self._scheduler.handle_long_running(
                ts.key, ws.address, ts.run_id, None, f"granted-{ts.key!s}"
            )

    def forget(self, lease_id: bytes) -> None:
        """The lease is over."""
        key = key_of(lease_id)
        if key in self._scheduler.tasks:
            self._scheduler.client_releases_keys([key], CLIENT, f"ended-{key}")

    def states(self) -> Iterator[tuple[bytes, str, str]]:
        """Each lease, the state of its task, and its node."""
        client = self._scheduler.clients.get(CLIENT)
        for ts in client.wants_what if client is not None else ():
            ws, state = ts.processing_on, str(ts.state)
            if ws is not None and ts in ws.long_running:
                state = "long-running"
            node_id = ws.address.removeprefix(NODE) if ws is not None else ""
            yield _lease_of(str(ts.key)), state, node_id

    def _task(self, lease_id: bytes) -> TaskState:
        return self._scheduler.tasks[key_of(lease_id)]

    def _recommend(self, key: str, state: str) -> None:
        self._scheduler.transitions({key: state}, f"lease-{state}")  # type: ignore[dict-item]  # one of its states.
