"""The part of a parallel iterator that runs in the process which consumes it."""

from __future__ import annotations

import collections
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import rayshim
from rayshim.util.iter_metrics import MetricsContext, SharedMetrics

#: Makes an iterator of another one.
Transform = Callable[[Iterator[Any]], Iterator[Any]]


class NotReady:
    """An item of an iterator with a timeout: nothing came in time."""


NOT_READY = NotReady()

#: Pause of a union in which no iterator had an item, in seconds.
UNION_PAUSE_S = 0.001


class LocalIterator:
    """A lazy iterator with the methods of `ParallelIterator`.

    May be sent to other processes until its first item was taken. Iterating it again
    goes on where it was.

    Args:
        base_iterator: called with the timeout, returns what is iterated.
        shared_metrics: of all stages.
        local_transforms: applied to the base iterator, one after the other.
        timeout: seconds after which the base iterator gives a "not ready" in the
            place of an item; None waits for ever.
        name: for ``repr``.
    """

    #: A function passed to `for_each` whose attribute of this name is callable has it
    #: called before each item is fetched.
    ON_FETCH_START_HOOK_NAME = "_on_fetch_start"
    #: The metrics of the iterator that runs in this thread.
    thread_local = threading.local()

    def __init__(
        self,
        base_iterator: Callable[[float | None], Iterable[Any]],
        shared_metrics: SharedMetrics,
        local_transforms: list[Transform] | None = None,
        timeout: float | None = None,
        name: str | None = None,
    ) -> None:
        self.base_iterator = base_iterator
        self.shared_metrics = shared_metrics
        self.local_transforms = local_transforms or []
        self.timeout = timeout
        self.name = name or "unknown"
        self.built_iterator: Iterator[Any] | None = None

    @staticmethod
    def get_metrics() -> MetricsContext:
        """The metrics of the iterator whose function calls this.

        Raises:
            ValueError: the caller does not run in an iterator.
        """
        metrics = getattr(LocalIterator.thread_local, "metrics", None)
        if not isinstance(metrics, MetricsContext):
            raise ValueError("Cannot access context outside an iterator.")
        return metrics

    def __iter__(self) -> Iterator[Any]:
        return self._built()

    def __next__(self) -> Any:
        return next(self._built())

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"LocalIterator[{self.name}]"

    # -- transforms ------------------------------------------------------------------

    def transform(self, fn: Transform) -> LocalIterator:
        """Pass the whole iterator through a function.

        Args:
            fn: takes an iterator and returns one.
        """

        def apply(items: Iterator[Any]) -> Iterator[Any]:
            yield from fn(items)

        return self._with(apply, ".transform()")

    def for_each(
        self,
        fn: Callable[[Any], Any],
        max_concurrency: int = 1,
        resources: dict[str, Any] | None = None,
    ) -> LocalIterator:
        """Apply a function to each item.

        Args:
            fn: takes an item.
            max_concurrency: 1 calls it here; more: as tasks, so many at once; 0: as
                tasks without a limit.
            resources: options of these tasks, such as ``{"num_cpus": 2}``.

        Raises:
            ValueError: a negative ``max_concurrency``.
        """
        if max_concurrency < 0:
            raise ValueError(f"max_concurrency must be >= 0, not {max_concurrency}")
        if max_concurrency == 1:
            return self._with(self._caller(fn), ".for_each()")

        def submit(items: Iterator[Any]) -> Iterator[Any]:
            task = rayshim.remote(fn)
            if resources:
                task = task.options(**resources)
            running: collections.deque[Any] = collections.deque()
            for item in items:
                if item is NOT_READY:
                    yield item
                    continue
                running.append(task.remote(item))
                if max_concurrency and len(running) >= max_concurrency:
                    yield rayshim.get(running.popleft())
            while running:
                yield rayshim.get(running.popleft())

        return self._with(submit, ".for_each()")

    def filter(self, fn: Callable[[Any], bool]) -> LocalIterator:
        """Keep the items for which a function says True."""

        def keep(items: Iterator[Any]) -> Iterator[Any]:
            for item in items:
                if item is NOT_READY:
                    yield item
                    continue
                with self._metrics_context():
                    is_kept = fn(item)
                if is_kept:
                    yield item

        return self._with(keep, ".filter()")

    def batch(self, n: int) -> LocalIterator:
        """Lists of ``n`` items; the last one may be shorter."""

        def gather(items: Iterator[Any]) -> Iterator[Any]:
            batch: list[Any] = []
            for item in items:
                if item is NOT_READY:
                    yield item
                    continue
                batch.append(item)
                if len(batch) >= n:
                    yield batch
                    batch = []
            if batch:
                yield batch

        return self._with(gather, f".batch({n})")

    def flatten(self) -> LocalIterator:
        """The items of items."""

        def spread(items: Iterator[Any]) -> Iterator[Any]:
            for item in items:
                if item is NOT_READY:
                    yield item
                else:
                    yield from item

        return self._with(spread, ".flatten()")

    def shuffle(
        self, shuffle_buffer_size: int, seed: int | None = None
    ) -> LocalIterator:
        """Items in random order, within a buffer.

        Args:
            shuffle_buffer_size: number of items from which each is drawn.
            seed: makes the order the same each time.
        """

        def draw(items: Iterator[Any]) -> Iterator[Any]:
            generator = random.Random(seed)
            buffer: list[Any] = []
            for item in items:
                if item is NOT_READY:
                    yield item
                    continue
                buffer.append(item)
                if len(buffer) >= shuffle_buffer_size:
                    yield buffer.pop(generator.randint(0, len(buffer) - 1))
            while buffer:
                yield buffer.pop(generator.randint(0, len(buffer) - 1))

        suffix = f".shuffle(shuffle_buffer_size={shuffle_buffer_size}, seed={seed})"
        return self._with(draw, suffix)

    def combine(self, fn: Callable[[Any], Iterable[Any]]) -> LocalIterator:
        """The items of what a function makes of each item."""
        combined = self.for_each(fn).flatten()
        combined.name = self.name + ".combine()"
        return combined

    def zip_with_source_actor(self) -> LocalIterator:
        """Pairs of the actor that made an item, and the item.

        Raises:
            ValueError: when it is iterated, and items come from no actor.
        """

        def pair(items: Iterator[Any]) -> Iterator[Any]:
            for item in items:
                if item is NOT_READY:
                    yield item
                    continue
                actor = self.shared_metrics.get().current_actor
                if actor is None:
                    raise ValueError("Could not identify source actor of item")
                yield actor, item

        return self._with(pair, ".zip_with_source_actor()")

    # -- ends ------------------------------------------------------------------------

    def take(self, n: int) -> list[Any]:
        """At most ``n`` items."""
        return list(itertools.islice(self, n))

    def show(self, n: int = 20) -> None:
        """Print at most ``n`` items."""
        for item in itertools.islice(self, n):
            print(item)

    def duplicate(self, n: int) -> list[LocalIterator]:
        """Copies that each give all items.

        Args:
            n: how many, >= 2. What one copy has taken and another has not is kept.

        Raises:
            ValueError: fewer than 2.
        """
        if n < 2:
            raise ValueError("Number of copies must be >= 2")
        sources = itertools.tee(self, n)

        def copy(index: int) -> LocalIterator:
            return LocalIterator(
                lambda timeout: sources[index],
                self.shared_metrics,
                name=f"{self.name}.duplicate[{index}]",
            )

        return [copy(index) for index in range(n)]

    def union(
        self,
        *others: LocalIterator,
        deterministic: bool = False,
        round_robin_weights: list[float] | None = None,
    ) -> LocalIterator:
        """Items of several iterators.

        Args:
            *others: the other iterators.
            deterministic: take turns, and wait for whose turn it is.
            round_robin_weights: items that each gives in its turn; "*": all that it
                has at hand. One for each iterator.

        Raises:
            ValueError: what is not a LocalIterator, or a number of weights that does
                not fit.
        """
        for other in others:
            if not isinstance(other, LocalIterator):
                raise ValueError(f"other must be of type LocalIterator, got {other!r}")
        parents = [self, *others]
        weights: list[Any] = round_robin_weights or [1] * len(parents)
        if len(weights) != len(parents):
            raise ValueError(
                f"Length of round robin weights must be {len(parents)}, got "
                f"{len(weights)}."
            )
        timeout_s = None if deterministic else 0
        shared = SharedMetrics()
        branches = [
            LocalIterator(
                parent.base_iterator,
                parent.shared_metrics,
                parent.local_transforms,
                timeout=timeout_s,
            )
            for parent in parents
        ]
        for parent in parents:
            parent.shared_metrics.set(shared.get())
            shared.parents.append(parent.shared_metrics)

        def turns(timeout: float | None) -> Iterator[Any]:
            active = [
                (weight, iter(branch))
                for weight, branch in zip(weights, branches, strict=True)
            ]
            while active:
                gave = False
                for entry in list(active):
                    weight, branch = entry
                    limit = None if weight == "*" else int(weight)
                    for _ in itertools.islice(itertools.count(), limit):
                        try:
                            item = next(branch)
                        except StopIteration:
                            active.remove(entry)
                            gave = True
                            break
                        if item is NOT_READY:
                            break
                        gave = True
                        yield item
                if not gave:
                    if timeout is not None:
                        yield NOT_READY
                    time.sleep(UNION_PAUSE_S)

        names = ", ".join(map(str, parents))
        return LocalIterator(turns, shared, name=f"LocalUnion[{names}]")

    # -- inside ----------------------------------------------------------------------

    def _with(self, transform: Transform, suffix: str) -> LocalIterator:
        return LocalIterator(
            self.base_iterator,
            self.shared_metrics,
            [*self.local_transforms, transform],
            timeout=self.timeout,
            name=self.name + suffix,
        )

    def _caller(self, fn: Callable[[Any], Any]) -> Transform:
        hook = getattr(fn, self.ON_FETCH_START_HOOK_NAME, None)

        def call(items: Iterator[Any]) -> Iterator[Any]:
            while True:
                if hook is not None:
                    with self._metrics_context():
                        hook()
                try:
                    item = next(items)
                except StopIteration:
                    return
                if item is not NOT_READY:
                    with self._metrics_context():
                        item = fn(item)
                yield item

        return call

    @contextmanager
    def _metrics_context(self) -> Iterator[None]:
        """Let `get_metrics` find the metrics of this iterator."""
        before = getattr(self.thread_local, "metrics", None)
        self.thread_local.metrics = self.shared_metrics.get()
        try:
            yield
        finally:
            self.thread_local.metrics = before

    def _built(self) -> Iterator[Any]:
        if self.built_iterator is None:
            built = iter(self.base_iterator(self.timeout))
            for transform in self.local_transforms:
                built = iter(transform(built))
            self.built_iterator = built
        return self.built_iterator
