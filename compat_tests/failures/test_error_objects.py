"""Errors as objects: what they are, what they tell, and how they travel."""

from __future__ import annotations

import os

import numpy as np
import pytest

import ray
from failures.witness import DEADLINE_S, is_running, wait_for_file
from ray import cloudpickle
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    OwnerDiedError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(value):
    return value


@ray.remote
class Worker:
    def pid(self):
        return os.getpid()

    def crash(self):
        os._exit(1)

    def put(self):
        return [ray.put(np.ones(300_000))]


def error_of(ref):
    """Return what `ray.get` raises for a reference."""
    with pytest.raises(Exception) as caught:
        ray.get(ref, timeout=DEADLINE_S)
    return caught.value


def worker_crashed(wait_until, tmp_path):
    return error_of(ray.remote(max_retries=0)(lambda: os._exit(1)).remote())


def actor_died(wait_until, tmp_path):
    return error_of(Worker.remote().crash.remote())


def actor_unavailable(wait_until, tmp_path):
    worker = Worker.options(max_restarts=1).remote()
    ray.get(worker.pid.remote(), timeout=DEADLINE_S)
    return error_of(worker.crash.remote())


def owner_died(wait_until, tmp_path):
    worker = Worker.remote()
    (ref,) = ray.get(worker.put.remote())
    pid = ray.get(worker.pid.remote())
    ray.kill(worker)
    errors = []

    def lost():
        try:
            ray.get(ref, timeout=DEADLINE_S)
        except OwnerDiedError as error:
            errors.append(error)
        return errors

    wait_until(lambda: not is_running(pid))
    wait_until(lost)
    return errors[0]


def get_timeout(wait_until, tmp_path):
    ref = ray.remote(wait_for_file).remote(tmp_path / "go")
    with pytest.raises(GetTimeoutError) as caught:
        ray.get(ref, timeout=0.05)
    (tmp_path / "go").touch()
    return caught.value


def task_cancelled(wait_until, tmp_path):
    # Not one that waits for its argument: real Ray's driver aborts ("Check failed:
    # submitted_task_ref_count > 0") when the argument of a cancelled task arrives.
    @ray.remote
    def running():
        (tmp_path / "runs").touch()
        wait_for_file(tmp_path / "never")

    ref = running.remote()
    wait_until((tmp_path / "runs").exists)
    ray.cancel(ref)
    return error_of(ref)


def task_error(wait_until, tmp_path):
    return error_of(ray.remote(lambda: {}["missing"]).remote())


CASES = {
    worker_crashed: WorkerCrashedError,
    actor_died: ActorDiedError,
    actor_unavailable: ActorUnavailableError,
    owner_died: OwnerDiedError,
    get_timeout: GetTimeoutError,
    task_cancelled: TaskCancelledError,
    task_error: KeyError,
}


@pytest.fixture(params=CASES, ids=lambda make: make.__name__)
def case(request, wait_until, tmp_path):
    """A pair: an error that a real failure raised, and the type it must have."""
    return request.param(wait_until, tmp_path), CASES[request.param]


def test_raised_error_survives_the_journey(case):
    """One failure for each kind of error: here, pickled, stored, and in a task."""
    error, kind = case
    assert isinstance(error, kind)
    assert isinstance(error, RayError)
    assert error.__traceback__ is not None
    assert "failures" not in type(error).__module__

    copy = cloudpickle.loads(cloudpickle.dumps(error))
    (stored,) = ray.get(ray.put([error]))
    (echoed,) = ray.get(echo.remote([error]), timeout=DEADLINE_S)
    for other in [copy, stored, echoed]:
        assert isinstance(other, kind)
        assert isinstance(other, RayError)
        assert str(other) == str(error)
        for name in ["actor_id", "error_msg", "object_ref_hex"]:
            assert getattr(other, name, None) == getattr(error, name, None)


def test_error_as_a_whole_value_is_raised(case):
    error, kind = case
    with pytest.raises(kind):
        ray.get(ray.put(error), timeout=DEADLINE_S)


def test_error_raised_again_in_a_task(case):
    """A task that lets an error through fails with it, wrapped by its own."""
    error, kind = case

    @ray.remote(max_retries=0)
    def passes_on(box):
        raise box[0]

    again = error_of(passes_on.remote([error]))
    assert isinstance(again, kind)
    assert isinstance(again, RayTaskError)
    assert "passes_on" in str(again)


def test_families():
    for kind in [ActorDiedError, ActorUnavailableError]:
        assert issubclass(kind, RayActorError)
    assert not issubclass(ActorUnavailableError, ActorDiedError)
    assert issubclass(OwnerDiedError, ObjectLostError)
    assert issubclass(GetTimeoutError, TimeoutError)
    for kind in [WorkerCrashedError, RayActorError, ObjectLostError]:
        assert issubclass(kind, RayError)
        assert not issubclass(kind, RayTaskError)


def test_failed_argument_tells_the_consumer_and_the_cause():
    crashed = ray.remote(max_retries=0)(lambda: os._exit(1)).remote()
    error = error_of(echo.remote(crashed))
    assert isinstance(error, RayTaskError)
    assert isinstance(error, WorkerCrashedError)
    assert "ray::echo()" in str(error)
    assert "died unexpectedly" in str(error)


def test_failed_argument_of_a_method():
    worker = Worker.remote()
    dead = Worker.remote()
    error = error_of(worker.__ray_call__.remote(lambda self, x: x, dead.crash.remote()))
    assert isinstance(error, RayTaskError)
    assert isinstance(error, ActorDiedError)
    assert is_running(ray.get(worker.pid.remote(), timeout=DEADLINE_S))


def test_failed_argument_of_a_constructor():
    @ray.remote
    class Takes:
        def __init__(self, value):
            pass

        def ping(self):
            return 1

    crashed = ray.remote(max_retries=0)(lambda: os._exit(1)).remote()
    error = error_of(Takes.remote(crashed).ping.remote())
    assert isinstance(error, ActorDiedError)
    assert "WorkerCrashedError" in str(error)


def test_cause_goes_through_several_calls():
    @ray.remote
    def inner():
        raise ValueError("innermost")

    @ray.remote
    class Middle:
        def call(self):
            return ray.get(inner.remote())

    @ray.remote
    def outer(middle):
        return ray.get(middle.call.remote())

    error = error_of(outer.remote(Middle.remote()))
    assert type(error.cause) is ValueError
    text = str(error)
    steps = ["ray::outer()", "ray::Middle.call()", "ray::inner()", "innermost"]
    assert sorted(steps, key=text.index) == steps


def test_second_get_raises_the_same_again():
    ref = Worker.remote().crash.remote()
    assert str(error_of(ref)) == str(error_of(ref))


def test_errors_compare_by_their_refs():
    ref = ray.remote(max_retries=0)(lambda: os._exit(1)).remote()
    good = echo.remote(1)
    ready, _ = ray.wait([ref, good], num_returns=2, timeout=DEADLINE_S)
    assert set(ready) == {ref, good}
    with pytest.raises(WorkerCrashedError):
        ray.get([good, ref], timeout=DEADLINE_S)


def test_error_of_a_dropped_call_is_reported(run_driver):
    """Nobody asks for the result of a failed call: the driver prints its error."""
    done = run_driver(
        """
        import time

        import ray

        ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR")

        @ray.remote
        def fail():
            raise ValueError("nobody asked")

        fail.remote()
        ref = fail.options(name="other").remote()
        try:
            ray.get(ref)
        except ValueError:
            pass
        time.sleep(1)
        print("end")
        ray.shutdown()
        """
    )
    assert "end" in done.stdout
    assert "nobody asked" in done.stdout + done.stderr


def test_pickled_reference_in_a_later_session(ray_fresh):
    ray_fresh(num_cpus=1)
    data = cloudpickle.dumps(ray.put(np.ones(300_000)))
    ray.shutdown()
    ray_fresh(num_cpus=1)
    with pytest.raises((ValueError, RayError)):
        ray.get(cloudpickle.loads(data), timeout=5)
    assert ray.get(echo.remote(1), timeout=DEADLINE_S) == 1


def test_error_outlives_its_session(ray_fresh):
    ray_fresh(num_cpus=1)
    error = error_of(Worker.remote().crash.remote())
    ray.shutdown()
    assert isinstance(error, ActorDiedError)
    assert isinstance(cloudpickle.loads(cloudpickle.dumps(error)), ActorDiedError)
    assert "Worker" in str(error)
