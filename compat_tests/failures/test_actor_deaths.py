"""Calls in flight when their actor dies, is killed, or leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

import ray
from failures.witness import (
    DEADLINE_S,
    DEATHS,
    die,
    is_running,
    note_pid,
    note_run,
    noted_pid,
    runs_in,
    wait_for_file,
)
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
    RayTaskError,
)

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(value):
    return value


@ray.remote
class Worker:
    def pid(self):
        return os.getpid()

    def die(self, how):
        die(how)

    def run(self, path):
        note_run(path)

    def block(self, path):
        note_run(path)
        wait_for_file(f"{path}.never")

    def leave(self):
        ray.actor.exit_actor()

    def value(self, value):
        return value


@ray.remote
class AsyncWorker:
    async def pid(self):
        return os.getpid()

    async def block(self, path):
        note_run(path)
        await asyncio.sleep(10 * DEADLINE_S)

    async def leave(self):
        ray.actor.exit_actor()

    async def die(self, how):
        die(how)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs"


def all_died(refs):
    """Fail unless each call ends because its actor died."""
    for ref in refs:
        with pytest.raises(ActorDiedError):
            ray.get(ref, timeout=DEADLINE_S)


@pytest.mark.parametrize("how", DEATHS)
def test_every_death_fails_the_call_and_the_later_ones(path, how):
    worker = Worker.remote()
    refs = [worker.die.remote(how), worker.run.remote(path), worker.pid.remote()]
    all_died(refs)
    all_died([worker.pid.remote()])
    assert runs_in(path) == 0


def test_results_before_the_death_stay(path):
    worker = Worker.remote()
    before = [worker.value.remote(i) for i in range(3)]
    large = worker.value.remote(b"x" * 500_000)
    ray.wait([*before, large], num_returns=4, timeout=DEADLINE_S)
    all_died([worker.die.remote("kill")])
    assert ray.get(before, timeout=DEADLINE_S) == [0, 1, 2]
    assert len(ray.get(large, timeout=DEADLINE_S)) == 500_000


@pytest.mark.parametrize(
    ("cls", "options"),
    [(Worker, {}), (Worker, {"max_concurrency": 4}), (AsyncWorker, {})],
    ids=["plain", "threaded", "async"],
)
@pytest.mark.parametrize("how", ["ray.kill", "SIGKILL"])
def test_killed_actor_fails_what_runs_and_what_waits(
    path, wait_until, cls, options, how
):
    actor = cls.options(**options).remote()
    pid = ray.get(actor.pid.remote(), timeout=DEADLINE_S)
    refs = [actor.block.remote(path) for _ in range(3)]
    running = 1 if (cls, options) == (Worker, {}) else 3
    wait_until(lambda: runs_in(path) == running)
    if how == "SIGKILL":
        os.kill(pid, signal.SIGKILL)
    else:
        ray.kill(actor)
    all_died(refs)
    assert runs_in(path) == running
    wait_until(lambda: not is_running(pid))


@pytest.mark.parametrize(
    ("cls", "options"),
    [(Worker, {}), (Worker, {"max_concurrency": 4}), (AsyncWorker, {})],
    ids=["plain", "threaded", "async"],
)
def test_exit_actor_is_final_and_fails_its_own_call(wait_until, cls, options):
    actor = cls.options(max_restarts=-1, max_task_retries=-1, **options).remote()
    pid = ray.get(actor.pid.remote(), timeout=DEADLINE_S)
    all_died([actor.leave.remote()])
    wait_until(lambda: not is_running(pid))
    all_died([actor.pid.remote()])


def test_dead_actor_is_ready_for_wait(path, wait_until):
    worker = Worker.remote()
    refs = [worker.block.remote(path), worker.pid.remote()]
    wait_until(lambda: runs_in(path) == 1)
    assert ray.wait(refs, timeout=0.1) == ([], refs)
    ray.kill(worker)
    assert ray.wait(refs, num_returns=2, timeout=DEADLINE_S) == (refs, [])


def test_get_times_out_on_a_busy_actor_and_raises_after_its_death(path, wait_until):
    worker = Worker.remote()
    ref = worker.block.remote(path)
    wait_until(lambda: runs_in(path) == 1)
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.1)
    ray.kill(worker)
    all_died([ref])


def test_awaited_call_of_a_dying_actor():
    worker = Worker.remote()

    async def main():
        refs = [worker.die.remote("kill"), worker.pid.remote()]
        return await asyncio.gather(*refs, return_exceptions=True)

    assert all(isinstance(e, ActorDiedError) for e in asyncio.run(main()))


def test_call_with_several_returns_fails_in_each():
    worker = Worker.remote()
    all_died(worker.die.options(num_returns=3).remote("exit"))


def test_call_whose_argument_comes_after_the_death(tmp_path, wait_until):
    @ray.remote
    def late(path):
        wait_for_file(path)
        return 1

    worker = Worker.remote()
    pid = ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    ref = worker.value.remote(late.remote(tmp_path / "go"))
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    (tmp_path / "go").touch()
    all_died([ref])


def test_call_of_a_dead_actor_as_an_argument():
    worker = Worker.remote()
    ref = worker.die.remote("exit")
    with pytest.raises(ActorDiedError) as caught:
        ray.get(echo.remote(ref), timeout=DEADLINE_S)
    assert isinstance(caught.value, RayTaskError)


def test_every_caller_is_told(path, wait_until):
    @ray.remote
    def call(worker):
        try:
            ray.get(worker.block.remote(path))
        except ActorDiedError as error:
            return error.actor_id

    worker = Worker.options(max_concurrency=3).remote()
    results = [call.remote(worker) for _ in range(2)]
    wait_until(lambda: runs_in(path) == 2)
    ray.kill(worker)
    assert ray.get(results, timeout=DEADLINE_S) == [worker._actor_id.hex()] * 2


def test_handle_received_after_the_death(wait_until):
    @ray.remote
    def call(box):
        try:
            ray.get(box[0].pid.remote())
        except ActorDiedError:
            return "told"

    worker = Worker.remote()
    all_died([worker.die.remote("exit")])
    assert ray.get(call.remote([worker]), timeout=DEADLINE_S) == "told"


def test_creation_killed_from_outside_is_final(path, wait_until):
    @ray.remote
    class Slow:
        def __init__(self):
            note_pid(path)
            time.sleep(10 * DEADLINE_S)

        def pid(self):
            return os.getpid()

    slow = Slow.remote()
    ref = slow.pid.remote()
    wait_until(lambda: noted_pid(path))
    os.kill(noted_pid(path), signal.SIGKILL)
    all_died([ref, slow.pid.remote()])


def test_creation_killed_from_outside_uses_a_restart(path, wait_until):
    @ray.remote(max_restarts=1)
    class SlowOnce:
        def __init__(self):
            if noted_pid(path) is None:
                note_pid(path)
                time.sleep(10 * DEADLINE_S)

        def pid(self):
            return os.getpid()

    slow = SlowOnce.remote()
    ref = slow.pid.remote()
    wait_until(lambda: noted_pid(path))
    os.kill(noted_pid(path), signal.SIGKILL)
    assert ray.get(ref, timeout=DEADLINE_S) != noted_pid(path)


def test_creation_that_dies_each_time(path):
    @ray.remote(max_restarts=2)
    class Dies:
        def __init__(self):
            note_run(path)
            os._exit(1)

        def pid(self):
            return os.getpid()

    all_died([Dies.remote().pid.remote()])
    assert runs_in(path) == 3


def test_actor_killed_before_it_found_room():
    big = Worker.options(num_cpus=4).remote()
    ray.get(big.pid.remote(), timeout=DEADLINE_S)
    waiting = Worker.options(num_cpus=4).remote()
    ref = waiting.pid.remote()
    assert ray.wait([ref], timeout=0.3) == ([], [ref])
    ray.kill(waiting)
    all_died([ref])
    ray.kill(big)
    assert ray.get(echo.options(num_cpus=4).remote(1), timeout=DEADLINE_S) == 1


def test_resources_of_a_dead_actor_are_free():
    for how in ["exit", "kill"]:
        worker = Worker.options(num_cpus=4).remote()
        all_died([worker.die.remote(how)])
    assert ray.get(echo.options(num_cpus=4).remote(1), timeout=DEADLINE_S) == 1


def test_name_of_a_crashed_actor_can_be_used_again(wait_until):
    worker = Worker.options(name="again").remote()
    all_died([worker.die.remote("exit")])
    del worker

    def renewed():
        try:
            return Worker.options(name="again").remote()
        except ValueError:
            return None

    wait_until(renewed)


def test_error_of_a_killed_actor_tells_by_whom(wait_until):
    worker = Worker.remote()
    pid = ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    ray.kill(worker)
    with pytest.raises(ActorDiedError) as caught:
        for _ in range(100):
            ray.get(worker.pid.remote(), timeout=DEADLINE_S)
            time.sleep(0.1)
    error = caught.value
    assert error.actor_id == worker._actor_id.hex()
    assert "ray.kill" in error.error_msg
    assert str(error) == error.error_msg
    assert not error.actor_init_failed
    assert not error.preempted
    wait_until(lambda: not is_running(pid))


def test_error_of_a_failed_constructor_says_so():
    @ray.remote
    class Fails:
        def __init__(self):
            raise LookupError("no such thing")

        def pid(self):
            return os.getpid()

    with pytest.raises(ActorDiedError) as caught:
        ray.get(Fails.remote().pid.remote(), timeout=DEADLINE_S)
    assert caught.value.actor_init_failed
    assert "LookupError: no such thing" in str(caught.value)


def test_unavailable_and_died_are_two_things(wait_until):
    worker = Worker.options(max_restarts=1).remote()
    ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    with pytest.raises(RayActorError) as caught:
        ray.get(worker.die.remote("exit"), timeout=DEADLINE_S)
    assert isinstance(caught.value, ActorUnavailableError)
    assert not isinstance(caught.value, ActorDiedError)
    assert caught.value.actor_id == worker._actor_id.hex()
