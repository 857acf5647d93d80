"""Lazy parallel iterators: each shard is an actor that makes and transforms items."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import rayshim
from rayshim.util.iter_metrics import MetricsContext, SharedMetrics
from rayshim.util.local_iterator import NOT_READY, LocalIterator, Transform

__all__ = [
    "LocalIterator",
    "MetricsContext",
    "ParallelIterator",
    "ParallelIteratorWorker",
    "SharedMetrics",
    "from_actors",
    "from_items",
    "from_iterators",
    "from_range",
]

#: What a shard does with its items.
ShardTransform = Callable[[LocalIterator], LocalIterator]


def from_items(
    items: list[Any], num_shards: int = 2, repeat: bool = False
) -> ParallelIterator:
    """An iterator over a list, dealt out to shards in turn.

    Args:
        items: the items.
        num_shards: number of actors, >= 1.
        repeat: begin again at the end, for ever.

    Example:
        >>> import rayshim as ray
        >>> from rayshim.util.iter import from_items
        >>> numbers = from_items([1, 2, 3], num_shards=2)
        >>> sorted(numbers.for_each(lambda n: n * n).gather_async())
        [1, 4, 9]
        >>> ray.shutdown()
    """
    _check_shards(num_shards)
    shards = [items[index::num_shards] for index in range(num_shards)]
    kind = type(items[0]).__name__ if items else "None"
    name = f"from_items[{kind}, {len(items)}, shards={num_shards}{_told(repeat)}]"
    return from_iterators(shards, repeat=repeat, name=name)


def from_range(n: int, num_shards: int = 2, repeat: bool = False) -> ParallelIterator:
    """An iterator over ``range(n)``; each shard has a part of it, in order.

    Args:
        n: number of items.
        num_shards: number of actors, >= 1.
        repeat: begin again at the end, for ever.
    """
    _check_shards(num_shards)
    size = n // num_shards
    bounds = [size * index for index in range(num_shards)] + [n]
    shards = [range(*bounds[index : index + 2]) for index in range(num_shards)]
    name = f"from_range[{n}, shards={num_shards}{_told(repeat)}]"
    return from_iterators(shards, repeat=repeat, name=name)


def from_iterators(
    generators: list[Any], repeat: bool = False, name: str | None = None
) -> ParallelIterator:
    """An iterator with a shard for each of several iterables.

    Args:
        generators: iterables, or functions that return one in the shard's process.
        repeat: begin again at the end, for ever.
        name: for ``repr``.
    """
    worker = rayshim.remote(ParallelIteratorWorker)
    actors = [worker.remote(generator, repeat) for generator in generators]
    if name is None:
        name = f"from_iterators[shards={len(generators)}{_told(repeat)}]"
    return from_actors(actors, name=name)


def from_actors(actors: list[Any], name: str | None = None) -> ParallelIterator:
    """An iterator over actors whose classes extend `ParallelIteratorWorker`.

    Args:
        actors: handles.
        name: for ``repr``.
    """
    name = name or f"from_actors[shards={len(actors)}]"
    return ParallelIterator([_ActorSet(list(actors), [])], name, parent_iterators=[])


def _told(repeat: bool) -> str:
    return ", repeat=True" if repeat else ""


def _check_shards(num_shards: int) -> None:
    if num_shards < 1:
        raise ValueError(f"num_shards must be >= 1, not {num_shards}")


class ParallelIterator:
    """Items in shards; methods that transform them run in the shards' actors.

    Nothing runs before items are asked for, by `gather_sync`, `gather_async` or a
    shard.

    Args:
        actor_sets: actors with what they do with their items.
        name: for ``repr``.
        parent_iterators: iterators that feed this one, which keeps them alive.
    """

    def __init__(
        self,
        actor_sets: list[_ActorSet],
        name: str,
        parent_iterators: list[ParallelIterator],
    ) -> None:
        self.actor_sets = actor_sets
        self.name = name
        self.parent_iterators = parent_iterators

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "You must use it.gather_sync() or it.gather_async() to iterate over the "
            "results of a ParallelIterator."
        )

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"ParallelIterator[{self.name}]"

    # -- transforms ------------------------------------------------------------------

    def transform(self, fn: Transform) -> ParallelIterator:
        """Pass each shard's iterator through a function, in its actor."""
        return self._with(lambda items: items.transform(fn), ".transform()")

    def for_each(
        self,
        fn: Callable[[Any], Any],
        max_concurrency: int = 1,
        resources: dict[str, Any] | None = None,
    ) -> ParallelIterator:
        """Apply a function to each item.

        Args:
            fn: takes an item.
            max_concurrency: 1 calls it in the shard's actor; more: as tasks, so many
                at once for each shard; 0: as tasks without a limit.
            resources: options of these tasks, such as ``{"num_cpus": 2}``.

        Raises:
            ValueError: a negative ``max_concurrency``.
        """
        if max_concurrency < 0:
            raise ValueError(f"max_concurrency must be >= 0, not {max_concurrency}")
        return self._with(
            lambda items: items.for_each(fn, max_concurrency, resources), ".for_each()"
        )

    def filter(self, fn: Callable[[Any], bool]) -> ParallelIterator:
        """Keep the items for which a function says True."""
        return self._with(lambda items: items.filter(fn), ".filter()")

    def batch(self, n: int) -> ParallelIterator:
        """Lists of ``n`` items of a shard; its last one may be shorter."""
        return self._with(lambda items: items.batch(n), f".batch({n})")

    def flatten(self) -> ParallelIterator:
        """The items of items."""
        return self._with(lambda items: items.flatten(), ".flatten()")

    def combine(self, fn: Callable[[Any], Iterable[Any]]) -> ParallelIterator:
        """The items of what a function makes of each item."""
        return self._with(lambda items: items.combine(fn), ".combine()")

    def local_shuffle(
        self, shuffle_buffer_size: int, seed: int | None = None
    ) -> ParallelIterator:
        """Shuffle each shard; see `LocalIterator.shuffle`."""
        suffix = (
            f".local_shuffle(shuffle_buffer_size={shuffle_buffer_size}, seed={seed})"
        )
        return self._with(
            lambda items: items.shuffle(shuffle_buffer_size, seed), suffix
        )

    def repartition(self, num_partitions: int, batch_ms: int = 0) -> ParallelIterator:
        """The same items in another number of shards.

        Args:
            num_partitions: number of new actors, >= 1. Each takes every
                ``num_partitions``-th item of each old shard.
            batch_ms: milliseconds for which an old shard gathers items that it sends
                at once; 0 sends one by one.
        """
        _check_shards(num_partitions)
        parents = [(set_.actors, set_.transforms) for set_ in self.actor_sets]

        def part(index: int) -> Callable[[], Iterator[Any]]:
            return lambda: _slices(parents, num_partitions, index, batch_ms)

        # All new shards read the same run of the old ones.
        for actors, transforms in parents:
            rayshim.get([actor.par_iter_init.remote(transforms) for actor in actors])
        worker = rayshim.remote(ParallelIteratorWorker)
        actors = [
            worker.remote(part(index), repeat=False) for index in range(num_partitions)
        ]
        name = f"{self.name}.repartition[num_partitions={num_partitions}]"
        return ParallelIterator([_ActorSet(actors, [])], name, [self])

    def union(self, other: ParallelIterator) -> ParallelIterator:
        """An iterator with the shards of both.

        Raises:
            TypeError: ``other`` is something else.
        """
        if not isinstance(other, ParallelIterator):
            raise TypeError(f"other must be of type ParallelIterator, got {other!r}")
        return ParallelIterator(
            [*self.actor_sets, *other.actor_sets],
            f"ParallelUnion[{self}, {other}]",
            [*self.parent_iterators, *other.parent_iterators],
        )

    def select_shards(self, shards_to_keep: list[int]) -> ParallelIterator:
        """An iterator over some of the shards.

        Raises:
            ValueError: an index is out of range, or comes twice.
        """
        if len(set(shards_to_keep)) != len(shards_to_keep):
            raise ValueError("Shard indices must be unique.")
        shards = self._shards()
        for index in shards_to_keep:
            if not 0 <= index < len(shards):
                raise ValueError("Shard index out of range", index, len(shards))
        sets = [
            _ActorSet([shards[index][0]], shards[index][1]) for index in shards_to_keep
        ]
        name = f"{self}.select_shards({len(shards_to_keep)} total)"
        return ParallelIterator(sets, name, self.parent_iterators)

    # -- ends ------------------------------------------------------------------------

    def num_shards(self) -> int:
        """Number of shards."""
        return sum(len(set_.actors) for set_ in self.actor_sets)

    def shards(self) -> list[LocalIterator]:
        """An iterator for each shard."""
        return [self.get_shard(index) for index in range(self.num_shards())]

    def get_shard(
        self, shard_index: int, batch_ms: int = 0, num_async: int = 1
    ) -> LocalIterator:
        """The items of one shard.

        Args:
            shard_index: from 0.
            batch_ms: milliseconds for which the shard gathers items that it sends at
                once; 0 sends one by one.
            num_async: requests under way at once, >= 1.

        Raises:
            ValueError: there is no such shard, or a number out of range.
        """
        _check_pace(batch_ms, num_async)
        shards = self._shards()
        if not 0 <= shard_index < len(shards):
            raise ValueError("Shard index out of range", shard_index, len(shards))
        return self._gather(
            [shards[shard_index]],
            f"{self.name}.shard[{shard_index}]",
            batch_ms,
            num_async,
        )

    def gather_sync(self) -> LocalIterator:
        """All items here; shards take turns."""
        gathered = self.batch_across_shards().flatten()
        gathered.name = f"{self}.gather_sync()"
        return gathered

    def batch_across_shards(self) -> LocalIterator:
        """Lists of one item of each shard that has one left."""
        shards = self._shards()
        shared = SharedMetrics()

        def rounds(timeout: float | None) -> Iterator[Any]:
            actors = _start(shards)
            calls = [actor.par_iter_next.remote() for actor in actors]
            while calls:
                if timeout is not None:
                    ready, _ = rayshim.wait(
                        calls, num_returns=len(calls), timeout=timeout
                    )
                    if len(ready) < len(calls):
                        yield NOT_READY
                        continue
                batch: list[Any] = []
                left: list[Any] = []
                for actor, call in zip(actors, calls, strict=True):
                    try:
                        batch.append(rayshim.get(call))
                    except StopIteration:
                        continue
                    left.append(actor)
                actors = left
                calls = [actor.par_iter_next.remote() for actor in actors]
                if batch:
                    yield batch

        return LocalIterator(rounds, shared, name=f"{self}.batch_across_shards()")

    def gather_async(self, batch_ms: int = 0, num_async: int = 1) -> LocalIterator:
        """All items here, as they are ready.

        Args:
            batch_ms: milliseconds for which a shard gathers items that it sends at
                once; 0 sends one by one.
            num_async: requests to each shard under way at once, >= 1.

        Raises:
            ValueError: a number out of range.
        """
        _check_pace(batch_ms, num_async)
        name = f"{self}.gather_async()"
        return self._gather(self._shards(), name, batch_ms, num_async)

    def take(self, n: int) -> list[Any]:
        """At most ``n`` items, as `gather_sync` gives them."""
        return self.gather_sync().take(n)

    def show(self, n: int = 20) -> None:
        """Print at most ``n`` items, as `gather_sync` gives them."""
        self.gather_sync().show(n)

    # -- inside ----------------------------------------------------------------------

    def _with(self, transform: ShardTransform, suffix: str) -> ParallelIterator:
        sets = [
            _ActorSet(set_.actors, [*set_.transforms, transform])
            for set_ in self.actor_sets
        ]
        return ParallelIterator(sets, self.name + suffix, self.parent_iterators)

    def _shards(self) -> list[tuple[Any, list[ShardTransform]]]:
        return [
            (actor, set_.transforms)
            for set_ in self.actor_sets
            for actor in set_.actors
        ]

    def _gather(
        self,
        shards: list[tuple[Any, list[ShardTransform]]],
        name: str,
        batch_ms: int,
        num_async: int,
    ) -> LocalIterator:
        shared = SharedMetrics()
        # The shards' actors live as long as what reads from them.
        parent = self

        def items(timeout: float | None) -> Iterator[Any]:
            assert parent is not None

            def request(actor: Any) -> Any:
                if batch_ms:
                    return actor.par_iter_next_batch.remote(batch_ms)
                return actor.par_iter_next.remote()

            running: dict[Any, Any] = {}
            for actor in _start(shards):
                for _ in range(num_async):
                    running[request(actor)] = actor
            is_single = len(shards) == 1
            while running:
                # One shard's items keep their order.
                calls = list(running)[:1] if is_single else list(running)
                ready, _ = rayshim.wait(calls, num_returns=1, timeout=timeout)
                if not ready:
                    yield NOT_READY
                    continue
                actor = running.pop(ready[0])
                try:
                    answer = rayshim.get(ready[0])
                except StopIteration:
                    continue
                running[request(actor)] = actor
                shared.get().current_actor = actor
                if batch_ms:
                    yield from answer
                else:
                    yield answer

        return LocalIterator(items, shared, name=name)


class ParallelIteratorWorker:
    """What the actor of a shard can do; a base for own classes (`from_actors`).

    Args:
        item_generator: an iterable, or a function that returns one.
        repeat: begin again at the end, for ever.
    """

    def __init__(self, item_generator: Any, repeat: bool) -> None:
        self._generator = item_generator
        self._repeat = repeat
        #: The transformed items, once `par_iter_init` was called.
        self.local_it: Iterator[Any] | None = None
        #: Start of a slice -> items that were read for it.
        self._slices: dict[int, collections.deque[Any]] = {}

    def par_iter_init(self, transforms: list[ShardTransform]) -> None:
        """Begin anew, with these transforms."""
        items = LocalIterator(lambda timeout: self._items(), SharedMetrics())
        for transform in transforms:
            items = transform(items)
        self.local_it = iter(items)
        self._slices = {}

    def par_iter_next(self) -> Any:
        """The next item.

        Raises:
            StopIteration: there is none.
        """
        assert self.local_it is not None, "must call par_iter_init()"
        return next(self.local_it)

    def par_iter_next_batch(self, batch_ms: int) -> list[Any]:
        """Items for some milliseconds; at least one.

        Raises:
            StopIteration: there is none.
        """
        return _for_some_time(self.par_iter_next, batch_ms)

    def par_iter_slice(self, step: int, start: int) -> Any:
        """The next item of every ``step``-th one, counted from ``start``.

        Raises:
            StopIteration: there is none.
        """
        assert self.local_it is not None, "must call par_iter_init()"
        buffer = self._slices.setdefault(start, collections.deque())
        while not buffer:
            for index in range(step):
                try:
                    item = next(self.local_it)
                except StopIteration:
                    break
                self._slices.setdefault(index, collections.deque()).append(item)
            if not buffer:
                raise StopIteration
        return buffer.popleft()

    def par_iter_slice_batch(self, step: int, start: int, batch_ms: int) -> list[Any]:
        """`par_iter_slice` for some milliseconds; at least one item.

        Raises:
            StopIteration: there is none.
        """
        return _for_some_time(lambda: self.par_iter_slice(step, start), batch_ms)

    def _items(self) -> Iterator[Any]:
        """The items, again and again if they repeat."""
        while True:
            generator = self._generator
            yield from generator() if callable(generator) else generator
            if not self._repeat:
                return


class _ActorSet:
    """Actors, and what each does with its items."""

    def __init__(self, actors: list[Any], transforms: list[ShardTransform]) -> None:
        self.actors = actors
        self.transforms = transforms


def _for_some_time(take: Callable[[], Any], batch_ms: int) -> list[Any]:
    items = [take()]
    end_s = time.monotonic() + batch_ms / 1000
    while time.monotonic() < end_s:
        try:
            items.append(take())
        except StopIteration:
            break
    return items


def _start(shards: list[tuple[Any, list[ShardTransform]]]) -> list[Any]:
    """Have the actors begin; the actors."""
    rayshim.get([actor.par_iter_init.remote(work) for actor, work in shards])
    return [actor for actor, _ in shards]


def _check_pace(batch_ms: int, num_async: int) -> None:
    if num_async < 1:
        raise ValueError("queue depth must be positive")
    if batch_ms < 0:
        raise ValueError("batch time must be positive")


def _slices(
    parents: list[tuple[list[Any], list[ShardTransform]]],
    step: int,
    start: int,
    batch_ms: int,
) -> Iterator[Any]:
    """Every ``step``-th item of each old shard, in the process of a new shard."""

    def request(actor: Any) -> Any:
        if batch_ms:
            return actor.par_iter_slice_batch.remote(step, start, batch_ms)
        return actor.par_iter_slice.remote(step, start)

    running = {request(actor): actor for actors, _ in parents for actor in actors}
    while running:
        ready, _ = rayshim.wait(list(running), num_returns=1)
        actor = running.pop(ready[0])
        try:
            answer = rayshim.get(ready[0])
        except StopIteration:
            continue
        running[request(actor)] = actor
        if batch_ms:
            yield from answer
        else:
            yield answer
