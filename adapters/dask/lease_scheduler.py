"""Dask's scheduler with lease tasks among its tasks.

A *lease task* asks for an executor of a node (``lease-HEX``); a *node* is a worker
whose address begins with :data:`NODE`. Neither meets the rest of Dask:

1. A lease task goes where :attr:`LeaseScheduler.decide_node` says, or to no worker.
2. No other task goes to a node, and a node never counts as idle or saturated.
3. A lease task waits for as long as it must, and is never failed.

What is overridden is small, and pinned: a test compares the source of each method that
is overridden here with the one that this was written for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed.scheduler import DEFAULT_EXTENSIONS, Recs, TaskState, WorkerState

from rayshim.adapters.dask.servers import NodeScheduler
from rayshim.adapters.dask.stealing import SpillbackStealing

#: How keys of lease tasks begin.
LEASE = "lease-"
#: How addresses of nodes begin.
NODE = "rayshim-node://"
#: Every lease task needs nothing of this resource, which only nodes have.
NODE_RESOURCE = "rayshim-node"


def is_lease(ts: TaskState) -> bool:
    """Whether a task asks for an executor."""
    restrictions = ts.resource_restrictions
    return restrictions is not None and NODE_RESOURCE in restrictions


def is_node(ws: WorkerState) -> bool:
    """Whether a worker is a node."""
    return ws.address.startswith(NODE)


class LeaseScheduler(NodeScheduler):
    """The scheduler of a cluster."""

    def __init__(self, **options: Any) -> None:
        #: ``decide_node(key)``: address of the node that a lease task goes to now;
        #: empty while there is none.
        self.decide_node: Callable[[str], str] = lambda key: ""
        extensions = {**DEFAULT_EXTENSIONS, "stealing": SpillbackStealing}
        super().__init__(extensions=extensions, **options)
        # Work that nobody has room for is demand, not an error.
        self.no_workers_timeout = None

    def valid_workers(self, ts: TaskState) -> set[WorkerState] | None:
        """The workers that may take a task; none for a lease task, which is woken by
        the placer alone."""
        if is_lease(ts):
            return set()
        found = super().valid_workers(ts)
        if len(self.resources.get(NODE_RESOURCE, ())) == 0:
            return found
        if found is not None:
            found = {ws for ws in found if not is_node(ws)}
        if found is None or (not found and ts.loose_restrictions):
            found = {ws for ws in self.running if not is_node(ws)}
        return found

    def decide_worker_non_rootish(self, ts: TaskState) -> WorkerState | None:
        """The worker that a task goes to."""
        if is_lease(ts):
            return self.workers.get(self.decide_node(str(ts.key)))
        if all(is_node(ws) for ws in self.running):
            return None  # Else a task with loose restrictions would take a node.
        found = super().decide_worker_non_rootish(ts)
        return None if found is not None and is_node(found) else found

    def decide_worker_rootish_queuing_disabled(
        self, ts: TaskState
    ) -> WorkerState | None:
        """The same for one of many tasks without inputs (never a lease task, since
        those have restrictions)."""
        if self.idle:  # which no node ever is
            return super().decide_worker_rootish_queuing_disabled(ts)
        return self.decide_worker_non_rootish(ts)

    def bulk_schedule_unrunnable_after_adding_worker(self, ws: WorkerState) -> Recs:
        """The tasks without a worker that a new one may take."""
        if is_node(ws):
            return {}  # Lease tasks are the placer's to wake; there may be very many.
        return super().bulk_schedule_unrunnable_after_adding_worker(ws)

    def check_idle_saturated(self, ws: WorkerState, occ: float = -1.0) -> None:
        """Notes how busy a worker is; what is free on a node is not Dask's to say."""
        if not is_node(ws):
            super().check_idle_saturated(ws, occ)

    def adaptive_target(self, target_duration: Any = None) -> int:
        """How many workers Dask's own tasks could use.

        Lease tasks and nodes do not count: the planner starts nodes for those.
        """
        workers, unrunnable = self.workers, self.unrunnable
        plain: Any = type(workers)(
            {name: ws for name, ws in workers.items() if not is_node(ws)}
        )
        try:
            self.workers = plain
            self.unrunnable = {
                ts: since for ts, since in unrunnable.items() if not is_lease(ts)
            }
            return super().adaptive_target(target_duration)
        finally:
            self.workers, self.unrunnable = workers, unrunnable
