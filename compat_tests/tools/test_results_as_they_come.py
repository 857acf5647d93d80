"""as_completed, map_unordered and log_once."""

from __future__ import annotations

import itertools
import time

import pytest

import ray
from ray.util import as_completed, map_unordered

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote(num_cpus=0)
def double(value):
    return 2 * value


@ray.remote(num_cpus=0)
def sleep(seconds):
    time.sleep(seconds)
    return seconds


@ray.remote(num_cpus=0)
def fail(value):
    raise KeyError(value)


def test_as_completed_gives_all_values():
    calls = [double.remote(n) for n in range(25)]
    assert sorted(as_completed(calls)) == [2 * n for n in range(25)]


def test_as_completed_gives_the_fastest_first():
    calls = [sleep.remote(seconds) for seconds in (1.0, 0.0)]
    assert list(as_completed(calls, chunk_size=1)) == [0.0, 1.0]


def test_as_completed_may_give_references():
    calls = [double.remote(n) for n in range(3)]
    given = list(as_completed(calls, yield_obj_refs=True))
    assert set(given) == set(calls)


def test_as_completed_of_nothing():
    assert list(as_completed([])) == []


def test_as_completed_checks_its_chunks():
    with pytest.raises(ValueError, match="chunk_size"):
        list(as_completed([double.remote(1)], chunk_size=0))


def test_as_completed_refuses_duplicates():
    ref = double.remote(1)
    with pytest.raises(ValueError, match="unique"):
        list(as_completed([ref, ref]))


def test_as_completed_raises_errors():
    with pytest.raises(KeyError):
        list(as_completed([fail.remote(1)]))


def test_as_completed_goes_on_after_a_timeout():
    assert list(as_completed([sleep.remote(0.3)], timeout=0.05)) == [0.3]


def test_map_unordered_gives_all_results():
    assert sorted(map_unordered(double, range(25))) == [2 * n for n in range(25)]


@pytest.mark.parametrize("size", [1, 3, None])
def test_map_unordered_takes_a_limit(size):
    results = map_unordered(double, range(10), backpressure_size=size)
    assert sorted(results) == [2 * n for n in range(10)]


def test_map_unordered_reads_no_more_than_the_limit():
    taken = []

    def items():
        for item in itertools.count():
            taken.append(item)
            yield item

    results = map_unordered(double, items(), backpressure_size=4, chunk_size=1)
    assert all(next(results) % 2 == 0 for _ in range(3))
    assert len(taken) <= 8


def test_map_unordered_calls_methods_of_actors():
    @ray.remote(num_cpus=0)
    class Doubler:
        def double(self, value):
            return 2 * value

    doubler = Doubler.remote()
    assert sorted(map_unordered(doubler.double, range(4))) == [0, 2, 4, 6]


def test_map_unordered_may_give_references():
    refs = list(map_unordered(double, [1, 2], yield_obj_refs=True))
    assert sorted(ray.get(refs)) == [2, 4]


def test_map_unordered_checks_its_counts():
    with pytest.raises(ValueError):
        list(map_unordered(double, [1], backpressure_size=0))
    with pytest.raises(ValueError):
        list(map_unordered(double, [1], chunk_size=0))


def test_map_unordered_refuses_plain_functions():
    with pytest.raises(AttributeError):
        list(map_unordered(len, [[1]]))


def test_the_helpers_module_has_the_names_too():
    from ray.util import helpers

    assert helpers.as_completed is as_completed
    assert helpers.map_unordered is map_unordered


def test_log_once_says_yes_once_for_each_key(run_driver):
    output = run_driver(
        """
        from ray.util import disable_log_once_globally, enable_periodic_logging
        from ray.util import debug, log_once

        print(log_once("a"), log_once("a"), log_once("b"))
        debug.reset_log_once("a")
        print(log_once("a"), log_once("b"))
        debug.reset_log_once()
        print(log_once("a"), log_once("b"))
        enable_periodic_logging()
        print(log_once("a"), log_once("c"))
        disable_log_once_globally()
        print(log_once("d"))
        """
    ).stdout
    assert output.split() == (
        "True False True True False True True False True False".split()
    )
