"""Leases that other nodes may grant: asking elsewhere, going there, coming back.

Part of the lease machine of a node (:mod:`.raylet`), whose table names these functions.
A request that waits in a cluster is *asked elsewhere*, too; one that only the control
service can place is FORWARDED and waits for its answer alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rayshim.lineage import lease_events as ev
from rayshim.lineage.lease_events import Command, LeaseRequested
from rayshim.lineage.leases import Lease, LeaseState

if TYPE_CHECKING:
    from rayshim.lineage.raylet import Raylet

#: Nodes that may pass a request on at once.
MAX_HOPS = 3
#: How long the next node keeps it at least; each further one twice as long.
HOP_PAUSE_S = 1.0


def pause_s(hops: int) -> float:
    """How long a request waits at a node before it may go on.

    So after ``t`` seconds a request was passed on ``MAX_HOPS + log2(1 + t /
    HOP_PAUSE_S)`` times at most, and none waits for ever at a full node while another
    has room.
    """
    return 0.0 if hops < MAX_HOPS else HOP_PAUSE_S * 2.0 ** (hops - MAX_HOPS)


def look_elsewhere(raylet: Raylet, lease: Lease) -> list[Command]:
    """Has the control service look for another node, if there can be one."""
    request = lease.request
    if (
        not raylet.is_clustered
        or lease.state is not LeaseState.WAITING
        or request.fixed
    ):
        return []
    if request.hops >= MAX_HOPS:
        raylet.resting[request.lease_id] = lease
        return []
    lease.is_asked_elsewhere = True
    return [ev.AskElsewhere(request.lease_id, request.cargo)]


def look_again(raylet: Raylet, now: float) -> list[Command]:
    """Has the control service look for what was passed on often and rested since."""
    commands: list[Command] = []
    for lease_id, lease in list(raylet.resting.items()):
        request = lease.request
        if lease.state is not LeaseState.WAITING or lease.is_asked_elsewhere:
            del raylet.resting[lease_id]
        elif now - lease.since_s >= pause_s(request.hops):
            del raylet.resting[lease_id]
            lease.is_asked_elsewhere = True
            commands.append(ev.AskElsewhere(lease_id, request.cargo))
    return commands


def forward(raylet: Raylet, lease: Lease) -> Command:
    """Leaves a request to the control service."""
    lease.state = LeaseState.FORWARDED
    lease.is_asked_elsewhere = True
    return ev.AskElsewhere(lease.request.lease_id, lease.request.cargo)


def admit(raylet: Raylet, event: ev.LeaseAdmitted, now: float) -> list[Command]:
    """The control service chose this node."""
    lease = raylet.leases[event.lease_id]
    if raylet.is_draining:
        return [forward(raylet, lease)]
    lease.is_asked_elsewhere = False
    lease.state = LeaseState.WAITING
    raylet._enqueue(lease)
    # The room that the control service saw may be gone.
    return raylet._schedule(now) + look_elsewhere(raylet, lease)


def spill(raylet: Raylet, event: ev.LeaseSpilled, now: float) -> list[Command]:
    """The control service found room on another node."""
    lease = raylet.leases[event.lease_id]
    request = lease.request
    lease.is_asked_elsewhere = False  # It has answered.
    raylet._finish(lease, now, hops=request.hops + 1)
    reason = f"another node has room for {request.label}"
    return [
        ev.RejectLease(
            request.lease_id,
            request.holder,
            reason,
            "spillback",
            event.address,
            request.hops,
        ),
        *raylet._schedule(now),
    ]


def stay(raylet: Raylet, event: ev.LeaseAdmitted, now: float) -> list[Command]:
    """The control service chose the node at which the request waits."""
    raylet.leases[event.lease_id].is_asked_elsewhere = False
    return []


def refuse(raylet: Raylet, event: ev.LeaseRefused, now: float) -> list[Command]:
    """No node will ever grant it."""
    lease = raylet.leases[event.lease_id]
    request = lease.request
    lease.is_asked_elsewhere = False
    raylet._finish(lease, now)
    rejected = ev.RejectLease(event.lease_id, request.holder, event.reason, event.kind)
    return [rejected, *raylet._schedule(now)]


def drain(raylet: Raylet, event: ev.Draining, now: float) -> list[Command]:
    """Grants nothing any more."""
    raylet.is_draining = True
    commands: list[Command] = []
    for lease in list(raylet.leases.values()):
        if lease.state is not LeaseState.WAITING:
            continue
        if lease.request.fixed:
            raylet._finish(lease, now)
            commands.append(drained(lease.request))
            continue
        raylet._leave_queue(lease)
        raylet.shares.leave(lease)
        # Anew, too: else this node would not come into question if it stays after all.
        commands.append(forward(raylet, lease))
    for group, reservation in list(raylet._reservations.items()):
        raylet._leave_queue(reservation)
        del raylet._reservations[group]
        commands.append(ev.RefuseBundles(group, reservation.attempt))
    return commands


def resume(raylet: Raylet, event: ev.DrainGivenUp, now: float) -> list[Command]:
    """Grants again; what was left to the control service stays with it."""
    raylet.is_draining = False
    return []


def asked_again(raylet: Raylet) -> Iterator[ev.AskElsewhere]:
    """What the control service has to be asked again if it forgot."""
    for lease_id, lease in raylet.leases.items():
        if lease.is_asked_elsewhere:
            yield ev.AskElsewhere(lease_id, lease.request.cargo)


def ask_no_more(raylet: Raylet, lease: Lease) -> list[Command]:
    """The control service need not look any more."""
    if not lease.is_asked_elsewhere:
        return []
    lease.is_asked_elsewhere = False
    return [ev.AskNoMore(lease.request.lease_id)]


def drained(request: LeaseRequested) -> ev.RejectLease:
    """Tells a holder that the node leaves."""
    reason = f"the node leaves the cluster and starts no {request.label}"
    return ev.RejectLease(request.lease_id, request.holder, reason, "drained")
