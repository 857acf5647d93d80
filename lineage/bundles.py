"""Bundles of placement groups on one node: reserving, returning, removing.

Part of the lease machine of a node (:mod:`.raylet`), whose table names these functions.
A reservation waits in the queue of the leases, as a request that needs no executor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rayshim.lineage import lease_events as ev
from rayshim.lineage import spillback
from rayshim.lineage.lease_events import Command
from rayshim.lineage.leases import Bundle, Reservation, remember, removed
from rayshim.lineage.resources import Units

if TYPE_CHECKING:
    from rayshim.lineage.raylet import Raylet


def reserve(raylet: Raylet, event: ev.BundlesRequested, now: float) -> list[Command]:
    """A placement group wants bundles here."""
    group = event.group
    if group in raylet._removed_groups:
        return []
    waiting = raylet._reservations.get(group)
    if waiting is not None:
        if event.attempt <= waiting.attempt:
            return []
        # Nobody listens to the older attempt: the control service was restarted.
        end_reservation(raylet, group)
    if raylet.is_draining:
        return [ev.RefuseBundles(group, event.attempt)]
    held = raylet.groups.get(group)
    if held is not None:
        indexes = event.indexes or range(len(event.bundles))
        missing = {
            index: bundle
            for index, bundle in zip(indexes, event.bundles, strict=True)
            if index not in held
        }
        if not missing:
            return [ev.ReportBundles(group, event.attempt)]
        event = event._replace(bundles=tuple(missing.values()), indexes=tuple(missing))
    if not raylet._waiting:
        # Nobody is before it, and nobody waits for what it brings.
        bundles = _acquire(raylet, event.bundles)
        if bundles is not None:
            indexes = event.indexes or range(len(bundles))
            return [_hold(raylet, group, indexes, bundles, event.attempt)]
    raylet._arrivals += 1
    reservation = Reservation(event, raylet._arrivals, now)
    raylet._reservations[group] = reservation
    raylet._enqueue(reservation)
    commands = raylet._schedule(now)
    if not event.is_patient:
        commands += expire(raylet, ev.ReservationExpired(group, event.attempt), now)
    return commands


def expire(raylet: Raylet, event: ev.ReservationExpired, now: float) -> list[Command]:
    """A placement group waits no more."""
    reservation = raylet._reservations.get(event.group)
    if reservation is None or reservation.attempt != event.attempt:
        return []
    end_reservation(raylet, event.group)
    return [ev.RefuseBundles(event.group, event.attempt)]


def return_bundles(
    raylet: Raylet, event: ev.BundlesReturned, now: float
) -> list[Command]:
    """A placement group takes bundles elsewhere."""
    bundles = raylet.groups.get(event.group, {})
    for index in event.indexes:
        bundle = bundles.pop(index, None)
        if bundle is None:
            continue
        for lease in raylet.leases.values():
            if lease.source is bundle.resources:
                # A late lease goes on to hold a part of the node.
                lease.source = raylet.resources
        raylet.resources.release_rest(bundle.resources)
    if not bundles:
        raylet.groups.pop(event.group, None)
    end_reservation(raylet, event.group)
    return raylet._schedule(now)


def remove_group(raylet: Raylet, event: ev.BundlesRemoved, now: float) -> list[Command]:
    """A placement group is gone: so is what runs in it."""
    group = event.group
    remember(raylet._removed_groups, group)
    end_reservation(raylet, group)
    commands: list[Command] = []
    for lease in [one for one in raylet.leases.values() if one.request.group == group]:
        if lease.executor is not None:
            commands.append(ev.EndExecutor(lease.executor.worker_id))
            # Until it is dead it goes on to hold a part of the node.
            lease.source = raylet.resources
        else:
            commands += spillback.ask_no_more(raylet, lease)
            raylet._finish(lease, now)
            commands.append(removed(lease.request))
    for bundle in raylet.groups.pop(group, {}).values():
        raylet.resources.release_rest(bundle.resources)
    return commands + raylet._schedule(now)


def end_reservation(raylet: Raylet, group: bytes) -> None:
    """Nobody waits for the bundles of a group."""
    reservation = raylet._reservations.pop(group, None)
    if reservation is not None:
        raylet._leave_queue(reservation)


def try_reserve(raylet: Raylet, waiter: Reservation, commands: list[Command]) -> bool:
    """Whether a reservation is met now: all bundles or none."""
    bundles = _acquire(raylet, waiter.bundles)
    if bundles is None:
        return False
    del raylet._reservations[waiter.group]
    indexes, attempt = waiter.indexes, waiter.attempt
    commands.append(_hold(raylet, waiter.group, indexes, bundles, attempt))
    return True


def _acquire(raylet: Raylet, needs: Iterable[Units]) -> list[Bundle] | None:
    bundles: list[Bundle] = []
    for need in needs:
        allocation = raylet.resources.acquire(dict(need))
        if allocation is None:
            for bundle in bundles:
                raylet.resources.release(bundle.allocation)
            return None
        bundles.append(Bundle(allocation))
    return bundles


def _hold(
    raylet: Raylet,
    group: bytes,
    indexes: Iterable[int],
    bundles: list[Bundle],
    attempt: int,
) -> Command:
    held = raylet.groups.setdefault(group, {})
    held.update(zip(indexes, bundles, strict=True))
    return ev.ReportBundles(group, attempt)
