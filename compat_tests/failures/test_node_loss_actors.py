"""Actors whose node dies."""

from __future__ import annotations

import asyncio
import time

import pytest

import ray
from failures.placed import GET_LIMIT_S, Keeper, on
from failures.witness import note_run, runs_in
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)


def get(ref):
    return ray.get(ref, timeout=GET_LIMIT_S)


def disk(**options):
    """Options of an actor that only lives on nodes with the resource ``disk``."""
    return {"num_cpus": 0, "resources": {"disk": 1}, **options}


def dead_error(handle):
    """Call until the actor is known to be dead; return the error."""
    deadline = time.monotonic() + GET_LIMIT_S
    while time.monotonic() < deadline:
        try:
            get(handle.add.remote())
        except ActorDiedError as error:
            return error
        except ActorUnavailableError:
            pass
        time.sleep(0.05)
    return pytest.fail("the actor never died")


def call_until_up(handle, method="add"):
    """Call until the restarted actor answers; return what it said."""
    deadline = time.monotonic() + GET_LIMIT_S
    while True:
        try:
            return get(getattr(handle, method).remote())
        except ActorUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@ray.remote(num_cpus=0)
class Slow:
    """Notes each run of `work`, which stays until a gate opens."""

    def work(self, runs, gate):
        note_run(runs)
        while not gate.exists():
            time.sleep(0.02)
        return ray.get_runtime_context().get_node_id()

    def restarted(self):
        return ray.get_runtime_context().was_current_actor_reconstructed

    def add(self):
        return 1


@pytest.mark.parametrize("how", ["kill", "remove"])
def test_an_actor_that_may_not_restart_dies(nodes, how):
    node = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk()).remote()
    assert get(keeper.add.remote()) == 1
    getattr(nodes, how)(node)
    error = dead_error(keeper)
    assert "node" in str(error)
    assert node.node_id[:8] in str(error)
    assert keeper._actor_id.hex() in str(error)
    # It stays dead when a node that would fit is there again.
    nodes.add(resources={"disk": 1})
    with pytest.raises(ActorDiedError):
        get(keeper.add.remote())


def test_a_running_call_fails(nodes, tmp_path, wait_until):
    node = nodes.add(resources={"disk": 1})
    slow = Slow.options(**disk()).remote()
    runs = tmp_path / "runs"
    ref = slow.work.remote(runs, tmp_path / "gate")
    queued = slow.add.remote()
    wait_until(lambda: runs_in(runs) == 1)
    nodes.kill(node)
    for each in (ref, queued):
        with pytest.raises(RayActorError):
            get(each)
    assert runs_in(runs) == 1


def test_an_actor_restarts_on_another_node(nodes):
    node = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk(max_restarts=1)).remote()
    assert get([keeper.add.remote() for _ in range(3)]) == [1, 2, 3]
    assert get(keeper.node.remote()) == node.node_id
    other = nodes.add(resources={"disk": 1})
    nodes.kill(node)
    assert call_until_up(keeper) == 1
    assert get(keeper.node.remote()) == other.node_id


def test_a_restart_waits_for_a_node(nodes):
    node = nodes.add(resources={"disk": 1})
    slow = Slow.options(**disk(max_restarts=1, max_task_retries=1)).remote()
    assert get(slow.restarted.remote()) is False
    nodes.kill(node)
    ref = slow.restarted.remote()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.5)
    nodes.add(resources={"disk": 1})
    assert get(ref) is True


def test_restarts_run_out(nodes):
    first = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk(max_restarts=1)).remote()
    assert get(keeper.add.remote()) == 1
    nodes.kill(first)
    second = nodes.add(resources={"disk": 1})
    assert call_until_up(keeper) == 1
    nodes.kill(second)
    nodes.add(resources={"disk": 1})
    assert second.node_id[:8] in str(dead_error(keeper))


def test_a_call_with_task_retries_runs_again(nodes, tmp_path, wait_until):
    node = nodes.add(resources={"disk": 1})
    slow = Slow.options(**disk(max_restarts=-1, max_task_retries=-1)).remote()
    runs, gate = tmp_path / "runs", tmp_path / "gate"
    ref = slow.work.remote(runs, gate)
    wait_until(lambda: runs_in(runs) == 1)
    other = nodes.add(resources={"disk": 1})
    nodes.kill(node)
    wait_until(lambda: runs_in(runs) == 2, timeout_s=30)
    gate.touch()
    assert get(ref) == other.node_id


def test_a_named_actor_keeps_its_name_when_it_restarts(nodes):
    node = nodes.add(resources={"disk": 1})
    options = disk(name="keeps", lifetime="detached", max_restarts=-1)
    Keeper.options(**options).remote()
    assert get(ray.get_actor("keeps").add.remote()) == 1
    other = nodes.add(resources={"disk": 1})
    nodes.kill(node)
    found = ray.get_actor("keeps")
    assert call_until_up(found, "node") == other.node_id
    ray.kill(found)


def test_the_name_of_a_lost_actor_is_free_again(nodes, wait_until):
    node = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk(name="lost")).remote()
    assert get(keeper.add.remote()) == 1
    nodes.kill(node)
    dead_error(keeper)
    # Ray keeps the name while somebody holds the dead actor.
    del keeper

    def gone():
        try:
            ray.get_actor("lost")
        except ValueError as error:
            return "lost" in str(error)
        return False

    wait_until(gone)
    again = Keeper.options(**on("head", name="lost")).remote()
    assert get(again.add.remote()) == 1


def test_a_holder_on_a_third_node_hears_of_the_loss(nodes):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk()).remote()

    @ray.remote(**on("a"))
    class Holder:
        def __init__(self, handle):
            self.handle = handle

        def call(self):
            try:
                return ray.get(self.handle.add.remote(), timeout=GET_LIMIT_S)
            except RayActorError as error:
                return type(error).__name__

    holder = Holder.remote(keeper)
    assert get(holder.call.remote()) == 1
    nodes.kill(node)
    dead_error(keeper)
    deadline = time.monotonic() + GET_LIMIT_S
    while get(holder.call.remote()) != "ActorDiedError":
        assert time.monotonic() < deadline


def test_an_actor_ends_with_the_node_of_its_creator(nodes, wait_until):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})

    @ray.remote(**disk())
    class Creator:
        def make(self):
            self.child = Keeper.options(**on("a")).remote()
            return self.child

    creator = Creator.remote()
    child = get(creator.make.remote())
    assert get(child.add.remote()) == 1
    nodes.kill(node)
    dead_error(child)


def test_a_detached_actor_outlives_the_node_of_its_creator(nodes):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})

    @ray.remote(**disk())
    class Creator:
        def make(self):
            options = on("a", name="outlives", lifetime="detached")
            child = Keeper.options(**options).remote()
            return ray.get(child.add.remote())

    creator = Creator.remote()
    assert get(creator.make.remote()) == 1
    nodes.kill(node)
    found = ray.get_actor("outlives")
    assert get(found.add.remote()) == 2
    ray.kill(found)


def test_only_the_actors_of_the_lost_node_die(nodes):
    nodes.stand("a")
    node = nodes.add(resources={"disk": 1})
    stays = Keeper.options(**on("a")).remote()
    also_stays = Keeper.options(**on("head")).remote()
    goes = Keeper.options(**disk()).remote()
    assert get([keeper.add.remote() for keeper in (stays, also_stays, goes)]) == [1] * 3
    nodes.kill(node)
    dead_error(goes)
    assert get([stays.add.remote(), also_stays.add.remote()]) == [2, 2]


def test_all_waiting_calls_of_an_async_actor_fail(nodes):
    node = nodes.add(resources={"disk": 1})

    @ray.remote(**disk())
    class Async:
        async def sleep(self):
            await asyncio.sleep(300)

        async def hello(self):
            return 1

    actor = Async.remote()
    refs = [actor.sleep.remote() for _ in range(5)]
    assert get(actor.hello.remote()) == 1
    nodes.kill(node)
    ready, pending = ray.wait(refs, num_returns=5, timeout=GET_LIMIT_S)
    assert pending == []
    for ref in ready:
        with pytest.raises(RayActorError):
            get(ref)


def test_a_stream_of_a_lost_actor_ends_with_its_error(nodes, tmp_path):
    node = nodes.add(resources={"disk": 1})
    gate = tmp_path / "gate"

    @ray.remote(**disk())
    class Streamer:
        def stream(self):
            yield 0
            while not gate.exists():
                time.sleep(0.02)
            yield 1

    streamer = Streamer.remote()
    refs = streamer.stream.options(num_returns="streaming").remote()
    assert get(next(refs)) == 0
    nodes.kill(node)
    with pytest.raises(RayActorError):
        get(next(refs))


def test_an_actor_tied_to_a_lost_node_does_not_restart(nodes):
    node = nodes.add()
    strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    keeper = Keeper.options(max_restarts=-1, scheduling_strategy=strategy).remote()
    assert get(keeper.add.remote()) == 1
    nodes.kill(node)
    deadline = time.monotonic() + GET_LIMIT_S
    while True:
        try:
            get(keeper.add.remote())
        except ActorUnavailableError:
            assert time.monotonic() < deadline
        except Exception as error:
            assert type(error).__name__ in ("ActorDiedError", "ActorUnschedulableError")
            break


def test_killing_an_actor_that_waits_for_a_node(nodes):
    node = nodes.add(resources={"disk": 1})
    keeper = Keeper.options(**disk(max_restarts=-1, max_task_retries=-1)).remote()
    assert get(keeper.add.remote()) == 1
    nodes.kill(node)
    ref = keeper.add.remote()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.5)
    ray.kill(keeper)
    with pytest.raises(ActorDiedError):
        get(ref)
    nodes.add(resources={"disk": 1})
    with pytest.raises(ActorDiedError):
        get(keeper.add.remote())
