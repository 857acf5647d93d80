"""``ray.cancel`` on calls of actors."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import ray
from ray.exceptions import TaskCancelledError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Async:
    def __init__(self):
        self.log = []

    async def hang(self, name="hang"):
        self.log.append(f"start {name}")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.log.append(f"cancel {name}")
            raise

    async def hang_on_child(self, child):
        self.log.append("start parent")
        await child.hang.remote("child")

    async def ping(self):
        return "pong"

    async def get_log(self):
        return self.log


@ray.remote(max_concurrency=2)
class Polls:
    def __init__(self):
        self.started = threading.Event()

    def poll(self):
        self.started.set()
        for _ in range(2000):
            if ray.get_runtime_context().is_canceled():
                return "saw it"
            time.sleep(0.01)
        return "never"

    def wait_started(self):
        return self.started.wait(20)


@ray.remote
class Busy:
    def __init__(self):
        self.ran = []

    def block(self, gate):
        ray.get(gate[0])
        return "blocked"

    def mark(self, item):
        self.ran.append(item)
        return item

    def get(self):
        return self.ran


@pytest.fixture
def actor(wait_until):
    return Async.remote()


def log_has(actor, text):
    """Tell whether the actor logged a text."""
    return text in ray.get(actor.get_log.remote())


def test_running_async_call_is_cancelled(actor, wait_until):
    ref = actor.hang.remote()
    wait_until(lambda: log_has(actor, "start hang"))
    assert ray.cancel(ref) is None
    with pytest.raises(TaskCancelledError):
        ray.get(ref)
    wait_until(lambda: log_has(actor, "cancel hang"))


def test_actor_lives_on_after_a_cancel(actor, wait_until):
    ref = actor.hang.remote()
    wait_until(lambda: log_has(actor, "start hang"))
    ray.cancel(ref)
    assert ray.get(actor.ping.remote()) == "pong"


def test_cancel_hits_only_its_call(actor, wait_until):
    first, second = actor.hang.remote("a"), actor.hang.remote("b")
    wait_until(lambda: log_has(actor, "start b") and log_has(actor, "start a"))
    ray.cancel(first)
    with pytest.raises(TaskCancelledError):
        ray.get(first)
    assert ray.wait([second], timeout=0.1) == ([], [second])
    ray.cancel(second)


def test_cancel_reaches_children(actor, wait_until):
    child = Async.remote()
    ref = actor.hang_on_child.remote(child)
    wait_until(lambda: log_has(child, "start child"))
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref)
    wait_until(lambda: log_has(child, "cancel child"))


def test_cancel_not_recursive_spares_children(actor, wait_until):
    child = Async.remote()
    ref = actor.hang_on_child.remote(child)
    wait_until(lambda: log_has(child, "start child"))
    ray.cancel(ref, recursive=False)
    with pytest.raises(TaskCancelledError):
        ray.get(ref)
    assert not log_has(child, "cancel child")


def test_cancelled_error_is_a_ray_error(actor, wait_until):
    ref = actor.hang.remote()
    wait_until(lambda: log_has(actor, "start hang"))
    ray.cancel(ref)
    with pytest.raises(ray.exceptions.RayError) as caught:
        ray.get(ref)
    assert isinstance(caught.value, TaskCancelledError)


def test_cancel_of_a_finished_call_has_no_effect(actor):
    ref = actor.ping.remote()
    assert ray.get(ref) == "pong"
    ray.cancel(ref)
    assert ray.get(ref) == "pong"


def test_cancel_twice_is_harmless(actor, wait_until):
    ref = actor.hang.remote()
    wait_until(lambda: log_has(actor, "start hang"))
    ray.cancel(ref)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref)


def test_force_is_refused_for_actor_calls(actor):
    ref = actor.hang.remote()
    with pytest.raises(ValueError, match="force=True is not supported"):
        ray.cancel(ref, force=True)
    ray.cancel(ref)


@pytest.mark.parametrize("what", ["x", 3, None])
def test_cancel_of_something_else_is_a_type_error(what):
    with pytest.raises(TypeError):
        ray.cancel(what)


def test_cancel_of_a_handle_is_a_type_error(actor):
    with pytest.raises(TypeError):
        ray.cancel(actor)


@pytest.mark.parametrize("threads", [1, 2])
def test_queued_call_is_cancelled_and_later_ones_run(actor, threads):
    busy = Busy.options(max_concurrency=threads).remote()
    assert ray.get(busy.get.remote()) == []
    gate = actor.hang.remote()
    blocked = [busy.block.remote([gate]) for _ in range(threads)]
    queued, later = busy.mark.remote(1), busy.mark.remote(2)
    # Real Ray breaks the later calls if the cancelled one was not sent out yet.
    time.sleep(0.3)
    ray.cancel(queued)
    ray.cancel(gate)
    for ref in [*blocked, queued]:
        with pytest.raises(TaskCancelledError):
            ray.get(ref)
    assert ray.get(later) == 2
    # With one thread real Ray runs the call and throws its result away.
    if threads > 1:
        assert ray.get(busy.get.remote()) == [2]


def test_call_that_waits_for_an_argument_is_cancelled(actor):
    busy = Busy.remote()
    gate = actor.hang.remote()
    ref = busy.mark.remote(gate)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref)
    ray.cancel(gate)
    assert ray.get(busy.get.remote()) == []


def test_threaded_method_can_ask_whether_it_is_cancelled():
    polls = Polls.remote()
    ref = polls.poll.remote()
    assert ray.get(polls.wait_started.remote())
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref)


def test_cancel_from_a_task(actor, wait_until):
    @ray.remote
    def cancel(refs):
        ray.cancel(refs[0])

    ref = actor.hang.remote()
    wait_until(lambda: log_has(actor, "start hang"))
    ray.get(cancel.remote([ref]))
    with pytest.raises(TaskCancelledError):
        ray.get(ref)
