"""What owners and borrowers say to each other about objects."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rayshim import exceptions
from rayshim._core import failures
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.address import node_of
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.references import ObjectEntry

if TYPE_CHECKING:
    from rayshim._core.objects import ObjectPlane
    from rayshim._core.peer import MessageHandler, Peer


#: The end of a process elsewhere waits this long for the word on its node.
OBITUARY_S = 0.3


class Lending:
    """Values asked for and given, lends opened and closed, owners that died."""

    def __init__(self, peer: Peer, objects: ObjectPlane) -> None:
        self._peer = peer
        self._objects = objects
        #: Borrowed ids whose value was asked for and has not come.
        self.fetching: set[bytes] = set()

    def handlers(self) -> dict[type, MessageHandler]:
        """The messages that this part handles."""
        return {
            m.Fetch: self._on_fetch,
            m.Objects: self._on_objects,
            m.Borrow: self._on_borrow,
            m.BorrowAck: self._on_borrow_ack,
            m.Release: self._on_release,
            m.FreeSegments: self._on_free_segments,
            m.ObjectsLost: self._on_objects_lost,
            m.CopiesMade: self._on_copies_made,
        }

    def _on_fetch(self, channel: Channel, fetch: m.Fetch) -> None:
        known = []
        for object_id in fetch.object_ids:
            entry = self._objects.entries.get(object_id)
            if entry is None:
                lost = failures.lost(object_id, self._peer.address)
                channel.queue(m.Objects([object_id], [lost]))
            elif entry.value is not None:
                known.append(entry)
            else:
                self._answer_later(channel, object_id)
        for start in range(0, len(known), 512):
            self._answer(channel, known[start : start + 512])
        channel.flush()

    def _answer_later(self, channel: Channel, object_id: bytes) -> None:
        def known(entry: ObjectEntry) -> None:
            if not channel.closed:
                self._answer(channel, [entry])
                channel.flush()

        self._objects.when_known(object_id, known)

    def _answer(self, channel: Channel, entries: list[ObjectEntry]) -> None:
        address = channel.address
        channel.queue(
            m.Objects(
                [entry.object_id for entry in entries],
                [self._objects.relend(entry.value, address) for entry in entries],
            )
        )

    def _on_objects(self, channel: Channel, objects: m.Objects) -> None:
        for object_id, payload in zip(objects.object_ids, objects.values, strict=True):
            self.fetching.discard(object_id)
            inner = self._objects.receive_nested(payload, channel.address)
            entry = self._objects.entries.get(object_id)
            if entry is None or entry.value is not None:
                for inner_id in inner:
                    self._objects.table.drop(inner_id)
                continue
            entry.contains = inner
            self._objects.complete(entry, payload)
        self._objects.settle()

    def _on_borrow(self, channel: Channel, borrow: m.Borrow) -> None:
        ids, lends, unknown = [], [], []
        known_numbers, unknown_numbers = [], []
        for object_id, number in zip(borrow.object_ids, borrow.numbers, strict=True):
            lend = self._objects.table.register_borrower(object_id, channel.address)
            if lend:
                ids.append(object_id)
                lends.append(lend)
                known_numbers.append(number)
            else:
                unknown.append(object_id)
                unknown_numbers.append(number)
        channel.send(m.BorrowAck(ids, lends, unknown, known_numbers + unknown_numbers))

    def _on_borrow_ack(self, channel: Channel, ack: m.BorrowAck) -> None:
        numbers, owner = iter(ack.numbers), channel.address
        for object_id, lend in zip(ack.object_ids, ack.lends, strict=True):
            self._objects.table.acknowledge(object_id, lend, next(numbers, -1), owner)
        for object_id in ack.unknown:
            entry = self._objects.entries.get(object_id)
            if entry is not None and entry.value is None:
                self._objects.complete(entry, failures.lost(object_id, owner))
            self._objects.table.acknowledge(object_id, 0, next(numbers, -1), owner)
        self._objects.settle()

    def _on_release(self, channel: Channel, release: m.Release) -> None:
        for object_id, lend in zip(release.object_ids, release.lends, strict=True):
            self._objects.table.release(object_id, channel.address, lend)
        self._let_go()

    def _on_free_segments(self, channel: Channel, free: m.FreeSegments) -> None:
        for name in free.names:
            self._peer.store.recycle(name)
        self._peer.arm_sweep()

    def _let_go(self) -> None:
        """Free what nobody holds any more; an idle process looks at no other time."""
        self._objects.collect()
        self._objects.settle()

    def owner_died(self, address: str) -> None:
        """A process is gone: what it owned is lost, but for small values known here.

        Large ones are removed from the stores. Views of them stay valid.
        """
        lost = []
        for entry in self._objects.table.peer_died(address):
            self.fetching.discard(entry.object_id)
            if entry.value is None or entry.value.segment is not None:
                lost.append(entry)
        self._let_go()
        if not lost:
            return
        nodes = self._peer.nodes
        if not node_of(address) or nodes.dead_node_of(address) is not None:
            self._end_values(address, lost)
            return
        # Perhaps its whole node died, and the word of it is on its way.
        self._peer.reactor.call_later(
            OBITUARY_S, lambda: self._end_values(address, lost)
        )

    def _end_values(self, address: str, lost: list[ObjectEntry]) -> None:
        for entry in lost:
            value = entry.value
            if value is not None and value.segment is not None:
                self._peer.store.drop_mapping(value.segment.name)
                entry.value = value = None
            if value is None:
                error = exceptions.OwnerDiedError(
                    entry.object_id.hex(), address, entry.call_site
                )
                error.add_details(self._obituary(address))
                self._objects.complete(entry, failures.error_payload(error))
        self._objects.settle()

    def _obituary(self, address: str) -> str:
        """Where a dead process was, when its end was noticed, and why it died."""
        nodes = self._peer.nodes
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        text = f"The owner was {address} on {nodes.describe(address)}; "
        dead = nodes.dead_node_of(address)
        if dead is not None:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(dead.died_s))
            return f"{text}that node died at {when}: {dead.death}."
        return f"{text}its end was noticed at {when}."

    def _on_objects_lost(self, channel: Channel, lost: m.ObjectsLost) -> None:
        for object_id, name in zip(lost.object_ids, lost.names, strict=True):
            entry = self._objects.entries.get(object_id)
            value = entry.value if entry is not None else None
            if entry is None or value is None or value.segment is None:
                continue
            if value.segment.name == name and not entry.owner:
                why = f"{channel.address} could not read {name}"
                self._objects.recovering.lose(entry, value.segment, why)
        self._objects.settle()

    def _on_copies_made(self, channel: Channel, copies: m.CopiesMade) -> None:
        self._objects.pulling.made(copies)
