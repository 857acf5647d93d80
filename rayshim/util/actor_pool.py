"""A fixed set of actors that share work: each takes the next call when it is free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import rayshim
from rayshim._core.refs import ObjectRef

__all__ = ["ActorPool"]

V = TypeVar("V")
#: Takes an actor and a value, submits a call and returns its reference.
Submit = Callable[[Any, V], ObjectRef]


class ActorPool:
    """Spreads calls over actors, one at a time each.

    Not for use from several threads at once.

    Args:
        actors: handles of the actors.

    Example:
        >>> import rayshim as ray
        >>> from rayshim.util import ActorPool
        >>> @ray.remote
        ... class Doubler:
        ...     def double(self, value):
        ...         return 2 * value
        >>> pool = ActorPool([Doubler.remote(), Doubler.remote()])
        >>> list(pool.map(lambda actor, value: actor.double.remote(value), [1, 2, 3]))
        [2, 4, 6]
        >>> ray.shutdown()
    """

    def __init__(self, actors: Iterable[Any]) -> None:
        #: Actors without a call.
        self._idle: deque[Any] = deque(actors)
        #: Reference of a call under way -> (its number, its actor).
        self._running: dict[ObjectRef, tuple[int, Any]] = {}
        #: Number of a call -> its reference, for calls not returned yet.
        self._by_number: dict[int, ObjectRef] = {}
        #: Calls that wait for an actor.
        self._waiting: deque[tuple[Submit[Any], Any]] = deque()
        #: Number of the next call, and of the next one that `get_next` returns.
        self._next_number = 0
        self._next_returned = 0

    def map(self, fn: Submit[V], values: Iterable[V]) -> Iterator[Any]:
        """Apply a function to values; results come in their order.

        Results of earlier calls that nobody has taken are dropped first.

        Args:
            fn: takes an actor and a value, and returns the reference of a call.
            values: each is submitted once, before the first result is returned.

        Returns:
            An iterator over the results; a call's error is raised in its place.
        """
        self._drop_earlier()
        for value in values:
            self.submit(fn, value)
        return self._results(self.get_next)

    def map_unordered(self, fn: Submit[V], values: Iterable[V]) -> Iterator[Any]:
        """Apply a function to values; results come as they are ready.

        Args:
            fn: takes an actor and a value, and returns the reference of a call.
            values: each is submitted once, before the first result is returned.
        """
        self._drop_earlier()
        for value in values:
            self.submit(fn, value)
        return self._results(self.get_next_unordered)

    def submit(self, fn: Submit[V], value: V) -> None:
        """Call an idle actor, or queue the call until one is idle.

        Args:
            fn: takes an actor and a value, and returns the reference of a call.
            value: second argument of ``fn``.
        """
        if not self._idle:
            self._waiting.append((fn, value))
            return
        actor = self._idle.pop()
        ref = fn(actor, value)
        self._running[ref] = (self._next_number, actor)
        self._by_number[self._next_number] = ref
        self._next_number += 1

    def has_next(self) -> bool:
        """Whether a result is under way or ready."""
        return bool(self._running)

    def get_next(
        self, timeout: float | None = None, ignore_if_timedout: bool = False
    ) -> Any:
        """The result of the oldest call that was not returned yet.

        Args:
            timeout: seconds; None waits for ever.
            ignore_if_timedout: give the call up when its time is over: its result
                will not be returned, and its actor counts as idle.

        Raises:
            StopIteration: no call is under way.
            TimeoutError: the call did not end in time.
        """
        if not self.has_next():
            raise StopIteration("No more results to get")
        # Numbers that get_next_unordered has returned already are passed over.
        while self._next_returned not in self._by_number:
            self._next_returned += 1
        ref = self._by_number[self._next_returned]
        timed_out = bool(timeout is not None and not _is_ready([ref], timeout))
        return self._take(ref, timed_out, ignore_if_timedout)

    def get_next_unordered(
        self, timeout: float | None = None, ignore_if_timedout: bool = False
    ) -> Any:
        """The result of whichever call ends first.

        Args:
            timeout: seconds; None waits for ever.
            ignore_if_timedout: give one call up when no result came in time.

        Raises:
            StopIteration: no call is under way.
            TimeoutError: no call ended in time.
        """
        if not self.has_next():
            raise StopIteration("No more results to get")
        refs = list(self._running)
        ready, _ = rayshim.wait(refs, num_returns=1, timeout=timeout)
        return self._take(ready[0] if ready else refs[0], not ready, ignore_if_timedout)

    def has_free(self) -> bool:
        """Whether an actor is idle and no call waits for one."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> Any:
        """Take an idle actor out of the pool; None if all are busy."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Add an actor.

        Raises:
            ValueError: it is in the pool already.
        """
        busy = (owner for _, owner in self._running.values())
        if actor in self._idle or actor in busy:
            raise ValueError("Actor already belongs to current ActorPool")
        self._release(actor)

    def _take(self, ref: ObjectRef, timed_out: bool, ignore: bool) -> Any:
        if timed_out and not ignore:
            raise TimeoutError("Timed out waiting for result")
        number, actor = self._running.pop(ref)
        del self._by_number[number]
        self._release(actor)
        if timed_out:
            raise TimeoutError(
                f"Timed out waiting for result. The task {ref} has been ignored."
            )
        return rayshim.get(ref)

    def _release(self, actor: Any) -> None:
        self._idle.append(actor)
        if self._waiting:
            self.submit(*self._waiting.popleft())

    def _drop_earlier(self) -> None:
        while self.has_next():
            try:
                self.get_next(timeout=0, ignore_if_timedout=True)
            except TimeoutError:
                continue

    def _results(self, take: Callable[[], Any]) -> Iterator[Any]:
        while self.has_next():
            yield take()


def _is_ready(refs: list[ObjectRef], timeout_s: float) -> bool:
    ready, _ = rayshim.wait(refs, num_returns=1, timeout=timeout_s)
    return bool(ready)
