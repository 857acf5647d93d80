"""Which leases their holders are asked to give back, for requests that wait.

There are two ways of asking (:class:`~rayshim.lineage.lease_events.AskBack`): a holder
that is asked for an *idle* lease gives it back as soon as it has no call for it; one
that is asked in full does so after the calls in hand, whatever else is queued. The
first costs nobody anything, so every lease that would help is asked for that way. In
full, only as many are as the request needs, and as :mod:`.shares` allows: a class is
asked for what it holds above the one that waits, so that two classes that could both
use the whole node come to rest at half of it each. A holder whose call waits has lent
its CPUs already, and is not asked meanwhile.

Each lease is asked for at most once in each way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rayshim.lineage import lease_events as ev
from rayshim.lineage.leases import Asked, Lease, Reservation
from rayshim.lineage.resources import ResourceSet, Units
from rayshim.lineage.shares import ClassShare

if TYPE_CHECKING:
    from rayshim.lineage.raylet import Raylet


def ask_back(raylet: Raylet, now: float) -> Iterator[ev.AskBack]:
    """Asks for what would help the next request of each shape."""
    if not raylet.shares.askable:
        return
    asking = _Asking(raylet, now)
    for shape in raylet._waiting.values():
        waiter = shape.best(now)[1]
        if isinstance(waiter, Reservation):
            for source in raylet._sources(b"", -1):
                yield from asking.ask_for(None, waiter.need, 1, source)
            continue
        request, share = waiter.request, waiter.share
        assert share is not None
        askable = raylet.shares.askable
        if len(askable) == 1 and share.key in askable:
            continue
        for source in raylet._sources(request.group, request.bundle):
            count = len(share.waiting)
            yield from asking.ask_for(share, request.need, count, source)


class _Asking:
    """One look at all that waits.

    Most looks find nothing to ask for, since all was said before. So what the shapes
    have in common is reckoned once, and leases are gone through where that shows that
    something may come of it.
    """

    def __init__(self, raylet: Raylet, now: float) -> None:
        self._shares = raylet.shares
        self._now = now
        #: What comes from leases that were asked for in full, of each set by its id.
        self._coming: dict[int, Units] = {}
        for lease in raylet._reclaimable.values():
            if lease.asked_back is Asked.IN_FULL:
                self._comes(lease)
        shares = self._shares.askable.values()
        #: The most that one class holds, and whether all are of one job and young.
        self._most = max(share.held for share in shares)
        self._jobs = {id(share.job) for share in shares}
        self._are_young = all(share.is_young(now) for share in shares)

    def ask_for(
        self, asker: ClassShare | None, need: Units, count: int, source: ResourceSet
    ) -> Iterator[ev.AskBack]:
        """Asks for what ``count`` requests of ``need`` lack of one set."""
        if not source.is_feasible(need):
            return
        missing = source.missing(need)
        if not missing:
            return
        shares, now = self._shares, self._now
        gained = self._gained(need, missing, source)
        if not shares.unasked and (gained >= count or self._has_enough(asker, gained)):
            return
        for share in list(shares.askable.values()):
            if share is asker:
                continue
            if not share.unasked and (
                gained >= count or not _may_take(asker, share, gained, 0, now)
            ):
                continue
            given = 0
            for lease in list(share.askable.values()):
                if lease.source is not source or lease.is_lent:
                    continue
                if not _has_any(lease, missing):
                    continue
                if gained < count and _may_take(asker, share, gained, given, now):
                    given += 1
                    shares.ask_in_full(lease)
                    self._comes(lease)
                    gained = self._gained(need, missing, source)
                    yield ev.AskBack(lease.request.lease_id, lease.request.holder)
                elif lease.asked_back is Asked.NOT:
                    shares.ask_if_idle(lease)
                    yield ev.AskBack(lease.request.lease_id, lease.request.holder, True)

    def _has_enough(self, asker: ClassShare | None, gained: int) -> bool:
        """Whether no class at all has to give one more lease to another one."""
        if asker is None or asker.waiting[0].request.urgent:
            return False
        has = asker.held + gained
        if has == 0 or self._jobs != {id(asker.job)} or self._most > has + 1:
            return False
        return self._are_young or not asker.is_young(self._now)

    def _gained(self, need: Units, missing: Units, source: ResourceSet) -> int:
        """How many would fit if all that was asked for had come."""
        coming = self._coming.get(id(source), {})
        return min(
            (max(0, source.available.get(name, 0)) + coming.get(name, 0)) // need[name]
            for name in missing
        )

    def _comes(self, lease: Lease) -> None:
        assert lease.allocation is not None
        coming = self._coming.setdefault(id(lease.source), {})
        for name, units in lease.allocation.units.items():
            coming[name] = coming.get(name, 0) + units


def _may_take(
    asker: ClassShare | None, victim: ClassShare, gained: int, given: int, now: float
) -> bool:
    """Whether a class that got ``gained`` leases more may have another one from a
    class that gave ``given`` already."""
    if asker is None or asker.waiting[0].request.urgent:
        return True
    has = asker.held + gained
    left = victim.held - given
    if asker.job is not victim.job:
        job_has = asker.job.held + gained * asker.weight
        job_left = victim.job.held - given * victim.weight
        # Not so that they would only change places.
        return job_has == 0 or job_left - victim.weight >= job_has + asker.weight
    if has == 0:
        return True
    if asker.is_young(now) and not victim.is_young(now):
        return True
    return left > has + 1


def _has_any(lease: Lease, missing: Units) -> bool:
    allocation = lease.allocation
    return allocation is not None and not missing.keys().isdisjoint(allocation.units)
