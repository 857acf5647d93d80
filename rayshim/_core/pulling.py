"""Values of other nodes on their way to this one.

The raylet pulls; this part asks it, once for each object, and knows who waits. A copy
is pinned for this process until its entry here is gone (``ObjectEntry.near``). What
cannot be read anywhere is reported to the owner, and asked for anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rayshim import exceptions
from rayshim._core import failures
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import node_messages as n
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.directory import Copies
from rayshim.lineage.references import ObjectEntry

if TYPE_CHECKING:
    from rayshim._core.objects import ObjectPlane
    from rayshim._core.peer import MessageHandler, Peer

logger = logging.getLogger(__name__)

#: A pull that reached no source is tried again after this long.
RETRY_S = 0.5

#: Called with the copy here, or with None and why there is none.
Pulled = Callable[["m.Segment | None", str], None]


class Puller:
    """Has values of other nodes brought to this one."""

    def __init__(self, peer: Peer, objects: ObjectPlane) -> None:
        self._peer = peer
        self._objects = objects
        #: Object id -> who waits for its copy here.
        self._pulls: dict[bytes, list[Pulled]] = {}
        #: (raylet, object id) -> who waits for the pin there.
        self._pins: dict[tuple[str, bytes], Pulled] = {}
        #: Object id -> (segment, when it was first asked for).
        self._since: dict[bytes, tuple[m.Segment, float]] = {}
        #: Object id -> why the last try to pull it failed.
        self._failures: dict[bytes, str] = {}
        #: Object id that :meth:`want` looks after -> who is told.
        self._wanted: dict[bytes, list[Callable[[ObjectEntry], None]]] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        """The messages that this part handles."""
        return {n.ObjectPulled: self._on_pulled}

    # -- asking ----------------------------------------------------------------------

    def is_here(self, entry: ObjectEntry) -> bool:
        """True if the value, or its error, can be read without waiting."""
        value = entry.value
        return value is not None and (
            value.segment is None
            or value.segment.node == self._peer.node_id
            or entry.near is not None
        )

    def describe(self, entry: ObjectEntry) -> str:
        """Why a value that is known is not here, for errors."""
        segment = entry.value.segment if entry.value is not None else None
        where = f"node {segment.node[:8]}" if segment is not None else "its owner"
        text = f"is on its way here from {where}"
        error = self._failures.get(entry.object_id)
        if error:
            text += f"; that failed and is tried again: {error.rstrip('. ')}"
        return text

    def want(
        self,
        entry: ObjectEntry,
        callback: Callable[[ObjectEntry], None] | None = None,
    ) -> None:
        """See to it that a value comes here, once it is known (under the lock).

        ``callback``: told when it, or its error, can be read.
        """
        waiting = self._wanted.get(entry.object_id)
        if waiting is not None:
            if callback is not None:
                waiting.append(callback)
            return
        if self.is_here(entry):
            if callback is not None:
                callback(entry)
            return
        self._wanted[entry.object_id] = [] if callback is None else [callback]
        self._bring(entry)

    def _bring(self, entry: ObjectEntry) -> None:
        object_id = entry.object_id
        if self._objects.entries.get(object_id) is not entry or self.is_here(entry):
            for callback in self._wanted.pop(object_id, ()):
                callback(entry)
            return
        if entry.value is None:
            self._objects.when_known(object_id, self._bring)
            return
        segment = entry.value.segment

        def pulled(found: m.Segment | None, error: str) -> None:
            if found is None and entry.value is not None:
                self._objects.locating.lose(entry, segment, error)
            self._bring(entry)

        self.pull(object_id, segment, pulled)

    def pull(self, object_id: bytes, segment: m.Segment, done: Pulled) -> None:
        """Ask for a copy on this node (under the lock); ``done`` is called once."""
        waiting = self._pulls.get(object_id)
        if waiting is not None:
            waiting.append(done)
            return
        self._pulls[object_id] = [done]
        self._since[object_id] = (segment, time.monotonic())
        self._ask(object_id, segment)

    def _ask(self, object_id: bytes, segment: m.Segment) -> None:
        entry = self._objects.entries.get(object_id)
        copies: list[str] = []
        if entry is not None and entry.copies is not None:
            copies = list(entry.copies.nodes)
        self._peer.raylet.send(n.PullObject(object_id, segment, copies))

    def pin_at(
        self, node: str, object_id: bytes, segment: m.Segment, done: Pulled
    ) -> None:
        """Pin the copy of another node, as the primary is lost (under the lock)."""
        address = self._peer.nodes.raylet_of(node)
        if node == self._peer.node_id:
            address = self._peer.raylet_address
        try:
            channel = self._peer.raylet_at(address)
        except (ConnectionError, ValueError):
            done(None, f"node {node[:8]} is gone")
            return
        self._pins[channel.address or address, object_id] = done
        channel.send(n.PullObject(object_id, segment, []))

    # -- answers ---------------------------------------------------------------------

    def _on_pulled(self, channel: Channel, pulled: n.ObjectPulled) -> None:
        object_id = pulled.object_id
        pin = self._pins.pop((channel.address, object_id), None)
        if pin is not None and channel is not self._peer.raylet:
            pin(pulled.segment, pulled.error)
            return
        if pin is not None:
            pin(pulled.segment, pulled.error)
        waiting = self._pulls.get(object_id)
        entry = self._objects.entries.get(object_id)
        if pulled.segment is None and not pulled.is_gone and waiting is not None:
            if self._try_again(object_id, entry, pulled.error):
                return
        self._pulls.pop(object_id, None)
        self._since.pop(object_id, None)
        self._failures.pop(object_id, None)
        if pulled.segment is not None:
            if entry is None:
                channel.send(n.UnpinCopies([object_id]))
            else:
                self._arrived(entry, pulled.segment)
        for done in waiting or ():
            done(pulled.segment, pulled.error or "no node has it")
        self._objects.settle()

    def _arrived(self, entry: ObjectEntry, segment: m.Segment) -> None:
        if entry.copies is None:
            entry.copies = Copies()
        entry.copies.near = segment
        node = self._peer.node_id
        if entry.owner:
            message = m.CopiesMade([entry.object_id], node)
            self._objects.send_if_alive(entry.owner, message)
        elif entry.value is not None and entry.value.segment is not None:
            entry.copies.made(node, entry.value.segment.node)

    def _try_again(
        self, object_id: bytes, entry: ObjectEntry | None, error: str
    ) -> bool:
        """No source could be reached; is it worth another try?"""
        segment, since_s = self._since[object_id]
        timeout_s = self._peer.settings.fetch_timeout_s
        if entry is None or self._peer.ended:
            return False
        node = self._peer.nodes.nodes.get(segment.node)
        if node is not None and not node.alive:
            return False
        if time.monotonic() - since_s > timeout_s:
            logger.warning("gave up pulling %s: %s", object_id.hex(), error)
            if entry.value is not None and entry.value.segment is not None:
                self._time_out(entry, segment, error, timeout_s)
            return False

        self._failures[object_id] = error

        def again() -> None:
            if object_id in self._pulls:
                self._ask(object_id, segment)

        self._peer.reactor.call_later(RETRY_S, again)
        return True

    def _time_out(
        self, entry: ObjectEntry, segment: m.Segment, error: str, timeout_s: float
    ) -> None:
        failure = exceptions.ObjectFetchTimedOutError(
            entry.object_id.hex(), entry.owner or self._peer.address, entry.call_site
        )
        failure.add_details(
            f"Node {segment.node[:8]} holds it and did not hand it over in "
            f"{timeout_s:g} s: {error}"
        )
        self._objects.table.lose(entry)
        self._objects.complete(entry, failures.error_payload(failure))

    def made(self, copies: m.CopiesMade) -> None:
        """A node says that it has copies of objects of this process."""
        gone = []
        for object_id in copies.object_ids:
            entry = self._objects.entries.get(object_id)
            value = entry.value if entry is not None else None
            if entry is None or value is None or value.segment is None:
                gone.append(object_id)  # it was freed while the copy was made
                continue
            if entry.copies is None:
                entry.copies = Copies()
            entry.copies.made(copies.node, value.segment.node)
        if gone:
            self.free_copies(gone, copies.node)

    def free_copies(
        self, object_ids: list[bytes], node: str, *, is_pinned: bool = False
    ) -> None:
        """Tell a raylet that copies are not needed (under the lock)."""
        peer = self._peer
        is_near = node == peer.node_id
        address = peer.raylet_address if is_near else peer.nodes.raylet_of(node)
        if not address:
            return  # the node is gone, and the copies with it
        try:
            raylet = peer.raylet_at(address)
            if is_pinned:
                raylet.send(n.UnpinCopies(object_ids))
            raylet.send(n.FreeCopies(object_ids))
        except ConnectionError:
            pass

    def unpin(self, object_ids: list[bytes]) -> None:
        """This process reads these copies no more."""
        if not self._peer.raylet.closed:
            self._peer.raylet.send(n.UnpinCopies(object_ids))
