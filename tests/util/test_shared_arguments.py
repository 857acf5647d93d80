"""What runs in a session: shared arguments of joblib, callbacks, locations."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from rayshim.experimental import get_object_locations
from rayshim.util.iter import LocalIterator, from_items
from rayshim.util.iter_metrics import MetricsContext, SharedMetrics, Timer
from rayshim.util.joblib.ray_backend import SharedArguments, run_batch
from rayshim.util.multiprocessing import Pool
from rayshim.util.queue import Empty, Full, Queue

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    ray.init(num_cpus=2, log_to_driver=False)
    yield
    ray.shutdown()


class Batch:
    """What joblib hands to a back end."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __call__(self) -> list[Any]:
        return [func(*args, **kwargs) for func, args, kwargs in self.items]


def test_a_large_argument_is_stored_once() -> None:
    shared = SharedArguments()
    data = np.ones(1 << 18)
    batch = Batch([(np.add, [data, 1], {}), (np.multiply, [data], {"x2": data})])
    batch.items[1] = (np.multiply, [data, data], {})
    sent, refs = shared.replace(batch)
    assert len(refs) == 1
    assert batch.items[0][1][0] is data
    again, other = shared.replace(Batch([(np.sum, [data], {})]))
    assert other == refs
    first, second = run_batch(sent, refs)
    assert (first[0], second[0]) == (2.0, 1.0)
    assert run_batch(again, other) == [float(1 << 18)]
    shared.clear()


def test_small_arguments_go_as_they_are() -> None:
    batch = Batch([(max, [1, 2], {})])
    sent, refs = SharedArguments().replace(batch)
    assert sent is batch
    assert refs == []


def test_a_callback_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(value: int) -> None:
        raise ValueError("in the callback")

    with Pool(1) as pool, caplog.at_level(logging.ERROR):
        result = pool.apply_async(abs, (-1,), callback=fail)
        assert result.get() == 1
        assert result._thread is not None
        result._thread.join(10)
    assert "in the callback" in caplog.text


def test_an_error_that_cannot_be_pickled_is_told_by_its_name() -> None:
    def fail() -> None:
        error = LookupError("odd")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with Pool(1) as pool, pytest.raises(RuntimeError, match="LookupError: odd"):
        pool.apply(fail)


def test_an_error_carries_the_traceback_of_its_process() -> None:
    with Pool(1) as pool, pytest.raises(ZeroDivisionError) as caught:
        pool.map(lambda n: 1 // n, [0])
    assert "ZeroDivisionError" in str(caught.value.__cause__)


def test_a_process_that_dies_costs_its_chunk_alone() -> None:
    def maybe_die(number: int) -> int:
        if number == 1:
            os._exit(3)
        return number

    with Pool(2) as pool:
        results = pool.imap(maybe_die, [0, 1])
        assert next(results) == 0
        with pytest.raises(ray.exceptions.RayActorError):
            next(results)


def test_empty_and_full_are_raised_as_they_are() -> None:
    queue = Queue(maxsize=1, actor_options={"num_cpus": 0})
    with pytest.raises(Empty) as caught:
        queue.get(timeout=0)
    assert type(caught.value) is Empty
    queue.put("item", timeout=0)
    with pytest.raises(Full) as full:
        queue.put("item", timeout=0)
    assert type(full.value) is Full
    assert queue.get(timeout=0) == "item"
    queue.shutdown()


def test_metrics_belong_to_an_iterator() -> None:
    with pytest.raises(ValueError, match="outside"):
        LocalIterator.get_metrics()
    items = from_items([1, 2], num_shards=1).gather_sync()
    assert list(items.for_each(lambda n: LocalIterator.get_metrics() and n)) == [1, 2]
    with pytest.raises(ValueError, match="outside"):
        LocalIterator.get_metrics()


def test_united_iterators_share_their_metrics() -> None:
    parent = SharedMetrics()
    united = SharedMetrics()
    united.parents.append(parent)
    context = MetricsContext()
    united.set(context)
    assert parent.get() is context


def test_timers_add_up() -> None:
    timer = Timer()
    assert timer.mean == 0.0
    timer.push(1.0)
    timer.push(3.0)
    assert (timer.count, timer.total_s, timer.mean) == (2, 4.0, 2.0)


def test_a_borrower_knows_where_the_primary_copy_is() -> None:
    @ray.remote
    def look(refs: list[Any]) -> Any:
        from rayshim.experimental import get_object_locations

        return list(get_object_locations(refs).values())

    ref = ray.put(np.zeros(1 << 20, dtype=np.uint8))
    (row,) = ray.get(look.remote([ref]))
    assert row["node_ids"] == [ray.get_runtime_context().get_node_id()]
    assert row == get_object_locations([ref])[ref]


@pytest.mark.parametrize("bad", ["ref", [1], (), None])
def test_locations_are_of_references(bad: Any) -> None:
    with pytest.raises(TypeError, match="list of ObjectRefs"):
        get_object_locations(bad)
