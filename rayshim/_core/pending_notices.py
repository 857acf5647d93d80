"""Calls and actors of a driver that nobody waits for, and that do not begin.

A look is due ``pending_warn_s`` after the first request for a lease or actor, and then
while there is something to look at. What has waited as long as that is explained once,
with the reasons that :func:`rayshim.explain` gives.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim._core import explaining
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import why_payloads as why
from rayshim.lineage.actor_calls import ActorState
from rayshim.lineage.reasons import Explanation, merged

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

logger = logging.getLogger("rayshim")

#: Looks in the time after which something is explained.
LOOKS = 4


class PendingNotices:
    """Looks at what one driver has asked for and not got.

    Args:
        peer: the driver.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def look(self) -> bool:
        """Explain what has waited long (under the lock); is anything left to see?"""
        peer = self._peer
        warn_s, now = peer.settings.pending_warn_s, time.monotonic()
        explained = peer.explained
        is_left = False
        for scheduling in peer.tasks.classes.values():
            if not scheduling.queue or scheduling.slots or not scheduling.requested:
                continue
            is_left = True
            waited_s = now - next(iter(scheduling.requested.values()))
            if waited_s >= warn_s and scheduling.key not in explained:
                explained.add(scheduling.key)
                record = scheduling.queue[0]
                self._tell(explaining.call_told(peer, record), waited_s)
        for actor_id, client in peer.actors.clients.items():
            creation = peer.actors._creations.get(actor_id)
            if creation is None:
                continue
            if client.queue.state is not ActorState.PENDING:
                continue
            is_left = True
            waited_s = now - creation.since_s
            if waited_s >= warn_s and actor_id not in explained:
                explained.add(actor_id)
                subject = f"actor {client.class_name} ({actor_id.hex()})"
                told = why.Told(subject, "waiting", actor_ids=[actor_id])
                self._tell(told, waited_s)
        return is_left

    def _tell(self, told: why.Told, waited_s: float) -> None:
        """Log the reasons, once the control service has added its own."""
        peer = self._peer
        reasons = list(told.reasons)

        def answered(response: m.Response) -> None:
            if not response.error:
                found = msgspec.msgpack.decode(response.payload, type=list[Explanation])
                reasons.extend(reason for one in found for reason in one.reasons)
            whole = Explanation(told.subject, told.state, merged(reasons))
            text = f"nothing came of a request for {waited_s:.0f} s. "
            text += whole.sentence()
            peer.reactor.deferred.append(lambda: logger.warning("%s", text))

        question = why.Why(
            lease_ids=told.lease_ids,
            actor_ids=told.actor_ids,
            groups=told.groups,
            objects=told.objects,
            places=told.places,
        )
        payload: Any = msgspec.structs.asdict(question)
        peer.request_later("why", payload, answered)
