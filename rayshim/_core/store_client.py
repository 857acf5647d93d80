"""What a process asks of its raylet about the node's store, and what it answers."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import node_messages as n
from rayshim.adapters.wire.channel import Channel

if TYPE_CHECKING:
    from rayshim._core.peer import MessageHandler, Peer

#: How many of its objects a process names to the raylet.
HOLDINGS = 20
#: Seconds that the raylet may take; a slow disk takes long for many gigabytes.
ANSWER_LIMIT_S = 600.0
#: The parts of a value are aligned in a segment, whose last page may be part empty.
SLACK_BYTES = 64 * 1024
#: A restored value may be spilled again before its reader comes to map it.
ATTEMPTS = 8


class StoreClient:
    """The store's part of a peer; made with it, at work when memory is short."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        #: Request id -> answer, or None while it is awaited.
        self._answers: dict[int, Any] = {}
        self._request_ids = itertools.count(1)
        peer.store.on_lost = self.discard

    def handlers(self) -> dict[type, MessageHandler]:
        """The messages that this part handles."""
        return {
            n.RoomMade: self._on_answer,
            n.SegmentsRestored: self._on_answer,
            n.SegmentsSpilled: self._on_spilled,
            n.AskHoldings: self._on_ask_holdings,
        }

    # -- requests ------------------------------------------------------------------

    def make_room(self, size_bytes: int) -> str:
        """Have the raylet make room for a value.

        Returns:
            Empty when the store has room, else a folder on disk to write to.

        Raises:
            ObjectStoreFullError: everything is in use and nothing may be spilled.
            OutOfDiskError: the disk takes no more.
        """
        request_id = self._new_request()
        answer = self._ask(request_id, n.MakeRoom(request_id, size_bytes + SLACK_BYTES))
        if answer.error:
            raise full_error(answer.error, size_bytes, answer.report)
        return str(answer.outside)

    def restore(self, names: Sequence[str]) -> None:
        """Have the raylet bring spilled values back.

        Raises:
            FileNotFoundError: one is neither in the store nor spilled.
        """
        request_id = self._new_request()
        answer = self._ask(request_id, n.RestoreSegments(request_id, list(names)))
        if len(answer.names) < len(names):
            raise FileNotFoundError(answer.error)
        for name in answer.outside_names:
            self._peer.store.find_outside(name, f"{answer.outside}/{name}")

    def read_restored(
        self, segment: m.Segment, release: Callable[[], None]
    ) -> tuple[memoryview, list[memoryview]]:
        """View a value that is not in memory, as :meth:`SegmentStore.read` does.

        Raises:
            FileNotFoundError: it is neither in the store nor spilled.
        """
        for _ in range(ATTEMPTS):
            self.restore([segment.name])
            try:
                return self._peer.store.read(segment, release)
            except FileNotFoundError:
                continue  # spilled again before this process came to map it
        raise FileNotFoundError(
            f"{segment.name} was restored {ATTEMPTS} times and spilled again at once"
        )

    def discard(self, names: list[str]) -> None:
        """Tell the raylet that nobody needs these values, nor their spilled twins."""
        peer = self._peer
        with peer.lock:
            if not peer.ended and not peer.raylet.closed:
                peer.raylet.send(n.DiscardSegments(names))

    def _new_request(self) -> int:
        request_id = next(self._request_ids)
        self._answers[request_id] = None
        return request_id

    def _ask(self, request_id: int, message: Any) -> Any:
        peer, answers = self._peer, self._answers
        deadline = time.monotonic() + ANSWER_LIMIT_S
        try:
            with peer.lock:
                peer.raylet.send(message)
            peer.reactor.wait(
                lambda: (
                    answers[request_id] is not None or peer.ended or peer.raylet.closed
                ),
                deadline,
            )
        finally:
            answer = answers.pop(request_id)
        if answer is not None:
            return answer
        if peer.ended:
            raise exceptions.RaySystemError(
                RuntimeError("the session ended while the store was short of memory")
            )
        if peer.raylet.closed:
            raise exceptions.LocalRayletDiedError()
        raise exceptions.RaySystemError(
            TimeoutError(
                f"the node process ({peer.raylet_address}) did not answer "
                f"{type(message).__name__} within {ANSWER_LIMIT_S:g} s: is it stopped, "
                "or its spill folder on a disk that hangs?"
            )
        )

    # -- messages --------------------------------------------------------------------

    def _on_answer(self, channel: Channel, answer: Any) -> None:
        if answer.request_id in self._answers:
            self._answers[answer.request_id] = answer

    def _on_spilled(self, channel: Channel, spilled: n.SegmentsSpilled) -> None:
        for name in spilled.names:
            self._peer.store.drop_mapping(name)

    def _on_ask_holdings(self, channel: Channel, ask: n.AskHoldings) -> None:
        # What was dropped and not noticed yet is not held.
        peer = self._peer
        peer.objects.collect()
        node = peer.node_id
        found: list[tuple[int, bytes, str, str]] = []
        lent = 0
        for entry in list(peer.objects.entries.values()):
            value = entry.value
            if entry.owner:
                continue
            lent += bool(entry.lends)
            if value is None or value.segment is None:
                continue
            segment: m.Segment = value.segment
            if segment.node == node:
                size = max(segment.layout[-2] + segment.layout[-1], 1)
                site = entry.call_site or _made_by(entry.task)
                found.append((size, entry.object_id, segment.name, str(site)))
        largest = heapq.nlargest(HOLDINGS, found)
        holdings = [
            n.Holding(oid, name, size, site) for size, oid, name, site in largest
        ]
        channel.send(n.Holdings(ask.request_id, holdings, lent))


def _made_by(call: Any) -> str:
    name = getattr(call, "name", "")
    return f"the call {name}" if name else ""


def restore(peer: Peer, names: Sequence[str]) -> None:
    """See :meth:`StoreClient.restore`."""
    peer.store_client.restore(names)


def full_error(kind: str, size_bytes: int, report: str) -> Exception:
    """The error of a writer that finds no room."""
    if kind == "disk":
        return exceptions.OutOfDiskError(
            f"cannot store a value of {size_bytes:,} bytes: the object store of this "
            f"node is full and the disk takes no more. {report}"
        )
    return exceptions.ObjectStoreFullError(
        f"cannot store a value of {size_bytes:,} bytes in the object store of this "
        f"node: everything in it is in use. {report}"
    )
