"""Actors that come back: lives, resent calls, lost state."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

import ray
from failures.witness import (
    DEADLINE_S,
    die,
    is_running,
    note_run,
    runs_in,
    wait_for_file,
)
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayActorError,
    RayTaskError,
)

pytestmark = pytest.mark.usefixtures("ray_start")


class RetryableError(Exception):
    pass


class SpecialError(RetryableError):
    pass


@ray.remote
class Worker:
    def __init__(self, lives=None):
        self.value = 0
        if lives is not None:
            note_run(lives)

    def inc(self):
        self.value += 1
        return self.value

    def pid(self):
        return os.getpid()

    def die(self, how="exit"):
        die(how)

    def die_first(self, path, deaths, how="exit"):
        runs = note_run(path)
        if runs <= deaths:
            die(how)
        return runs

    def note(self, path, text):
        with open(path, "a") as file:
            file.write(text)
        return text

    def block(self, path, gate):
        note_run(path)
        wait_for_file(gate)
        return "done"

    def fail(self, path, failures, kind):
        runs = note_run(path)
        self.value += 1
        if runs <= failures:
            raise kind("again")
        return self.value


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs"


@pytest.fixture
def lives(tmp_path):
    return tmp_path / "lives"


@pytest.fixture
def end_life(wait_until):
    """Return a function that kills an actor's process and waits for its end."""

    def end(actor):
        def current():
            try:
                return ray.get(actor.pid.remote(), timeout=DEADLINE_S)
            except ActorUnavailableError:
                return None

        pids = []
        wait_until(lambda: pids.append(current()) or pids[-1])
        os.kill(pids[-1], signal.SIGKILL)
        wait_until(lambda: not is_running(pids[-1]))

    return end


@pytest.fixture
def died(wait_until):
    """Return a function that waits until calls of an actor fail for good."""

    def wait(actor):
        def known():
            try:
                ray.get(actor.pid.remote(), timeout=DEADLINE_S)
            except ActorDiedError:
                return True
            except ActorUnavailableError:
                pass
            return False

        wait_until(known)

    return wait


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_number_of_lives(lives, end_life, died, restarts):
    worker = Worker.options(max_restarts=restarts).remote(lives)
    for _ in range(restarts + 1):
        end_life(worker)
    died(worker)
    assert runs_in(lives) == restarts + 1


def test_unlimited_lives(lives, end_life):
    worker = Worker.options(max_restarts=-1, max_task_retries=-1).remote(lives)
    for _ in range(4):
        end_life(worker)
    assert ray.get(worker.inc.remote(), timeout=DEADLINE_S) == 1
    assert runs_in(lives) == 5


@pytest.mark.parametrize("how", ["exit", "kill", "segv", "abort", "sys_exit", "thread"])
def test_every_crash_is_restarted_and_the_call_retried(path, lives, how):
    worker = Worker.options(max_restarts=1, max_task_retries=5).remote(lives)
    assert ray.get(worker.die_first.remote(path, 1, how), timeout=DEADLINE_S) == 2
    assert runs_in(lives) == 2


@pytest.mark.parametrize("retries", [0, -1])
def test_sys_exit_zero_is_a_wanted_end(lives, retries):
    @ray.remote(max_restarts=-1, max_task_retries=retries)
    class Leaves:
        def __init__(self):
            note_run(lives)

        def leave(self):
            raise SystemExit(0)

    leaves = Leaves.remote()
    with pytest.raises(ActorDiedError):
        ray.get(leaves.leave.remote(), timeout=DEADLINE_S)
    assert runs_in(lives) == 1


def test_calls_that_ended_before_the_death_do_not_run_again(tmp_path, path):
    worker = Worker.options(max_restarts=1, max_task_retries=5).remote()
    log = tmp_path / "log"
    refs = [worker.note.remote(log, text) for text in "abc"]
    assert ray.get(refs, timeout=DEADLINE_S) == ["a", "b", "c"]
    assert ray.get(worker.die_first.remote(path, 1), timeout=DEADLINE_S) == 2
    assert log.read_text() == "abc"


def test_calls_without_retries_run_at_most_once(tmp_path, path, wait_until):
    """The running call fails; what waited runs once or fails, and never twice."""
    worker = Worker.options(max_restarts=1).remote()
    pid = ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    gate = tmp_path / "never"
    running = worker.block.remote(path, gate)
    waiting = [worker.note.remote(tmp_path / text, text) for text in "abc"]
    wait_until(lambda: runs_in(path) == 1)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorUnavailableError):
        ray.get(running, timeout=DEADLINE_S)
    ray.wait(waiting, num_returns=3, timeout=DEADLINE_S)
    assert runs_in(path) == 1
    assert all(runs_in(tmp_path / text) <= 1 for text in "abc")


def test_waiting_calls_with_retries_all_run_after_a_kill(tmp_path, path, wait_until):
    worker = Worker.options(max_restarts=1, max_task_retries=-1).remote()
    gate = tmp_path / "go"
    running = worker.block.remote(path, gate)
    waiting = [worker.inc.remote() for _ in range(5)]
    wait_until(lambda: runs_in(path) == 1)
    ray.kill(worker, no_restart=False)
    wait_until(lambda: runs_in(path) == 2)
    gate.touch()
    assert ray.get(running, timeout=DEADLINE_S) == "done"
    assert sorted(ray.get(waiting, timeout=DEADLINE_S)) == [1, 2, 3, 4, 5]


def test_final_kill_ends_calls_that_would_be_retried(tmp_path, path, wait_until):
    worker = Worker.options(max_restarts=-1, max_task_retries=-1).remote()
    refs = [worker.block.remote(path, tmp_path / "never"), worker.inc.remote()]
    wait_until(lambda: runs_in(path) == 1)
    ray.kill(worker)
    for ref in refs:
        with pytest.raises(ActorDiedError):
            ray.get(ref, timeout=DEADLINE_S)


def test_call_that_always_dies_ends_with_its_retries(path):
    worker = Worker.options(max_restarts=-1, max_task_retries=2).remote()
    with pytest.raises(RayActorError):
        ray.get(worker.die_first.remote(path, 99), timeout=DEADLINE_S)
    assert 1 <= runs_in(path) <= 3


def test_call_that_always_dies_ends_with_the_restarts(path, lives):
    worker = Worker.options(max_restarts=2, max_task_retries=-1).remote(lives)
    with pytest.raises(ActorDiedError):
        ray.get(worker.die_first.remote(path, 99), timeout=DEADLINE_S)
    assert runs_in(path) == runs_in(lives) == 3


def test_unlimited_retries_of_a_call(path):
    worker = Worker.options(max_restarts=-1, max_task_retries=-1).remote()
    assert ray.get(worker.die_first.remote(path, 3), timeout=DEADLINE_S) == 4


def test_large_argument_is_resent(path):
    @ray.remote(max_restarts=1, max_task_retries=5)
    class Sizes:
        def size(self, data, refs):
            if note_run(path) == 1:
                os._exit(1)
            return len(data) + len(ray.get(refs[0]))

    data, ref = b"x" * 500_000, ray.put(b"y" * 400_000)
    result = Sizes.remote().size.remote(data, [ref])
    del data, ref
    assert ray.get(result, timeout=DEADLINE_S) == 900_000


def test_state_is_lost_and_objects_of_the_caller_are_not(end_life):
    worker = Worker.options(max_restarts=1, max_task_retries=5).remote()
    refs = [worker.inc.remote() for _ in range(3)]
    assert ray.get(refs[-1], timeout=DEADLINE_S) == 3
    end_life(worker)
    assert ray.get(worker.inc.remote(), timeout=DEADLINE_S) == 1
    assert ray.get(refs, timeout=DEADLINE_S) == [1, 2, 3]


def test_handle_in_another_process_follows_the_restart(end_life):
    @ray.remote
    class Caller:
        def __init__(self, box):
            self.worker = box[0]

        def call(self):
            return ray.get(self.worker.inc.remote(), timeout=DEADLINE_S)

    worker = Worker.options(max_restarts=1, max_task_retries=5).remote()
    caller = Caller.remote([worker])
    assert ray.get([caller.call.remote() for _ in range(2)]) == [1, 2]
    end_life(worker)
    assert ray.get(caller.call.remote(), timeout=DEADLINE_S) == 1


def test_actor_that_dies_while_it_comes_back(tmp_path, lives):
    """The second start crashes; the third one serves the call."""

    @ray.remote(max_restarts=2, max_task_retries=-1)
    class Shaky:
        def __init__(self):
            if note_run(lives) == 2:
                os._exit(1)

        def pid_once(self, path):
            if note_run(path) == 1:
                os._exit(1)
            return runs_in(lives)

    ref = Shaky.remote().pid_once.remote(tmp_path / "calls")
    assert ray.get(ref, timeout=DEADLINE_S) == 3


def test_failing_constructor_of_a_restart_fails_the_waiting_calls(lives):
    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class FailsLater:
        def __init__(self):
            if note_run(lives) == 2:
                raise LookupError("second start")

        def die(self):
            os._exit(1)

        def after(self):
            return 1

    actor = FailsLater.remote()
    for ref in [actor.die.remote(), actor.after.remote()]:
        with pytest.raises(ActorDiedError):
            ray.get(ref, timeout=DEADLINE_S)
    assert runs_in(lives) == 2


def test_async_calls_are_all_resent(path, lives, wait_until):
    @ray.remote(max_restarts=1, max_task_retries=-1)
    class Async:
        def __init__(self):
            self.life = note_run(lives)

        async def call(self, i):
            note_run(path)
            if self.life == 1:
                await asyncio.sleep(10 * DEADLINE_S)
            return i

        async def pid(self):
            return os.getpid()

    actor = Async.remote()
    pid = ray.get(actor.pid.remote(), timeout=DEADLINE_S)
    refs = [actor.call.remote(i) for i in range(5)]
    wait_until(lambda: runs_in(path) == 5)
    os.kill(pid, signal.SIGKILL)
    assert ray.get(refs, timeout=DEADLINE_S) == [0, 1, 2, 3, 4]
    assert runs_in(path) == 10


def test_threaded_calls_are_all_resent(tmp_path, path, wait_until):
    options = {"max_restarts": 1, "max_task_retries": -1, "max_concurrency": 3}
    worker = Worker.options(**options).remote()
    pid = ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    refs = [worker.block.remote(path, tmp_path / "go") for _ in range(3)]
    wait_until(lambda: runs_in(path) == 3)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: runs_in(path) == 6)
    (tmp_path / "go").touch()
    assert ray.get(refs, timeout=DEADLINE_S) == ["done"] * 3


def test_errors_are_retried_in_the_same_life(path, lives):
    worker = Worker.remote(lives)
    method = worker.fail.options(max_task_retries=2, retry_exceptions=True)
    assert ray.get(method.remote(path, 2, ValueError), timeout=DEADLINE_S) == 3
    assert runs_in(lives) == 1


def test_errors_use_up_the_retries(path):
    worker = Worker.remote()
    method = worker.fail.options(max_task_retries=1, retry_exceptions=True)
    with pytest.raises(ValueError) as caught:
        ray.get(method.remote(path, 99, ValueError), timeout=DEADLINE_S)
    assert isinstance(caught.value, RayTaskError)
    assert runs_in(path) == 2


def test_listed_base_class_retries_its_subclasses(path):
    worker = Worker.remote()
    options = {"max_task_retries": 1, "retry_exceptions": [RetryableError]}
    method = worker.fail.options(**options)
    assert ray.get(method.remote(path, 1, SpecialError), timeout=DEADLINE_S) == 2


def test_error_that_is_not_listed_is_final(path):
    worker = Worker.remote()
    options = {"max_task_retries": 5, "retry_exceptions": [SpecialError]}
    with pytest.raises(RetryableError):
        method = worker.fail.options(**options)
        ray.get(method.remote(path, 9, RetryableError), timeout=DEADLINE_S)
    assert runs_in(path) == 1


def test_retry_of_an_error_without_retries(path):
    worker = Worker.remote()
    method = worker.fail.options(max_task_retries=0, retry_exceptions=True)
    with pytest.raises(ValueError):
        ray.get(method.remote(path, 9, ValueError), timeout=DEADLINE_S)
    assert runs_in(path) == 1


def test_async_method_is_retried_after_an_error(path):
    @ray.remote(max_task_retries=2)
    class Async:
        @ray.method(retry_exceptions=True)
        async def fail_first(self):
            await asyncio.sleep(0)
            if note_run(path) == 1:
                raise ValueError("first")
            return "second"

    assert ray.get(Async.remote().fail_first.remote(), timeout=DEADLINE_S) == "second"


def test_other_calls_run_while_one_is_retried(path):
    worker = Worker.options(max_concurrency=2).remote()
    method = worker.fail.options(max_task_retries=1, retry_exceptions=True)
    refs = [method.remote(path, 1, ValueError), worker.pid.remote()]
    assert ray.get(refs, timeout=DEADLINE_S)[0] == 2


def test_restarted_actor_has_its_resources_again(end_life, died):
    worker = Worker.options(num_cpus=3, max_restarts=1, max_task_retries=5).remote()
    end_life(worker)
    assert ray.get(worker.inc.remote(), timeout=DEADLINE_S) == 1
    small = ray.remote(num_cpus=2)(lambda: "ran").remote()
    assert ray.wait([small], timeout=0.5) == ([], [small])
    ray.kill(worker)
    assert ray.get(small, timeout=DEADLINE_S) == "ran"
