"""Lease requests under way: at the raylet of this node, or where it sent them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.dispatch import SchedulingClass

if TYPE_CHECKING:
    from rayshim._core.peer import Peer


class LeaseRequests:
    """What this process has asked for and not got."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        #: Lease id -> class.
        self._classes: dict[bytes, SchedulingClass] = {}
        #: Lease id -> raylet of another node that was asked in the end.
        self._asked: dict[bytes, Channel] = {}

    def ask(self, scheduling: SchedulingClass) -> None:
        """Ask the raylet of this node for one more lease."""
        lease_id = os.urandom(16)
        scheduling.requested[lease_id] = time.monotonic()
        self._classes[lease_id] = scheduling
        self._peer.watch_pending()
        self._send(self._peer.raylet, scheduling, lease_id, 0)

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
        raylet.send(
            msgspec.structs.replace(
                scheduling.template,
                lease_id=lease_id,
                backlog=len(scheduling.queue),
                hops=hops,
            )
        )
