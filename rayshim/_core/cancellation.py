"""Cancelling calls, wherever they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayshim import exceptions
from rayshim._core import failures
from rayshim._core.calls import CallRecord
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.ids import TaskID

if TYPE_CHECKING:
    from rayshim._core.peer import MessageHandler, Peer


class Canceller:
    """Cancels calls that this process owns, or asks their owner to."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._tasks = peer.tasks

    def handlers(self) -> dict[type, MessageHandler]:
        """The messages that this part handles."""
        return {m.CancelTask: self._on_cancel}

    def cancel(
        self, object_id: bytes, owner: str, force: bool, recursive: bool
    ) -> None:
        """Cancel the call that makes an object; no effect if it has ended."""
        task_id = object_id[:24]
        with self._peer.lock:
            if owner and owner != self._peer.address:
                message = m.CancelTask(task_id, force, recursive)
                try:
                    self._peer.connect(owner).send(message)
                except ConnectionError:
                    pass  # the owner's end has failed the call already
                return
            self.cancel_owned(task_id, force, recursive)
        self._peer.reactor.run_deferred()

    def _on_cancel(self, channel: Channel, cancel: m.CancelTask) -> None:
        self.cancel_owned(cancel.task_id, cancel.force, cancel.recursive)

    def cancel_owned(self, task_id: bytes, force: bool, recursive: bool) -> bool:
        """Cancel a call of this process (under the lock)."""
        record = self._tasks.records.get(task_id)
        if record is None:
            return False
        record.cancelled = True
        channel: Channel | None = None
        if record.actor is not None:
            channel = record.actor.channel_of(record)
        elif record.slot is not None:
            channel = record.slot.channel
        if channel is None:
            if record.actor is not None:
                record.actor.withdraw(record)
            elif record.scheduling is not None and record in record.scheduling.queue:
                record.scheduling.queue.remove(record)
                self._tasks.review(record.scheduling)
            self._tasks.fail(record, cancelled_payload(record))
        else:
            channel.send(m.CancelTask(task_id, force, recursive))
        return True

    def cancel_children(self, parent: bytes, force: bool) -> None:
        """Cancel what a cancelled call has submitted (under the lock)."""
        for record in list(self._tasks.records.values()):
            if record.parent == parent:
                self.cancel_owned(
                    record.task_id, force and record.actor is None, recursive=True
                )


def cancelled_payload(record: CallRecord) -> m.Payload:
    """What a call that was cancelled before it ran gives."""
    return failures.error_payload(exceptions.TaskCancelledError(TaskID(record.task_id)))
