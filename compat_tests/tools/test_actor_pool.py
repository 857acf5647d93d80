"""A pool of actors hands out calls and gives results back."""

from __future__ import annotations

import time

import pytest

import ray
from ray.util import ActorPool

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote(num_cpus=0)
class Worker:
    def double(self, value):
        return 2 * value

    def sleep(self, seconds):
        time.sleep(seconds)
        return seconds

    def fail(self, value):
        raise KeyError(value)


def double(actor, value):
    return actor.double.remote(value)


def sleep(actor, seconds):
    return actor.sleep.remote(seconds)


@pytest.fixture(scope="module")
def workers(shared_cluster):
    shared_cluster.start()
    return [Worker.remote() for _ in range(2)]


@pytest.fixture
def pool(workers):
    return ActorPool(workers)


def test_map_keeps_the_order(pool):
    assert list(pool.map(double, range(7))) == [2 * n for n in range(7)]


def test_map_unordered_gives_all(pool):
    assert sorted(pool.map_unordered(double, range(7))) == [2 * n for n in range(7)]


def test_map_of_nothing(pool):
    assert list(pool.map(double, [])) == []
    assert list(pool.map_unordered(double, [])) == []


def test_map_submits_before_the_first_result_is_asked_for(pool):
    results = pool.map(double, [1, 2, 3])
    assert pool.has_next()
    assert not pool.has_free()
    assert list(results) == [2, 4, 6]


def test_map_drops_what_was_under_way(pool):
    pool.submit(double, 100)
    assert list(pool.map(double, [1])) == [2]


def test_get_next_is_in_order_of_submission(pool):
    for value in (0.3, 0.0, 0.0):
        pool.submit(sleep, value)
    assert [pool.get_next() for _ in range(3)] == [0.3, 0.0, 0.0]


def test_get_next_unordered_gives_the_fastest_first(pool):
    pool.submit(sleep, 1.0)
    pool.submit(sleep, 0.0)
    assert pool.get_next_unordered() == 0.0
    assert pool.get_next_unordered() == 1.0


def test_an_empty_pool_of_results_stops(pool):
    assert not pool.has_next()
    with pytest.raises(StopIteration, match="No more results"):
        pool.get_next()
    with pytest.raises(StopIteration, match="No more results"):
        pool.get_next_unordered()


@pytest.mark.parametrize("method", ["get_next", "get_next_unordered"])
def test_a_timeout_leaves_the_call(pool, method):
    pool.submit(sleep, 0.5)
    with pytest.raises(TimeoutError, match="Timed out"):
        getattr(pool, method)(timeout=0.01)
    assert pool.has_next()
    assert getattr(pool, method)(timeout=20) == 0.5


def test_a_timeout_may_give_the_call_up(pool):
    pool.submit(sleep, 0.3)
    with pytest.raises(TimeoutError, match="ignored"):
        pool.get_next(timeout=0.01, ignore_if_timedout=True)
    assert not pool.has_next()
    assert pool.has_free()


@pytest.mark.differs("unordered-results-may-be-given-up")
def test_a_timeout_may_give_any_call_up(pool):
    pool.submit(sleep, 0.3)
    with pytest.raises(TimeoutError, match="ignored"):
        pool.get_next_unordered(timeout=0.01, ignore_if_timedout=True)
    assert not pool.has_next()


def test_an_error_is_raised_in_its_place_and_frees_the_actor(pool):
    pool.submit(lambda actor, value: actor.fail.remote(value), 1)
    pool.submit(double, 2)
    with pytest.raises(KeyError):
        pool.get_next()
    assert pool.get_next() == 4
    assert pool.has_free()


def test_has_free_counts_idle_actors(pool):
    assert pool.has_free()
    pool.submit(sleep, 0.2)
    assert pool.has_free()
    pool.submit(sleep, 0.2)
    assert not pool.has_free()
    pool.get_next()
    assert pool.has_free()


def test_pop_idle_takes_actors_out(pool, workers):
    popped = [pool.pop_idle(), pool.pop_idle()]
    assert {actor._actor_id for actor in popped} == {w._actor_id for w in workers}
    assert pool.pop_idle() is None
    assert not pool.has_free()


def test_push_adds_an_actor_that_takes_waiting_work(workers):
    pool = ActorPool([])
    pool.submit(double, 4)
    assert not pool.has_next()
    pool.push(workers[0])
    assert pool.get_next() == 8


def test_push_refuses_an_actor_of_the_pool(pool, workers):
    with pytest.raises(ValueError, match="already belongs"):
        pool.push(workers[0])
    pool.submit(sleep, 0.2)
    pool.submit(sleep, 0.2)
    with pytest.raises(ValueError, match="already belongs"):
        pool.push(workers[1])


def test_the_module_has_the_name_too():
    from ray.util.actor_pool import ActorPool as other

    assert other is ActorPool
