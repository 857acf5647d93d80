"""The death of an executor, and what becomes of the calls that it had.

Two notices come in any order: the end of its channel, after which no more results can
arrive, and the raylet's word on why it died. The calls are dealt with once both are
here. A channel may also break while the executor lives: then no word comes, and the
executor is killed to have one, since nobody could tell any more what it runs.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from rayshim import exceptions
from rayshim._core import failures
from rayshim._core.calls import CallRecord
from rayshim._core.cancellation import cancelled_payload
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import node_messages as n
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.dispatch import LeaseSlot, SchedulingClass
from rayshim.lineage.tasks import Verdict

if TYPE_CHECKING:
    from rayshim._core.peer import MessageHandler, Peer

logger = logging.getLogger("rayshim")

#: A raylet closed its channel: the head's word on its node is waited for this long.
TABLE_WAIT_S = 1.0
#: A raylet that lives says why an executor died within this time, or it did not die.
OBITUARY_WAIT_S = 2.0


class ExecutorDeaths:
    """Retries or fails the tasks of dead executors."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._tasks = peer.tasks
        #: Lease id -> why its executor died, until the channel ends too.
        self._obituaries: dict[bytes, m.LeaseLost] = {}
        #: Task id -> when a call that was killed for memory runs again.
        self.due_s: dict[bytes, float] = {}
        #: Lease id -> (class, lease) whose channel ended, until the obituary.
        self._orphans: dict[bytes, tuple[SchedulingClass, LeaseSlot]] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        """The messages that this part handles."""
        return {m.LeaseLost: self._on_lost}

    def peer_died(self, channel: Channel) -> None:
        """The channel of an executor ended: its calls wait for the obituary."""
        found = self._tasks._slots.get(channel.address)
        if found is None or found[1].channel is not channel:
            return
        del self._tasks._slots[channel.address]
        scheduling, slot = found
        scheduling.slots.remove(slot)
        self._tasks._leases.pop(slot.lease_id, None)
        obituary = self._obituaries.pop(slot.lease_id, None)
        dead = self._peer.nodes.dead_node_of(slot.address)
        if obituary is not None:
            self._bury(scheduling, slot, obituary)
        elif dead is not None:
            self._bury(scheduling, slot, _node_obituary(slot, dead))
        else:
            self._orphans[slot.lease_id] = (scheduling, slot)
            if slot.raylet.closed:
                self._expect_table(slot.raylet)
            else:
                self._peer.reactor.call_later(
                    OBITUARY_WAIT_S, lambda: self._insist(slot)
                )

    def _insist(self, slot: LeaseSlot) -> None:
        if slot.lease_id not in self._orphans or slot.raylet.closed:
            return
        slot.raylet.send(m.KillExecutor(slot.lease_id))
        self._peer.reactor.call_later(OBITUARY_WAIT_S, lambda: self._insist(slot))

    def node_died(self, info: n.NodeInfo) -> None:
        """No raylet is left there to say why its executors died: the table does."""
        for lease_id, (scheduling, slot) in list(self._orphans.items()):
            if self._peer.nodes.dead_node_of(slot.address) is info:
                del self._orphans[lease_id]
                self._bury(scheduling, slot, _node_obituary(slot, info))

    def raylet_closed(self, channel: Channel) -> None:
        """The raylet of another node is gone; the table of nodes may say why."""
        self._expect_table(channel)

    def _expect_table(self, channel: Channel) -> None:
        def late() -> None:
            for lease_id, (scheduling, slot) in list(self._orphans.items()):
                if slot.raylet is channel:
                    del self._orphans[lease_id]
                    where = self._peer.nodes.describe(slot.address)
                    reason = f"the raylet of {where} closed its channel"
                    lost = m.LeaseLost(lease_id, reason, -1, kind="node")
                    self._bury(scheduling, slot, lost)

        self._peer.reactor.call_later(TABLE_WAIT_S, late)

    def _on_lost(self, channel: Channel, lost: m.LeaseLost) -> None:
        orphan = self._orphans.pop(lost.lease_id, None)
        if orphan is not None:
            self._bury(*orphan, lost)
        elif lost.lease_id in self._tasks._leases:
            self._obituaries[lost.lease_id] = lost

    def _bury(
        self, scheduling: SchedulingClass, slot: LeaseSlot, lost: m.LeaseLost
    ) -> None:
        records: list[CallRecord] = list(slot.inflight.values())
        slot.inflight.clear()
        if records:
            scheduling.crashed()
        again: list[CallRecord] = []
        for position, record in enumerate(records):
            record.slot = None
            record.lends = []
            if record.has_ended:
                continue  # the own node died first, and every call with it
            attempt = record.attempt
            # They run in order: only the first may have started.
            if lost.out_of_memory and position == 0:
                limit = self._peer.settings.task_oom_retries
                verdict = record.killed_for_memory(limit=limit)
            else:
                verdict = record.crashed(started=position == 0)
            if verdict is Verdict.CANCEL:
                self._tasks.fail(record, cancelled_payload(record))
            elif verdict is Verdict.FAIL:
                self._tasks.fail(
                    record, failures.error_payload(_crash_error(record, lost))
                )
            else:
                record.spec.attempt = record.attempt
                if position == 0:
                    self._peer.call_log.never_ran(record, None, attempt=attempt)
                if lost.out_of_memory and position == 0:
                    self._run_later(record, lost)
                else:
                    again.append(record)
        scheduling = self._tasks.classes.setdefault(scheduling.key, scheduling)
        for record in reversed(again):
            record.scheduling = scheduling
            scheduling.queue.appendleft(record)
        self._tasks._advance(scheduling, flush=True)
        self._tasks.review(scheduling)
        self._peer.objects.settle()

    def _run_later(self, record: CallRecord, lost: m.LeaseLost) -> None:
        """Queue a call again when the node has had time to get memory back."""
        from rayshim.lineage.memory import retry_delay_s

        peer = self._peer
        delay_s = retry_delay_s(
            peer.settings.task_oom_retry_delay_s, record.memory_kills
        )
        logger.warning(
            "task %s was killed for memory (%s time); it runs again in %.1f s. %s",
            record.name,
            _ordinal(record.memory_kills),
            delay_s,
            lost.reason.partition("\n")[0],
        )

        self.due_s[record.task_id] = time.monotonic() + delay_s

        def due() -> None:
            self.due_s.pop(record.task_id, None)
            if record.task_id in self._tasks.records and not record.has_ended:
                self._tasks._again(record)

        peer.reactor.call_later(delay_s, due)


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def _node_obituary(slot: LeaseSlot, info: n.NodeInfo) -> m.LeaseLost:
    reason = f"node {info.node_id} ({info.node_ip}) died: {info.death}"
    return m.LeaseLost(slot.lease_id, reason, -1, kind="node")


def _crash_error(record: CallRecord, lost: m.LeaseLost) -> Exception:
    if lost.kind == "node":
        return exceptions.NodeDiedError(
            f"Task {record.name} failed because the node it was running on is dead or "
            f"unavailable: {lost.reason}. It ran {record.attempt + 1} time(s) and has "
            "no retries left; raise max_retries."
        )
    if lost.out_of_memory:
        return exceptions.OutOfMemoryError(lost.reason)
    return exceptions.WorkerCrashedError(
        f"the executor of task {record.name} died unexpectedly: {lost.reason}. It ran "
        f"{record.attempt + 1} time(s) and has no retries left; raise max_retries, or "
        "look at the last lines that it printed."
    )
