"""Values of this process on nodes that leave: other nodes take them over.

A node that is drained stays until nobody needs its store. Each owner that hears of it
looks through its objects: where the primary copy is there, a copy elsewhere takes its
place, or another node pulls one; then the file is removed there. It is not given back
to its creator as a freed one: borrowers that have not heard of the move may be reading
it, and an unlinked file keeps what they read. Values may still be written there while
the node's last calls end, so the looks go on until it is gone.

Made when the first node is drained. Everything here happens under the peer's lock.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import node_messages as n
from rayshim.lineage.references import ObjectEntry

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

#: Seconds between two looks at all objects, and the share of time that they may take.
LOOK_S = 0.1
LOOK_SHARE = 0.05
#: Values that are moved at once.
AT_ONCE = 32


class Evacuation:
    """The owner's part of draining nodes."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._objects = peer.objects
        #: Hex ids of the nodes that leave.
        self._leaving: frozenset[str] = frozenset()
        #: Object id -> nodes that were asked for it and did not take it.
        self._tried: dict[bytes, set[str]] = {}
        #: Id of a value that is on its way -> node that it goes to.
        self._moving: dict[bytes, str] = {}
        #: What the last look found and is not on its way yet.
        self._waiting: deque[ObjectEntry] = deque()
        self._is_planned = False

    def leave(self, node_ids: frozenset[str]) -> None:
        """These nodes, and no others, are drained now."""
        # What is here and owned here ends with this process.
        self._leaving = node_ids - {self._peer.node_id}
        self._tried.clear()
        self._waiting.clear()
        if self._leaving and not self._is_planned:
            self._look()

    def _look(self) -> None:
        self._is_planned = False
        if not self._leaving or self._peer.ended:
            return
        began_s = time.monotonic()
        for object_id, target in list(self._moving.items()):
            if not self._peer.nodes.raylet_of(target):
                del self._moving[object_id]  # nobody will answer
        if not self._waiting:
            self._waiting.extend(self._left())
        self._move_some()
        took_s = time.monotonic() - began_s
        self._is_planned = True
        self._peer.reactor.call_later(max(LOOK_S, took_s / LOOK_SHARE), self._look)

    def _left(self) -> Iterator[ObjectEntry]:
        """The owned values whose primary copy is on a node that leaves."""
        return filter(self._is_left, list(self._objects.entries.values()))

    def _is_left(self, entry: ObjectEntry) -> bool:
        value = entry.value
        return (
            not entry.owner
            and value is not None
            and value.segment is not None
            and value.segment.node in self._leaving
            and entry.object_id not in self._moving
        )

    def _move_some(self) -> None:
        while self._waiting and len(self._moving) < AT_ONCE:
            entry = self._waiting.popleft()
            if self._is_left(entry):
                self._move(entry)

    def _move(self, entry: ObjectEntry) -> None:
        object_id, old = entry.object_id, entry.value.segment
        tried = self._tried.setdefault(object_id, set())
        target = next((one for one in self._targets(entry) if one not in tried), "")
        if not target:
            if not tried:
                self._refused(old.node, "no other node is there")
            # What was full may have room at the next look.
            tried.clear()
            return
        self._moving[object_id] = target

        def moved(found: m.Segment | None, error: str) -> None:
            self._moving.pop(object_id, None)
            if found is None:
                tried.add(target)
                self._refused(old.node, f"node {target[:8]}: {error}")
                return
            self._tried.pop(object_id, None)
            self._replace(entry, old, found)
            self._move_some()

        self._objects.pulling.pin_at(target, object_id, old, moved)

    def _targets(self, entry: ObjectEntry) -> Iterator[str]:
        """Nodes that could take a value, the best one first."""
        peer = self._peer
        nodes = peer.nodes.nodes
        usable = [
            info.node_id for info in nodes.values() if info.alive and not info.draining
        ]
        if entry.copies is not None:
            yield from (one for one in entry.copies.nodes if one in usable)
        if peer.node_id in usable:
            yield peer.node_id
        # The others in an order that differs from object to object.
        start = entry.object_id[0] % max(1, len(usable))
        yield from usable[start:] + usable[:start]

    def _replace(self, entry: ObjectEntry, old: m.Segment, found: m.Segment) -> None:
        """Another node has the value, pinned for this process."""
        objects, value = self._objects, entry.value
        is_known = objects.entries.get(entry.object_id) is entry
        if not is_known or value is None or value.segment is not old:
            # Freed, or lost and made again, meanwhile.
            objects.pulling.free_copies([entry.object_id], found.node, is_pinned=True)
            return
        entry.value = m.Payload(value.kind, value.data, value.buffers, value.nested)
        entry.value.segment = found
        if entry.copies is not None:
            entry.copies.nodes.pop(found.node, None)
        if old.creator:
            self._tell(old.node, n.DiscardSegments([old.name]))
        else:
            objects.pulling.free_copies([entry.object_id], old.node, is_pinned=True)

    def _refused(self, node_id: str, reason: str) -> None:
        self._tell(node_id, n.MoveRefused(1, reason))

    def _tell(self, node_id: str, message: Any) -> None:
        address = self._peer.nodes.raylet_of(node_id)
        if address:
            with contextlib.suppress(ConnectionError):
                self._peer.raylet_at(address).send(message)
