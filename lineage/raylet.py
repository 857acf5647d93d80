"""The lease machine of one node: who may run on which executor, with what.

A *lease* is the right to run on one executor with given resources. Its life:

    UNKNOWN -> WAITING -> (STARTING ->) GRANTED -> FINISHED

WAITING holds nothing; STARTING holds its resources and waits for a forked
executor; GRANTED holds both. An *executor* is STARTING (forked, has not reported),
IDLE, LEASED or LEAVING (told to go). Four rules always hold:

1. The sum of what leases and bundles hold plus what is available is the total.
2. An executor serves one lease at a time, and after its first lease only the same
   job and environment.
3. Requests of one shape are granted in arrival order; a request that fits is
   granted past one that does not fit.
4. Nothing is granted that needs a resource of which less than that is available.

Any event may come twice or late: lease ids are made by the requester and a finished
id is remembered, so a doubled request or return changes nothing.

Placement group bundles are reserved by the same queue: a reservation is a request
that needs no executor, and leases inside a group draw on its bundles.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

from rayshim.lineage import lease_events as ev
from rayshim.lineage.lease_events import Command, EnvKey, LeaseRequested
from rayshim.lineage.leases import (
    Bundle,
    Executor,
    ExecutorState,
    Lease,
    LeaseState,
    Reservation,
    Shape,
)
from rayshim.lineage.resources import CPU, UNITS, ResourceSet

#: Seconds after which an executor beyond the prestarted ones leaves.
IDLE_LIMIT_S = 60.0
#: Seconds that an executor may take to leave before it is killed.
LEAVE_LIMIT_S = 5.0
#: Executors that die before their first report, in a row, after which requests fail.
START_ATTEMPTS = 3
#: Finished lease ids that are remembered against late messages.
REMEMBERED = 4096
#: Events kept for :meth:`Raylet.story`.
STORY_EVENTS = 2048


class InvalidTransition(Exception):
    """An event that its subject's state does not allow."""

    def __init__(
        self, subject: bytes, state: Enum | None, event: object, story: list[str]
    ) -> None:
        name = state.name if state else "unknown"
        lines = "\n".join(story)
        super().__init__(f"{subject.hex()} is {name} and cannot take {event}\n{lines}")


class Raylet:
    """The machine. See the module's text for its rules.

    Args:
        resources: All that the node has.
        new_worker_id: Gives a fresh id for each call.
        prestart: Executors, idle or running tasks, that are kept at least.
        max_starting: Executors that may be starting at once.
    """

    def __init__(
        self,
        resources: ResourceSet,
        new_worker_id: Callable[[], bytes],
        *,
        prestart: int = 0,
        max_starting: int = 8,
    ) -> None:
        self.resources = resources
        self._new_worker_id = new_worker_id
        self.prestart = prestart
        self._max_starting = max_starting
        #: Lease id -> lease in WAITING, STARTING or GRANTED.
        self.leases: dict[bytes, Lease] = {}
        #: Holder -> ids of its leases, in order of request.
        self._held: dict[str, dict[bytes, None]] = {}
        #: Shape -> leases in WAITING and reservations, by arrival.
        self._waiting: dict[Shape, deque[Lease | Reservation]] = {}
        #: Exactly the leases in STARTING, by grant of their resources.
        self._starting: deque[Lease] = deque()
        #: Ids of finished leases, oldest first.
        self._finished: OrderedDict[bytes, None] = OrderedDict()
        #: Worker id -> executor that has not exited.
        self.executors: dict[bytes, Executor] = {}
        #: Exactly the executors in STARTING.
        self._booting: set[bytes] = set()
        #: Exactly the executors in IDLE or with a lease that is not fixed.
        self._reserve: set[bytes] = set()
        #: Exactly the leases in GRANTED that are not fixed, by grant.
        self._reclaimable: dict[bytes, Lease] = {}
        #: (job, env) -> executors in IDLE; ``(b"", ())`` is for unused ones.
        self._idle: dict[tuple[bytes, EnvKey], list[Executor]] = {}
        #: Group -> its bundles.
        self.groups: dict[bytes, list[Bundle]] = {}
        #: Group -> its reservation that waits.
        self._reservations: dict[bytes, Reservation] = {}
        self._removed_groups: OrderedDict[bytes, None] = OrderedDict()
        self._arrivals = 0
        self._failed_starts = 0
        self._events: deque[tuple[float, Any]] = deque(maxlen=STORY_EVENTS)

    def handle(self, event: Any, now: float) -> list[Command]:
        """Takes one event at time ``now`` (seconds, monotonic).

        Raises:
            InvalidTransition: the event does not fit the state of its subject.
        """
        self._events.append((now, event))
        kind = type(event)
        state: Enum | None = None
        subject = b""
        if kind in _LEASE_EVENTS:
            subject = event.lease_id
            state = self._lease_state(subject)
        elif kind in _EXECUTOR_EVENTS:
            subject = event.worker_id
            executor = self.executors.get(subject)
            state = executor.state if executor else ExecutorState.ABSENT
        method = _TABLE.get((state, kind))
        if method is None:
            raise InvalidTransition(subject, state, event, self.story(subject))
        return method(self, event, now)

    def story(self, subject: bytes) -> list[str]:
        """The remembered events that name ``subject`` (a lease, worker or group)."""
        return [
            f"{now:.6f} {event}"
            for now, event in self._events
            if subject
            in (
                getattr(event, "lease_id", None),
                getattr(event, "worker_id", None),
                getattr(event, "group", None),
            )
        ]

    def _lease_state(self, lease_id: bytes) -> LeaseState:
        lease = self.leases.get(lease_id)
        if lease is not None:
            return lease.state
        known = lease_id in self._finished
        return LeaseState.FINISHED if known else LeaseState.UNKNOWN

    # Leases.

    def _request(self, event: LeaseRequested, now: float) -> list[Command]:
        if event.group and event.group in self._removed_groups:
            self._remember(event.lease_id)
            return [_removed(event)]
        self._arrivals += 1
        lease = Lease(event, self._arrivals, now)
        self.leases[event.lease_id] = lease
        self._held.setdefault(event.holder, {})[event.lease_id] = None
        self._waiting.setdefault(lease.shape, deque()).append(lease)
        return self._schedule(now)

    def _repeat(self, event: LeaseRequested, now: float) -> list[Command]:
        return [_grant(self.leases[event.lease_id])]

    def _ignore(self, event: Any, now: float) -> list[Command]:
        return []

    def _cancel(self, event: ev.LeaseCancelled, now: float) -> list[Command]:
        lease = self.leases[event.lease_id]
        request = lease.request
        self._finish(lease, now)
        reason = f"the request for {request.label} was cancelled"
        rejected = ev.RejectLease(event.lease_id, request.holder, reason, "cancelled")
        return [rejected, *self._schedule(now)]

    def _return(self, event: ev.LeaseReturned, now: float) -> list[Command]:
        lease = self.leases[event.lease_id]
        executor = lease.executor
        self._finish(lease, now)
        commands: list[Command] = []
        if executor is not None:
            if event.dispose:
                self._leaves(executor, now)
                commands.append(ev.InterruptExecutor(executor.worker_id, "disposed"))
            else:
                commands += self._idles(executor, now)
        return commands + self._schedule(now)

    def _shrink(self, event: ev.LeaseShrunk, now: float) -> list[Command]:
        lease = self.leases[event.lease_id]
        assert lease.allocation is not None and lease.source is not None
        lease.source.shrink(lease.allocation, event.need)
        return self._schedule(now)

    def _kill(self, event: ev.LeaseKilled, now: float) -> list[Command]:
        executor = self.leases[event.lease_id].executor
        assert executor is not None
        return [ev.EndExecutor(executor.worker_id)]

    # Executors.

    def _ready(self, event: ev.ExecutorReady, now: float) -> list[Command]:
        executor = self.executors[event.worker_id]
        executor.address = event.address
        executor.pid = event.pid
        self._failed_starts = 0
        self._booting.discard(event.worker_id)
        commands = self._idles(executor, now)
        return commands + self._balance(now)

    def _exit(self, event: ev.ExecutorExited, now: float) -> list[Command]:
        executor = self.executors.pop(event.worker_id)
        self._booting.discard(event.worker_id)
        self._reserve.discard(event.worker_id)
        commands: list[Command] = []
        if executor.state is ExecutorState.IDLE:
            self._idle[executor.job_id, executor.env].remove(executor)
        elif executor.state is ExecutorState.STARTING:
            self._failed_starts += 1
            if self._failed_starts >= START_ATTEMPTS:
                commands += self._give_up(event.reason, now)
        lease = executor.lease
        if lease is not None:
            self._finish(lease, now)
            group = lease.request.group
            removed = bool(group) and group in self._removed_groups
            commands.append(
                ev.ReportLost(
                    lease.request.lease_id,
                    lease.request.holder,
                    "its placement group was removed" if removed else event.reason,
                    event.exit_code,
                    event.out_of_memory,
                    "removed" if removed else "",
                )
            )
        commands += self._drop_holder(executor.address, now)
        return commands + self._schedule(now)

    def _block(self, event: ev.ExecutorBlocked, now: float) -> list[Command]:
        executor = self.executors[event.worker_id]
        lease = executor.lease
        if lease is None or lease.allocation is None or lease.source is None:
            return []
        executor.is_blocked = event.blocked
        if not event.blocked:
            lease.source.reclaim_cpu(lease.allocation)
            return []
        if not lease.source.lend_cpu(lease.allocation):
            return []
        return self._schedule(now)

    def _give_up(self, reason: str, now: float) -> list[Command]:
        """Rejects what waits for an executor, since none can start."""
        self._failed_starts = 0
        commands: list[Command] = []
        text = f"{START_ATTEMPTS} executors in a row died while starting ({reason})"
        while self._starting:
            lease = self._starting[0]
            self._finish(lease, now)
            request = lease.request
            commands.append(
                ev.RejectLease(request.lease_id, request.holder, text, "setup")
            )
        # Without this a broken start would be tried for ever.
        self.prestart = 0
        return commands

    # Peers, jobs, time.

    def _holder_gone(self, event: ev.HolderGone, now: float) -> list[Command]:
        return self._drop_holder(event.holder, now) + self._schedule(now)

    def _drop_holder(self, holder: str, now: float) -> list[Command]:
        commands: list[Command] = []
        for lease_id in list(self._held.get(holder, ())):
            lease = self.leases[lease_id]
            executor = lease.executor
            self._finish(lease, now)
            if executor is not None:
                self._leaves(executor, now)
                commands.append(ev.EndExecutor(executor.worker_id))
        return commands

    def _job_ended(self, event: ev.JobEnded, now: float) -> list[Command]:
        commands: list[Command] = []
        for lease in list(self.leases.values()):
            request = lease.request
            if request.job_id == event.job_id and not request.fixed:
                self._finish(lease, now)
        for executor in self.executors.values():
            if executor.job_id == event.job_id and executor.lease is None:
                self._leaves(executor, now)
                commands.append(ev.EndExecutor(executor.worker_id))
        return commands + self._schedule(now)

    def _time_passed(self, event: ev.TimePassed, now: float) -> list[Command]:
        commands: list[Command] = []
        idle = [executor for pool in self._idle.values() for executor in pool]
        idle.sort(key=lambda executor: executor.since_s)
        kept = max(self.prestart, self.resources.total.get(CPU, 0) // UNITS)
        for executor in idle[: max(0, len(idle) - kept)]:
            if now - executor.since_s >= IDLE_LIMIT_S:
                self._leaves(executor, now)
                commands.append(ev.InterruptExecutor(executor.worker_id, "idle"))
        for executor in self.executors.values():
            if executor.state is ExecutorState.LEAVING and (
                now - executor.since_s >= LEAVE_LIMIT_S
            ):
                commands.append(ev.EndExecutor(executor.worker_id))
        return commands + self._balance(now)

    # Placement groups.

    def _reserve_bundles(self, event: ev.BundlesRequested, now: float) -> list[Command]:
        group = event.group
        if group in self._removed_groups or group in self._reservations:
            return []
        if group in self.groups:
            return [ev.ReportBundles(group)]
        self._arrivals += 1
        reservation = Reservation(event, self._arrivals, now)
        self._reservations[group] = reservation
        self._waiting.setdefault(reservation.shape, deque()).append(reservation)
        return self._schedule(now)

    def _remove_group(self, event: ev.BundlesRemoved, now: float) -> list[Command]:
        group = event.group
        _bounded(self._removed_groups, group)
        reservation = self._reservations.pop(group, None)
        if reservation is not None:
            self._leave_queue(reservation)
        commands: list[Command] = []
        bundles = self.groups.pop(group, [])
        inside = {id(bundle.resources) for bundle in bundles}
        for lease in list(self.leases.values()) if self.leases else ():
            if lease.request.group != group:
                continue
            if lease.state is LeaseState.GRANTED:
                assert lease.executor is not None
                commands.append(ev.EndExecutor(lease.executor.worker_id))
            else:
                self._finish(lease, now)
                commands.append(_removed(lease.request))
        # Leases that still run in the bundles go on to hold a part of the node.
        for lease in self.leases.values():
            if id(lease.source) in inside:
                lease.source = self.resources
        for bundle in bundles:
            self.resources.release_rest(bundle.resources)
        return commands + self._schedule(now)

    # Scheduling.

    def _schedule(self, now: float) -> list[Command]:
        """Grants what fits, by arrival; asks holders back for what does not."""
        commands: list[Command] = []
        if self._waiting:
            heads = [(queue[0].number, shape) for shape, queue in self._waiting.items()]
            heapq.heapify(heads)
            while heads:
                _, shape = heads[0]
                queue = self._waiting[shape]
                if not self._try_grant(queue[0], commands, now):
                    heapq.heappop(heads)
                    continue
                queue.popleft()
                if queue:
                    heapq.heapreplace(heads, (queue[0].number, shape))
                else:
                    del self._waiting[shape]
                    heapq.heappop(heads)
            if self._waiting:
                commands += self._ask_back()
        return commands + self._balance(now)

    def _try_grant(
        self, waiter: Lease | Reservation, commands: list[Command], now: float
    ) -> bool:
        if isinstance(waiter, Reservation):
            return self._try_reserve(waiter, commands)
        request = waiter.request
        for source in self._sources(request.group, request.bundle):
            allocation = source.acquire(request.need)
            if allocation is not None:
                break
        else:
            return False
        waiter.allocation = allocation
        waiter.source = source
        waiter.since_s = now
        waiter.asked.clear()
        executor = self._take_idle(request)
        if executor is None:
            waiter.state = LeaseState.STARTING
            self._starting.append(waiter)
        else:
            commands.append(self._bind(waiter, executor, now))
        return True

    def _try_reserve(self, waiter: Reservation, commands: list[Command]) -> bool:
        bundles: list[Bundle] = []
        for need in waiter.bundles:
            allocation = self.resources.acquire(dict(need))
            if allocation is None:
                for bundle in bundles:
                    self.resources.release(bundle.allocation)
                return False
            bundles.append(Bundle(allocation))
        self.groups[waiter.group] = bundles
        del self._reservations[waiter.group]
        commands.append(ev.ReportBundles(waiter.group))
        return True

    def _sources(self, group: bytes, bundle: int) -> Iterable[ResourceSet]:
        """The sets that a request may draw on."""
        if not group:
            return (self.resources,)
        bundles = self.groups.get(group, [])
        if bundle >= 0:
            bundles = bundles[bundle : bundle + 1]
        return [one.resources for one in bundles]

    def _ask_back(self) -> Iterator[Command]:
        """Asks once, for each first request of a shape, what would help it."""
        for queue in self._waiting.values():
            head = queue[0]
            if isinstance(head, Reservation):
                need, group, bundle = head.need, b"", -1
                request = None
            else:
                request = head.request
                need, group, bundle = request.need, request.group, request.bundle
            for source in self._sources(group, bundle):
                if not source.is_feasible(need):
                    continue
                missing = source.missing(need)
                for lease_id, lease in self._reclaimable.items():
                    if (
                        lease.source is source
                        and lease_id not in head.asked
                        and lease.allocation is not None
                        and not missing.keys().isdisjoint(lease.allocation.units)
                        and not (request and _is_same_class(request, lease.request))
                    ):
                        head.asked.add(lease_id)
                        yield ev.AskBack(lease_id, lease.request.holder)

    def _take_idle(self, request: LeaseRequested) -> Executor | None:
        """An idle executor for ``request``; actors take unused ones only."""
        if not request.fixed:
            pool = self._idle.get((request.job_id, request.env))
            if pool:
                return pool.pop()
        pool = self._idle.get((b"", ()))
        return pool.pop() if pool else None

    def _bind(self, lease: Lease, executor: Executor, now: float) -> ev.GrantLease:
        lease.state = LeaseState.GRANTED
        lease.executor = executor
        lease.since_s = now
        executor.state = ExecutorState.LEASED
        executor.lease = lease
        executor.since_s = now
        executor.is_blocked = False
        if lease.request.fixed:
            self._reserve.discard(executor.worker_id)
        else:
            self._reserve.add(executor.worker_id)
            self._reclaimable[lease.request.lease_id] = lease
        executor.job_id = lease.request.job_id
        executor.env = lease.request.env
        return _grant(lease)

    def _idles(self, executor: Executor, now: float) -> list[Command]:
        """Gives a free executor to a lease that waits for one, or keeps it."""
        is_used = bool(executor.job_id)
        for lease in self._starting:
            request = lease.request
            if not is_used or (
                not request.fixed
                and request.job_id == executor.job_id
                and request.env == executor.env
            ):
                self._starting.remove(lease)
                return [self._bind(lease, executor, now)]
        executor.state = ExecutorState.IDLE
        executor.since_s = now
        self._reserve.add(executor.worker_id)
        self._idle.setdefault((executor.job_id, executor.env), []).append(executor)
        return []

    def _leaves(self, executor: Executor, now: float) -> None:
        """Takes an executor that has no lease out of use."""
        if executor.state is ExecutorState.IDLE:
            self._idle[executor.job_id, executor.env].remove(executor)
        self._reserve.discard(executor.worker_id)
        executor.state = ExecutorState.LEAVING
        executor.since_s = now

    def _balance(self, now: float) -> list[Command]:
        """Forks executors for leases that wait for one and for the reserve."""
        booting = len(self._booting)
        room = self._max_starting - booting
        wanted = len(self._starting) - booting
        if wanted < room and len(self._reserve) < self.prestart:
            soft = sum(not lease.request.fixed for lease in self._starting)
            wanted += max(0, self.prestart - len(self._reserve) - soft)
        commands: list[Command] = []
        for _ in range(min(wanted, room)):
            worker_id = self._new_worker_id()
            self.executors[worker_id] = Executor(worker_id, now)
            self._booting.add(worker_id)
            commands.append(ev.StartExecutor(worker_id))
        return commands

    def _finish(self, lease: Lease, now: float) -> None:
        """Frees all that a lease holds and forgets it."""
        request = lease.request
        if lease.state is LeaseState.WAITING:
            self._leave_queue(lease)
        elif lease.state is LeaseState.STARTING:
            self._starting.remove(lease)
        if lease.allocation is not None and lease.source is not None:
            lease.source.release(lease.allocation)
        if lease.executor is not None:
            lease.executor.lease = None
            lease.executor.since_s = now
            lease.executor = None
            self._reclaimable.pop(request.lease_id, None)
        lease.state = LeaseState.FINISHED
        del self.leases[request.lease_id]
        held = self._held[request.holder]
        del held[request.lease_id]
        if not held:
            del self._held[request.holder]
        self._remember(request.lease_id)

    def _leave_queue(self, waiter: Lease | Reservation) -> None:
        queue = self._waiting[waiter.shape]
        queue.remove(waiter)
        if not queue:
            del self._waiting[waiter.shape]

    def _remember(self, lease_id: bytes) -> None:
        _bounded(self._finished, lease_id)


def _grant(lease: Lease) -> ev.GrantLease:
    executor, allocation = lease.executor, lease.allocation
    assert executor is not None and allocation is not None
    return ev.GrantLease(
        lease.request.lease_id,
        lease.request.holder,
        executor.worker_id,
        executor.address,
        executor.pid,
        allocation.units,
        allocation.gpu_ids,
    )


def _removed(request: LeaseRequested) -> ev.RejectLease:
    reason = f"the placement group of {request.label} was removed"
    return ev.RejectLease(request.lease_id, request.holder, reason, "removed")


def _is_same_class(one: LeaseRequested, other: LeaseRequested) -> bool:
    """Whether a holder would only exchange one lease for another of its own."""
    return (
        one.holder == other.holder
        and one.label == other.label
        and one.need == other.need
        and one.env == other.env
        and one.group == other.group
    )


def _bounded(ids: OrderedDict[bytes, None], new_id: bytes) -> None:
    ids[new_id] = None
    if len(ids) > REMEMBERED:
        ids.popitem(last=False)


_LEASE_EVENTS = frozenset(
    (
        ev.LeaseRequested,
        ev.LeaseCancelled,
        ev.LeaseReturned,
        ev.LeaseShrunk,
        ev.LeaseKilled,
    )
)
_EXECUTOR_EVENTS = frozenset((ev.ExecutorReady, ev.ExecutorExited, ev.ExecutorBlocked))

_L, _X, _R = LeaseState, ExecutorState, Raylet
_Method = Callable[[Raylet, Any, float], list[Command]]
#: (state of the lease or executor, event) -> method; None where there is no subject.
_TABLE: dict[tuple[Enum | None, type], _Method] = {
    (_L.UNKNOWN, ev.LeaseRequested): _R._request,
    (_L.WAITING, ev.LeaseRequested): _R._ignore,
    (_L.STARTING, ev.LeaseRequested): _R._ignore,
    (_L.GRANTED, ev.LeaseRequested): _R._repeat,
    (_L.FINISHED, ev.LeaseRequested): _R._ignore,
    (_L.UNKNOWN, ev.LeaseCancelled): _R._ignore,
    (_L.WAITING, ev.LeaseCancelled): _R._cancel,
    (_L.STARTING, ev.LeaseCancelled): _R._cancel,
    (_L.GRANTED, ev.LeaseCancelled): _R._ignore,
    (_L.FINISHED, ev.LeaseCancelled): _R._ignore,
    (_L.UNKNOWN, ev.LeaseReturned): _R._ignore,
    (_L.WAITING, ev.LeaseReturned): _R._return,
    (_L.STARTING, ev.LeaseReturned): _R._return,
    (_L.GRANTED, ev.LeaseReturned): _R._return,
    (_L.FINISHED, ev.LeaseReturned): _R._ignore,
    (_L.UNKNOWN, ev.LeaseShrunk): _R._ignore,
    (_L.GRANTED, ev.LeaseShrunk): _R._shrink,
    (_L.FINISHED, ev.LeaseShrunk): _R._ignore,
    (_L.UNKNOWN, ev.LeaseKilled): _R._ignore,
    (_L.WAITING, ev.LeaseKilled): _R._cancel,
    (_L.STARTING, ev.LeaseKilled): _R._cancel,
    (_L.GRANTED, ev.LeaseKilled): _R._kill,
    (_L.FINISHED, ev.LeaseKilled): _R._ignore,
    (_X.ABSENT, ev.ExecutorReady): _R._ignore,
    (_X.STARTING, ev.ExecutorReady): _R._ready,
    (_X.IDLE, ev.ExecutorReady): _R._ignore,
    (_X.LEASED, ev.ExecutorReady): _R._ignore,
    (_X.LEAVING, ev.ExecutorReady): _R._ignore,
    (_X.ABSENT, ev.ExecutorExited): _R._ignore,
    (_X.STARTING, ev.ExecutorExited): _R._exit,
    (_X.IDLE, ev.ExecutorExited): _R._exit,
    (_X.LEASED, ev.ExecutorExited): _R._exit,
    (_X.LEAVING, ev.ExecutorExited): _R._exit,
    (_X.ABSENT, ev.ExecutorBlocked): _R._ignore,
    (_X.IDLE, ev.ExecutorBlocked): _R._ignore,
    (_X.LEASED, ev.ExecutorBlocked): _R._block,
    (_X.LEAVING, ev.ExecutorBlocked): _R._ignore,
    (None, ev.HolderGone): _R._holder_gone,
    (None, ev.JobEnded): _R._job_ended,
    (None, ev.BundlesRequested): _R._reserve_bundles,
    (None, ev.BundlesRemoved): _R._remove_group,
    (None, ev.TimePassed): _R._time_passed,
}
