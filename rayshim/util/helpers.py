"""Results as they come: `as_completed` and `map_unordered`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import rayshim
from rayshim._core.refs import ObjectRef

__all__ = ["as_completed", "map_unordered"]


def as_completed(
    refs: Sequence[ObjectRef],
    *,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
    **kwargs: Any,
) -> Iterator[Any]:
    """Give values in the order in which they are ready.

    Args:
        refs: references, without duplicates.
        chunk_size: how many are waited for and fetched at once, >= 1. More cost less
            for each, and delay the first of them.
        yield_obj_refs: give the references instead of their values.
        **kwargs: passed to `rayshim.wait`: ``fetch_local``, and ``timeout`` (seconds),
            after which what is ready is given though it is less than a chunk.

    Raises:
        ValueError: ``chunk_size`` is below 1, or there are duplicates.

    Example:
        >>> import rayshim as ray
        >>> @ray.remote
        ... def double(value):
        ...     return 2 * value
        >>> calls = [double.remote(n) for n in range(3)]
        >>> sorted(ray.util.as_completed(calls))
        [0, 2, 4]
        >>> ray.shutdown()
    """
    _check_count("chunk_size", chunk_size)
    if "num_returns" in kwargs:
        raise ValueError("Use the `chunksize` argument instead of `num_returns`.")
    return _as_completed(list(refs), chunk_size, yield_obj_refs, kwargs)


def _as_completed(
    left: list[ObjectRef], chunk_size: int, yield_refs: bool, kwargs: dict[str, Any]
) -> Iterator[Any]:
    while left:
        count = min(chunk_size, len(left))
        ready, left = rayshim.wait(left, num_returns=count, **kwargs)
        # With a timeout fewer may be ready than were asked for.
        yield from ready if yield_refs else rayshim.get(ready)


def map_unordered(
    fn: Any,
    items: Iterable[Any],
    *,
    backpressure_size: int | None = 100,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
    **kwargs: Any,
) -> Iterator[Any]:
    """Call a remote function for each item; give results as they are ready.

    Args:
        fn: a remote function, or a method of an actor.
        items: taken as room for them comes; may have no end.
        backpressure_size: calls under way at most; None: no limit.
        chunk_size: results that are waited for and fetched at once, >= 1.
        yield_obj_refs: give the references instead of their values.
        **kwargs: passed to `rayshim.wait`, as in `as_completed`.

    Raises:
        ValueError: a count is below 1.

    Example:
        >>> import rayshim as ray
        >>> @ray.remote
        ... def double(value):
        ...     return 2 * value
        >>> sorted(ray.util.map_unordered(double, range(3)))
        [0, 2, 4]
        >>> ray.shutdown()
    """
    _check_count("chunk_size", chunk_size)
    if backpressure_size is not None:
        _check_count("backpressure_size", backpressure_size)
        if backpressure_size < chunk_size:
            chunk_size = backpressure_size
    if "num_returns" in kwargs:
        raise ValueError("Use the `chunksize` argument instead of `num_returns`.")
    return _map_unordered(
        fn, iter(items), backpressure_size, chunk_size, yield_obj_refs, kwargs
    )


def _map_unordered(
    fn: Any,
    items: Iterator[Any],
    limit: int | None,
    chunk_size: int,
    yield_refs: bool,
    kwargs: dict[str, Any],
) -> Iterator[Any]:
    running: list[ObjectRef] = []
    done: deque[Any] = deque()
    is_more = True
    while is_more or running:
        while is_more and (limit is None or len(running) < limit):
            try:
                item = next(items)
            except StopIteration:
                is_more = False
            else:
                running.append(fn.remote(item))
        if not running:
            return
        count = min(chunk_size, len(running))
        ready, running = rayshim.wait(running, num_returns=count, **kwargs)
        done.extend(ready if yield_refs else rayshim.get(ready))
        while done:
            yield done.popleft()


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"`{name}` must be >= 1, not {count}")
