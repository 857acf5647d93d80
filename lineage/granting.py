"""Which of the requests that wait at a node are worth a try now, and in what order.

Part of the lease machine of a node (:mod:`.raylet`); who comes before whom is said in
:mod:`.shares`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rayshim.lineage.leases import Lease, Reservation
from rayshim.lineage.resources import ResourceSet, Units
from rayshim.lineage.shares import GUARD_AFTER_S, Guard, guard_of

if TYPE_CHECKING:
    from rayshim.lineage.raylet import Raylet

Waiter = Lease | Reservation


def candidates(raylet: Raylet, now: float) -> list[Waiter]:
    """The next one of each shape that seems to fit, by rank."""
    fitting = []
    guards: list[Guard] = []
    for queue in raylet._waiting.values():
        first = queue.first()
        if _may_fit(raylet, first):
            fitting.append(queue)
        elif now - first.since_s >= GUARD_AFTER_S:
            guards += _guards(raylet, first, now)
    if len(fitting) == 1:
        ranked = [fitting[0].best(now)[1]]
    else:
        pairs = [queue.best(now) for queue in fitting]
        pairs.sort(key=lambda pair: pair[0])
        ranked = [waiter for _, waiter in pairs]
    if not guards:
        return ranked
    return [one for one in ranked if not _is_held_up(raylet, one, guards)]


def need_of(waiter: Waiter) -> Units:
    """What a request needs, or all bundles of a reservation together."""
    return waiter.need if isinstance(waiter, Reservation) else waiter.request.need


def sources_of(raylet: Raylet, waiter: Waiter) -> Iterable[ResourceSet]:
    """The sets that a request may draw on."""
    if isinstance(waiter, Reservation):
        return (raylet.resources,)
    return raylet._sources(waiter.request.group, waiter.request.bundle)


def _may_fit(raylet: Raylet, waiter: Waiter) -> bool:
    """False if it certainly does not."""
    need = need_of(waiter)
    return any(
        all(source.available.get(name, 0) >= units for name, units in need.items())
        for source in sources_of(raylet, waiter)
    )


def _guards(raylet: Raylet, waiter: Waiter, now: float) -> Iterator[Guard]:
    need = need_of(waiter)
    for source in sources_of(raylet, waiter):
        running = raylet._reclaimable.values()
        guard = guard_of(waiter, need, source, running, now)
        if guard is not None:
            yield guard


def _is_held_up(raylet: Raylet, waiter: Waiter, guards: list[Guard]) -> bool:
    need = need_of(waiter)
    return any(
        guard.holds_up(waiter.number, need, source)
        for guard in guards
        for source in sources_of(raylet, waiter)
    )
