"""The lease machine of one node, two holders and the executors, for the explorer.

Each holder has a channel to the node and one back, in order. What the node decides
about executors (start, interrupt, end) is done at any later time. ``doubled`` messages
of holders come a second time, behind all that was on its way then: the machine is to
tolerate that for each of them, since lease ids are made by the requester.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from rayshim.lineage import lease_events as ev
from rayshim.lineage.explore import Step
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import CPU, UNITS, ResourceSet


class WorkerIds:
    """Ids of executors, in order."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        return b"w%d" % self.count


class Leases:
    """A node and those who want to run on it.

    Args:
        holders: a letter for each; lower case ones share the first one's job.
        leases: how many leases are asked for, in all.
        cpus: of the node; each lease wants one.
        deaths: how many executors may die.
        leavers: how many holders may die.
        doubles: how many messages of holders may come twice.
        blocks: how often a call may wait in ``get``.
        cancels: how many requests may be cancelled.
        disposals: how many leases may be returned with their executor spent.
    """

    def __init__(
        self,
        holders: str = "HG",
        *,
        leases: int = 2,
        cpus: int = 1,
        deaths: int = 0,
        leavers: int = 0,
        doubles: int = 0,
        blocks: int = 0,
        cancels: int = 0,
        disposals: int = 0,
    ) -> None:
        self.options = {
            name: value
            for name, value in locals().items()
            if name in Leases.__init__.__kwdefaults__
        }
        self.holders = holders
        self.left = dict(self.options)
        self.raylet = Raylet(
            ResourceSet({CPU: cpus * UNITS}), WorkerIds(), max_starting=2
        )
        #: Holder -> messages to the node, and from it.
        self.up: dict[str, list[Any]] = {one: [] for one in holders}
        self.down: dict[str, list[Any]] = {one: [] for one in holders}
        self.dead: set[str] = set()
        self.buried: set[str] = set()
        #: Lease -> holder, for all ever asked for.
        self.asked: dict[bytes, str] = {}
        #: Lease -> worker, as its holder knows it: granted and not returned.
        self.granted: dict[bytes, bytes] = {}
        #: Leases that their holder does not wait for any more.
        self.over: set[bytes] = set()
        #: Worker -> "starting", "up" or "gone", as the processes are.
        self.workers: dict[bytes, str] = {}
        #: Orders about executors that are not carried out yet.
        self.orders: list[Any] = []
        self.blocked: set[bytes] = set()
        #: News from executors to the node: in order, each executor by itself.
        self.news: dict[bytes, list[Any]] = {}

    def __repr__(self) -> str:
        default = Leases.__init__.__kwdefaults__
        parts = [repr(self.holders)]
        parts += [f"{k}={v!r}" for k, v in self.options.items() if v != default[k]]
        return f"Leases({', '.join(parts)})"

    # -- the world as the explorer sees it ---------------------------------------

    def clone(self) -> Leases:
        """A copy through pickle, which keeps what is shared inside the machine."""
        self.raylet._story._events.clear()
        twin: Leases = pickle.loads(pickle.dumps(self, 5))
        return twin

    def key(self) -> Any:
        """All that matters, in one order."""
        raylet = self.raylet
        return (
            sorted(self.left.items()),
            sorted(raylet.resources.available.items()),
            [
                (one.worker_id, one.state.name, one.is_blocked, one.job_id)
                for one in raylet.executors
            ],
            [
                (
                    key,
                    one.state.name,
                    one.executor and one.executor.worker_id,
                    one.asked_back.name,
                    one.allocation and one.allocation.lent_cpu,
                )
                for key, one in raylet.leases.items()
            ],
            list(raylet._finished),
            sorted((k, len(v)) for k, v in raylet._waiting.items()),
            raylet._failed_starts,
            self.up,
            self.down,
            sorted(self.dead),
            sorted(self.buried),
            sorted(self.asked.items()),
            sorted(self.granted.items()),
            sorted(self.over),
            sorted(self.workers.items()),
            self.orders,
            sorted(self.blocked),
            sorted(self.news.items()),
        )

    def steps(self) -> Iterator[Step]:
        """Everything that can happen."""
        for holder in self.holders:
            if self.up[holder]:
                yield "deliver_up", holder
                if self.left["doubles"] and self.up[holder][0] != "end":
                    yield "deliver_twice", holder
            if holder in self.dead:
                continue
            if self.down[holder]:
                yield "deliver_down", holder
            if self.left["leases"]:
                yield "ask", holder
            if self.left["leavers"]:
                yield "leave", holder
        for lease, worker in self.granted.items():
            if self.asked[lease] in self.dead:
                continue
            yield "give_back", lease, False
            if self.left["disposals"]:
                yield "give_back", lease, True
            if self.workers[worker] == "up":
                if self.left["blocks"] and worker not in self.blocked:
                    yield "block", worker, True
                if worker in self.blocked:
                    yield "block", worker, False
        if self.left["cancels"]:
            for lease, holder in self.asked.items():
                is_open = lease not in self.granted and lease not in self.over
                if is_open and holder not in self.dead:
                    yield "cancel", lease
        for worker, state in self.workers.items():
            if state == "starting":
                yield "come_up", worker
            if self.left["deaths"] and state != "gone":
                yield "crash", worker
            if self.news.get(worker):
                yield "report", worker
        if self.orders:
            yield ("obey",)

    def check(self) -> None:
        """The sums are right, nobody shares, and no lease is lost."""
        raylet = self.raylet
        raylet.validate()
        users: dict[bytes, bytes] = {}
        for lease, worker in self.granted.items():
            if self.asked[lease] in self.dead or lease in self.over:
                continue
            if self.workers[worker] == "gone":
                continue
            other = users.setdefault(worker, lease)
            assert other == lease, f"{other!r} and {lease!r} both have {worker!r}"
        if any(step[0] in _PROGRESS for step in self.steps()):
            return
        for lease, holder in self.asked.items():
            if holder in self.dead or lease in self.over:
                assert lease not in raylet.leases, f"{lease!r} is over and still there"
            elif lease in self.granted:
                known = raylet.leases.get(lease)
                assert known is not None and known.executor is not None, (
                    f"{holder} has {lease!r} and the node does not know"
                )
            else:
                assert lease in raylet.leases, f"{lease!r} is lost"
        free = raylet.resources.available[CPU]
        waits = [one for one in raylet.leases.values() if one.executor is None]
        assert not waits or free < UNITS, "a lease waits though a CPU is free"
        if not raylet.leases:
            assert raylet.resources.available == raylet.resources.total

    # -- holders -----------------------------------------------------------------

    def ask(self, holder: str) -> None:
        """Request a lease."""
        self.left["leases"] -= 1
        lease = b"l%d" % len(self.asked)
        self.asked[lease] = holder
        job = b"j" if holder.islower() else holder.encode()
        need = {CPU: UNITS}
        self._tell(holder, ev.LeaseRequested(lease, holder, job, "f", need))

    def give_back(self, lease: bytes, dispose: bool) -> None:
        """Return a lease."""
        self.left["disposals"] -= dispose
        worker = self.granted.pop(lease)
        self.over.add(lease)
        if worker in self.blocked:
            self.block(worker, False)
        self._tell(self.asked[lease], ev.LeaseReturned(lease, dispose))

    def cancel(self, lease: bytes) -> None:
        """Take a request back: a grant that comes all the same is returned."""
        self.left["cancels"] -= 1
        self.over.add(lease)
        self._tell(self.asked[lease], ev.LeaseCancelled(lease))

    def leave(self, holder: str) -> None:
        """The holder's process dies."""
        self.left["leavers"] -= 1
        self.dead.add(holder)
        self.down[holder].clear()
        self.up[holder].append("end")

    def deliver_up(self, holder: str) -> None:
        """The node reads what a holder says."""
        event = self.up[holder].pop(0)
        if event == "end":
            event = ev.HolderGone(holder)
        self._handle(event)

    def deliver_twice(self, holder: str) -> None:
        """The same, and a copy stays behind all that is on its way."""
        self.left["doubles"] -= 1
        queue = self.up[holder]
        queue.insert(len(queue) - (queue[-1] == "end"), queue[0])
        self.deliver_up(holder)

    def deliver_down(self, holder: str) -> None:
        """A holder reads what the node says."""
        command = self.down[holder].pop(0)
        lease = command.lease_id
        if isinstance(command, ev.GrantLease):
            if lease in self.granted:
                assert self.granted[lease] == command.worker_id
            elif lease not in self.over:
                self.granted[lease] = command.worker_id
            else:
                self._tell(holder, ev.LeaseReturned(lease, False))
        elif isinstance(command, ev.RejectLease | ev.ReportLost):
            self.granted.pop(lease, None)
            self.over.add(lease)

    def _tell(self, holder: str, event: Any) -> None:
        self.up[holder].append(event)

    # -- executors ---------------------------------------------------------------

    def obey(self) -> None:
        """Carry out the oldest order about an executor."""
        order = self.orders.pop(0)
        worker = order.worker_id
        if isinstance(order, ev.StartExecutor):
            self.workers[worker] = "starting"
        else:
            self._end(worker)

    def come_up(self, worker: bytes) -> None:
        """A forked executor says hello."""
        self.workers[worker] = "up"
        self.news.setdefault(worker, []).append(
            ev.ExecutorReady(worker, worker.decode(), 1)
        )

    def crash(self, worker: bytes) -> None:
        """SIGKILL."""
        self.left["deaths"] -= 1
        self._end(worker)

    def _end(self, worker: bytes) -> None:
        if self.workers.get(worker) != "gone":
            self.workers[worker] = "gone"
            self.blocked.discard(worker)
            self.news.setdefault(worker, []).append(
                ev.ExecutorExited(worker, "killed", -9)
            )

    def block(self, worker: bytes, is_blocked: bool) -> None:
        """The call of an executor waits in ``get``, or no more."""
        self.left["blocks"] -= is_blocked
        (self.blocked.add if is_blocked else self.blocked.discard)(worker)
        self.news.setdefault(worker, []).append(ev.ExecutorBlocked(worker, is_blocked))

    def report(self, worker: bytes) -> None:
        """The node hears from or about an executor."""
        event = self.news[worker].pop(0)
        if not self.news[worker]:
            del self.news[worker]
        self._handle(event)

    def _handle(self, event: Any) -> None:
        for command in self.raylet.handle(event, 0.0):
            if isinstance(
                command, ev.StartExecutor | ev.InterruptExecutor | ev.EndExecutor
            ):
                self.orders.append(command)
            elif command.holder not in self.dead:
                self.down[command.holder].append(command)


_PROGRESS = {"deliver_up", "deliver_down", "come_up", "report", "obey"}
