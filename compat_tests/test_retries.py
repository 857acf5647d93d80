"""Retries of tasks after crashes and after errors; ``max_calls``."""

from __future__ import annotations

import os

import pytest

import ray
from ray.exceptions import RayTaskError, WorkerCrashedError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def flaky(log, failures, how):
    """Fail the first runs in the given way, then return the number of runs."""
    with log.open("a") as file:
        file.write("x")
    runs = log.stat().st_size
    if runs <= failures:
        if how == "exit":
            os._exit(1)
        raise {"value": ValueError, "key": KeyError}[how]("flaky")
    return runs


@pytest.fixture
def log(tmp_path):
    return tmp_path / "runs"


def runs_in(log):
    return log.stat().st_size


def test_crash_is_retried_by_default(log):
    assert ray.get(flaky.remote(log, 1, "exit")) == 2


def test_crash_is_retried_max_retries_times(log):
    with pytest.raises(WorkerCrashedError):
        ray.get(flaky.options(max_retries=1).remote(log, 10, "exit"))
    assert runs_in(log) == 2


def test_crash_with_no_retries(log):
    with pytest.raises(WorkerCrashedError):
        ray.get(flaky.options(max_retries=0).remote(log, 10, "exit"))
    assert runs_in(log) == 1


def test_default_is_three_retries(log):
    with pytest.raises(WorkerCrashedError):
        ray.get(flaky.remote(log, 10, "exit"))
    assert runs_in(log) == 4


def test_unlimited_retries(log):
    assert ray.get(flaky.options(max_retries=-1).remote(log, 5, "exit")) == 6


def test_error_is_not_retried_by_default(log):
    with pytest.raises(ValueError):
        ray.get(flaky.remote(log, 10, "value"))
    assert runs_in(log) == 1


def test_retry_exceptions_true(log):
    ref = flaky.options(max_retries=2, retry_exceptions=True).remote(log, 1, "value")
    assert ray.get(ref) == 2


def test_retry_exceptions_true_gives_the_last_error(log):
    ref = flaky.options(max_retries=1, retry_exceptions=True).remote(log, 9, "value")
    with pytest.raises(ValueError, match="flaky"):
        ray.get(ref)
    assert runs_in(log) == 2


@pytest.mark.parametrize("kind", [list, tuple])
def test_retry_exceptions_with_a_matching_type(log, kind):
    options = {"max_retries": 1, "retry_exceptions": kind([OSError, ValueError])}
    assert ray.get(flaky.options(**options).remote(log, 1, "value")) == 2


def test_retry_exceptions_with_a_base_class(log):
    options = {"max_retries": 1, "retry_exceptions": [LookupError]}
    assert ray.get(flaky.options(**options).remote(log, 1, "key")) == 2


def test_retry_exceptions_with_another_type(log):
    options = {"max_retries": 3, "retry_exceptions": [KeyError]}
    with pytest.raises(ValueError):
        ray.get(flaky.options(**options).remote(log, 1, "value"))
    assert runs_in(log) == 1


def test_retry_exceptions_in_the_decorator(log):
    @ray.remote(max_retries=1, retry_exceptions=[ZeroDivisionError])
    def once():
        with log.open("a") as file:
            file.write("x")
        if log.stat().st_size == 1:
            raise ZeroDivisionError
        return "ok"

    assert ray.get(once.remote()) == "ok"


def test_retry_exceptions_without_retries(log):
    options = {"max_retries": 0, "retry_exceptions": True}
    with pytest.raises(ValueError):
        ray.get(flaky.options(**options).remote(log, 5, "value"))
    assert runs_in(log) == 1


def test_retried_task_keeps_its_arguments(log):
    @ray.remote(max_retries=1, retry_exceptions=True)
    def total(a, b, *rest, extra):
        with log.open("a") as file:
            file.write("x")
        if log.stat().st_size == 1:
            raise ValueError
        return a + b + sum(rest) + extra

    assert ray.get(total.remote(1, ray.put(2), 3, extra=ray.put(4))) == 10


def test_consumer_waits_for_the_retried_task(log):
    double = ray.remote(lambda x: 2 * x)
    ref = flaky.options(max_retries=1, retry_exceptions=True).remote(log, 1, "value")
    assert ray.get(double.remote(ref)) == 4


def test_crashing_child_of_a_task_is_retried(log):
    @ray.remote
    def parent():
        return ray.get(flaky.remote(log, 1, "exit"))

    assert ray.get(parent.remote()) == 2


def test_generator_is_retried_after_a_crash(log):
    @ray.remote(max_retries=1)
    def stream():
        with log.open("a") as file:
            file.write("x")
        yield 1
        if log.stat().st_size == 1:
            os._exit(1)
        yield 2

    assert [ray.get(ref) for ref in stream.remote()] == [1, 2]


def test_generator_is_retried_after_an_error(log):
    @ray.remote(max_retries=1, retry_exceptions=True)
    def stream():
        with log.open("a") as file:
            file.write("x")
        yield 1
        if log.stat().st_size == 1:
            raise ValueError("first run")
        yield 2

    assert [ray.get(ref) for ref in stream.remote()] == [1, 2]


def test_error_after_a_crash_is_final(log):
    @ray.remote
    def crash_then_fail():
        with log.open("a") as file:
            file.write("x")
        if log.stat().st_size == 1:
            os._exit(1)
        raise KeyError("second run")

    with pytest.raises(KeyError) as caught:
        ray.get(crash_then_fail.remote())
    assert isinstance(caught.value, RayTaskError)
    assert runs_in(log) == 2


def test_max_calls_one_uses_a_new_process_per_call():
    @ray.remote(max_calls=1)
    def pid():
        return os.getpid()

    assert len({ray.get(pid.remote()) for _ in range(3)}) == 3


def test_max_calls_two_uses_a_process_twice():
    @ray.remote(max_calls=2)
    def pid():
        return os.getpid()

    pids = [ray.get(pid.remote()) for _ in range(4)]
    assert pids[0] == pids[1]
    assert pids[2] == pids[3]
    assert pids[0] != pids[2]


def test_max_calls_results_survive_the_process():
    import numpy as np

    @ray.remote(max_calls=1)
    def big():
        return np.ones(200_000)

    refs = [big.remote() for _ in range(3)]
    assert [ray.get(ref).sum() for ref in refs] == [200_000.0] * 3


def test_processes_are_reused_without_max_calls():
    @ray.remote
    def pid():
        return os.getpid()

    assert len({ray.get(pid.remote()) for _ in range(10)}) <= 4
