"""``ray.cancel``: queued, running, recursive, forced, and mistakes."""

from __future__ import annotations

import time

import pytest

import ray
from ray.exceptions import RayError, TaskCancelledError, WorkerCrashedError

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def loop(started):
    started.touch()
    while True:
        time.sleep(0.01)


@ray.remote
def echo(value):
    return value


@pytest.fixture
def running(tmp_path, wait_until):
    """A task that runs until it is cancelled."""
    started = tmp_path / "started"
    ref = loop.remote(started)
    wait_until(started.exists)
    yield ref
    ray.cancel(ref, force=True)


def test_cancel_returns_none(running):
    assert ray.cancel(running) is None


def test_cancel_of_a_running_task(running):
    ray.cancel(running)
    with pytest.raises(TaskCancelledError, match="was cancelled") as caught:
        ray.get(running, timeout=20)
    assert type(caught.value).__name__ == "RayTaskError(TaskCancelledError)"


def test_cancelled_error_names_its_task(running):
    ray.cancel(running)
    with pytest.raises(TaskCancelledError) as caught:
        ray.get(running, timeout=20)
    assert caught.value.task_id == running.task_id()


def test_force_cancel_of_a_running_task(running):
    ray.cancel(running, force=True)
    with pytest.raises((TaskCancelledError, WorkerCrashedError)):
        ray.get(running, timeout=20)


def test_cancelled_ref_counts_as_ready(running):
    ray.cancel(running)
    assert ray.wait([running], timeout=20) == ([running], [])


def test_cancel_twice(running):
    ray.cancel(running)
    ray.cancel(running)
    with pytest.raises(TaskCancelledError):
        ray.get(running, timeout=20)


def test_cancel_of_a_finished_task_has_no_effect():
    ref = echo.remote(1)
    ray.get(ref)
    ray.cancel(ref)
    assert ray.get(ref) == 1


def test_cancel_of_a_put_object_has_no_effect():
    ref = ray.put(1)
    ray.cancel(ref)
    assert ray.get(ref) == 1


def test_cancel_of_a_task_that_waits_for_its_argument(running):
    waiting = echo.remote(running)
    ray.cancel(waiting)
    with pytest.raises(TaskCancelledError):
        ray.get(waiting, timeout=20)


def test_cancel_of_a_task_that_waits_for_a_cpu(tmp_path, wait_until):
    started = tmp_path / "started"
    holder = loop.options(num_cpus=4).remote(started)
    wait_until(started.exists)
    queued = echo.remote(1)
    ray.cancel(queued)
    with pytest.raises(TaskCancelledError):
        ray.get(queued, timeout=20)
    ray.cancel(holder, force=True)
    with pytest.raises(RayError):
        ray.get(holder, timeout=20)


def test_cancelled_queued_task_never_runs(tmp_path, wait_until):
    started, marker = tmp_path / "started", tmp_path / "ran"

    @ray.remote
    def mark():
        marker.touch()

    holder = loop.options(num_cpus=4).remote(started)
    wait_until(started.exists)
    queued = mark.remote()
    ray.cancel(queued)
    ray.cancel(holder)
    for ref in (queued, holder):
        with pytest.raises(TaskCancelledError):
            ray.get(ref, timeout=20)
    assert ray.get(echo.remote(1)) == 1
    assert not marker.exists()


def test_cancel_of_an_infeasible_task():
    ref = echo.options(num_cpus=1000).remote(1)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=20)


def test_consumer_of_a_cancelled_task_fails_the_same_way(running):
    consumer = echo.remote(running)
    ray.cancel(running)
    with pytest.raises(TaskCancelledError):
        ray.get(consumer, timeout=20)


def test_task_may_catch_the_interrupt(tmp_path, wait_until):
    started = tmp_path / "started"

    @ray.remote
    def stubborn():
        started.touch()
        try:
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            return "caught"

    ref = stubborn.remote()
    wait_until(started.exists)
    ray.cancel(ref)
    assert ray.get(ref, timeout=20) == "caught"


def test_finally_runs_on_cancel(tmp_path, wait_until):
    started, closed = tmp_path / "started", tmp_path / "closed"

    @ray.remote
    def careful():
        started.touch()
        try:
            while True:
                time.sleep(0.01)
        finally:
            closed.touch()

    ref = careful.remote()
    wait_until(started.exists)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=20)
    assert closed.exists()


def test_cancel_while_the_task_is_in_get(tmp_path, wait_until):
    started = tmp_path / "started"

    @ray.remote
    def parent():
        return ray.get(loop.remote(started))

    ref = parent.remote()
    wait_until(started.exists)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=20)


@ray.remote
def child(started, finished, closed):
    started.touch()
    try:
        for _ in range(40):
            time.sleep(0.01)
        finished.touch()
    finally:
        closed.touch()


@ray.remote
def parent_of(paths):
    return ray.get(child.remote(*paths))


@pytest.mark.parametrize("recursive", [True, False])
def test_recursive_decides_about_children(tmp_path, wait_until, recursive):
    paths = [tmp_path / name for name in ("started", "finished", "closed")]
    ref = parent_of.remote(paths)
    wait_until(paths[0].exists)
    ray.cancel(ref, recursive=recursive)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=20)
    wait_until(paths[2].exists)
    assert paths[1].exists() is not recursive


def test_cancelled_task_is_not_retried(tmp_path, wait_until):
    runs = tmp_path / "runs"

    @ray.remote(max_retries=3, retry_exceptions=True)
    def counted():
        with runs.open("a") as file:
            file.write("x")
        while True:
            time.sleep(0.01)

    ref = counted.remote()
    wait_until(runs.exists)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref, timeout=20)
    assert runs.read_text() == "x"


def test_force_cancelled_task_is_not_retried(tmp_path, wait_until):
    runs = tmp_path / "runs"

    @ray.remote(max_retries=3)
    def counted():
        with runs.open("a") as file:
            file.write("x")
        while True:
            time.sleep(0.01)

    ref = counted.remote()
    wait_until(runs.exists)
    ray.cancel(ref, force=True)
    with pytest.raises(RayError):
        ray.get(ref, timeout=20)
    assert ray.get(echo.remote(1)) == 1
    assert runs.read_text() == "x"


def test_cancel_from_another_task(running):
    @ray.remote
    def canceller(refs):
        ray.cancel(refs[0])

    ray.get(canceller.remote([running]))
    with pytest.raises(TaskCancelledError):
        ray.get(running, timeout=20)


def test_cpu_is_free_after_cancel(tmp_path, wait_until):
    refs = []
    for i in range(4):
        started = tmp_path / f"started{i}"
        refs.append(loop.remote(started))
        wait_until(started.exists)
    for ref in refs:
        ray.cancel(ref)
    assert ray.get([echo.remote(i) for i in range(8)], timeout=20) == list(range(8))


def test_cancel_of_one_of_several_results(tmp_path, wait_until):
    started = tmp_path / "started"
    first, second = loop.options(num_returns=2).remote(started)
    wait_until(started.exists)
    ray.cancel(first)
    for ref in (first, second):
        with pytest.raises(TaskCancelledError):
            ray.get(ref, timeout=20)


@pytest.mark.parametrize("bad", ["x", 1, None, [1], b"x"], ids=repr)
def test_cancel_of_a_non_ref_is_type_error(bad):
    with pytest.raises(TypeError, match="cancel"):
        ray.cancel(bad)


def test_cancel_of_a_list_of_refs_is_type_error():
    with pytest.raises(TypeError):
        ray.cancel([ray.put(1)])


def test_kill_of_a_ref_is_value_error():
    with pytest.raises(ValueError):
        ray.kill(ray.put(1))
