"""The generators that ``.remote()`` gives for calls that yield."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from rayshim._core import blocking, current
from rayshim._core.refs import ObjectRef
from rayshim._core.streams import StreamState

if TYPE_CHECKING:
    from rayshim._core.peer import Peer


class ObjectRefGenerator:
    """Iterates over the references of a streaming call, sync or async.

    An error of the call arrives as one last reference that raises when it is read;
    then the iteration ends.

    Example:
        >>> for ref in numbers.remote(3):  # doctest: +SKIP
        ...     print(ray.get(ref))
    """

    def __init__(self, generator_ref: ObjectRef, worker: Any = None) -> None:
        self._generator_ref = generator_ref
        self._peer: Peer = worker
        self._state: StreamState = worker.streams._states[generator_ref._bytes]

    def __iter__(self) -> Iterator[ObjectRef]:
        return self

    def __aiter__(self) -> AsyncIterator[ObjectRef]:
        return self

    def __next__(self) -> ObjectRef:
        ref = self._next_sync()
        assert ref is not None
        return ref

    def _next_sync(self, timeout_s: float | None = None) -> ObjectRef | None:
        """The next reference; None if it is not there within ``timeout_s``."""
        peer, state = self._usable()
        if not state.has_next():
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            with peer.lock:
                peer.tasks.flush_all()
                peer.actors.flush_all()
                entry = peer.objects.entries.get(self._generator_ref._bytes)
            blocking.wait(
                peer,
                lambda: state.has_next() or peer.ended,
                (entry,) if entry is not None else (),
                deadline,
                needs_all=True,
            )
            if not state.has_next():
                return None
        with peer.lock:
            ref = peer.streams.take(state)
        if ref is None:
            raise StopIteration
        return ref

    async def __anext__(self) -> ObjectRef:
        peer, state = self._usable()
        while not state.has_next():
            loop = asyncio.get_running_loop()
            changed: asyncio.Future[None] = loop.create_future()

            def wake(
                loop: asyncio.AbstractEventLoop = loop,
                changed: asyncio.Future[None] = changed,
            ) -> None:
                def done() -> None:
                    if not changed.done():
                        changed.set_result(None)

                peer.loops.call_soon(loop, done)

            with peer.lock:
                if state.has_next():
                    break
                peer.streams.wake_later(state, wake)
                peer.tasks.flush_soon()
                peer.actors.flush_soon()
                peer.reactor.eager += 1
            try:
                await changed
            finally:
                peer.reactor.eager -= 1
        with peer.lock:
            ref = peer.streams.take(state)
        if ref is None:
            raise StopAsyncIteration
        return ref

    def _usable(self) -> tuple[Peer, StreamState]:
        if self._peer.ended or current.peer is not self._peer:
            raise ValueError(
                "this generator belongs to a session that has ended; call the "
                "remote function again"
            )
        return self._peer, self._state

    def completed(self) -> ObjectRef:
        """A reference that is ready when the call has ended."""
        return self._generator_ref

    def next_ready(self) -> bool:
        """True if ``next()`` would not block."""
        self._peer.reactor.wait(lambda: False, time.monotonic())
        return self._state.has_next()

    def has_next(self) -> bool:
        """True if an item, or the end, is known by now."""
        return self._state.has_next()

    def is_finished(self) -> bool:
        """True if every item was taken."""
        return self._state.is_exhausted()

    def close(self) -> NoReturn:
        """Not possible for a remote generator."""
        raise NotImplementedError(_NO_PROTOCOL.format("close", "cancel(generator)"))

    def send(self, value: Any) -> NoReturn:
        """Not possible for a remote generator."""
        raise NotImplementedError(_NO_PROTOCOL.format("send", "an actor"))

    def throw(self, value: Any) -> NoReturn:
        """Not possible for a remote generator."""
        raise NotImplementedError(_NO_PROTOCOL.format("throw", "cancel(generator)"))

    async def aclose(self) -> NoReturn:
        """Not possible for a remote generator."""
        self.close()

    async def asend(self, value: Any) -> NoReturn:
        """Not possible for a remote generator."""
        self.send(value)

    async def athrow(self, value: Any) -> NoReturn:
        """Not possible for a remote generator."""
        self.throw(value)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an ObjectRefGenerator cannot be pickled: it is consumed by the process "
            "that called the remote function; send its references instead"
        )

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({self._generator_ref.hex()})"


_NO_PROTOCOL = "a remote generator has no {}(): use {} instead"


class DynamicObjectRefGenerator:
    """The references of a ``num_returns="dynamic"`` call, all known.

    Example:
        >>> for ref in ray.get(split.remote(data)):  # doctest: +SKIP
        ...     print(ray.get(ref))
    """

    def __init__(self, refs: list[ObjectRef]) -> None:
        self._refs = refs

    def __iter__(self) -> Iterator[ObjectRef]:
        while self._refs:
            yield self._refs.pop(0)

    def __len__(self) -> int:
        return len(self._refs)
