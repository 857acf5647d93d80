"""Actors keep state, live in their own process and answer through references."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import os
import threading

import numpy as np
import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Counter:
    """Counts."""

    step = 1
    seen: list[int] = []  # noqa: RUF012 - a mutable class member is the point

    def __init__(self, start=0):
        self.value = start

    def inc(self, amount=1):
        self.value += amount
        return self.value

    def get(self):
        return self.value

    def pid(self):
        return os.getpid()

    def class_step(self):
        return self.step, type(self).step

    def set_class_step(self, step):
        type(self).step = step

    def remember(self, item):
        type(self).seen.append(item)
        return list(self.seen)

    @staticmethod
    def double(value):
        return value * 2

    @classmethod
    def name(cls, suffix=""):
        return cls.__name__ + suffix


def test_state_lives_between_calls():
    counter = Counter.remote()
    assert ray.get([counter.inc.remote() for _ in range(5)]) == [1, 2, 3, 4, 5]


def test_two_actors_do_not_share_state():
    first, second = Counter.remote(), Counter.remote(10)
    first.inc.remote()
    assert ray.get([first.get.remote(), second.get.remote()]) == [1, 10]


def test_actor_has_a_process_of_its_own():
    first, second = Counter.remote(), Counter.remote()
    pids = ray.get([first.pid.remote(), second.pid.remote(), first.pid.remote()])
    assert pids[0] == pids[2]
    assert len({*pids, os.getpid()}) == 3


def test_static_and_class_methods_are_remote_methods():
    counter = Counter.remote()
    assert ray.get(counter.double.remote(4)) == 8
    assert ray.get(counter.name.remote()) == "Counter"
    assert ray.get(counter.name.remote(suffix="!")) == "Counter!"


def test_static_and_class_members_are_readable_on_the_actor_class():
    assert Counter.double(3) == 6
    assert Counter.step == 1


def test_class_members_belong_to_the_actor_process():
    first, second = Counter.remote(), Counter.remote()
    ray.get(first.set_class_step.remote(7))
    assert ray.get(first.class_step.remote()) == (7, 7)
    assert ray.get(second.class_step.remote()) == (1, 1)
    assert Counter.step == 1


def test_mutable_class_member_keeps_its_content_in_the_actor():
    counter = Counter.remote()
    ray.get(counter.remember.remote(1))
    assert ray.get(counter.remember.remote(2)) == [1, 2]
    assert Counter.seen == []


def test_numpy_state_survives_and_results_are_snapshots():
    @ray.remote
    class Parameters:
        def __init__(self, size):
            self.weights = np.zeros(size)

        def add(self, gradient):
            self.weights += gradient

        def get(self):
            return self.weights

    server = Parameters.remote(50_000)
    before = ray.get(server.get.remote())
    ray.get(server.add.remote(np.ones(50_000)))
    after = ray.get(server.get.remote())
    assert before.sum() == 0
    assert after.sum() == 50_000


def test_numpy_result_is_read_only():
    @ray.remote
    class Holder:
        def array(self):
            return np.arange(100_000)

    array = ray.get(Holder.remote().array.remote())
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_numpy_argument_is_read_only_in_the_method():
    @ray.remote
    class Holder:
        def write(self, array):
            array[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        ray.get(Holder.remote().write.remote(np.zeros(100_000)))


def test_result_is_a_copy_of_the_state():
    @ray.remote
    class Box:
        def __init__(self):
            self.items = []

        def append(self, item):
            self.items.append(item)
            return self.items

    box = Box.remote()
    first = ray.get(box.append.remote(1))
    first.append("mine")
    assert ray.get(box.append.remote(2)) == [1, 2]


def test_argument_is_a_snapshot():
    @ray.remote
    class Box:
        def keep(self, items):
            self.items = items

        def get(self):
            return self.items

    box = Box.remote()
    items = [1]
    box.keep.remote(items)
    items.append(2)
    assert ray.get(box.get.remote()) == [1]


def test_actor_may_hold_what_cannot_be_pickled():
    @ray.remote
    class Locked:
        def __init__(self):
            self.lock = threading.Lock()
            self.value = 0

        def add(self):
            with self.lock:
                self.value += 1
                return self.value

    locked = Locked.remote()
    assert ray.get([locked.add.remote() for _ in range(3)]) == [1, 2, 3]


def test_sync_method_runs_on_the_main_thread():
    @ray.remote
    class Where:
        def __init__(self):
            self.at_start = threading.current_thread() is threading.main_thread()

        def ask(self):
            return self.at_start, threading.current_thread() is threading.main_thread()

    assert ray.get(Where.remote().ask.remote()) == (True, True)


def test_method_without_return_gives_none():
    counter = Counter.remote()
    assert ray.get(counter.set_class_step.remote(1)) is None


@pytest.mark.parametrize(
    "value",
    [None, 0, "text", b"x" * 200_000, (1, 2), {"a": [1]}, {1, 2}, 1.5 + 2j],
    ids=lambda value: type(value).__name__,
)
def test_value_goes_through_an_actor(value):
    @ray.remote
    class Echo:
        def echo(self, value):
            return value

    assert ray.get(Echo.remote().echo.remote(value)) == value


def test_dataclass_can_be_an_actor():
    @ray.remote
    @dataclasses.dataclass
    class Point:
        x: int
        y: int = 2

        def total(self):
            return self.x + self.y

    assert ray.get(Point.remote(1).total.remote()) == 3
    assert ray.get(Point.remote(x=1, y=5).total.remote()) == 6


def test_enum_class_members_compare_across_the_border():
    class Colour(enum.Enum):
        RED = 1
        BLUE = 2

    @ray.remote
    class Painter:
        def paint(self, colour):
            return colour is Colour.RED, colour

    is_red, back = ray.get(Painter.remote().paint.remote(Colour.RED))
    assert is_red
    assert back.name == "RED"


def test_class_defined_in_a_function_sees_its_closure():
    factor = 3

    @ray.remote
    class Scale:
        def apply(self, value):
            return value * factor

    assert ray.get(Scale.remote().apply.remote(5)) == 15


def test_slots_are_fine():
    @ray.remote
    class Slim:
        __slots__ = ("value",)

        def __init__(self):
            self.value = 4

        def get(self):
            return self.value

    assert ray.get(Slim.remote().get.remote()) == 4


def test_twenty_actors_at_once():
    @ray.remote(num_cpus=0)
    class Member:
        def __init__(self, rank):
            self.rank = rank

        def get(self):
            return self.rank

    members = [Member.remote(rank) for rank in range(20)]
    assert ray.get([m.get.remote() for m in members]) == list(range(20))


def test_many_calls_in_flight():
    counter = Counter.remote()
    refs = [counter.inc.remote() for _ in range(500)]
    assert ray.get(refs[-1]) == 500
    assert ray.get(refs) == list(range(1, 501))


def test_wait_on_actor_calls():
    counter = Counter.remote()
    refs = [counter.inc.remote() for _ in range(4)]
    ready, pending = ray.wait(refs, num_returns=4, timeout=20)
    assert ready == refs
    assert pending == []


def test_await_an_actor_call_in_the_driver():
    counter = Counter.remote()

    async def main():
        one = await counter.inc.remote()
        rest = await asyncio.gather(*[counter.inc.remote() for _ in range(3)])
        return [one, *rest]

    assert asyncio.run(main()) == [1, 2, 3, 4]


def test_fixed_resources_of_an_actor_are_held_for_life(wait_until):
    @ray.remote(num_cpus=2)
    class Big:
        def ping(self):
            return 1

    wait_until(lambda: ray.available_resources().get("CPU") == 4)
    big = Big.remote()
    ray.get(big.ping.remote())
    wait_until(lambda: ray.available_resources().get("CPU") == 2)
    del big
    wait_until(lambda: ray.available_resources().get("CPU") == 4)


def test_default_actor_holds_no_cpu(wait_until):
    counters = [Counter.remote() for _ in range(5)]
    assert ray.get([c.inc.remote() for c in counters]) == [1] * 5
    wait_until(lambda: ray.available_resources().get("CPU") == 4)
