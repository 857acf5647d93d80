"""The pool has the interface of multiprocessing.Pool."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import pytest

import ray
from ray.util.multiprocessing import Pool, TimeoutError

pytestmark = pytest.mark.usefixtures("ray_start")


@pytest.fixture(scope="module")
def pool(shared_cluster):
    shared_cluster.start()
    pool = Pool(2)
    yield pool
    pool.terminate()


def square(value):
    return value * value


def add(first, second=10):
    return first + second


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def fail_at_three(value):
    if value == 3:
        raise KeyError(value)
    return value


def process_id(_=None):
    return os.getpid()


def test_map_keeps_the_order(pool):
    assert pool.map(square, range(10)) == [n * n for n in range(10)]


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_map_takes_a_chunksize(pool, chunksize):
    assert pool.map(square, range(10), chunksize=chunksize) == [
        n * n for n in range(10)
    ]


def test_map_of_nothing(pool):
    assert pool.map(square, []) == []


def test_map_reads_generators(pool):
    assert pool.map(square, (n for n in range(4))) == [0, 1, 4, 9]


def test_map_uses_all_processes(pool):
    assert len(set(pool.map(process_id, range(40), chunksize=1))) == 2


def test_map_raises_what_the_function_raised(pool):
    with pytest.raises(KeyError):
        pool.map(fail_at_three, range(5))


def test_map_of_no_iterable_raises(pool):
    with pytest.raises(TypeError):
        pool.map(square, 5)


def test_lambdas_travel(pool):
    offset = 5
    assert pool.map(lambda n: n + offset, [1, 2]) == [6, 7]


def test_starmap_spreads_arguments(pool):
    assert pool.starmap(add, [(1, 2), (3,)]) == [3, 13]


def test_starmap_of_no_tuples_raises(pool):
    with pytest.raises(TypeError):
        pool.starmap(add, [1, 2])


def test_apply_takes_arguments(pool):
    assert pool.apply(add, (1,), {"second": 5}) == 6
    assert pool.apply(add, [1]) == 11
    assert pool.apply(os.getpid) != os.getpid()


def test_apply_raises_what_the_function_raised(pool):
    with pytest.raises(KeyError):
        pool.apply(fail_at_three, (3,))


def test_a_reference_in_arguments_stays_one(pool):
    assert pool.map(ray.get, [ray.put(3)]) == [3]


def test_async_results_tell_their_state(pool):
    result = pool.apply_async(sleep, (0.6,))
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    with pytest.raises(TimeoutError):
        result.get(timeout=0.05)
    assert result.wait(0.05) is None
    assert result.get(timeout=30) == 0.6
    assert result.ready()
    assert result.successful()


def test_async_results_of_failures(pool):
    result = pool.map_async(fail_at_three, range(5))
    result.wait(30)
    assert result.ready()
    assert not result.successful()
    with pytest.raises(KeyError):
        result.get()


def test_timeouts_are_those_of_multiprocessing():
    assert TimeoutError is multiprocessing.TimeoutError


@pytest.mark.parametrize(
    ("method", "arguments", "expected"),
    [
        ("apply_async", (square, (4,)), 16),
        ("map_async", (square, [3]), [9]),
        ("starmap_async", (add, [(1, 2)]), [3]),
    ],
)
def test_callbacks_get_the_result_in_another_thread(
    pool, wait_until, method, arguments, expected
):
    told = []

    def callback(value):
        told.append((value, threading.current_thread() is threading.main_thread()))

    result = getattr(pool, method)(*arguments, callback=callback)
    assert result.get() == expected
    wait_until(lambda: told)
    assert told == [(expected, False)]


def test_error_callbacks_are_called_instead(pool, wait_until):
    told = []
    result = pool.map_async(
        fail_at_three,
        range(5),
        callback=lambda value: told.append("result"),
        error_callback=lambda error: told.append("error"),
    )
    result.wait(30)
    wait_until(lambda: told)
    assert told == ["error"]


def test_imap_keeps_the_order(pool):
    assert list(pool.imap(square, range(5))) == [0, 1, 4, 9, 16]
    assert list(pool.imap(square, range(5), chunksize=2)) == [0, 1, 4, 9, 16]


def test_imap_reads_no_more_than_it_needs(pool):
    def numbers():
        number = 0
        while True:
            yield number
            number += 1

    results = pool.imap(square, numbers())
    assert [next(results) for _ in range(4)] == [0, 1, 4, 9]


def test_imap_next_takes_a_timeout(pool):
    results = pool.imap(sleep, [0.6])
    with pytest.raises(TimeoutError):
        results.next(timeout=0.05)
    assert results.next(timeout=30) == 0.6
    with pytest.raises(StopIteration):
        results.next()


def test_imap_unordered_gives_the_fastest_first(pool):
    assert list(pool.imap_unordered(sleep, [0.8, 0.0])) == [0.0, 0.8]


def test_imap_raises_what_its_iterable_raises(pool):
    def numbers():
        yield 1
        raise LookupError("the iterable")

    with pytest.raises(LookupError, match="the iterable"):
        list(pool.imap(square, numbers()))


@pytest.mark.differs("imap-errors-are-raised")
def test_imap_raises_for_a_failed_item_and_goes_on(pool):
    results = pool.imap(fail_at_three, range(5))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(results)
    assert next(results) == 4


def test_a_closed_pool_takes_nothing():
    pool = Pool(1)
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    late = pool.apply_async(sleep, (0.3,))
    pool.close()
    pool.close()
    for call in (
        lambda: pool.map(square, [1]),
        lambda: pool.apply(square, (1,)),
        lambda: pool.apply_async(square, (1,)),
        lambda: pool.imap(square, [1]),
        lambda: pool.starmap(add, [(1,)]),
        pool.__enter__,
    ):
        with pytest.raises(ValueError, match="not running"):
            call()
    pool.join()
    assert late.get(timeout=30) == 0.3


def test_terminate_ends_work_under_way():
    pool = Pool(1)
    result = pool.apply_async(sleep, (30,))
    pool.terminate()
    pool.join()
    with pytest.raises(ray.exceptions.RayActorError):
        result.get(timeout=30)


def test_with_terminates():
    with Pool(1) as pool:
        assert pool.map(square, [3]) == [9]
    with pytest.raises(ValueError, match="not running"):
        pool.map(square, [1])


def test_the_initializer_runs_in_each_process():
    def set_mark(mark):
        os.environ["POOL_MARK"] = mark

    with Pool(2, initializer=set_mark, initargs=("here",)) as pool:
        marks = pool.map(lambda _: os.environ["POOL_MARK"], range(4), chunksize=1)
    assert marks == ["here"] * 4


def test_a_failing_initializer_fails_the_pool():
    def fail():
        raise ValueError("no start")

    with pytest.raises(ray.exceptions.RayActorError, match="no start"):
        Pool(1, initializer=fail)


def test_processes_are_replaced_after_their_tasks():
    with Pool(1, maxtasksperchild=2) as pool:
        pids = [pool.apply(process_id) for _ in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


@pytest.mark.parametrize("processes", [0, -1])
def test_a_pool_needs_processes(processes):
    with pytest.raises(ValueError, match="must be >0"):
        Pool(processes)


def test_a_pool_may_not_have_more_processes_than_cpus():
    with pytest.raises(ValueError, match="only 4 CPUs"):
        Pool(40)


def test_processes_take_no_cpus_unless_told(wait_until):
    def free():
        return ray.available_resources().get("CPU", 0)

    before = free()
    with Pool(2):
        wait_until(lambda: free() == before)
    with Pool(1, ray_remote_args={"num_cpus": 1}):
        wait_until(lambda: free() == before - 1)
    wait_until(lambda: free() == before)


def test_pools_nest(pool):
    def inner(value):
        with Pool(1) as pool:
            return pool.map(square, [value])

    assert pool.map(inner, [3]) == [[9]]


def test_a_pool_may_be_used_from_threads(pool):
    results = {}

    def use(name):
        results[name] = pool.map(square, range(20))

    threads = [threading.Thread(target=use, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(result == [n * n for n in range(20)] for result in results.values())
    assert len(results) == 4
