"""Streaming generators at their owner: items as they come, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core import failures
from rayshim._core.refs import ObjectRef
from rayshim._core.serialization import PICKLED_NONE
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel

if TYPE_CHECKING:
    from rayshim._core.calls import CallRecord
    from rayshim._core.peer import MessageHandler, Peer

#: Index of the first item among a call's return values (1 is the generator itself).
_FIRST_ITEM = 2
_NONE = m.Payload(m.PICKLE, PICKLED_NONE)


class StreamState:
    """What has arrived of one stream."""

    __slots__ = (
        "abandoned",
        "address",
        "is_large",
        "is_rebuilt",
        "items",
        "position",
        "received",
        "record",
        "total",
        "waiters",
    )

    def __init__(self, record: CallRecord) -> None:
        self.record = record
        #: Index -> object id of items that arrived and were not taken yet.
        self.items: dict[int, bytes] = {}
        #: Items seen so far; a second run of the call starts over below it.
        self.received = 0
        #: Index that the consumer takes next.
        self.position = 0
        #: Number of items, errors included, once it is known.
        self.total: int | None = None
        #: Address of the executor that sends.
        self.address = ""
        #: The consumer is gone.
        self.abandoned = False
        #: An item lies in a store, and may be lost there.
        self.is_large = False
        #: The call runs again, only for items that were lost.
        self.is_rebuilt = False
        #: Called, once, at the next change.
        self.waiters: list[Callable[[], None]] = []

    def has_next(self) -> bool:
        """True if the next item, or the end, is known."""
        return self.position in self.items or self.is_exhausted()

    def is_exhausted(self) -> bool:
        """True if every item was taken."""
        return self.total is not None and self.position >= self.total


class Streams:
    """The streams that this process consumes."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        #: Object id of the generator -> its stream, while the generator exists.
        self._states: dict[bytes, StreamState] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        """The messages that this part handles."""
        return {m.StreamItem: self._on_item}

    def open(self, record: CallRecord) -> StreamState:
        """Expect items of a call (under the lock)."""
        state = StreamState(record)
        record.stream = state
        self._states[record.return_ids[0]] = state
        # A dropped generator is noticed even if its consumer does nothing more.
        self._peer.arm_sweep()
        return state

    @staticmethod
    def item_id(task_id: bytes, index: int) -> bytes:
        """Object id of an item."""
        return task_id + (index + _FIRST_ITEM).to_bytes(4, "little")

    def _on_item(self, channel: Channel, item: m.StreamItem) -> None:
        record = self._peer.tasks.records.get(item.task_id)
        state: StreamState | None = record.stream if record is not None else None
        object_id = self.item_id(item.task_id, item.index)
        objects = self._peer.objects
        if state is not None and state.is_rebuilt:
            objects.store_value(object_id, item.value, channel.address)
            return
        if state is None or state.abandoned or item.index < state.received:
            # Nobody waits for it, or it came before: store_value drops it.
            objects.store_value(object_id, item.value, channel.address)
            if state is None or state.abandoned:
                channel.send(m.StreamAck(item.task_id, -1))
                return
            state.address = channel.address
            if state.record.spec.backpressure >= 0 and item.index < state.position:
                # A second run must not wait for the consumer of the first.
                channel.send(m.StreamAck(item.task_id, state.position))
            return
        if item.value.segment is not None:
            state.is_large = True
        state.address = channel.address
        objects.table.own(object_id)
        objects.store_value(object_id, item.value, channel.address)
        self._append(state, object_id)

    def _append(self, state: StreamState, object_id: bytes) -> None:
        state.items[state.received] = object_id
        state.received += 1
        self._changed(state)

    def _changed(self, state: StreamState) -> None:
        waiters, state.waiters = state.waiters, []
        for waiter in waiters:
            waiter()

    @staticmethod
    def begin_again(record: CallRecord) -> None:
        """The call runs once more, for items that were lost (under the lock)."""
        state: StreamState = record.stream
        state.is_rebuilt = True
        record.spec.backpressure = -1  # nobody consumes what comes now

    def ended(self, record: CallRecord, result: m.Result) -> None:
        """The call has returned."""
        state: StreamState = record.stream
        if state.is_rebuilt:
            return
        state.total = max(result.streamed, state.received)
        if record.spec.num_returns == m.DYNAMIC:
            result.values[0] = self._collected(state)
        self._changed(state)

    def failed(self, record: CallRecord, payload: m.Payload) -> m.Payload:
        """The call failed for good: the error is the last item.

        Returns:
            The value of the generator's own reference: the failure if it was one of
            the system, else what there is of a dynamic one, nothing for a stream.
        """
        state: StreamState = record.stream
        dynamic = record.spec.num_returns == m.DYNAMIC
        error = failures.load_error(payload)
        own = (exceptions.RayTaskError, exceptions.TaskCancelledError)
        is_system = not isinstance(error, own)
        if dynamic and (is_system or not state.received):
            for object_id in state.items.values():
                self._peer.objects.table.drop(object_id)
            state.items.clear()
            return payload
        if state.total is None and not state.abandoned:
            object_id = self.item_id(record.task_id, state.received)
            entry = self._peer.objects.table.own(object_id)
            self._peer.objects.complete(entry, payload)
            state.total = state.received + 1
            self._append(state, object_id)
        if is_system:
            return payload
        return self._collected(state) if dynamic else _NONE

    def _collected(self, state: StreamState) -> m.Payload:
        from rayshim._core.generators import DynamicObjectRefGenerator
        from rayshim._core.serialization import serialize

        refs = [ObjectRef(state.items[index]) for index in sorted(state.items)]
        state.items.clear()
        return self._peer.objects.pack(serialize(DynamicObjectRefGenerator(refs)), "")

    def take(self, state: StreamState) -> ObjectRef | None:
        """The next reference, or None at the end (under the lock)."""
        object_id = state.items.pop(state.position, None)
        if object_id is None:
            return None
        state.position += 1
        spec = state.record.spec
        if spec.backpressure >= 0 and state.total is None:
            self._acknowledge(state, state.position)
        # The item's first use passes from the stream to the reference.
        return ObjectRef(object_id)

    def _acknowledge(self, state: StreamState, consumed: int) -> None:
        channel = self._peer.known_channel(state.address)
        if channel is not None:
            channel.send(m.StreamAck(state.record.task_id, consumed))

    def generator_dropped(self, object_id: bytes) -> None:
        """The generator is gone: so are items that nobody took."""
        state = self._states.pop(object_id, None)
        if state is None:
            return
        state.abandoned = True
        table = self._peer.objects.table
        for item_id in state.items.values():
            table.drop(item_id)
        state.items.clear()
        if state.total is None:
            self._acknowledge(state, -1)

    def peer_died(self, channel: Channel) -> None:
        """The death of a sender is dealt with by the retry of its call."""

    def wake_later(self, state: StreamState, waiter: Callable[[], Any]) -> None:
        """Call ``waiter`` at the next change of a stream (under the lock)."""
        state.waiters.append(waiter)
