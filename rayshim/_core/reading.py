"""Waiting for values: get, wait and futures."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core import blocking
from rayshim._core.futures import LoopFuture, ThreadFuture
from rayshim._core.locating import NotHere
from rayshim._core.refs import ObjectRef, dropped
from rayshim.lineage.references import ObjectEntry

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

#: Dropped references that are worth a look: a program without large values needs no
#: sweep, but what it drops must not pile up.
COLLECT_AT = 100


class ObjectReader:
    """The ways in which user code waits for the objects of a peer."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._objects = peer.objects

    # -- get and wait ----------------------------------------------------------------

    def get(self, refs: Sequence[ObjectRef], timeout_s: float | None) -> list[Any]:
        """Values of references, in order; the first failure in the list is raised.

        Raises:
            GetTimeoutError: a value was not there in time.
        """
        found = self._objects.lookup(refs)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if any(entry.value is None for entry in found):
            self.await_values(found, timeout_s)
        value_of = self._objects.value_of
        while True:
            try:
                return [value_of(entry) for entry in found]
            except NotHere as missing:
                self._await_here(found, missing, deadline)

    def _await_here(
        self, found: Sequence[ObjectEntry], missing: NotHere, deadline: float | None
    ) -> None:
        """Block until known values can be read on this node.

        Raises:
            GetTimeoutError: one was not here in time.
        """
        peer, objects = self._peer, self._objects
        with peer.lock:
            objects.locating.missed(objects.entries[missing.object_id], missing)
            objects.fetch_unknown(found)
            for entry in found:
                objects.pulling.want(entry)
            self._prepare()
        is_here = objects.pulling.is_here
        waiting = list(found)

        def done() -> bool:
            while waiting and is_here(waiting[-1]):
                waiting.pop()
            return not waiting or peer.ended

        blocking.wait(peer, done, waiting, deadline, needs_all=True)
        if peer.ended:
            raise exceptions.RaySystemError(
                RuntimeError("the session was shut down during get()")
            )
        if waiting:
            left = sum(1 for entry in waiting if not is_here(entry))
            raise exceptions.GetTimeoutError(
                f"Get timed out: {left} of {len(found)} objects were lost or on other "
                "nodes and did not come here in time. "
                f"{blocking.reason(peer, waiting[-1])}"
            )

    def await_values(
        self, entries: Sequence[ObjectEntry], timeout_s: float | None
    ) -> None:
        """Block until every value is known."""
        peer = self._peer
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        missing = [entry for entry in entries if entry.value is None]
        with peer.lock:
            self._objects.fetch_unknown(missing)
            if peer.nodes.nodes:
                for entry in missing:
                    self._objects.pulling.want(entry)
            self._prepare()
        position = 0
        count = len(missing)

        def done() -> bool:
            nonlocal position
            while position < count and missing[position].value is not None:
                position += 1
            return position == count or peer.ended

        blocking.wait(peer, done, missing, deadline, needs_all=True)
        if position < count:
            if peer.ended:
                raise exceptions.RaySystemError(
                    RuntimeError("the session was shut down during get()")
                )
            left = sum(1 for entry in missing if entry.value is None)
            raise exceptions.GetTimeoutError(
                f"Get timed out: {left} of {len(entries)} objects were not ready after "
                f"{timeout_s:g} s. "
                f"{blocking.reason(peer, missing[position], waited_s=timeout_s or 0)}"
            )

    def wait(
        self,
        refs: list[ObjectRef],
        num_returns: int,
        timeout_s: float | None,
        *,
        fetch_local: bool = True,
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """Split references into ready and not ready, in the order given.

        ``fetch_local``: values of other nodes are ready when they are here.
        """
        found = self._objects.lookup(refs)
        peer = self._peer
        if fetch_local and peer.nodes.nodes:
            return self._wait_here(refs, found, num_returns, timeout_s)
        if timeout_s == 0:
            self._poll_once(found)
        elif not _has_known(found, num_returns):
            unknown = [entry for entry in found if entry.value is None]
            may_stay = len(found) - num_returns
            with peer.lock:
                self._objects.fetch_unknown(unknown)
                self._prepare()

            def enough() -> bool:
                nonlocal unknown
                unknown = [entry for entry in unknown if entry.value is None]
                return len(unknown) <= may_stay or peer.ended

            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            blocking.wait(peer, enough, unknown, deadline)
        ready: list[ObjectRef] = []
        rest: list[ObjectRef] = []
        for position, entry in enumerate(found):
            if entry.value is None:
                rest.append(refs[position])
                continue
            ready.append(refs[position])
            if len(ready) == num_returns:
                # Callers wait again and again for one of very many.
                rest += refs[position + 1 :]
                break
        return ready, rest

    def _wait_here(
        self,
        refs: list[ObjectRef],
        found: list[ObjectEntry],
        num_returns: int,
        timeout_s: float | None,
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """As :meth:`wait`, for values that may have to come from other nodes."""
        peer = self._peer
        is_here = self._objects.pulling.is_here
        with peer.lock:
            self._objects.fetch_unknown(found)
            for entry in found:
                self._objects.pulling.want(entry)
            self._prepare()
        missing = [entry for entry in found if not is_here(entry)]
        may_stay = len(found) - num_returns

        def enough() -> bool:
            nonlocal missing
            missing = [entry for entry in missing if not is_here(entry)]
            return len(missing) <= may_stay or peer.ended

        if timeout_s == 0:
            peer.reactor.wait(lambda: False, time.monotonic())
        else:
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            blocking.wait(peer, enough, missing, deadline)
        ready: list[ObjectRef] = []
        rest: list[ObjectRef] = []
        for ref, entry in zip(refs, found, strict=True):
            is_ready = len(ready) < num_returns and is_here(entry)
            (ready if is_ready else rest).append(ref)
        return ready, rest

    def _prepare(self) -> None:
        """Before a wait: send what waits here, free what was dropped (locked)."""
        if len(dropped) > COLLECT_AT:
            self._objects.collect()
        self._peer.tasks.flush_all()
        self._peer.actors.flush_all()

    def _poll_once(self, found: Sequence[ObjectEntry]) -> None:
        peer = self._peer
        with peer.lock:
            self._objects.fetch_unknown(found)
            self._prepare()
        peer.reactor.wait(lambda: False, time.monotonic())

    def wait_mixed(
        self, waitables: list[Any], num_returns: int, timeout_s: float | None
    ) -> tuple[list[Any], list[Any]]:
        """:meth:`wait` for a list with generators: ready when an item is there."""
        peer = self._peer
        looks: list[Callable[[], bool]] = []
        missing = []
        for item in waitables:
            if isinstance(item, ObjectRef):
                (entry,) = self._objects.lookup((item,))
                missing.append(entry)
                looks.append(functools.partial(_is_known, entry))
            else:
                looks.append(item.has_next)

        def enough() -> bool:
            return sum(look() for look in looks) >= num_returns or peer.ended

        with peer.lock:
            self._objects.fetch_unknown(missing)
            self._prepare()
        if timeout_s == 0:
            peer.reactor.wait(lambda: False, time.monotonic())
        else:
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            blocking.wait(peer, enough, missing, deadline)
        ready: list[Any] = []
        rest: list[Any] = []
        for item, look in zip(waitables, looks, strict=True):
            if len(ready) < num_returns and look():
                ready.append(item)
            else:
                rest.append(item)
        return ready, rest

    # -- futures ---------------------------------------------------------------------

    def future(self, ref: ObjectRef) -> Future[Any]:
        """See :meth:`ObjectRef.future`."""
        future: Future[Any] = Future()
        peer = self._peer
        (entry,) = self._objects.lookup((ref,))
        waiter = ThreadFuture(peer, entry, future)
        with peer.lock:
            if entry.value is None:
                waiter.hold()
                self._objects.when_known(ref._bytes, waiter.known)
                peer.tasks.flush_all()
                peer.actors.flush_all()
            waiting = entry.value is None
        if waiting:
            return future
        peer.reactor.run_deferred()
        if not future.done():
            waiter.resolve()
        return future

    def asyncio_future(self, ref: ObjectRef) -> asyncio.Future[Any]:
        """See :meth:`ObjectRef.as_future`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        peer = self._peer
        (entry,) = self._objects.lookup((ref,))
        with peer.lock:
            waiter = LoopFuture(peer, entry, future, loop)
            if entry.value is None:
                waiter.hold()
                self._objects.when_known(ref._bytes, waiter.known)
                peer.tasks.flush_soon()
                peer.actors.flush_soon()
                return future
        waiter.resolve()
        return future


def _is_known(entry: ObjectEntry) -> bool:
    return entry.value is not None


def _has_known(entries: Sequence[ObjectEntry], wanted: int) -> bool:
    """True if at least ``wanted`` of the entries have their value."""
    for entry in entries:
        if entry.value is not None:
            wanted -= 1
            if not wanted:
                return True
    return False
