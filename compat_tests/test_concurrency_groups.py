"""Concurrency groups: limits of their own for some methods of an actor."""

from __future__ import annotations

import asyncio
import threading

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote(concurrency_groups={"io": 2, "compute": 1})
class Threads:
    def __init__(self):
        self.barrier = threading.Barrier(2)
        self.event = threading.Event()
        self.order = []

    @ray.method(concurrency_group="io")
    def meet(self):
        self.barrier.wait(20)
        return threading.get_ident()

    @ray.method(concurrency_group="io")
    def io_hold(self):
        self.event.wait(20)
        return "io"

    @ray.method(concurrency_group="compute")
    def hold(self):
        self.event.wait(20)
        return "compute"

    @ray.method(concurrency_group="compute")
    def compute(self, value):
        self.order.append(value)
        return value

    def default_hold(self):
        self.event.wait(20)
        return "default"

    def default(self, value):
        self.order.append(value)
        return value

    def get_order(self):
        return self.order

    def thread(self):
        return threading.get_ident()

    @ray.method(concurrency_group="io", num_returns=2)
    def two(self):
        return 1, 2

    @ray.method(concurrency_group="io")
    def open(self):
        self.event.set()


@ray.remote(concurrency_groups={"slow": 1, "fast": 3})
class Loops:
    def __init__(self):
        self.events = {}
        self.inside = {"slow": 0, "fast": 0, "default": 0}

    async def visit(self, name):
        self.inside[name] += 1
        if name not in self.events:
            self.events[name] = asyncio.Event()
        await self.events[name].wait()
        return name

    @ray.method(concurrency_group="slow")
    async def slow(self):
        return await self.visit("slow")

    @ray.method(concurrency_group="fast")
    async def fast(self):
        return await self.visit("fast")

    async def count(self):
        return dict(self.inside)

    @ray.method(concurrency_group="fast")
    async def ping(self):
        return "pong"


@pytest.fixture
def threads():
    return Threads.remote()


def test_group_runs_as_many_calls_as_it_allows(threads):
    idents = ray.get([threads.meet.remote(), threads.meet.remote()])
    assert len(set(idents)) == 2


def test_full_group_does_not_hold_another(threads):
    held = threads.hold.remote()
    assert ray.get(threads.default.remote(1)) == 1
    assert ray.wait([held], timeout=0.05) == ([], [held])
    ray.get(threads.open.remote())
    assert ray.get(held) == "compute"


def test_busy_default_group_does_not_hold_the_others(threads):
    held = threads.default_hold.remote()
    assert ray.get(threads.compute.remote(2)) == 2
    ray.get(threads.open.remote())
    assert ray.get(held) == "default"


def test_group_of_one_runs_in_order(threads):
    ray.get([threads.compute.remote(i) for i in range(20)])
    assert ray.get(threads.get_order.remote()) == list(range(20))


def test_default_group_runs_in_order(threads):
    ray.get([threads.default.remote(i) for i in range(20)])
    assert ray.get(threads.get_order.remote()) == list(range(20))


def test_group_can_be_chosen_at_the_call(threads):
    held = threads.default_hold.remote()
    in_io = threads.thread.options(concurrency_group="io")
    assert isinstance(ray.get(in_io.remote()), int)
    ray.get(threads.open.remote())
    assert ray.get(held) == "default"


def test_call_option_overrides_the_declared_group(threads):
    held = threads.hold.remote()
    moved = threads.compute.options(concurrency_group="io").remote(3)
    assert ray.get(moved) == 3
    ray.get(threads.open.remote())
    assert ray.get(held) == "compute"


def test_group_together_with_num_returns(threads):
    assert ray.get(threads.two.remote()) == [1, 2]


def test_groups_survive_passing_the_handle(threads):
    @ray.remote
    def use(handle):
        held = handle.hold.remote()
        value = ray.get(handle.default.remote(1))
        ray.get(handle.open.remote())
        return value, ray.get(held)

    assert ray.get(use.remote(threads)) == (1, "compute")


def test_async_groups_have_their_own_limits(wait_until):
    loops = Loops.remote()
    slow = [loops.slow.remote() for _ in range(3)]
    fast = [loops.fast.remote() for _ in range(2)]
    expected = {"slow": 1, "fast": 2, "default": 0}
    wait_until(lambda: ray.get(loops.count.remote()) == expected)
    assert ray.get(loops.ping.remote()) == "pong"
    assert ray.wait(slow + fast, timeout=0.05)[0] == []


def test_default_group_takes_max_concurrency():
    @ray.remote(concurrency_groups={"io": 1})
    class Mixed:
        def __init__(self):
            self.barrier = threading.Barrier(2)

        def meet(self):
            return self.barrier.wait(20)

        @ray.method(concurrency_group="io")
        def io(self):
            return "io"

    mixed = Mixed.options(max_concurrency=2).remote()
    assert sorted(ray.get([mixed.meet.remote(), mixed.meet.remote()])) == [0, 1]
    assert ray.get(mixed.io.remote()) == "io"


def test_groups_may_be_a_list():
    @ray.remote(concurrency_groups=[])
    class NoGroups:
        def ping(self):
            return 1

    assert ray.get(NoGroups.remote().ping.remote()) == 1


def test_undeclared_group_on_a_method_is_refused():
    @ray.remote(concurrency_groups={"io": 1})
    class Wrong:
        @ray.method(concurrency_group="nope")
        def call(self):
            return 1

    with pytest.raises((AssertionError, ValueError)):
        Wrong.remote()


def test_group_size_must_be_an_integer():
    @ray.remote(concurrency_groups={"io": "x"})
    class Wrong:
        def call(self):
            return 1

    with pytest.raises(TypeError):
        Wrong.remote()
