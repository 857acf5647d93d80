"""A queue between processes behaves like that of the standard library."""

from __future__ import annotations

import asyncio
import itertools
import queue as standard
import time

import pytest

import ray
from ray.util.queue import Empty, Full, Queue

pytestmark = pytest.mark.usefixtures("ray_start")


@pytest.fixture(scope="module")
def shared(shared_cluster):
    """One queue without a limit for the tests that leave it empty."""
    shared_cluster.start()
    return Queue()


@pytest.fixture(scope="module")
def shared_pair(shared_cluster):
    """One queue for two items."""
    shared_cluster.start()
    return Queue(maxsize=2)


@pytest.fixture
def endless(shared):
    yield shared
    shared.get_nowait_batch(shared.size())


@pytest.fixture
def pair(shared_pair):
    yield shared_pair
    shared_pair.get_nowait_batch(shared_pair.size())


def test_items_come_out_in_order(endless):
    for item in ("a", None, [1, 2]):
        endless.put(item)
    assert [endless.get() for _ in range(3)] == ["a", None, [1, 2]]


def test_size_tells_how_many(endless):
    assert (endless.size(), endless.qsize(), len(endless)) == (0, 0, 0)
    assert endless.empty() and not endless.full()
    endless.put(1)
    assert (endless.size(), endless.qsize(), len(endless)) == (1, 1, 1)
    assert not endless.empty() and not endless.full()


def test_a_full_queue_says_so(pair):
    pair.put(1)
    assert not pair.full()
    pair.put(2)
    assert pair.full()


def test_maxsize_is_kept(pair, endless):
    assert pair.maxsize == 2
    assert endless.maxsize == 0


def test_errors_are_those_of_the_standard_library():
    assert issubclass(Empty, standard.Empty)
    assert issubclass(Full, standard.Full)


def test_get_of_nothing_raises_at_once_without_block(endless):
    with pytest.raises(Empty):
        endless.get_nowait()
    with pytest.raises(Empty):
        endless.get(block=False)


def test_get_gives_up_after_its_timeout(endless):
    start = time.monotonic()
    with pytest.raises(Empty):
        endless.get(timeout=0.2)
    assert time.monotonic() - start >= 0.2


def test_put_raises_at_once_without_block(pair):
    pair.put_nowait_batch([1, 2])
    with pytest.raises(Full):
        pair.put_nowait(3)
    with pytest.raises(Full):
        pair.put(3, block=False)


def test_put_gives_up_after_its_timeout(pair):
    pair.put_nowait_batch([1, 2])
    with pytest.raises(Full):
        pair.put(3, timeout=0.2)
    assert pair.get_nowait_batch(2) == [1, 2]


@pytest.mark.parametrize("method", ["get", "put"])
def test_a_negative_timeout_is_refused(endless, method):
    arguments = [1] if method == "put" else []
    with pytest.raises(ValueError, match="timeout"):
        getattr(endless, method)(*arguments, timeout=-1)


def test_batches_are_all_or_nothing(pair):
    pair.put(0)
    with pytest.raises(Full):
        pair.put_nowait_batch([1, 2])
    assert pair.size() == 1
    with pytest.raises(Empty):
        pair.get_nowait_batch(2)
    assert pair.get_nowait_batch(1) == [0]
    assert pair.get_nowait_batch(0) == []


def test_batches_check_their_arguments(endless):
    with pytest.raises(TypeError, match="items"):
        endless.put_nowait_batch(5)
    with pytest.raises(TypeError, match="num_items"):
        endless.get_nowait_batch("2")
    with pytest.raises(ValueError, match="num_items"):
        endless.get_nowait_batch(-1)


def test_a_blocked_get_is_woken_by_a_put(endless):
    @ray.remote(num_cpus=0)
    def take(queue):
        return queue.get(timeout=20)

    taken = take.remote(endless)
    endless.put("late")
    assert ray.get(taken, timeout=30) == "late"


def test_a_blocked_put_is_woken_by_a_get(pair):
    @ray.remote(num_cpus=0)
    def fill(queue):
        for item in range(5):
            queue.put(item, timeout=20)
        return "done"

    filled = fill.remote(pair)
    assert [pair.get(timeout=20) for _ in range(5)] == list(range(5))
    assert ray.get(filled, timeout=30) == "done"


def test_many_producers_and_consumers(endless):
    @ray.remote(num_cpus=0)
    def produce(queue, start):
        for item in range(start, start + 10):
            queue.put(item)

    @ray.remote(num_cpus=0)
    def consume(queue, count):
        return [queue.get(timeout=20) for _ in range(count)]

    producers = [produce.remote(endless, start) for start in (0, 10)]
    consumers = [consume.remote(endless, 10) for _ in range(2)]
    ray.get(producers)
    assert sorted(itertools.chain(*ray.get(consumers))) == list(range(20))


def test_a_reference_is_put_as_its_value(endless):
    endless.put(ray.put("value"))
    assert endless.get() == "value"


def test_a_reference_in_a_list_stays_one(endless):
    endless.put([ray.put("value")])
    (ref,) = endless.get()
    assert ray.get(ref) == "value"


def test_coroutines_wait_without_blocking_their_loop(endless):
    async def both():
        getter = asyncio.ensure_future(endless.get_async(timeout=20))
        await asyncio.sleep(0.05)
        assert not getter.done()
        await endless.put_async("item")
        return await getter

    assert asyncio.run(both()) == "item"


def test_coroutines_may_refuse_to_wait(endless, pair):
    async def all_of_them():
        with pytest.raises(Empty):
            await endless.get_async(block=False)
        with pytest.raises(Empty):
            await endless.get_async(timeout=0.05)
        await pair.put_async(1)
        await pair.put_async(2)
        with pytest.raises(Full):
            await pair.put_async(3, block=False)
        with pytest.raises(ValueError, match="timeout"):
            await pair.put_async(3, timeout=-1)

    asyncio.run(all_of_them())


def test_actor_options_apply_to_the_actor(wait_until):
    queue = Queue(actor_options={"name": "queue-by-name", "num_cpus": 0})
    assert ray.get_actor("queue-by-name")._actor_id == queue.actor._actor_id
    queue.shutdown(force=True)


@pytest.mark.parametrize("force", [False, True])
def test_shutdown_ends_the_actor(force, wait_until):
    queue = Queue(actor_options={"num_cpus": 0})
    queue.put(1)
    actor = queue.actor
    queue.shutdown(force=force)
    assert queue.actor is None
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.qsize.remote(), timeout=30)
    queue.shutdown()


def test_the_experimental_module_has_the_names_too():
    import ray.experimental.queue as old

    assert (old.Queue, old.Empty, old.Full) == (Queue, Empty, Full)
