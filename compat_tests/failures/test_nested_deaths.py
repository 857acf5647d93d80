"""Parents and children of which one dies."""

from __future__ import annotations

import os
import signal
import time

import pytest

import ray
from failures.witness import (
    DEADLINE_S,
    is_running,
    note_pid,
    note_run,
    noted_pid,
    runs_in,
    wait_for_file,
)
from ray.exceptions import (
    ActorDiedError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(value):
    return value


@ray.remote(max_retries=0)
def crash():
    os._exit(1)


@ray.remote
def sleeper(path):
    """Tell its pid and wait for ever."""
    note_pid(path)
    time.sleep(10 * DEADLINE_S)


@ray.remote
class Worker:
    def pid(self):
        return os.getpid()

    def crash(self):
        os._exit(1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pid"


def test_parent_catches_the_crash_of_its_child():
    @ray.remote
    def parent():
        try:
            ray.get(crash.remote())
        except WorkerCrashedError as error:
            return type(error).__name__

    assert ray.get(parent.remote(), timeout=DEADLINE_S) == "WorkerCrashedError"


def test_uncaught_crash_of_a_child_is_an_error_of_the_parent(tmp_path):
    @ray.remote(max_retries=2)
    def parent():
        note_run(tmp_path / "runs")
        ray.get(crash.remote())

    with pytest.raises(WorkerCrashedError) as caught:
        ray.get(parent.remote(), timeout=DEADLINE_S)
    assert isinstance(caught.value, RayTaskError)
    assert "ray::parent()" in str(caught.value)
    assert runs_in(tmp_path / "runs") == 1


def test_retry_exceptions_with_the_crash_of_a_child(tmp_path):
    @ray.remote(max_retries=1, retry_exceptions=[WorkerCrashedError])
    def parent():
        if note_run(tmp_path / "runs") == 1:
            ray.get(crash.remote())
        return "second"

    assert ray.get(parent.remote(), timeout=DEADLINE_S) == "second"


def test_death_of_an_actor_inside_a_task():
    @ray.remote
    def parent():
        worker = Worker.remote()
        try:
            ray.get(worker.crash.remote())
        except ActorDiedError as error:
            return error.actor_id == worker._actor_id.hex()

    assert ray.get(parent.remote(), timeout=DEADLINE_S) is True


def test_uncaught_death_of_an_actor_is_an_error_of_the_parent():
    @ray.remote
    def parent():
        return ray.get(Worker.remote().crash.remote())

    with pytest.raises(ActorDiedError) as caught:
        ray.get(parent.remote(), timeout=DEADLINE_S)
    assert isinstance(caught.value, RayTaskError)


def test_running_child_ends_with_its_parent(path, wait_until):
    @ray.remote(max_retries=0)
    def parent():
        ref = sleeper.remote(path)
        wait_for_file(path)
        os._exit(1 if ref else 2)

    with pytest.raises(WorkerCrashedError):
        ray.get(parent.remote(), timeout=DEADLINE_S)
    wait_until(lambda: not is_running(noted_pid(path)))


def test_running_child_ends_with_the_actor_that_started_it(path, wait_until):
    @ray.remote
    class Parent:
        def start(self):
            self.ref = sleeper.remote(path)
            wait_for_file(path)

    parent = Parent.remote()
    ray.get(parent.start.remote(), timeout=DEADLINE_S)
    assert is_running(noted_pid(path))
    ray.kill(parent)
    wait_until(lambda: not is_running(noted_pid(path)))


def test_grandchild_ends_with_the_grandparent(path, wait_until):
    @ray.remote
    def middle():
        ray.get(sleeper.remote(path))

    @ray.remote(max_retries=0)
    def top():
        ref = middle.remote()
        wait_for_file(path)
        os._exit(1 if ref else 2)

    with pytest.raises(WorkerCrashedError):
        ray.get(top.remote(), timeout=DEADLINE_S)
    wait_until(lambda: not is_running(noted_pid(path)))


def test_queued_child_of_a_dead_parent_never_runs(tmp_path, path, wait_until):
    @ray.remote(num_cpus=4)
    def child():
        note_run(tmp_path / "child")

    @ray.remote(num_cpus=1, max_retries=0)
    def parent():
        ref = child.remote()
        os._exit(1 if ref else 2)

    with pytest.raises(WorkerCrashedError):
        ray.get(parent.remote(), timeout=DEADLINE_S)
    assert ray.get(echo.options(num_cpus=4).remote(1), timeout=DEADLINE_S) == 1
    assert runs_in(tmp_path / "child") == 0


def test_retried_parent_starts_its_children_again(tmp_path):
    @ray.remote
    def child():
        return note_run(tmp_path / "child")

    @ray.remote(max_retries=1)
    def parent():
        result = ray.get(child.remote())
        if note_run(tmp_path / "parent") == 1:
            os._exit(1)
        return result

    assert ray.get(parent.remote(), timeout=DEADLINE_S) == 2


def test_parent_killed_while_it_waits_for_its_child(tmp_path, path, wait_until):
    @ray.remote(max_retries=1)
    def parent():
        if note_run(tmp_path / "parent") == 2:
            return "second"
        note_pid(path)
        return ray.get(sleeper.remote(tmp_path / "child"))

    ref = parent.remote()
    wait_until(lambda: noted_pid(path) and noted_pid(tmp_path / "child"))
    os.kill(noted_pid(path), signal.SIGKILL)
    assert ray.get(ref, timeout=DEADLINE_S) == "second"
    wait_until(lambda: not is_running(noted_pid(tmp_path / "child")))


def test_retried_child_of_a_waiting_parent(tmp_path):
    @ray.remote(max_retries=2)
    def child():
        if note_run(tmp_path / "child") < 3:
            os._exit(1)
        return "third"

    @ray.remote(num_cpus=4)
    def parent():
        return ray.get(child.options(num_cpus=4).remote())

    assert ray.get(parent.remote(), timeout=DEADLINE_S) == "third"


def test_actor_of_a_crashed_task_dies(path, wait_until):
    @ray.remote(max_retries=0)
    def parent():
        worker = Worker.remote()
        path.write_text(str(ray.get(worker.pid.remote())))
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        ray.get(parent.remote(), timeout=DEADLINE_S)
    wait_until(lambda: not is_running(noted_pid(path)))


def test_actor_whose_owner_died_refuses_calls(wait_until):
    @ray.remote
    class Parent:
        def child(self):
            self.worker = Worker.remote()
            return self.worker

        def pid(self):
            return os.getpid()

    parent = Parent.remote()
    child = ray.get(parent.child.remote(), timeout=DEADLINE_S)
    pid = ray.get(child.pid.remote(), timeout=DEADLINE_S)
    ray.kill(parent)
    wait_until(lambda: not is_running(pid))
    with pytest.raises(ActorDiedError, match="owner"):
        ray.get(child.pid.remote(), timeout=DEADLINE_S)


def test_restartable_actor_is_not_restarted_when_its_owner_died(wait_until):
    @ray.remote
    class Parent:
        def child(self):
            self.worker = Worker.options(max_restarts=-1, max_task_retries=-1).remote()
            return self.worker

    parent = Parent.remote()
    child = ray.get(parent.child.remote(), timeout=DEADLINE_S)
    pid = ray.get(child.pid.remote(), timeout=DEADLINE_S)
    ray.kill(parent)
    wait_until(lambda: not is_running(pid))
    with pytest.raises(ActorDiedError):
        ray.get(child.pid.remote(), timeout=DEADLINE_S)


def test_detached_actor_outlives_its_dead_maker(wait_until):
    @ray.remote(max_retries=0)
    def parent():
        worker = Worker.options(name="kept", lifetime="detached").remote()
        ray.get(worker.pid.remote())
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        ray.get(parent.remote(), timeout=DEADLINE_S)
    kept = ray.get_actor("kept")
    assert is_running(ray.get(kept.pid.remote(), timeout=DEADLINE_S))
    ray.kill(kept)


def test_detached_actor_is_restarted_after_its_makers_death(wait_until):
    @ray.remote
    class Parent:
        def make(self):
            options = {"name": "kept2", "lifetime": "detached", "max_restarts": 1}
            worker = Worker.options(**options).remote()
            return ray.get(worker.pid.remote()), os.getpid()

    parent = Parent.remote()
    first, parents_pid = ray.get(parent.make.remote(), timeout=DEADLINE_S)
    ray.kill(parent)
    wait_until(lambda: not is_running(parents_pid))
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_running(first))
    kept = ray.get_actor("kept2")
    method = kept.pid.options(max_task_retries=5)
    assert ray.get(method.remote(), timeout=DEADLINE_S) != first
    ray.kill(kept)


def test_forced_cancel_of_a_parent_ends_its_child(tmp_path, path, wait_until):
    @ray.remote(max_retries=3)
    def parent():
        note_run(tmp_path / "runs")
        return ray.get(sleeper.remote(path))

    ref = parent.remote()
    wait_until(lambda: noted_pid(path))
    ray.cancel(ref, force=True)
    with pytest.raises((TaskCancelledError, WorkerCrashedError)):
        ray.get(ref, timeout=DEADLINE_S)
    wait_until(lambda: not is_running(noted_pid(path)))
    assert runs_in(tmp_path / "runs") == 1


def test_cancelled_child_does_not_hurt_its_parent(path, wait_until):
    @ray.remote
    def parent():
        ref = sleeper.remote(path)
        wait_for_file(path)
        ray.cancel(ref, force=True)
        try:
            ray.get(ref)
        except (TaskCancelledError, WorkerCrashedError):
            return "alive"

    assert ray.get(parent.remote(), timeout=DEADLINE_S) == "alive"


def test_cancel_while_a_crashed_task_waits_for_its_retry(tmp_path, wait_until):
    """The retry is cancelled, wherever the cancel meets it."""

    @ray.remote(max_retries=-1)
    def dies():
        note_run(tmp_path / "runs")
        os._exit(1)

    ref = dies.remote()
    wait_until(lambda: runs_in(tmp_path / "runs") >= 2)
    ray.cancel(ref, force=True)
    with pytest.raises((TaskCancelledError, WorkerCrashedError)):
        ray.get(ref, timeout=DEADLINE_S)
    runs = runs_in(tmp_path / "runs")
    assert ray.get(echo.options(num_cpus=4).remote(1), timeout=DEADLINE_S) == 1
    assert runs_in(tmp_path / "runs") <= runs + 1


def test_crash_of_one_sibling_spares_the_others():
    @ray.remote
    def parent():
        refs = [echo.remote(i) for i in range(4)]
        refs.insert(2, crash.remote())
        results = []
        for ref in refs:
            try:
                results.append(ray.get(ref))
            except WorkerCrashedError:
                results.append("crashed")
        return results

    assert ray.get(parent.remote(), timeout=DEADLINE_S) == [0, 1, "crashed", 2, 3]
