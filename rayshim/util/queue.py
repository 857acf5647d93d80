"""A queue that tasks, actors and drivers share: an actor holds its items."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterable
from typing import Any

import rayshim

__all__ = ["Empty", "Full", "Queue"]


class Empty(queue.Empty):
    """There is no item, or too few of them."""


class Full(queue.Full):
    """There is no room for the item, or for all of them."""


class Queue:
    """First in, first out, between processes; a handle to it can be passed on.

    The methods are those of :class:`queue.Queue`, and more for coroutines and batches.
    The queue lives as long as a handle to it does.

    Args:
        maxsize: number of items that fit; 0 or less: any number.
        actor_options: options of the actor behind it, such as ``name``.

    Example:
        >>> import rayshim as ray
        >>> from rayshim.util.queue import Queue
        >>> queue = Queue(maxsize=10)
        >>> queue.put("item")
        >>> queue.get()
        'item'
        >>> ray.shutdown()
    """

    def __init__(
        self, maxsize: int = 0, actor_options: dict[str, Any] | None = None
    ) -> None:
        self.maxsize = maxsize
        actor_class = rayshim.remote(_QueueActor)
        self.actor = actor_class.options(**(actor_options or {})).remote(maxsize)

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """Number of items now."""
        return int(rayshim.get(self.actor.qsize.remote()))

    def qsize(self) -> int:
        """Number of items now."""
        return self.size()

    def empty(self) -> bool:
        """Whether there is no item."""
        return bool(rayshim.get(self.actor.empty.remote()))

    def full(self) -> bool:
        """Whether there is no room."""
        return bool(rayshim.get(self.actor.full.remote()))

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; a reference adds its value.

        Args:
            item: anything that can be pickled.
            block: wait until there is room.
            timeout: seconds, >= 0; None waits for ever.

        Raises:
            Full: there was no room (in time).
            ValueError: a negative timeout.
        """
        if not block:
            _raise_plain(self.actor.put_nowait.remote(item))
            return
        _check_timeout(timeout)
        _raise_plain(self.actor.put.remote(item, timeout))

    async def put_async(
        self, item: Any, block: bool = True, timeout: float | None = None
    ) -> None:
        """`put` for coroutines: only the caller waits, not its thread."""
        if block:
            _check_timeout(timeout)
            call = self.actor.put.remote(item, timeout)
        else:
            call = self.actor.put_nowait.remote(item)
        await _await_plain(call)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the oldest item.

        Args:
            block: wait until there is one.
            timeout: seconds, >= 0; None waits for ever.

        Raises:
            Empty: there was none (in time).
            ValueError: a negative timeout.
        """
        if not block:
            return _raise_plain(self.actor.get_nowait.remote())
        _check_timeout(timeout)
        return _raise_plain(self.actor.get.remote(timeout))

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """`get` for coroutines: only the caller waits, not its thread."""
        if block:
            _check_timeout(timeout)
            call = self.actor.get.remote(timeout)
        else:
            call = self.actor.get_nowait.remote()
        return await _await_plain(call)

    def put_nowait(self, item: Any) -> None:
        """Add an item at once.

        Raises:
            Full: there is no room.
        """
        self.put(item, block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all items at once, or none.

        Raises:
            Full: there is no room for all.
            TypeError: ``items`` cannot be iterated.
        """
        if not isinstance(items, Iterable):
            raise TypeError("Argument 'items' must be an Iterable")
        _raise_plain(self.actor.put_nowait_batch.remote(list(items)))

    def get_nowait(self) -> Any:
        """Take the oldest item at once.

        Raises:
            Empty: there is none.
        """
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take the oldest items at once, or none.

        Args:
            num_items: how many, >= 0.

        Raises:
            Empty: there are fewer.
            TypeError, ValueError: not a number, or a negative one.
        """
        if not isinstance(num_items, int):
            raise TypeError("Argument 'num_items' must be an int")
        if num_items < 0:
            raise ValueError("'num_items' must be nonnegative")
        items: list[Any] = _raise_plain(self.actor.get_nowait_batch.remote(num_items))
        return items

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the queue; what waits in it fails with ``RayActorError``.

        Args:
            force: kill the actor at once.
            grace_period_s: seconds that calls under way have to end.
        """
        actor, self.actor = self.actor, None
        if actor is None:
            return
        if not force:
            ended = actor.__ray_terminate__.remote()
            done, _ = rayshim.wait([ended], num_returns=1, timeout=grace_period_s)
            if done:
                return
        rayshim.kill(actor, no_restart=True)


class _QueueActor:
    """Holds the items; an async actor, so that many callers may wait at once."""

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self.queue: asyncio.Queue[Any] = asyncio.Queue(maxsize)

    def qsize(self) -> int:
        return self.queue.qsize()

    def empty(self) -> bool:
        return self.queue.empty()

    def full(self) -> bool:
        return self.queue.full()

    async def put(self, item: Any, timeout: float | None = None) -> None:
        if timeout == 0:
            self.put_nowait(item)  # wait_for would not even try
            return
        try:
            await asyncio.wait_for(self.queue.put(item), timeout)
        except TimeoutError:
            raise Full(
                f"no room among {self.maxsize} items came within {timeout} s"
            ) from None

    async def get(self, timeout: float | None = None) -> Any:
        if timeout == 0:
            return self.get_nowait()
        try:
            return await asyncio.wait_for(self.queue.get(), timeout)
        except TimeoutError:
            raise Empty(f"no item came within {timeout} s") from None

    def put_nowait(self, item: Any) -> None:
        try:
            self.queue.put_nowait(item)
        except asyncio.QueueFull:
            raise Full(f"the queue holds {self.maxsize} items") from None

    def put_nowait_batch(self, items: list[Any]) -> None:
        if 0 < self.maxsize < len(items) + self.qsize():
            raise Full(
                f"Cannot add {len(items)} items to queue of size {self.qsize()} and "
                f"maxsize {self.maxsize}."
            )
        for item in items:
            self.queue.put_nowait(item)

    def get_nowait(self) -> Any:
        try:
            return self.queue.get_nowait()
        except asyncio.QueueEmpty:
            raise Empty("the queue has no items") from None

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        if num_items > self.qsize():
            raise Empty(
                f"Cannot get {num_items} items from queue of size {self.qsize()}."
            )
        return [self.queue.get_nowait() for _ in range(num_items)]


def _check_timeout(timeout_s: float | None) -> None:
    if timeout_s is not None and timeout_s < 0:
        raise ValueError("'timeout' must be a non-negative number")


def _raise_plain(call: Any) -> Any:
    """The value of a call; `Empty` and `Full` without the actor's traceback."""
    try:
        return rayshim.get(call)
    except (Empty, Full) as error:
        raise _plain(error) from None


async def _await_plain(call: Any) -> Any:
    try:
        return await call
    except (Empty, Full) as error:
        raise _plain(error) from None


def _plain(error: Exception) -> Exception:
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, (Empty, Full)) else error
