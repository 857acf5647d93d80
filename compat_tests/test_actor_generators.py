"""Methods that are generators stream their items as references."""

from __future__ import annotations

import asyncio
import threading

import pytest

import ray
from ray.exceptions import TaskCancelledError

pytestmark = pytest.mark.usefixtures("ray_start")


class Items:
    def __init__(self):
        self.made = 0

    def items(self, n):
        for i in range(n):
            self.made += 1
            yield i

    def fails_after(self, n):
        for i in range(n):
            yield i
        raise ValueError("in the middle")

    def fails_at_once(self):
        raise ValueError("at once")
        yield

    def returns_too(self):
        yield 1
        return 5

    @ray.method(num_returns="streaming")
    def declared(self):
        yield "a"
        yield "b"

    def delegates(self):
        yield from (i * i for i in range(3))

    def delegates_to_range(self):
        yield from range(3)

    def big(self, n):
        for i in range(n):
            yield bytes([i]) * 300_000

    def nones(self, n):
        for _ in range(n):
            yield None

    def echo(self, value):
        return value

    def unpicklable(self):
        yield 1
        yield threading.Lock()

    def get_made(self):
        return self.made


Sync = ray.remote(Items)


@ray.remote
class Async:
    def __init__(self):
        self.event = asyncio.Event()

    async def items(self, n):
        for i in range(n):
            await asyncio.sleep(0)
            yield i

    async def fails_after(self, n):
        for i in range(n):
            yield i
        raise ValueError("in the middle")

    def plain_items(self, n):
        for i in range(n):
            yield i

    async def gated(self):
        yield "before"
        await self.event.wait()
        yield "after"

    async def open(self):
        self.event.set()

    async def endless(self):
        yield 0
        await asyncio.Event().wait()

    async def ping(self):
        return "pong"


@pytest.fixture
def source():
    return Sync.remote()


def collect(generator):
    """Get every item; an exception gives its class name."""
    out = []
    for ref in generator:
        try:
            out.append(ray.get(ref))
        except Exception as error:
            out.append(type(error).__name__)
    return out


@pytest.mark.parametrize("n", [0, 1, 5])
def test_generator_method_streams_by_default(source, n):
    generator = source.items.remote(n)
    assert isinstance(generator, ray.ObjectRefGenerator)
    assert collect(generator) == list(range(n))


def test_items_are_references(source):
    generator = source.items.remote(2)
    first = next(generator)
    assert isinstance(first, ray.ObjectRef)
    assert ray.get(first) == 0


def test_exhausted_generator_stops(source):
    generator = source.items.remote(1)
    next(generator)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(generator)


def test_error_in_the_middle_is_one_more_reference(source):
    assert collect(source.fails_after.remote(2)) == [0, 1, "RayTaskError(ValueError)"]
    assert ray.get(source.echo.remote(1)) == 1


def test_error_before_the_first_item(source):
    assert collect(source.fails_at_once.remote()) == ["RayTaskError(ValueError)"]


def test_return_value_of_a_generator_is_dropped(source):
    assert collect(source.returns_too.remote()) == [1]


def test_streaming_declared_by_ray_method(source):
    assert collect(source.declared.remote()) == ["a", "b"]


def test_yield_from_a_generator(source):
    assert collect(source.delegates.remote()) == [0, 1, 4]


@pytest.mark.differs("yield-from-in-streaming-generator")
def test_yield_from_a_range(source):
    assert collect(source.delegates_to_range.remote()) == [0, 1, 2]


def test_none_items_are_items(source):
    assert collect(source.nones.remote(3)) == [None] * 3


def test_large_items(source):
    sizes = [len(item) for item in collect(source.big.remote(4))]
    assert sizes == [300_000] * 4


def test_unpicklable_item_fails_and_the_actor_lives(source):
    out = collect(source.unpicklable.remote())
    assert out[0] == 1
    assert "TypeError" in out[1]
    assert ray.get(source.echo.remote(2)) == 2


def test_streaming_a_plain_method_is_refused_at_the_call(source):
    with pytest.raises(ValueError, match="generator"):
        source.echo.options(num_returns="streaming").remote(1)


@pytest.mark.parametrize("n", [2, 3])
def test_generator_with_a_fixed_number_of_returns(source, n):
    refs = source.items.options(num_returns=n).remote(n)
    assert isinstance(refs, list)
    assert ray.get(refs) == list(range(n))


def test_generator_with_too_few_items_for_num_returns(source):
    refs = source.items.options(num_returns=3).remote(2)
    with pytest.raises(ValueError, match="num_returns=3"):
        ray.get(refs)


def test_dynamic_generator_gives_one_reference(source):
    with pytest.warns(match="dynamic"):
        ref = source.items.options(num_returns="dynamic").remote(3)
    assert isinstance(ref, ray.ObjectRef)
    assert [ray.get(item) for item in ray.get(ref)] == [0, 1, 2]


def test_stream_can_be_read_before_the_method_ended():
    source = Async.remote()
    generator = source.gated.remote()
    assert ray.get(next(generator)) == "before"
    assert not generator.is_finished()
    ray.get(source.open.remote())
    assert collect(generator) == ["after"]


def test_completed_ref_is_ready_at_the_end(source):
    generator = source.items.remote(2)
    assert ray.get(generator.completed()) is None
    assert collect(generator) == [0, 1]
    assert generator.is_finished()


def test_wait_accepts_a_generator(source):
    generator = source.items.remote(1)
    assert ray.wait([generator], timeout=20) == ([generator], [])


def test_generator_has_no_length(source):
    with pytest.raises(TypeError):
        len(source.items.remote(1))


def test_refs_of_items_can_be_arguments(source):
    refs = list(source.items.remote(3))
    assert ray.get([source.echo.remote(ref) for ref in refs]) == [0, 1, 2]


def test_unread_generator_runs_anyway(source, wait_until):
    generator = source.items.remote(4)
    wait_until(lambda: ray.get(source.get_made.remote()) == 4)
    del generator
    assert ray.get(source.get_made.remote()) == 4


def test_generator_call_keeps_its_place_in_the_order(source):
    source.items.remote(3)
    assert ray.get(source.get_made.remote()) == 3


def test_async_generator_method():
    source = Async.remote()
    assert collect(source.items.remote(3)) == [0, 1, 2]
    assert collect(source.fails_after.remote(1)) == [0, "RayTaskError(ValueError)"]


def test_plain_generator_method_of_an_async_actor():
    assert collect(Async.remote().plain_items.remote(3)) == [0, 1, 2]


def test_two_async_generators_interleave():
    source = Async.remote()
    held = source.gated.remote()
    assert ray.get(next(held)) == "before"
    assert collect(source.items.remote(2)) == [0, 1]
    ray.get(source.open.remote())
    assert collect(held) == ["after"]


def test_async_iteration_in_the_driver(source):
    async def main():
        return [await ref async for ref in source.items.remote(3)]

    assert asyncio.run(main()) == [0, 1, 2]


def test_generator_in_a_threaded_actor():
    source = Sync.options(max_concurrency=2).remote()
    assert collect(source.items.remote(3)) == [0, 1, 2]
    assert collect(source.fails_after.remote(1)) == [0, "RayTaskError(ValueError)"]


def test_generator_read_inside_a_task(source):
    @ray.remote
    def total(handle):
        return sum(ray.get(ref) for ref in handle.items.remote(4))

    assert ray.get(total.remote(source)) == 6


def test_generator_read_inside_another_actor(source):
    @ray.remote
    class Reader:
        def read(self, handle):
            return [ray.get(ref) for ref in handle.items.remote(3)]

    assert ray.get(Reader.remote().read.remote(source)) == [0, 1, 2]


def test_cancelled_async_generator_ends_with_an_error():
    source = Async.remote()
    generator = source.endless.remote()
    assert ray.get(next(generator)) == 0
    ray.cancel(generator)
    with pytest.raises(TaskCancelledError):
        for ref in generator:
            ray.get(ref)
    assert ray.get(source.ping.remote()) == "pong"


def test_backpressure_holds_the_producer(source, wait_until):
    method = source.items.options(_generator_backpressure_num_objects=2)
    generator = method.remote(6)
    assert collect(generator) == list(range(6))


def test_an_async_generator_that_never_waits_lets_others_run():
    @ray.remote
    class Endless:
        async def numbers(self):
            number = 0
            while True:
                yield number
                number += 1

        async def ping(self):
            return "pong"

    actor = Endless.remote()
    generator = actor.numbers.options(num_returns="streaming").remote()
    assert ray.get(next(generator)) == 0
    assert ray.get(actor.ping.remote(), timeout=20) == "pong"
    ray.cancel(generator)
    assert ray.get(actor.ping.remote(), timeout=20) == "pong"
