"""Who goes next when leases are scarce: shares of classes and jobs, and their ages.

A *class* is what a raylet can tell apart: the requests of one holder for one label,
need and environment. Among requests that fit, the next one is chosen by this order:

1. what rebuilds lost values (``LeaseRequested.urgent``): somebody waits for it, and
   what it rebuilds was done once already;
2. the job that holds the smallest part of the node;
3. a class that is *young* (it has run for less than :data:`YOUNG_S` seconds of leases
   since it came) or *starved* (it holds nothing and has waited for
   :data:`STARVED_S`): so a class of a few calls is soon through, whatever waits
   beside it, and the others lose no more than that time to it;
4. the class that holds the fewest leases;
5. the one that came first.

A holder whose call waits counts as one that holds nothing, since its CPUs are lent.
Reservations of placement groups come before the leases of all jobs.

So that small requests do not for ever take what a large one waits for, a request that
has waited for :data:`GUARD_AFTER_S` *guards* the one resource that it lacks: what came
later gets none of it, if leases that run, and can end, hold enough. (A request that
lacks two kinds guards none: a GPU that is busy must not idle the CPUs.) What runs might
itself wait for what the guard holds up, by means that nobody here sees, and what never
ends holds up others in vain. So each guard is followed by a pause as long, and the next
one is twice as long, from :data:`FIRST_GUARD_S` to :data:`GUARD_S`: a large request
gets what ends after seconds, and what comes soon after it is held up for half a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from rayshim.lineage.leases import Asked, Lease, Reservation, Shape
from rayshim.lineage.resources import ResourceSet, Units

#: Seconds of leases after which a class is young no more.
YOUNG_S = 1.0
#: Seconds after which a class that holds nothing goes first in its job.
STARVED_S = 1.0
#: Seconds after which a request guards what it waits for.
GUARD_AFTER_S = 0.5
#: Seconds of the first guard; the pause after each is as long, the next guard twice.
FIRST_GUARD_S = 0.5
#: Seconds of the longest guard.
GUARD_S = 8.0
#: The whole of a node, in the unit of :attr:`ClassShare.weight`.
WHOLE = 1_000_000

#: Smaller is sooner.
Rank = tuple[int, int, int, int, int]
ClassKey = tuple[Shape, bytes, str, str, tuple[tuple[str, str], ...]]


class JobShare:
    """What one job holds."""

    __slots__ = ("classes", "held")

    def __init__(self) -> None:
        #: Sum of the weights of its leases that are not lent.
        self.held = 0
        #: Number of its classes; at 0 it is forgotten.
        self.classes = 0


class ClassShare:
    """What one class holds and has had."""

    __slots__ = (
        "askable",
        "backlog",
        "begun_sum_s",
        "held",
        "job",
        "key",
        "last_s",
        "leases",
        "served_s",
        "unasked",
        "waiting",
        "weight",
    )

    def __init__(self, key: ClassKey, job: JobShare, weight: int) -> None:
        self.key = key
        self.job = job
        #: Largest part of any of the node's resources that one lease takes.
        self.weight = weight
        #: Its requests in WAITING, by arrival.
        self.waiting: deque[Lease] = deque()
        #: Number of its leases with an allocation.
        self.leases = 0
        #: Those of them whose CPUs are not lent.
        self.held = 0
        #: Seconds of leases that ended, and the sum of the beginnings of the others.
        self.served_s = 0.0
        self.begun_sum_s = 0.0
        #: When the last of them ended.
        self.last_s = 0.0
        #: Calls that its holder has queued, as last told.
        self.backlog = 0
        #: Its leases that can still be asked back, by grant.
        self.askable: dict[bytes, Lease] = {}
        #: Number of those that were not asked for in any way.
        self.unasked = 0

    def is_young(self, now: float) -> bool:
        """Whether it has had little so far."""
        return self.served_s + self.leases * now - self.begun_sum_s < YOUNG_S

    def rank(self, now: float) -> Rank:
        """When its first request is due, compared with others."""
        head = self.waiting[0]
        is_first = self.is_young(now) or (
            not self.held and now - max(head.since_s, self.last_s) >= STARVED_S
        )
        return (
            0 if head.request.urgent else 1,
            self.job.held,
            0 if is_first else 1,
            self.held,
            head.number,
        )


class WaitingShape:
    """What waits with one shape; of a group's reservation, only that."""

    __slots__ = ("classes", "count", "reservation")

    def __init__(self) -> None:
        #: Classes with requests here, by when they began to wait.
        self.classes: dict[ClassKey, ClassShare] = {}
        self.reservation: Reservation | None = None
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Lease | Reservation]:
        if self.reservation is not None:
            yield self.reservation
        for share in self.classes.values():
            yield from share.waiting

    def first(self) -> Lease | Reservation:
        """The first of the class that has waited longest."""
        if self.reservation is not None:
            return self.reservation
        return next(iter(self.classes.values())).waiting[0]

    def best(self, now: float) -> tuple[Rank, Lease | Reservation]:
        """What is due next, and its rank."""
        if self.reservation is not None:
            return (1, -1, 0, 0, self.reservation.number), self.reservation
        if len(self.classes) == 1:
            (share,) = self.classes.values()
            return share.rank(now), share.waiting[0]
        rank, share = min(
            ((share.rank(now), share) for share in self.classes.values()),
            key=lambda pair: pair[0],
        )
        return rank, share.waiting[0]

    def backlog(self) -> int:
        """Calls that wait, those included for which nobody has asked yet."""
        return sum(
            max(len(share.waiting), share.backlog) for share in self.classes.values()
        )


class Shares:
    """The classes and jobs of a node."""

    def __init__(self, total: Units) -> None:
        self._total = total
        #: Exactly the classes with a request that waits or a lease.
        self.classes: dict[ClassKey, ClassShare] = {}
        self._jobs: dict[bytes, JobShare] = {}
        #: Exactly the classes with a lease that can still be asked back.
        self.askable: dict[ClassKey, ClassShare] = {}
        #: Number of leases that were not asked for in any way and can be.
        self.unasked = 0

    def wait(self, lease: Lease) -> ClassShare:
        """A request waits from now on."""
        share = lease.share
        if share is None:
            share = lease.share = self._of(lease)
        share.backlog = max(share.backlog, lease.request.backlog)
        share.waiting.append(lease)
        return share

    def wait_no_more(self, lease: Lease) -> ClassShare:
        """It is granted, or over."""
        share = lease.share
        assert share is not None
        share.waiting.remove(lease)
        if not share.waiting:
            share.backlog = 0
        return share

    def took(self, lease: Lease, now: float) -> None:
        """A request got its resources."""
        share = lease.share
        assert share is not None
        share.leases += 1
        share.begun_sum_s += now
        lease.began_s = now
        self._count(share, 1)

    def gave(self, lease: Lease, now: float) -> None:
        """A lease that had its resources has ended."""
        share = lease.share
        assert share is not None
        self._ask_no_more(lease)
        share.leases -= 1
        share.begun_sum_s -= lease.began_s
        share.served_s += now - lease.began_s
        share.last_s = now
        if not share.leases:
            share.begun_sum_s = 0.0  # no dust of rounding
        if not lease.is_lent:
            self._count(share, -1)

    def lend(self, lease: Lease, is_lent: bool) -> None:
        """The holder of a lease waits, or goes on."""
        if lease.is_lent is not is_lent and lease.share is not None:
            lease.is_lent = is_lent
            self._count(lease.share, -1 if is_lent else 1)

    def may_ask(self, lease: Lease) -> None:
        """A lease can be asked back from now on."""
        share = lease.share
        assert share is not None
        share.askable[lease.request.lease_id] = lease
        self.askable[share.key] = share
        share.unasked += 1
        self.unasked += 1

    def ask_if_idle(self, lease: Lease) -> None:
        """It is asked for if there are no calls for it."""
        self._ask(lease, Asked.IF_IDLE)

    def ask_in_full(self, lease: Lease) -> None:
        """It is asked for, whatever is queued for it."""
        self._ask(lease, Asked.IN_FULL)
        self._ask_no_more(lease)

    def _ask(self, lease: Lease, asked: Asked) -> None:
        share = lease.share
        assert share is not None
        if lease.asked_back is Asked.NOT:
            share.unasked -= 1
            self.unasked -= 1
        lease.asked_back = asked

    def _ask_no_more(self, lease: Lease) -> None:
        share = lease.share
        if share is None or share.askable.pop(lease.request.lease_id, None) is None:
            return
        if lease.asked_back is Asked.NOT:
            share.unasked -= 1
            self.unasked -= 1
        if not share.askable:
            del self.askable[share.key]

    def forget(self, lease: Lease) -> None:
        """A request or lease is over; so may be its class."""
        share = lease.share
        if share is None or share.waiting or share.leases:
            return
        if self.classes.pop(share.key, None) is None:
            return
        share.job.classes -= 1
        if not share.job.classes:
            self._jobs.pop(share.key[1], None)

    def leave(self, lease: Lease) -> None:
        """A request is left to the control service: it waits here no more."""
        self.forget(lease)
        lease.share = None

    def _of(self, lease: Lease) -> ClassShare:
        request = lease.request
        holder = "" if request.fixed else request.holder
        key = (lease.shape, request.job_id, holder, request.label, request.env)
        share = self.classes.get(key)
        if share is None:
            job = self._jobs.setdefault(request.job_id, JobShare())
            job.classes += 1
            weight = max(
                (
                    units * WHOLE // total
                    for name, units in request.need.items()
                    if (total := self._total.get(name, 0))
                ),
                default=0,
            )
            share = self.classes[key] = ClassShare(key, job, weight)
        return share

    @staticmethod
    def _count(share: ClassShare, change: int) -> None:
        share.held += change
        share.job.held += change * share.weight

    def validate(self, leases: Iterable[Lease]) -> None:
        """Checks that all adds up.

        Raises:
            AssertionError: it does not.
        """
        held: dict[ClassKey, int] = {}
        count: dict[ClassKey, int] = {}
        seen = set()
        for lease in leases:
            share = lease.share
            if share is None:
                continue
            seen.add(share.key)
            assert self.classes[share.key] is share
            if lease.allocation is not None:
                count[share.key] = count.get(share.key, 0) + 1
                held[share.key] = held.get(share.key, 0) + (not lease.is_lent)
        assert seen == set(self.classes)
        jobs: dict[bytes, int] = {}
        for key, share in self.classes.items():
            assert share.leases == count.get(key, 0)
            assert share.held == held.get(key, 0)
            assert all(one.share is share for one in share.waiting)
            jobs[key[1]] = jobs.get(key[1], 0) + share.held * share.weight
            assert bool(share.askable) == (key in self.askable)
            left = [one.asked_back for one in share.askable.values()]
            assert share.unasked == left.count(Asked.NOT)
        assert self.unasked == sum(one.unasked for one in self.classes.values())
        assert jobs == {job: one.held for job, one in self._jobs.items()}


class Guard:
    """A request that what comes later must leave a resource to."""

    __slots__ = ("name", "number", "source")

    def __init__(self, number: int, source: ResourceSet, name: str) -> None:
        self.number = number
        self.source = source
        self.name = name

    def holds_up(self, number: int, need: Units, source: ResourceSet) -> bool:
        """Whether a request must leave the resource alone."""
        return number > self.number and source is self.source and self.name in need


def is_guarding(waited_s: float) -> bool:
    """Whether a request that has waited for so long keeps room for itself just now."""
    waited_s -= GUARD_AFTER_S
    if waited_s < 0:
        return False
    guard_s = FIRST_GUARD_S
    while guard_s < GUARD_S and waited_s >= 2 * guard_s:
        waited_s -= 2 * guard_s
        guard_s *= 2
    return waited_s % (2 * guard_s) < guard_s


def guard_of(
    waiter: Lease | Reservation,
    need: Units,
    source: ResourceSet,
    running: Iterable[Lease],
    now: float,
) -> Guard | None:
    """What a request that does not fit guards now, if anything.

    Args:
        waiter: the request.
        need: what it needs of ``source``.
        source: where it would be taken.
        running: leases that their holders can give back.
        now: the time.
    """
    if not is_guarding(now - waiter.since_s) or not source.is_feasible(need):
        return None
    missing = source.missing(need)
    if len(missing) != 1:
        return None
    ((name, short),) = missing.items()
    coming = sum(
        lease.allocation.units.get(name, 0)
        for lease in running
        if lease.source is source
        and lease.allocation is not None
        and lease.executor is not None
        and not lease.executor.is_blocked
    )
    return Guard(waiter.number, source, name) if coming >= short else None
