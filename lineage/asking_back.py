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
    for shape in raylet._waiting.values():
        waiter = shape.best(now)[1]
        if isinstance(waiter, Reservation):
            for source in raylet._sources(b"", -1):
                yield from _ask_for(raylet, None, waiter.need, 1, source, now)
            continue
        request, share = waiter.request, waiter.share
        assert share is not None
        askable = raylet.shares.askable
        if len(askable) == 1 and share.key in askable:
            continue
        for source in raylet._sources(request.group, request.bundle):
            count = len(share.waiting)
            yield from _ask_for(raylet, share, request.need, count, source, now)


def _ask_for(
    raylet: Raylet,
    asker: ClassShare | None,
    need: Units,
    count: int,
    source: ResourceSet,
    now: float,
) -> Iterator[ev.AskBack]:
    """Asks for what ``count`` requests of ``need`` lack of one set."""
    if not source.is_feasible(need):
        return
    missing = source.missing(need)
    if not missing:
        return
    # What they would have if all that was asked for had come.
    coming = {name: max(0, source.available.get(name, 0)) for name in missing}
    for lease in raylet._reclaimable.values():
        if lease.asked_back is Asked.IN_FULL and lease.source is source:
            _add(coming, lease)
    for share in list(raylet.shares.askable.values()):
        if share is asker:
            continue
        given = 0
        for lease in list(share.askable.values()):
            if lease.source is not source or lease.is_lent:
                continue
            if not _has_any(lease, missing):
                continue
            gained = min(units // need[name] for name, units in coming.items())
            if gained < count and _may_take(asker, share, gained, given, now):
                _add(coming, lease)
                given += 1
                lease.asked_back = Asked.IN_FULL
                raylet.shares.ask_no_more(lease)
                yield ev.AskBack(lease.request.lease_id, lease.request.holder)
            elif lease.asked_back is Asked.NOT:
                lease.asked_back = Asked.IF_IDLE
                yield ev.AskBack(lease.request.lease_id, lease.request.holder, True)


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


def _add(coming: Units, lease: Lease) -> None:
    assert lease.allocation is not None
    for name in coming:
        coming[name] += lease.allocation.units.get(name, 0)
