"""Generator tasks: streaming, dynamic and fixed numbers of results."""

from __future__ import annotations

import asyncio
import gc
import os
import time

import numpy as np
import pytest

import ray
from ray.exceptions import RayError, TaskCancelledError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def count(n, fail_at=None, nap_s=0.0):
    for i in range(n):
        if i == fail_at:
            raise ValueError(f"failed at {i}")
        yield i
        time.sleep(nap_s)


def drain(generator):
    """Return each value, or the name of the error that its ref raised."""
    out = []
    for ref in generator:
        try:
            out.append(ray.get(ref))
        except RayError as error:
            out.append(type(error).__name__)
    return out


def test_generator_function_streams_by_default():
    generator = count.remote(3)
    assert isinstance(generator, ray.ObjectRefGenerator)
    refs = list(generator)
    assert all(isinstance(ref, ray.ObjectRef) for ref in refs)
    assert ray.get(refs) == [0, 1, 2]


def test_streaming_named_explicitly():
    assert drain(count.options(num_returns="streaming").remote(3)) == [0, 1, 2]


def test_num_returns_none_streams():
    assert drain(count.options(num_returns=None).remote(2)) == [0, 1]


def test_next_after_the_end_is_stop_iteration():
    generator = count.remote(1)
    next(generator)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(generator)


def test_first_value_arrives_before_the_generator_ends(tmp_path):
    gate = tmp_path / "gate"

    @ray.remote
    def gated():
        yield "first"
        deadline = time.monotonic() + 20
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield "second"

    generator = gated.remote()
    assert ray.get(next(generator)) == "first"
    gate.touch()
    assert ray.get(next(generator)) == "second"


def test_empty_generator():
    @ray.remote
    def empty():
        return
        yield

    assert list(empty.remote()) == []


def test_return_value_of_the_generator_is_ignored():
    @ray.remote
    def early():
        yield 1
        return 5

    assert drain(early.remote()) == [1]


def test_error_in_the_middle_is_one_more_ref():
    assert drain(count.remote(5, fail_at=2)) == [0, 1, "RayTaskError(ValueError)"]


def test_error_before_the_first_value():
    assert drain(count.remote(5, fail_at=0)) == ["RayTaskError(ValueError)"]


def test_iteration_itself_does_not_raise_the_error():
    refs = list(count.remote(3, fail_at=1))
    assert len(refs) == 2
    with pytest.raises(ValueError, match="failed at 1"):
        ray.get(refs[1])


def test_unpicklable_value_ends_the_stream_with_its_error():
    @ray.remote
    def makes_lock():
        import threading

        yield 1
        yield threading.Lock()

    assert drain(makes_lock.remote()) == [1, "RayTaskError(TypeError)"]


def test_wrong_arguments_fail_in_the_caller():
    with pytest.raises(TypeError, match="missing a required argument"):
        count.remote()


def test_failed_argument():
    bad = ray.remote(lambda: 1 / 0).remote()
    assert drain(count.remote(bad)) == ["RayTaskError(ZeroDivisionError)"]


def test_big_values_stream():
    @ray.remote
    def arrays():
        for i in range(3):
            yield np.full(100_000, i)

    assert [int(ray.get(ref)[0]) for ref in arrays.remote()] == [0, 1, 2]


def test_many_values():
    assert drain(count.remote(500)) == list(range(500))


def test_refs_can_be_passed_on_before_the_end():
    double = ray.remote(lambda x: 2 * x)
    assert ray.get([double.remote(ref) for ref in count.remote(4)]) == [0, 2, 4, 6]


def test_generator_in_a_task():
    @ray.remote
    def total():
        return sum(ray.get(ref) for ref in count.remote(4))

    assert ray.get(total.remote()) == 6


def test_two_generators_side_by_side():
    a, b = count.remote(3), count.remote(3)
    pairs = [(ray.get(x), ray.get(y)) for x, y in zip(a, b, strict=True)]
    assert pairs == [(0, 0), (1, 1), (2, 2)]


def test_completed_gives_a_ref():
    generator = count.remote(2)
    assert ray.get(generator.completed()) is None
    assert drain(generator) == [0, 1]


def test_is_finished_after_draining(wait_until):
    generator = count.remote(2)
    assert drain(generator) == [0, 1]
    assert generator.is_finished()


def test_next_ready(wait_until):
    generator = count.remote(1)
    wait_until(generator.next_ready)
    assert ray.get(next(generator)) == 0


def test_wait_on_a_generator():
    generator = count.remote(1)
    ready, pending = ray.wait([generator], timeout=20)
    assert ready == [generator]
    assert pending == []


def test_wait_mixes_generators_and_refs():
    generator, ref = count.remote(1), ray.put(1)
    ready, _ = ray.wait([generator, ref], num_returns=2, timeout=20)
    assert ready == [generator, ref]


def test_wait_times_out_on_a_slow_generator():
    @ray.remote
    def slow():
        time.sleep(5)
        yield 1

    generator = slow.remote()
    assert ray.wait([generator], timeout=0.1) == ([], [generator])
    ray.cancel(generator, force=True)


def test_generator_has_no_len():
    with pytest.raises(TypeError):
        len(count.remote(1))


def test_generator_cannot_be_passed_or_put():
    generator = count.remote(1)
    with pytest.raises(TypeError, match="ObjectRefGenerator"):
        ray.put(generator)
    with pytest.raises(TypeError, match="ObjectRefGenerator"):
        ray.remote(lambda x: x).remote(generator)
    with pytest.raises(TypeError, match="ObjectRefGenerator"):
        ray.remote(lambda x: x).remote([generator])


@pytest.mark.parametrize("method", ["send", "throw", "close"])
def test_python_generator_methods_are_not_supported(method):
    arguments = {"send": (1,), "throw": (ValueError,), "close": ()}[method]
    with pytest.raises(NotImplementedError):
        getattr(count.remote(1), method)(*arguments)


def test_async_for():
    async def main():
        return [await ref async for ref in count.remote(3)]

    assert asyncio.run(main()) == [0, 1, 2]


def test_anext_ends_with_stop_async_iteration():
    async def main():
        generator = count.remote(1)
        value = await (await anext(generator))
        with pytest.raises(StopAsyncIteration):
            await anext(generator)
        return value

    assert asyncio.run(main()) == 0


def test_async_for_with_an_error():
    async def main():
        out = []
        async for ref in count.remote(3, fail_at=1):
            try:
                out.append(await ref)
            except ValueError:
                out.append("failed")
        return out

    assert asyncio.run(main()) == [0, "failed"]


def test_two_async_consumers():
    async def consume():
        return [await ref async for ref in count.remote(3)]

    async def main():
        return await asyncio.gather(consume(), consume())

    assert asyncio.run(main()) == [[0, 1, 2], [0, 1, 2]]


def test_back_pressure_pauses_the_generator(tmp_path, wait_until):
    log = tmp_path / "log"

    @ray.remote(_generator_backpressure_num_objects=2)
    def logged():
        for i in range(6):
            with log.open("a") as file:
                file.write("x")
            yield i

    def made():
        return log.stat().st_size if log.exists() else 0

    generator = logged.remote()
    wait_until(lambda: made() == 2)
    time.sleep(0.2)
    assert made() == 2
    assert ray.get(next(generator)) == 0
    wait_until(lambda: made() == 3)
    assert drain(generator) == [1, 2, 3, 4, 5]


def test_back_pressure_of_zero_is_refused():
    with pytest.raises(ValueError, match="_generator_backpressure_num_objects"):

        @ray.remote(_generator_backpressure_num_objects=0)
        def generator():
            yield 1

        generator.remote()


def test_without_back_pressure_the_generator_runs_ahead(tmp_path, wait_until):
    log = tmp_path / "log"

    @ray.remote
    def logged():
        for i in range(20):
            with log.open("a") as file:
                file.write("x")
            yield i

    generator = logged.remote()
    wait_until(lambda: log.exists() and log.stat().st_size == 20)
    assert drain(generator) == list(range(20))


def test_cancel_ends_a_running_generator():
    generator = count.remote(10_000, nap_s=0.01)
    assert ray.get(next(generator)) == 0
    ray.cancel(generator)
    names = [item for item in drain(generator) if isinstance(item, str)]
    assert len(names) == 1
    assert "TaskCancelledError" in names[0]


def test_force_cancel_ends_a_running_generator():
    generator = count.remote(10_000, nap_s=0.01)
    next(generator)
    ray.cancel(generator, force=True)
    names = [item for item in drain(generator) if isinstance(item, str)]
    assert len(names) == 1


def test_dropping_the_generator_is_harmless():
    generator = count.remote(100)
    next(generator)
    del generator
    assert drain(count.remote(2)) == [0, 1]


def test_crash_in_the_middle_raises():
    @ray.remote(max_retries=0)
    def crashes():
        yield 1
        time.sleep(0.2)
        os._exit(1)

    generator = crashes.remote()
    out = drain(generator)
    assert out[-1] == "WorkerCrashedError"
    assert len(out) <= 2


def test_fixed_number_of_returns():
    refs = count.options(num_returns=3).remote(3)
    assert ray.get(refs) == [0, 1, 2]


def test_fixed_number_decorated():
    @ray.remote(num_returns=2)
    def pair():
        yield "a"
        yield "b"

    first, second = pair.remote()
    assert ray.get([second, first]) == ["b", "a"]


def test_fixed_number_with_too_few_values():
    refs = count.options(num_returns=3, max_retries=0).remote(2)
    assert ray.get(refs[:2]) == [0, 1]
    with pytest.raises(ValueError, match="num_returns=3"):
        ray.get(refs[2])


def test_fixed_number_with_too_many_values_drops_the_rest():
    refs = count.options(num_returns=2).remote(4)
    assert ray.get(refs) == [0, 1]


def test_fixed_number_of_zero_gives_none():
    assert count.options(num_returns=0).remote(0) is None


def test_fixed_number_with_an_error_keeps_the_values_before_it():
    refs = count.options(num_returns=3, max_retries=0).remote(3, fail_at=1)
    assert ray.get(refs[0]) == 0
    for ref in refs[1:]:
        with pytest.raises(ValueError, match="failed at 1"):
            ray.get(ref)


def test_dynamic_returns():
    with pytest.warns(Warning, match="dynamic"):
        ref = count.options(num_returns="dynamic").remote(3)
    assert isinstance(ref, ray.ObjectRef)
    generator = ray.get(ref)
    assert isinstance(generator, ray.DynamicObjectRefGenerator)
    assert len(generator) == 3
    assert [ray.get(item) for item in generator] == [0, 1, 2]


@pytest.mark.filterwarnings("ignore")
def test_dynamic_error_is_the_last_ref():
    ref = count.options(num_returns="dynamic", max_retries=0).remote(3, fail_at=1)
    assert drain(ray.get(ref)) == [0, "RayTaskError(ValueError)"]


@pytest.mark.filterwarnings("ignore")
def test_dynamic_refs_as_argument():
    @ray.remote
    def total(generator):
        return sum(ray.get(ref) for ref in generator)

    assert ray.get(total.remote(count.options(num_returns="dynamic").remote(4))) == 6


def test_streaming_of_a_plain_function_is_value_error():
    with pytest.raises(ValueError, match="streaming"):

        @ray.remote(num_returns="streaming")
        def plain():
            return 1


@pytest.mark.differs("yield-from-in-streaming-generator")
def test_yield_from_a_plain_iterator():
    @ray.remote
    def delegating():
        yield from range(3)

    assert drain(delegating.remote()) == [0, 1, 2]


def test_yield_from_another_generator_function():
    def inner():
        yield 1
        yield 2

    @ray.remote
    def delegating():
        yield 0
        yield from inner()

    assert drain(delegating.remote()) == [0, 1, 2]


def test_finally_of_a_cancelled_generator_runs(tmp_path, wait_until):
    marker = tmp_path / "closed"

    @ray.remote
    def careful():
        try:
            while True:
                yield 1
                time.sleep(0.01)
        finally:
            marker.touch()

    generator = careful.remote()
    next(generator)
    ray.cancel(generator)
    wait_until(marker.exists)
    last = None
    for last in generator:
        pass
    if last is not None:
        with pytest.raises(TaskCancelledError):
            ray.get(last)


def test_a_dropped_generator_does_not_block_its_task(wait_until):
    @ray.remote(_generator_backpressure_num_objects=2)
    def numbers():
        yield from range(10)

    generator = numbers.remote()
    assert ray.get(next(generator)) == 0
    # Nobody takes the rest, so nobody but the end of the generator lets it go on.
    del generator
    gc.collect()
    wait_until(lambda: ray.available_resources().get("CPU") == 4)
