"""Tasks whose process dies: who runs again, how often, and what is seen."""

from __future__ import annotations

import os

import numpy as np
import pytest

import ray
from failures.witness import (
    DEADLINE_S,
    DEATHS,
    die,
    note_run,
    runs_in,
    wait_for_file,
)
from ray.exceptions import GetTimeoutError, RayTaskError, WorkerCrashedError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(value):
    return value


@ray.remote
def dies(path, deaths, how="exit", result=None):
    """Die in the first runs, then return the result or the number of runs."""
    runs = note_run(path)
    if runs <= deaths:
        die(how)
    return runs if result is None else result


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs"


@pytest.mark.parametrize("how", DEATHS)
def test_every_death_is_retried(path, how):
    ref = dies.options(max_retries=1).remote(path, 1, how)
    assert ray.get(ref, timeout=DEADLINE_S) == 2


@pytest.mark.parametrize("how", ["kill", "term", "sys_exit"])
def test_deaths_use_up_the_retries(path, how):
    with pytest.raises(WorkerCrashedError):
        ray.get(dies.options(max_retries=1).remote(path, 9, how), timeout=DEADLINE_S)
    assert runs_in(path) == 2


def test_options_override_the_retries_of_the_decorator(path):
    @ray.remote(max_retries=5)
    def patient():
        note_run(path)
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        ray.get(patient.options(max_retries=0).remote(), timeout=DEADLINE_S)
    assert runs_in(path) == 1


def test_attempts_are_one_task_in_several_processes(tmp_path):
    @ray.remote(max_retries=2)
    def attempt():
        context = ray.get_runtime_context()
        with open(tmp_path / "log", "a") as file:
            file.write(f"{context.get_task_id()} {os.getpid()}\n")
        if runs_in(tmp_path / "log") < 3 * (len(context.get_task_id()) + 2):
            os._exit(1)

    ref = attempt.remote()
    ray.get(ref, timeout=DEADLINE_S)
    lines = (tmp_path / "log").read_text().split()
    assert set(lines[::2]) == {ref.task_id().hex()}
    assert len(lines[1::2]) == len(set(lines[1::2])) >= 2


def test_crash_and_error_count_together(path):
    @ray.remote(max_retries=1, retry_exceptions=True)
    def crash_then_raise():
        if note_run(path) == 1:
            os._exit(1)
        raise ValueError("second run")

    with pytest.raises(ValueError, match="second run"):
        ray.get(crash_then_raise.remote(), timeout=DEADLINE_S)
    assert runs_in(path) == 2


def test_error_and_crash_count_together(path):
    @ray.remote(max_retries=1, retry_exceptions=True)
    def raise_then_crash():
        if note_run(path) == 1:
            raise ValueError("first run")
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        ray.get(raise_then_crash.remote(), timeout=DEADLINE_S)
    assert runs_in(path) == 2


def test_retried_error_that_changes_into_another_is_final(path):
    @ray.remote(max_retries=5, retry_exceptions=[KeyError])
    def changing():
        raise KeyError("a") if note_run(path) == 1 else ValueError("b")

    with pytest.raises(ValueError, match="b"):
        ray.get(changing.remote(), timeout=DEADLINE_S)
    assert runs_in(path) == 2


def test_error_of_a_child_counts_for_retry_exceptions(path):
    @ray.remote
    def child():
        if note_run(path) == 1:
            raise KeyError("child")
        return "ok"

    @ray.remote(max_retries=1, retry_exceptions=[KeyError])
    def parent():
        return ray.get(child.remote())

    assert ray.get(parent.remote(), timeout=DEADLINE_S) == "ok"
    assert runs_in(path) == 2


def test_unlimited_retries_of_an_error(path):
    @ray.remote(max_retries=-1, retry_exceptions=True)
    def third_time():
        if note_run(path) < 3:
            raise OSError
        return "ok"

    assert ray.get(third_time.remote(), timeout=DEADLINE_S) == "ok"
    assert runs_in(path) == 3


def test_crash_fails_every_return_value():
    @ray.remote(num_returns=3, max_retries=0)
    def several():
        os._exit(1)

    for ref in several.remote():
        with pytest.raises(WorkerCrashedError):
            ray.get(ref, timeout=DEADLINE_S)


def test_retry_gives_every_return_value(path):
    @ray.remote(num_returns=3, max_retries=1)
    def several():
        if note_run(path) == 1:
            os._exit(1)
        return 1, np.ones(300_000), [2]

    first, second, third = several.remote()
    assert ray.get([third, first], timeout=DEADLINE_S) == [[2], 1]
    assert ray.get(second).sum() == 300_000
    assert runs_in(path) == 2


def test_task_without_return_values_is_retried(path, wait_until):
    assert dies.options(num_returns=0, max_retries=1).remote(path, 1) is None
    wait_until(lambda: runs_in(path) == 2)


def test_task_nobody_waits_for_is_retried(path, wait_until):
    ref = dies.options(max_retries=2).remote(path, 2)
    del ref
    wait_until(lambda: runs_in(path) == 3)


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_argument_dropped_by_its_owner_is_there_for_the_retry(path, size):
    ref = ray.put(b"x" * size)
    result = dies.options(max_retries=1).remote(path, 1, "kill", result=ref)
    del ref
    assert len(ray.get(result, timeout=DEADLINE_S)) == size


def test_large_plain_argument_is_there_for_the_retry(path):
    result = dies.options(max_retries=1).remote(path, 1, result=b"x" * 500_000)
    assert len(ray.get(result, timeout=DEADLINE_S)) == 500_000


def test_nested_ref_dropped_by_its_owner_is_there_for_the_retry(path):
    @ray.remote(max_retries=1)
    def read(refs):
        if note_run(path) == 1:
            os._exit(1)
        return ray.get(refs[0]).sum()

    refs = [ray.put(np.ones(300_000))]
    result = read.remote(refs)
    del refs
    assert ray.get(result, timeout=DEADLINE_S) == 300_000


def test_dying_task_is_not_ready_until_its_retry_ended(tmp_path, path):
    @ray.remote(max_retries=1)
    def slow_retry():
        if note_run(path) == 1:
            os._exit(1)
        wait_for_file(tmp_path / "go")
        return "done"

    ref = slow_retry.remote()
    assert ray.wait([ref], timeout=1) == ([], [ref])
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.1)
    (tmp_path / "go").touch()
    assert ray.get(ref, timeout=DEADLINE_S) == "done"


def test_chain_goes_on_after_a_retry_in_its_middle(path):
    ref = echo.remote(dies.remote(path, 1, result=echo.remote("start")))
    assert ray.get(echo.remote(ref), timeout=DEADLINE_S) == "start"


def test_each_consumer_of_a_crashed_task_fails():
    crashed = ray.remote(max_retries=0)(lambda: os._exit(1)).remote()
    consumers = [echo.remote(crashed) for _ in range(3)]
    for ref in [echo.remote(consumers[0]), *consumers]:
        with pytest.raises(RayTaskError) as caught:
            ray.get(ref, timeout=DEADLINE_S)
        assert "WorkerCrashedError" in str(caught.value)


class DiesWhenPickled:
    def __reduce__(self):
        os._exit(1)


class DiesWhenUnpickled:
    def __reduce__(self):
        return os._exit, (1,)


def test_death_while_the_result_is_pickled(path):
    @ray.remote(max_retries=1)
    def result():
        note_run(path)
        return DiesWhenPickled()

    with pytest.raises(WorkerCrashedError):
        ray.get(result.remote(), timeout=DEADLINE_S)
    assert runs_in(path) == 2


def test_death_while_an_argument_is_unpickled(path):
    @ray.remote(max_retries=1)
    def never(value):
        note_run(path)

    with pytest.raises(WorkerCrashedError):
        ray.get(never.remote(DiesWhenUnpickled()), timeout=DEADLINE_S)
    assert runs_in(path) == 0


def test_many_dying_tasks_all_end(tmp_path):
    refs = [dies.options(max_retries=2).remote(tmp_path / str(i), 1) for i in range(3)]
    assert ray.get(refs, timeout=DEADLINE_S) == [2] * 3


def test_cpus_are_free_after_crashes():
    crash = ray.remote(max_retries=0, num_cpus=4)(lambda: os._exit(1))
    for _ in range(2):
        with pytest.raises(WorkerCrashedError):
            ray.get(crash.remote(), timeout=DEADLINE_S)
    assert ray.get(echo.options(num_cpus=4).remote("ok"), timeout=DEADLINE_S) == "ok"


def test_objects_put_by_earlier_attempts_do_not_disturb(path):
    @ray.remote(max_retries=1)
    def puts():
        refs = [ray.put(np.full(200_000, i)) for i in range(3)]
        if note_run(path) == 1:
            os._exit(1)
        return refs

    refs = ray.get(puts.remote(), timeout=DEADLINE_S)
    assert [int(array[0]) for array in ray.get(refs)] == [0, 1, 2]
