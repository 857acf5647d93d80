"""Actors with coroutine methods: one event loop, interleaved calls."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

import ray
from ray.exceptions import ActorDiedError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Room:
    def __init__(self):
        self.event = asyncio.Event()
        self.inside = 0
        self.most_inside = 0
        self.items = []

    async def wait(self, value=None):
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        await self.event.wait()
        self.inside -= 1
        return value

    async def open(self):
        self.event.set()

    async def count(self):
        return self.inside

    async def most(self):
        return self.most_inside

    def plain(self):
        return self.inside, asyncio.get_running_loop() is not None

    async def add(self, item):
        self.items.append(item)

    async def get_items(self):
        return self.items

    async def fail(self):
        raise KeyError("lost")

    async def read(self, refs):
        return await refs[0]

    async def read_many(self, refs):
        return await asyncio.gather(*refs)

    async def echo(self, value):
        return value

    async def is_main_thread(self):
        return threading.current_thread() is threading.main_thread()

    async def call_child(self, child):
        return await child.echo.remote("from parent")

    async def call_task(self):
        return await seven.remote()

    async def catch(self):
        try:
            await broken.remote()
        except ZeroDivisionError:
            return "caught"

    async def leave(self):
        ray.actor.exit_actor()

    async def crash(self):
        os._exit(1)

    async def background(self):
        async def later():
            await asyncio.sleep(0)
            self.items.append("background")

        self.task = asyncio.create_task(later())
        return "started"

    async def timeout(self):
        try:
            await asyncio.wait_for(asyncio.Event().wait(), timeout=0.01)
        except asyncio.TimeoutError:
            return "timed out"

    async def pid(self):
        return os.getpid()


@ray.remote
def seven():
    return 7


@ray.remote
def broken():
    return 1 / 0


@pytest.fixture
def room():
    return Room.remote()


def inside(room):
    """Return how many calls wait in the room."""
    return ray.get(room.count.remote())


def test_calls_interleave_at_await(room, wait_until):
    refs = [room.wait.remote(i) for i in range(10)]
    wait_until(lambda: inside(room) == 10)
    ray.get(room.open.remote())
    assert ray.get(refs) == list(range(10))


def test_waiting_calls_do_not_block_the_others(room):
    held = room.wait.remote("held")
    assert ray.get(room.echo.remote(1)) == 1
    assert ray.wait([held], timeout=0.05) == ([], [held])
    room.open.remote()
    assert ray.get(held) == "held"


def test_plain_methods_run_on_the_loop(room, wait_until):
    room.wait.remote()
    wait_until(lambda: inside(room) == 1)
    assert ray.get(room.plain.remote()) == (1, True)
    ray.get(room.open.remote())


def test_max_concurrency_limits_the_calls_inside(wait_until):
    room = Room.options(max_concurrency=2).remote()
    refs = [room.wait.remote(i) for i in range(2)]
    queued = [room.echo.remote(i) for i in range(3)]
    assert ray.wait(queued, timeout=0.1)[0] == []
    ray.kill(room)
    for ref in refs:
        with pytest.raises(ActorDiedError):
            ray.get(ref)


def test_default_concurrency_is_large(room, wait_until):
    refs = [room.wait.remote(i) for i in range(200)]
    wait_until(lambda: inside(room) == 200)
    ray.get(room.open.remote())
    assert ray.get(refs) == list(range(200))


def test_every_call_arrives(room):
    ray.get([room.add.remote(i) for i in range(50)])
    assert sorted(ray.get(room.get_items.remote())) == list(range(50))


def test_awaited_calls_are_in_order(room):
    for item in range(5):
        ray.get(room.add.remote(item))
    assert ray.get(room.get_items.remote()) == [0, 1, 2, 3, 4]


def test_error_in_a_coroutine(room):
    with pytest.raises(KeyError, match="lost") as caught:
        ray.get(room.fail.remote())
    assert "ray::Room.fail()" in str(caught.value)
    assert ray.get(room.echo.remote(1)) == 1


def test_refs_can_be_awaited_inside(room):
    assert ray.get(room.read.remote([seven.remote()])) == 7
    assert ray.get(room.read_many.remote([ray.put(i) for i in range(3)])) == [0, 1, 2]


def test_awaiting_a_pending_ref_lets_others_run(room, wait_until):
    gate = Room.remote()
    held = room.read.remote([gate.wait.remote("through")])
    assert ray.get(room.echo.remote(2)) == 2
    ray.get(gate.open.remote())
    assert ray.get(held) == "through"


def test_tasks_and_actors_can_be_awaited_inside(room):
    assert ray.get(room.call_task.remote()) == 7
    assert ray.get(room.call_child.remote(Room.remote())) == "from parent"
    assert ray.get(room.catch.remote()) == "caught"


def test_async_actor_can_call_itself(room):
    assert ray.get(room.call_child.remote(room)) == "from parent"


def test_top_level_ref_arguments_are_resolved(room):
    assert ray.get(room.echo.remote(seven.remote())) == 7


def test_failed_argument_fails_the_call(room):
    with pytest.raises(ZeroDivisionError):
        ray.get(room.echo.remote(broken.remote()))


def test_coroutines_do_not_run_on_the_main_thread(room):
    assert ray.get(room.is_main_thread.remote()) is False


def test_background_tasks_go_on(room, wait_until):
    assert ray.get(room.background.remote()) == "started"
    wait_until(lambda: ray.get(room.get_items.remote()) == ["background"])


def test_wait_for_inside(room):
    assert ray.get(room.timeout.remote()) == "timed out"


def test_exit_actor_in_a_coroutine(room):
    with pytest.raises(ActorDiedError, match="INTENDED_USER_EXIT"):
        ray.get(room.leave.remote())
    with pytest.raises(ActorDiedError):
        ray.get(room.echo.remote(1))


def test_crash_fails_every_waiting_call(room, wait_until):
    refs = [room.wait.remote() for _ in range(3)]
    wait_until(lambda: inside(room) == 3)
    refs.append(room.crash.remote())
    for ref in refs:
        with pytest.raises(ActorDiedError):
            ray.get(ref)


def test_num_returns_of_a_coroutine():
    @ray.remote
    class Pair:
        @ray.method(num_returns=2)
        async def pair(self):
            return 1, 2

    first, second = Pair.remote().pair.remote()
    assert ray.get([second, first]) == [2, 1]


def test_task_ids_differ_between_interleaved_calls():
    @ray.remote
    class Ids:
        def __init__(self):
            self.arrived = 0
            self.event = asyncio.Event()

        async def task_id(self):
            self.arrived += 1
            if self.arrived == 3:
                self.event.set()
            await self.event.wait()
            return ray.get_runtime_context().get_task_id()

    ids = Ids.remote()
    refs = [ids.task_id.remote() for _ in range(3)]
    values = ray.get(refs)
    assert len(set(values)) == 3
    assert [ref.task_id().hex() for ref in refs] == values


def test_async_constructor_work_by_a_method():
    @ray.remote
    class Lazy:
        def __init__(self):
            self.value = None

        async def setup(self):
            await asyncio.sleep(0)
            self.value = "ready"

        async def get(self):
            return self.value

    lazy = Lazy.remote()
    ray.get(lazy.setup.remote())
    assert ray.get(lazy.get.remote()) == "ready"


def test_await_in_the_driver(room):
    async def main():
        held = room.wait.remote("held")
        one = await room.echo.remote(1)
        await room.open.remote()
        return one, await held

    assert asyncio.run(main()) == (1, "held")
