"""Moves lease tasks off nodes that cannot grant them.

Dask's own stealing goes by run times that nobody knows of a lease, and asks workers.
Here a node says itself that it cannot grant (it asks the head again, with more hops);
:mod:`rayshim.lineage.stealing` decides, and this carries the move out in Dask's state.
Tasks of Dask's own are not stolen.
"""

from __future__ import annotations

from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import TaskState


class SpillbackStealing(SchedulerPlugin):
    """The scheduler's extension ``stealing``.

    Args:
        scheduler: The scheduler that it extends.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        #: Lease tasks in ``processing`` that their node cannot grant now.
        self.stealable: set[TaskState] = set()
        #: Moves so far.
        self.count = 0
        scheduler.add_plugin(self, name="stealing")

    def put_key_in_stealable(self, ts: TaskState) -> None:
        """The node of a task cannot grant it."""
        if ts.state == "processing":
            self.stealable.add(ts)

    def remove_key_from_stealable(self, ts: TaskState) -> None:
        """The node of a task has granted it (Dask calls this at ``long-running``)."""
        self.stealable.discard(ts)

    def transition(
        self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any
    ) -> None:
        """A task changed its state."""
        if start == "processing" and self.stealable:
            ts = self.scheduler.tasks.get(key)
            if ts is not None:
                self.stealable.discard(ts)

    def move(self, ts: TaskState, address: str) -> None:
        """Gives a task that is ``processing`` to another node."""
        scheduler = self.scheduler
        victim, thief = ts.processing_on, scheduler.workers[address]
        assert victim is not None
        self.stealable.discard(ts)
        self.count += 1
        ts.processing_on = thief
        victim.remove_from_processing(ts)
        scheduler.release_resources(ts, victim)
        thief.add_to_processing(ts)
        scheduler.acquire_resources(ts, thief)
        scheduler.send_task_to_worker(address, ts)
