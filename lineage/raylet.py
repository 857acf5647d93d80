"""The lease machine of one node: who may run on which executor, with what.

A *lease* is the right to run on one executor with given resources. Its life:

    UNKNOWN -> WAITING -> (STARTING ->) GRANTED -> FINISHED
    UNKNOWN -> FORWARDED -> WAITING or FINISHED,  WAITING -> FINISHED

WAITING holds nothing; STARTING holds its resources and waits for a forked executor;
GRANTED holds both; FORWARDED waits for the control service to name a node. In a
cluster the control service also looks for another node while a request is WAITING:
what comes first wins, and a request that goes elsewhere is FINISHED here (unless it
comes back, with more hops than before). Four rules always hold:

1. The sum of what leases and bundles hold plus what is available is the total.
2. An executor serves one lease at a time, and after its first lease only the same
   job and environment.
3. Requests of one class are granted in arrival order, classes and jobs have their
   shares (:mod:`.shares`), and a request that fits is granted past one that does not
   fit, unless that one has waited for long.
4. Nothing is granted that needs a resource of which less than that is available.

Any event may come twice or late: lease ids are made by the requester and a finished
id is remembered, so a doubled request or return changes nothing.

Placement group bundles are reserved by the same queue: a reservation is a request
that needs no executor, and leases inside a group draw on its bundles.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

from rayshim.lineage import asking_back, bundles, granting, spillback
from rayshim.lineage import lease_events as ev
from rayshim.lineage.executors import ExecutorSet
from rayshim.lineage.lease_events import Command, LeaseRequested
from rayshim.lineage.leases import (
    LIFE_HOPS,
    NEVER_AGAIN,
    Bundle,
    Executor,
    ExecutorState,
    Lease,
    LeaseState,
    Reservation,
    Shape,
    grant,
    remember,
    removed,
)
from rayshim.lineage.resources import CPU, UNITS, ResourceSet, Units
from rayshim.lineage.shares import Shares, WaitingShape
from rayshim.lineage.transitions import InvalidTransition, Story

#: Executors that die before their first report, in a row, after which requests fail.
START_ATTEMPTS = 3


class Raylet:
    """The machine. See the module's text for its rules.

    Args:
        resources: All that the node has.
        new_worker_id: Gives a fresh id for each call.
        prestart: Executors, idle or running tasks, that are kept at least.
        max_starting: Executors that may be starting at once.
        is_clustered: Whether other nodes may grant what this one cannot.
    """

    def __init__(
        self,
        resources: ResourceSet,
        new_worker_id: Callable[[], bytes],
        *,
        prestart: int = 0,
        max_starting: int = 8,
        is_clustered: bool = False,
    ) -> None:
        self.resources = resources
        #: Whether other nodes may grant what this one cannot.
        self.is_clustered = is_clustered
        #: True once the node grants nothing any more.
        self.is_draining = False
        self.executors = ExecutorSet(
            new_worker_id,
            prestart=prestart,
            kept_idle=resources.total.get(CPU, 0) // UNITS,
            max_starting=max_starting,
        )
        #: Lease id -> lease in FORWARDED, WAITING, STARTING or GRANTED.
        self.leases: dict[bytes, Lease] = {}
        #: Holder -> ids of its leases, in order of request.
        self._held: dict[str, dict[bytes, None]] = {}
        #: Shape -> leases in WAITING and reservations; none is empty.
        self._waiting: dict[Shape, WaitingShape] = {}
        self.shares = Shares(resources.total)
        #: Exactly the leases in STARTING, by grant of their resources.
        self._starting: dict[bytes, Lease] = {}
        #: Exactly the leases in GRANTED that are not fixed, by grant.
        self._reclaimable: dict[bytes, Lease] = {}
        #: Lease id -> lease that was passed on so often that it stays for a while; also
        #: those that did not wait any more since the last look.
        self.resting: dict[bytes, Lease] = {}
        #: Ids of finished leases, oldest first -> hops that a request must have to be
        #: a new one.
        self._finished: OrderedDict[bytes, int] = OrderedDict()
        #: Group -> index -> bundle, for its bundles on this node; none is empty.
        self.groups: dict[bytes, dict[int, Bundle]] = {}
        #: Group -> its reservation that waits.
        self._reservations: dict[bytes, Reservation] = {}
        self._removed_groups: OrderedDict[bytes, int] = OrderedDict()
        self._arrivals = 0
        self._failed_starts = 0
        self._story = Story()

    def handle(self, event: Any, now: float) -> list[Command]:
        """Takes one event at time ``now`` (seconds, monotonic).

        Raises:
            InvalidTransition: the event does not fit the state of its subject.
        """
        self._story.add(event, now)
        kind = type(event)
        state: Enum | None = None
        subject = b""
        if kind in _LEASE_EVENTS:
            subject = event.lease_id
            state = self._lease_state(subject)
        elif kind in _EXECUTOR_EVENTS:
            subject = event.worker_id
            executor = self.executors.by_id.get(subject)
            state = executor.state if executor else ExecutorState.ABSENT
        method = _TABLE.get((state, kind))
        if method is None:
            raise InvalidTransition(subject, state, event, self.story(subject))
        return method(self, event, now)

    def story(self, subject: bytes) -> list[str]:
        """The remembered events that name ``subject`` (a lease, worker or group)."""
        return self._story.of(subject)

    def validate(self) -> None:
        """Checks the invariants.

        Raises:
            AssertionError: one does not hold.
        """
        from rayshim.lineage import raylet_rules  # Only tests need it.

        raylet_rules.check(self)

    # Leases.

    def _request(self, event: LeaseRequested, now: float) -> list[Command]:
        if event.group and event.group in self._removed_groups:
            remember(self._finished, event.lease_id)
            return [removed(event)]
        if self.is_draining and event.fixed:
            return [spillback.drained(event)]
        self._arrivals += 1
        lease = Lease(event, self._arrivals, now)
        self._finished.pop(event.lease_id, None)
        self.leases[event.lease_id] = lease
        self._held.setdefault(event.holder, {})[event.lease_id] = None
        if event.is_away or self.is_draining:
            return [spillback.forward(self, lease)]
        self._enqueue(lease)
        return self._schedule(now) + spillback.look_elsewhere(self, lease)

    def _renew(self, event: LeaseRequested, now: float) -> list[Command]:
        """A request that was passed on may come back."""
        if event.hops < self._finished[event.lease_id]:
            return []
        return self._request(event, now)

    def demand(self) -> Iterator[tuple[str, Units, int]]:
        """What waits here for the node: label of the first, need, count of each shape.

        What waits in bundles is not part of it.
        """
        for queue in self._waiting.values():
            head = queue.first()
            if isinstance(head, Lease) and not head.request.group:
                yield head.request.label, head.request.need, queue.backlog()

    def backlogs(self) -> dict[bytes, int]:
        """Lease id -> calls queued for its class, told with its first id only."""
        seen: dict[int, bytes] = {}
        for lease_id, lease in self.leases.items():
            if lease.share is not None:
                seen.setdefault(id(lease.share), lease_id)
        return {
            lease_id: share.backlog
            for lease_id in seen.values()
            if (share := self.leases[lease_id].share) is not None and share.backlog
        }

    @property
    def arrivals(self) -> int:
        """Requests and reservations so far."""
        return self._arrivals

    def has_bundle(self, group: bytes, index: int) -> bool:
        """Whether a bundle of a group (-1: any) is on this node."""
        bundles = self.groups.get(group)
        return bundles is not None and (index < 0 or index in bundles)

    def not_granted(self) -> list[bytes]:
        """Leases of the control service that wait here."""
        return [
            lease_id
            for lease_id, lease in self.leases.items()
            if lease.request.fixed and lease.executor is None
        ]

    def _repeat(self, event: LeaseRequested, now: float) -> list[Command]:
        return [grant(self.leases[event.lease_id])]

    def _ignore(self, event: Any, now: float) -> list[Command]:
        return []

    def _cancel(self, event: ev.LeaseCancelled, now: float) -> list[Command]:
        lease = self.leases[event.lease_id]
        request = lease.request
        commands = spillback.ask_no_more(self, lease)
        # With more hops it may come again: it was to go elsewhere.
        self._finish(lease, now, hops=request.hops + 1)
        reason = f"the request for {request.label} was cancelled"
        rejected = ev.RejectLease(event.lease_id, request.holder, reason, "cancelled")
        return [rejected, *commands, *self._schedule(now)]

    def _return(self, event: ev.LeaseReturned, now: float) -> list[Command]:
        lease = self.leases[event.lease_id]
        commands = spillback.ask_no_more(self, lease)
        executor = self._finish(lease, now)
        if executor is not None:
            if event.dispose:
                self.executors.leave(executor, now)
                commands.append(ev.InterruptExecutor(executor.worker_id, "disposed"))
            else:
                commands += self._employ(executor, now)
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
        self._failed_starts = 0
        commands = self._employ(self.executors.report(event), now)
        return commands + self._fork(now)

    def _exit(self, event: ev.ExecutorExited, now: float) -> list[Command]:
        executor = self.executors.remove(event.worker_id)
        commands: list[Command] = []
        if executor.state is ExecutorState.STARTING:
            self._failed_starts += 1
            if self._failed_starts >= START_ATTEMPTS:
                commands += self._give_up(event.reason, now)
        lease = executor.lease
        if lease is not None:
            request = lease.request
            self._finish(lease, now)
            is_removed = bool(request.group) and request.group in self._removed_groups
            commands.append(
                ev.ReportLost(
                    request.lease_id,
                    request.holder,
                    "its placement group was removed" if is_removed else event.reason,
                    event.exit_code,
                    event.out_of_memory,
                    "removed" if is_removed else "",
                )
            )
        commands += self._drop_holder(executor.address, now)
        return commands + self._schedule(now)

    def _block(self, event: ev.ExecutorBlocked, now: float) -> list[Command]:
        executor = self.executors.by_id[event.worker_id]
        lease = executor.lease
        assert lease is not None
        assert lease.allocation is not None and lease.source is not None
        executor.is_blocked = event.blocked
        if lease.request.fixed:
            # Actors hold their resources for life, as Ray's do.
            return []
        self.shares.lend(lease, event.blocked)
        if not event.blocked:
            lease.source.reclaim_cpu(lease.allocation)
            return []
        if not lease.source.lend_cpu(lease.allocation):
            return []
        return self._schedule(now)

    def _give_up(self, reason: str, now: float) -> list[Command]:
        """Rejects what waits for an executor, since none can start."""
        self._failed_starts = 0
        # Else a start that cannot succeed would be tried for ever.
        self.executors.prestart = 0
        text = f"{START_ATTEMPTS} executors in a row died while starting ({reason})"
        commands: list[Command] = []
        for lease in list(self._starting.values()):
            request = lease.request
            self._finish(lease, now)
            commands.append(
                ev.RejectLease(request.lease_id, request.holder, text, "setup")
            )
        return commands

    # Peers, jobs, time.

    def _holder_gone(self, event: ev.HolderGone, now: float) -> list[Command]:
        return self._drop_holder(event.holder, now) + self._schedule(now)

    def _drop_holder(self, holder: str, now: float) -> list[Command]:
        """Frees a dead peer's leases; what runs on them runs for nobody."""
        commands: list[Command] = []
        for lease_id in list(self._held.get(holder, ())):
            commands += spillback.ask_no_more(self, self.leases[lease_id])
            executor = self._finish(self.leases[lease_id], now)
            if executor is not None:
                self.executors.leave(executor, now)
                commands.append(ev.EndExecutor(executor.worker_id))
        return commands

    def _job_ended(self, event: ev.JobEnded, now: float) -> list[Command]:
        """Ends idle executors; leases end with their holders, who may be detached."""
        commands: list[Command] = []
        for executor in self.executors:
            if executor.job_id == event.job_id and executor.lease is None:
                self.executors.leave(executor, now)
                commands.append(ev.EndExecutor(executor.worker_id))
        return commands + self._schedule(now)

    def _time_passed(self, event: ev.TimePassed, now: float) -> list[Command]:
        again = spillback.look_again(self, now)
        # What a request guarded may be free for others now.
        return again + self.executors.expire(now) + self._schedule(now)

    # Scheduling.

    def _schedule(self, now: float) -> list[Command]:
        """Grants what fits, by rank; asks holders back for what does not."""
        commands: list[Command] = []
        while self._waiting:
            # Ranks change with each grant, and a group's bundles let others go.
            for waiter in granting.candidates(self, now):
                if self._try_grant(waiter, commands, now):
                    break
            else:
                break
        if self._waiting:
            commands += asking_back.ask_back(self, now)
        return commands + self._fork(now)

    def _try_grant(
        self, waiter: Lease | Reservation, commands: list[Command], now: float
    ) -> bool:
        if isinstance(waiter, Reservation):
            if not bundles.try_reserve(self, waiter, commands):
                return False
            self._leave_queue(waiter)
            return True
        request = waiter.request
        for source in self._sources(request.group, request.bundle):
            allocation = source.acquire(request.need)
            if allocation is not None:
                break
        else:
            return False
        self._leave_queue(waiter)
        waiter.allocation = allocation
        waiter.source = source
        waiter.since_s = now
        waiter.state = LeaseState.STARTING
        self._starting[request.lease_id] = waiter
        self.shares.took(waiter, now)
        if waiter.is_asked_elsewhere:
            commands += spillback.ask_no_more(self, waiter)
        executor = self.executors.take(request)
        if executor is not None:
            commands.append(self._bind(waiter, executor, now))
        return True

    def _sources(self, group: bytes, bundle: int) -> Iterable[ResourceSet]:
        """The sets that a request may draw on."""
        if not group:
            return (self.resources,)
        bundles = self.groups.get(group, {})
        if bundle >= 0:
            return [bundles[bundle].resources] if bundle in bundles else []
        return [bundles[index].resources for index in sorted(bundles)]

    def _bind(self, lease: Lease, executor: Executor, now: float) -> Command:
        lease_id = lease.request.lease_id
        del self._starting[lease_id]
        lease.state = LeaseState.GRANTED
        lease.executor = executor
        lease.since_s = now
        if not lease.request.fixed:
            self._reclaimable[lease_id] = lease
            self.shares.may_ask(lease)
        self.executors.bind(executor, lease, now)
        return grant(lease)

    def _employ(self, executor: Executor, now: float) -> list[Command]:
        """Gives a free executor to a lease that waits for one, or keeps it."""
        for lease in self._starting.values():
            if self.executors.suits(executor, lease.request):
                return [self._bind(lease, executor, now)]
        self.executors.keep(executor, now)
        return []

    def _fork(self, now: float) -> list[Command]:
        return self.executors.fork(self._starting.values(), now)

    def _finish(
        self, lease: Lease, now: float, hops: int = NEVER_AGAIN
    ) -> Executor | None:
        """Frees all that a lease holds; returns its executor, which is now free."""
        request, executor = lease.request, lease.executor
        if lease.state is LeaseState.WAITING:
            self._leave_queue(lease)
        self._starting.pop(request.lease_id, None)
        self._reclaimable.pop(request.lease_id, None)
        if lease.allocation is not None and lease.source is not None:
            lease.source.release(lease.allocation)
            self.shares.gave(lease, now)
        self.shares.forget(lease)
        lease.executor = None
        lease.state = LeaseState.FINISHED
        del self.leases[request.lease_id]
        if request.fixed and hops == NEVER_AGAIN:
            hops = (request.hops // LIFE_HOPS + 1) * LIFE_HOPS
        held = self._held[request.holder]
        del held[request.lease_id]
        if not held:
            del self._held[request.holder]
        remember(self._finished, request.lease_id, hops)
        return executor

    def _enqueue(self, waiter: Lease | Reservation) -> None:
        queue = self._waiting.setdefault(waiter.shape, WaitingShape())
        queue.count += 1
        if isinstance(waiter, Reservation):
            queue.reservation = waiter
            return
        share = self.shares.wait(waiter)
        queue.classes.setdefault(share.key, share)

    def _leave_queue(self, waiter: Lease | Reservation) -> None:
        queue = self._waiting[waiter.shape]
        queue.count -= 1
        if isinstance(waiter, Reservation):
            queue.reservation = None
        else:
            share = self.shares.wait_no_more(waiter)
            if not share.waiting:
                del queue.classes[share.key]
        if not queue.count:
            del self._waiting[waiter.shape]

    def _told(self, event: ev.BacklogTold, now: float) -> list[Command]:
        share = self.leases[event.lease_id].share
        if share is not None:
            share.backlog = event.backlog
        return []

    def _lease_state(self, lease_id: bytes) -> LeaseState:
        lease = self.leases.get(lease_id)
        if lease is not None:
            return lease.state
        is_known = lease_id in self._finished
        return LeaseState.FINISHED if is_known else LeaseState.UNKNOWN


_LEASE_EVENTS = frozenset(
    (
        ev.LeaseRequested,
        ev.LeaseCancelled,
        ev.LeaseSpilled,
        ev.LeaseAdmitted,
        ev.LeaseRefused,
        ev.LeaseReturned,
        ev.LeaseShrunk,
        ev.LeaseKilled,
        ev.BacklogTold,
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
    (_L.FINISHED, ev.LeaseRequested): _R._renew,
    (_L.FORWARDED, ev.LeaseRequested): _R._ignore,
    **{
        (state, kind): _R._ignore
        for state in (_L.UNKNOWN, _L.STARTING, _L.GRANTED, _L.FINISHED)
        for kind in (ev.LeaseSpilled, ev.LeaseAdmitted, ev.LeaseRefused)
    },
    (_L.WAITING, ev.LeaseSpilled): spillback.spill,
    (_L.FORWARDED, ev.LeaseSpilled): spillback.spill,
    (_L.WAITING, ev.LeaseAdmitted): spillback.stay,
    (_L.FORWARDED, ev.LeaseAdmitted): spillback.admit,
    (_L.WAITING, ev.LeaseRefused): spillback.refuse,
    (_L.FORWARDED, ev.LeaseRefused): spillback.refuse,
    (_L.UNKNOWN, ev.LeaseCancelled): _R._ignore,
    (_L.WAITING, ev.LeaseCancelled): _R._cancel,
    (_L.FORWARDED, ev.LeaseCancelled): _R._cancel,
    (_L.STARTING, ev.LeaseCancelled): _R._cancel,
    (_L.GRANTED, ev.LeaseCancelled): _R._ignore,
    (_L.FINISHED, ev.LeaseCancelled): _R._ignore,
    (_L.UNKNOWN, ev.LeaseReturned): _R._ignore,
    (_L.WAITING, ev.LeaseReturned): _R._return,
    (_L.FORWARDED, ev.LeaseReturned): _R._return,
    (_L.STARTING, ev.LeaseReturned): _R._return,
    (_L.GRANTED, ev.LeaseReturned): _R._return,
    (_L.FINISHED, ev.LeaseReturned): _R._ignore,
    (_L.UNKNOWN, ev.LeaseShrunk): _R._ignore,
    (_L.GRANTED, ev.LeaseShrunk): _R._shrink,
    (_L.FINISHED, ev.LeaseShrunk): _R._ignore,
    (_L.UNKNOWN, ev.BacklogTold): _R._ignore,
    (_L.FINISHED, ev.BacklogTold): _R._ignore,
    **{
        (state, ev.BacklogTold): _R._told
        for state in (_L.WAITING, _L.STARTING, _L.GRANTED, _L.FORWARDED)
    },
    (_L.UNKNOWN, ev.LeaseKilled): _R._ignore,
    (_L.WAITING, ev.LeaseKilled): _R._cancel,
    (_L.FORWARDED, ev.LeaseKilled): _R._cancel,
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
    (None, ev.BundlesRequested): bundles.reserve,
    (None, ev.BundlesRemoved): bundles.remove_group,
    (None, ev.BundlesReturned): bundles.return_bundles,
    (None, ev.ReservationExpired): bundles.expire,
    (None, ev.Draining): spillback.drain,
    (None, ev.DrainGivenUp): spillback.resume,
    (None, ev.TimePassed): _R._time_passed,
}
