"""Actors and cancellation over nodes."""

from __future__ import annotations

import asyncio
import os
import time

import numpy as np
import pytest

import ray
from failures.placed import GET_LIMIT_S, LARGE, Keeper, filled, nap, on, where
from failures.witness import runs_in
from ray.exceptions import (
    ActorDiedError,
    RayActorError,
    TaskCancelledError,
)

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)


def get(ref):
    return ray.get(ref, timeout=GET_LIMIT_S)


@pytest.fixture(autouse=True)
def two_nodes(nodes):
    """Nodes ``a`` and ``b`` beside the head's."""
    nodes.stand("a")
    nodes.stand("b")


@ray.remote(num_cpus=0)
def add_through(handle):
    return ray.get(handle.add.remote())


@ray.remote(num_cpus=0)
class Phoenix:
    def __init__(self):
        self.count = 0

    def add(self):
        self.count += 1
        return self.count

    def node(self):
        return ray.get_runtime_context().get_node_id()

    def die(self):
        os._exit(1)


@ray.remote(num_cpus=0)
class Async:
    def __init__(self):
        self.event = asyncio.Event()

    async def wait(self):
        await self.event.wait()
        return "opened"

    async def open(self):
        self.event.set()

    async def stream(self, count):
        for number in range(count):
            await asyncio.sleep(0.01)
            yield np.full(LARGE, float(number))


def test_calls_of_an_actor_on_another_node_keep_their_order():
    keeper = Keeper.options(**on("a")).remote()
    assert get([keeper.add.remote() for _ in range(100)]) == list(range(1, 101))


def test_an_actor_reads_values_of_other_nodes():
    keeper = Keeper.options(**on("a")).remote()
    refs = [
        filled.options(**on("b")).remote(1),
        ray.put(np.full(LARGE, 2.0)),
        filled.options(**on("a")).remote(3),
    ]
    get(keeper.keep.remote(refs))
    assert get(keeper.total_kept.remote()) == 6 * LARGE


def test_a_handle_is_used_on_a_third_node():
    keeper = Keeper.options(**on("a")).remote()
    assert get(add_through.options(**on("b")).remote(keeper)) == 1
    assert get(add_through.options(**on("head")).remote(keeper)) == 2
    assert get(keeper.add.remote()) == 3


def test_a_handle_kept_by_another_actor_keeps_it_alive():
    @ray.remote(**on("b"))
    class Holder:
        def __init__(self, handle):
            self.handle = handle

        def add(self):
            return ray.get(self.handle.add.remote())

    keeper = Keeper.options(**on("a")).remote()
    holder = Holder.remote(keeper)
    assert get(holder.add.remote()) == 1
    del keeper
    assert get([holder.add.remote() for _ in range(3)]) == [2, 3, 4]


def test_a_dropped_handle_ends_the_actor_on_its_node(wait_until):
    keeper = Keeper.options(num_cpus=0, resources={"a": 5}).remote()
    get(keeper.add.remote())
    wait_until(lambda: ray.available_resources().get("a", 0) <= 5)
    del keeper
    wait_until(lambda: ray.available_resources().get("a", 0) == 10)


def test_a_named_actor_is_found_from_another_node():
    keeper = Keeper.options(name="far", **on("a")).remote()
    get(keeper.add.remote())

    @ray.remote(**on("b"))
    def find():
        return ray.get(ray.get_actor("far").add.remote())

    assert get(find.remote()) == 2


def test_get_if_exists_from_two_nodes_gives_one_actor():
    @ray.remote(num_cpus=0)
    def count():
        keeper = Keeper.options(
            name="once", get_if_exists=True, lifetime="detached", **on("a")
        ).remote()
        return ray.get(keeper.add.remote())

    counts = get([count.options(**on(name)).remote() for name in ("a", "b", "head")])
    assert sorted(counts) == [1, 2, 3]
    ray.kill(ray.get_actor("once"))


def test_killing_an_actor_of_another_node(wait_until):
    keeper = Keeper.options(num_cpus=0, resources={"a": 5}).remote()
    get(keeper.add.remote())
    running = keeper.nap.remote(300)
    ray.kill(keeper)
    with pytest.raises(ActorDiedError):
        get(running)
    with pytest.raises(ActorDiedError, match=r"ray\.kill"):
        get(keeper.add.remote())
    wait_until(lambda: ray.available_resources().get("a", 0) == 10)


def test_killing_from_a_third_node():
    keeper = Keeper.options(**on("a")).remote()
    get(keeper.add.remote())

    @ray.remote(**on("b"))
    def kill(handle):
        ray.kill(handle)

    get(kill.remote(keeper))
    with pytest.raises(RayActorError):
        while True:
            get(keeper.add.remote())


def test_kill_with_restart_on_another_node(wait_until):
    phoenix = Phoenix.options(max_restarts=1, **on("a")).remote()
    assert get([phoenix.add.remote() for _ in range(3)]) == [1, 2, 3]
    ray.kill(phoenix, no_restart=False)

    def restarted():
        try:
            return get(phoenix.add.remote()) == 1
        except RayActorError:
            return False

    wait_until(restarted)


def test_a_crash_restarts_the_actor_on_its_node(nodes):
    phoenix = Phoenix.options(max_restarts=1, max_task_retries=-1, **on("a")).remote()
    assert get(phoenix.add.remote()) == 1
    phoenix.die.options(max_task_retries=0).remote()
    assert get(phoenix.node.remote()) == nodes.stand("a").node_id


def test_calls_of_an_async_actor_of_another_node_overlap():
    actor = Async.options(**on("a")).remote()
    waiting = [actor.wait.remote() for _ in range(10)]
    assert ray.wait(waiting, timeout=0.3)[0] == []
    get(actor.open.remote())
    assert get(waiting) == ["opened"] * 10


def test_a_stream_of_an_async_actor_of_another_node():
    actor = Async.options(**on("a")).remote()
    refs = actor.stream.options(num_returns="streaming").remote(4)
    assert [int(get(ref)[0]) for ref in refs] == [0, 1, 2, 3]


def test_an_error_of_an_actor_of_another_node():
    keeper = Keeper.options(**on("a")).remote()
    with pytest.raises(KeyError, match="no such key"):
        get(keeper.fail.remote())
    assert get(keeper.add.remote()) == 1


def test_a_constructor_fails_on_another_node():
    @ray.remote(**on("a"))
    class Broken:
        def __init__(self):
            raise ValueError("cannot begin")

        def hello(self):
            return 1

    with pytest.raises(ActorDiedError, match="cannot begin"):
        get(Broken.remote().hello.remote())


def test_an_actor_leaves_on_another_node():
    @ray.remote(**on("a"))
    class Leaver:
        def leave(self):
            ray.actor.exit_actor()

        def hello(self):
            return 1

    leaver = Leaver.remote()
    assert get(leaver.hello.remote()) == 1
    with pytest.raises(RayActorError):
        get(leaver.leave.remote())
    with pytest.raises(ActorDiedError):
        get(leaver.hello.remote())


def test_threads_of_an_actor_of_another_node():
    @ray.remote(max_concurrency=4, **on("a"))
    class Threads:
        def __init__(self):
            self.inside = 0

        def meet(self):
            self.inside += 1
            deadline = time.monotonic() + 30
            while self.inside < 4:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return True

    threads = Threads.remote()
    assert all(get([threads.meet.remote() for _ in range(4)]))


def test_an_actor_starts_tasks_on_other_nodes(nodes):
    @ray.remote(**on("a"))
    class Parent:
        def child(self):
            return ray.get(where.options(**on("b")).remote())

    assert get(Parent.remote().child.remote()) == nodes.stand("b").node_id


@pytest.mark.parametrize("force", [False, True])
def test_cancelling_a_task_of_another_node(wait_until, tmp_path, force):
    started = tmp_path / "started"

    @ray.remote(num_cpus=0, resources={"a": 5})
    def spin():
        started.touch()
        for _ in range(6000):
            time.sleep(0.05)

    ref = spin.remote()
    wait_until(started.exists)
    ray.cancel(ref, force=force)
    with pytest.raises(TaskCancelledError):
        get(ref)
    wait_until(lambda: ray.available_resources().get("a") == 10)


def test_cancelling_a_task_that_waits_for_another_node(wait_until):
    busy = nap.options(num_cpus=0, resources={"a": 10}).remote(300)
    wait_until(lambda: ray.available_resources().get("a", 0) == 0)
    queued = where.options(num_cpus=0, resources={"a": 1}).remote()
    ray.cancel(queued)
    with pytest.raises(TaskCancelledError):
        get(queued)
    ray.cancel(busy)
    with pytest.raises(TaskCancelledError):
        get(busy)


def test_cancelling_a_parent_cancels_its_child_on_another_node(wait_until, tmp_path):
    child_runs = tmp_path / "child"
    child_stopped = tmp_path / "stopped"

    @ray.remote(num_cpus=0)
    def child():
        child_runs.write_text("x")
        try:
            for _ in range(6000):
                time.sleep(0.05)
        except BaseException:
            child_stopped.touch()
            raise

    @ray.remote(num_cpus=0)
    def parent():
        return ray.get(child.options(**on("b")).remote())

    ref = parent.options(**on("a")).remote()
    wait_until(lambda: runs_in(child_runs) == 1)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)
    wait_until(child_stopped.exists)


def test_cancelling_a_call_of_an_async_actor_of_another_node():
    actor = Async.options(**on("a")).remote()
    get(actor.open.remote())

    @ray.remote(**on("a"))
    class Sleeper:
        async def sleep(self):
            await asyncio.sleep(300)

        async def hello(self):
            return "here"

    sleeper = Sleeper.remote()
    ref = sleeper.sleep.remote()
    assert get(sleeper.hello.remote()) == "here"
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)
    assert get(sleeper.hello.remote()) == "here"
