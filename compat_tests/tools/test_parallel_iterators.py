"""Parallel iterators: shards in actors, transforms there, items here."""

from __future__ import annotations

import itertools

import pytest

import ray
from ray.util.iter import (
    LocalIterator,
    ParallelIteratorWorker,
    from_actors,
    from_items,
    from_iterators,
    from_range,
)

pytestmark = [
    pytest.mark.usefixtures("ray_start"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def five(shared_cluster):
    """1 to 5 in two shards: 1, 3, 5 and 2, 4."""
    shared_cluster.start()
    return from_items([1, 2, 3, 4, 5], num_shards=2)


@pytest.fixture(scope="module")
def seven(shared_cluster):
    """0 to 6 in one shard."""
    shared_cluster.start()
    return from_range(7, num_shards=1)


def test_items_are_dealt_out(five):
    assert [list(shard) for shard in five.shards()] == [[1, 3, 5], [2, 4]]
    assert five.num_shards() == 2


def test_ranges_are_cut(shared_cluster):
    shards = from_range(7, num_shards=3).shards()
    assert [list(shard) for shard in shards] == [[0, 1], [2, 3], [4, 5, 6]]


def test_gather_sync_takes_turns(five):
    assert list(five.gather_sync()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("options", [{}, {"batch_ms": 20}, {"num_async": 3}])
def test_gather_async_gives_all(five, options):
    assert sorted(five.gather_async(**options)) == [1, 2, 3, 4, 5]


def test_gather_async_checks_its_numbers(five):
    with pytest.raises(ValueError, match="queue depth"):
        five.gather_async(num_async=0)
    with pytest.raises(ValueError, match="batch time"):
        five.gather_async(batch_ms=-1)


def test_batch_across_shards(five):
    assert list(five.batch_across_shards()) == [[1, 2], [3, 4], [5]]


def test_a_parallel_iterator_is_gathered_first(five):
    with pytest.raises(TypeError, match="gather_sync"):
        iter(five)


def test_each_gathering_begins_anew(five):
    assert list(five.gather_sync()) == list(five.gather_sync())


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (lambda it: it.for_each(lambda n: 2 * n), [2, 4, 6, 8, 10]),
        (lambda it: it.filter(lambda n: n > 2), [3, 4, 5]),
        (lambda it: it.batch(2).flatten(), [1, 2, 3, 4, 5]),
        (lambda it: it.transform(lambda items: (n + 1 for n in items)), range(2, 7)),
        (lambda it: it.combine(lambda n: [n] * (n % 2)), [1, 3, 5]),
        (lambda it: it.for_each(lambda n: n + 1).filter(lambda n: n % 2), [3, 5]),
        (lambda it: it.local_shuffle(2, seed=1), [1, 2, 3, 4, 5]),
        (lambda it: it.select_shards([1]), [2, 4]),
        (lambda it: it.union(from_range(2)), [0, 1, 1, 2, 3, 4, 5]),
    ],
    ids="for_each filter flatten transform combine chain shuffle select union".split(),
)
def test_transforms_run_in_the_shards(five, transform, expected):
    assert sorted(transform(five).gather_sync()) == list(expected)


def test_batches_are_of_one_shard(five):
    assert list(five.batch(2).gather_sync()) == [[1, 3], [2, 4], [5]]


def test_transforms_leave_the_original(five):
    doubled = five.for_each(lambda n: 2 * n)
    assert list(five.gather_sync()) == [1, 2, 3, 4, 5]
    assert list(doubled.gather_sync()) == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("concurrency", [0, 3])
def test_for_each_may_use_tasks(seven, concurrency):
    tasks = seven.for_each(
        lambda n: 2 * n, max_concurrency=concurrency, resources={"num_cpus": 1}
    )
    assert sorted(tasks.gather_sync()) == [0, 2, 4, 6, 8, 10, 12]


def test_errors_come_through(five):
    with pytest.raises(ZeroDivisionError):
        list(five.for_each(lambda n: n / 0).gather_sync())


def test_take_and_show(five, capsys):
    assert five.take(3) == [1, 2, 3]
    five.show(2)
    assert capsys.readouterr().out == "1\n2\n"


def test_repartition_spreads_items_anew(five):
    parts = five.repartition(3)
    assert parts.num_shards() == 3
    assert [sorted(shard) for shard in parts.shards()] == [[1, 2], [3, 4], [5]]
    assert sorted(five.repartition(1, batch_ms=10).gather_sync()) == [1, 2, 3, 4, 5]


def test_union_has_the_shards_of_both(five, seven):
    united = five.union(seven)
    assert united.num_shards() == 3
    with pytest.raises(TypeError, match="ParallelIterator"):
        five.union([1])


def test_shards_out_of_range(five):
    with pytest.raises(ValueError, match="out of range"):
        five.get_shard(7)


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda it: it, "ParallelIterator[from_items[int, 5, shards=2]]"),
        (
            lambda it: it.for_each(abs).filter(abs).batch(2),
            "ParallelIterator[from_items[int, 5, shards=2].for_each().filter()"
            ".batch(2)]",
        ),
        (
            lambda it: it.gather_sync(),
            "LocalIterator[ParallelIterator[from_items[int, 5, shards=2]]"
            ".gather_sync()]",
        ),
        (
            lambda it: it.get_shard(1),
            "LocalIterator[from_items[int, 5, shards=2].shard[1]]",
        ),
        (
            lambda it: it.local_shuffle(2, seed=1),
            "ParallelIterator[from_items[int, 5, shards=2]"
            ".local_shuffle(shuffle_buffer_size=2, seed=1)]",
        ),
    ],
    ids=["items", "transforms", "gather", "shard", "shuffle"],
)
def test_names_tell_how_it_was_made(five, made, name):
    assert repr(made(five)) == str(made(five)) == name


def test_repeating_iterators_have_no_end():
    assert from_items([1, 2], num_shards=1, repeat=True).take(5) == [1, 2, 1, 2, 1]


def test_from_iterators_takes_iterables_and_functions():
    made = from_iterators([range(2), [5, 6], lambda: iter([7])], name="mine")
    assert made.name == "mine"
    assert [list(shard) for shard in made.shards()] == [[0, 1], [5, 6], [7]]


def test_from_actors_takes_own_classes():
    @ray.remote(num_cpus=0)
    class Letters(ParallelIteratorWorker):
        def __init__(self):
            ParallelIteratorWorker.__init__(self, "ab", False)

    made = from_actors([Letters.remote(), Letters.remote()])
    assert sorted(made.gather_async()) == ["a", "a", "b", "b"]


def test_the_worker_gives_items_batches_and_slices():
    worker = ParallelIteratorWorker(range(5), False)
    with pytest.raises(AssertionError, match="par_iter_init"):
        worker.par_iter_next()
    worker.par_iter_init([])
    assert worker.par_iter_next() == 0
    assert worker.par_iter_next_batch(50) == [1, 2, 3, 4]
    with pytest.raises(StopIteration):
        worker.par_iter_next()
    with pytest.raises(StopIteration):
        worker.par_iter_next_batch(10)
    worker.par_iter_init([])
    slices = [worker.par_iter_slice(2, start) for start in (0, 1, 0)]
    assert slices == [0, 1, 2]
    assert worker.par_iter_slice_batch(2, 1, 20) == [3]


def test_local_iterators_go_on_where_they_were(five):
    local = five.gather_sync()
    assert [next(local), next(local)] == [1, 2]
    assert list(local) == [3, 4, 5]
    assert list(local) == []
    with pytest.raises(StopIteration):
        next(local)


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (lambda it: it.for_each(lambda n: -n), [-1, -2, -3, -4, -5]),
        (lambda it: it.filter(lambda n: n > 3), [4, 5]),
        (lambda it: it.batch(2), [[1, 2], [3, 4], [5]]),
        (lambda it: it.batch(2).flatten(), [1, 2, 3, 4, 5]),
        (lambda it: it.combine(lambda n: [n] * (n == 4)), [4]),
        (lambda it: it.transform(lambda items: itertools.islice(items, 1)), [1]),
        (
            lambda it: it.union(from_range(3).gather_sync(), deterministic=True),
            [1, 0, 2, 1, 3, 2, 4, 5],
        ),
        (
            lambda it: it.union(
                from_range(3).gather_sync(),
                deterministic=True,
                round_robin_weights=[2, 1],
            ),
            [1, 2, 0, 3, 4, 1, 5, 2],
        ),
    ],
    ids="for_each filter batch flatten combine transform union weights".split(),
)
def test_local_transforms(five, transform, expected):
    assert list(transform(five.gather_sync())) == expected


def test_local_iterators_may_use_tasks(five):
    tasks = five.gather_sync().for_each(lambda n: n * n, max_concurrency=2)
    assert sorted(tasks) == [1, 4, 9, 16, 25]


def test_local_shuffles_keep_the_items(seven):
    assert sorted(seven.gather_sync().shuffle(3, seed=1)) == list(range(7))


def test_unions_that_do_not_wait_give_all(five, seven):
    united = five.gather_sync().union(seven.gather_sync())
    assert sorted(united) == sorted([1, 2, 3, 4, 5, *range(7)])


def test_local_unions_take_local_iterators(five):
    with pytest.raises(ValueError, match="LocalIterator"):
        five.gather_sync().union([1])


def test_local_take_and_show(five, capsys):
    assert five.gather_sync().take(2) == [1, 2]
    five.gather_sync().show(1)
    assert capsys.readouterr().out == "1\n"


def test_duplicates_give_the_same_items(five):
    first, second = five.gather_sync().duplicate(2)
    assert [next(it) for it in (first, second, first, second)] == [1, 1, 2, 2]
    with pytest.raises(ValueError, match=">= 2"):
        five.gather_sync().duplicate(1)


def test_items_know_their_actor(five):
    pairs = list(five.gather_async().zip_with_source_actor())
    assert sorted(item for _, item in pairs) == [1, 2, 3, 4, 5]
    assert len({actor._actor_id for actor, _ in pairs}) == 2


def test_functions_share_metrics(five):
    def count(item):
        metrics = LocalIterator.get_metrics()
        metrics.counters["items"] += 1
        return metrics.counters["items"]

    assert list(five.gather_sync().for_each(count)) == [1, 2, 3, 4, 5]


def test_functions_are_told_of_fetches(seven):
    class Watch:
        fetches = 0

        def _on_fetch_start(self):
            self.fetches += 1

        def __call__(self, item):
            return self.fetches

    assert LocalIterator.ON_FETCH_START_HOOK_NAME == "_on_fetch_start"
    assert seven.gather_sync().for_each(Watch()).take(3) == [1, 2, 3]
