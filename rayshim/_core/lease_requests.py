"""Lease requests under way: at the raylet of this node, or where it sent them.

The first raylet that is asked is the one of this node, or of the node that holds most
of the bytes of the call's large arguments. While requests wait, raylets are told now
and then how many calls are queued behind them, so that what a cluster lacks is known.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.dispatch import SchedulingClass

if TYPE_CHECKING:
    from rayshim._core.calls import CallRecord
    from rayshim._core.peer import Peer

#: Seconds between two looks at the queues of classes that wait for leases.
BACKLOG_S = 0.25
#: A change of a queue by less than this part of it is not worth a message.
BACKLOG_CHANGE = 0.1


class LeaseRequests:
    """What this process has asked for and not got."""

    def __init__(self, peer: Peer, classes: dict[Any, SchedulingClass]) -> None:
        self._peer = peer
        #: All classes of this process.
        self._all = classes
        self._armed_backlog = False
        #: Lease id -> class.
        self._classes: dict[bytes, SchedulingClass] = {}
        #: Lease id -> raylet of another node that was asked in the end.
        self._asked: dict[bytes, Channel] = {}

    def ask(self, scheduling: SchedulingClass) -> None:
        """Ask for one more lease, first at the home of the class."""
        lease_id = os.urandom(16)
        scheduling.requested[lease_id] = time.monotonic()
        self._classes[lease_id] = scheduling
        self._peer.watch_pending()
        raylet = self._peer.raylet
        if scheduling.home:
            raylet = self._raylet_of(scheduling.home)
            if raylet is not self._peer.raylet:
                self._asked[lease_id] = raylet
        self._send(raylet, scheduling, lease_id, 0)
        if not self._armed_backlog:
            self._armed_backlog = True
            self._peer.reactor.call_later(BACKLOG_S, self._tell_backlogs)

    def _raylet_of(self, node_id: str) -> Channel:
        """The raylet of another node, or of this one if that is gone."""
        address = self._peer.nodes.raylet_of(node_id)
        if not address:
            return self._peer.raylet
        try:
            return self._peer.raylet_at(address)
        except ConnectionError:
            return self._peer.raylet

    def near_arguments(
        self, record: CallRecord, scheduling: SchedulingClass
    ) -> SchedulingClass:
        """The class of a call whose arguments are known: with their node as its home.

        Only calls that may run anywhere have one, and only for values in stores.
        """
        scheduling = scheduling.base or scheduling
        template: m.RequestLease = scheduling.template
        if (
            template.strategy
            or template.nodes
            or template.labels
            or template.placement_group
        ):
            return scheduling
        here = self._peer.node_id
        entries = self._peer.objects.entries
        sizes: dict[str, int] = {}
        for _, _, ref in record.encoded.dependencies:
            entry = entries[ref._bytes]
            segment = entry.value.segment if entry.value is not None else None
            if segment is None:
                continue
            holders = {segment.node: None}
            if entry.copies is not None:
                holders.update(entry.copies.nodes)
                if entry.copies.near is not None:
                    holders[here] = None
            for node_id in holders:
                sizes[node_id] = sizes.get(node_id, 0) + segment.capacity
        if not sizes:
            return scheduling
        best = max(sizes, key=lambda node_id: sizes[node_id])
        if best == here or sizes[best] <= sizes.get(here, 0):
            return scheduling
        known = self._all.get((scheduling.key, best))
        return known if known is not None else scheduling.at(best)

    def _tell_backlogs(self) -> None:
        """Tell raylets how many calls wait behind the requests that they have."""
        self._armed_backlog = False
        waits = False
        for scheduling in self._all.values():
            if not scheduling.requested:
                continue
            waits = True
            count, told = len(scheduling.queue), scheduling.told_backlog
            if abs(count - told) <= BACKLOG_CHANGE * told:
                continue
            scheduling.told_backlog = count
            lease_id = next(iter(scheduling.requested))
            raylet = self._asked.get(lease_id, self._peer.raylet)
            if not raylet.closed:
                raylet.send(m.UpdateBacklog(lease_id, count))
        if waits:
            self._armed_backlog = True
            self._peer.reactor.call_later(BACKLOG_S, self._tell_backlogs)

    def take(self, lease_id: bytes) -> SchedulingClass | None:
        """The class of a request that was answered; it is under way no more."""
        self._asked.pop(lease_id, None)
        scheduling = self._classes.pop(lease_id, None)
        if scheduling is not None:
            scheduling.requested.pop(lease_id, None)
        return scheduling

    def cancel(self, scheduling: SchedulingClass) -> None:
        """Take every request of a class back."""
        for lease_id in list(scheduling.requested):
            raylet = self._asked.get(lease_id, self._peer.raylet)
            self.take(lease_id)
            raylet.send(m.CancelLease(lease_id))

    def spill(self, rejection: m.LeaseRejected) -> SchedulingClass | None:
        """Ask the raylet of another node, as the one that was asked says.

        Returns:
            The class, if that node is gone and a lease has to be asked for anew.
        """
        lease_id = rejection.lease_id
        scheduling = self._classes.get(lease_id)
        if scheduling is None:
            return None
        try:
            raylet = self._peer.raylet_at(rejection.spill_to)
        except ConnectionError:
            return self.take(lease_id)
        self._asked[lease_id] = raylet
        self._send(raylet, scheduling, lease_id, rejection.hops + 1)
        return None

    def raylet_closed(self, channel: Channel) -> list[SchedulingClass]:
        """The raylet of another node is gone.

        Returns:
            The classes that waited for it, each once.
        """
        lost = [key for key, raylet in self._asked.items() if raylet is channel]
        found = {}
        for lease_id in lost:
            scheduling = self.take(lease_id)
            if scheduling is not None:
                found[id(scheduling)] = scheduling
        return list(found.values())

    @staticmethod
    def _send(
        raylet: Channel, scheduling: SchedulingClass, lease_id: bytes, hops: int
    ) -> None:
        queue = scheduling.queue
        scheduling.told_backlog = len(queue)
        raylet.send(
            msgspec.structs.replace(
                scheduling.template,
                lease_id=lease_id,
                backlog=len(queue),
                hops=hops,
                urgent=bool(queue) and queue[0].kept is not None,
            )
        )
