"""Futures of values: resolved by the thread or the loop that waits.

Objects and not closures: what a closure holds of itself only the garbage collector
finds, and with it the references that a future was made from.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rayshim._core.locating import NotHere
from rayshim._core.refs import dropped
from rayshim.lineage.references import ObjectEntry

if TYPE_CHECKING:
    from rayshim._core.peer import Peer


class AwaitedValue:
    """Ends a future's use of its object, and tells which one it stands for."""

    __slots__ = ("object_id",)

    def __init__(self, object_id: bytes) -> None:
        self.object_id = object_id

    def __call__(self, future: Any) -> None:
        dropped.append(self.object_id)


class ThreadFuture:
    """Sets a ``concurrent.futures.Future``."""

    __slots__ = ("_entry", "_future", "_peer")

    def __init__(self, peer: Peer, entry: ObjectEntry, future: Future[Any]) -> None:
        self._peer = peer
        self._entry = entry
        self._future = future

    def known(self, entry: ObjectEntry) -> None:
        """The value is known, or is here (under the lock)."""
        self._peer.reactor.deferred.append(self.resolve)

    def resolve(self) -> None:
        """Set the future, unless the value has to come here first."""
        future = self._future
        try:
            value = self._peer.objects.value_of(self._entry)
        except NotHere as missing:
            bring(self._peer, self._entry, missing, self)
        except BaseException as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        else:
            if future.set_running_or_notify_cancel():
                future.set_result(value)

    def hold(self) -> None:
        """Count the future as a use of the object (under the lock)."""
        object_id = self._entry.object_id
        self._peer.objects.table.hold(object_id)
        self._future.add_done_callback(AwaitedValue(object_id))


class LoopFuture:
    """Sets an ``asyncio.Future`` in its loop."""

    __slots__ = ("_entry", "_future", "_loop", "_peer")

    def __init__(
        self,
        peer: Peer,
        entry: ObjectEntry,
        future: asyncio.Future[Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._peer = peer
        self._entry = entry
        self._future = future
        self._loop = loop
        #: Channels are read at once while somebody waits here.
        peer.reactor.eager += 1

    def known(self, entry: ObjectEntry) -> None:
        """The value is known, or is here (under the lock)."""
        self._peer.loops.call_soon(self._loop, self.resolve)

    def resolve(self) -> None:
        """Set the future, unless the value has to come here first."""
        peer, future = self._peer, self._future
        if future.done():
            peer.reactor.eager -= 1
            return
        try:
            value = peer.objects.value_of(self._entry)
        except NotHere as missing:
            bring(peer, self._entry, missing, self)
            return
        except BaseException as error:
            if isinstance(error, StopIteration):
                error = RuntimeError("the call raised StopIteration")
            future.set_exception(error)
        else:
            future.set_result(value)
        peer.reactor.eager -= 1

    def hold(self) -> None:
        """Count the future as a use of the object (under the lock)."""
        object_id = self._entry.object_id
        self._peer.objects.table.hold(object_id)
        self._future.add_done_callback(AwaitedValue(object_id))


def bring(
    peer: Peer,
    entry: ObjectEntry,
    missing: NotHere,
    waiter: ThreadFuture | LoopFuture,
) -> None:
    """Tell a future when a value that could not be read can be."""
    with peer.lock:
        waiter.hold()
        peer.objects.locating.missed(entry, missing)
        peer.objects.fetch_unknown((entry,))
        peer.objects.pulling.want(entry, waiter.known)
        peer.tasks.flush_all()
        peer.actors.flush_all()
