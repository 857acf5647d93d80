"""Generators whose process dies in the middle, and what their readers see."""

from __future__ import annotations

import os

import numpy as np
import pytest

import ray
from failures.witness import DEADLINE_S, note_run, runs_in, wait_for_file
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


@ray.remote
def stream(path, length, crash_at, crashes=1, gate=None):
    """Yield 0, 1, ...; the first runs die before the item `crash_at`.

    An item may be lost when the process dies directly after it: tests that count
    on it read it first, and make the gate then.
    """
    runs = note_run(path)
    for i in range(length):
        if i == crash_at and runs <= crashes:
            if gate is not None:
                wait_for_file(gate)
            os._exit(1)
        yield i
    if crash_at == length and runs <= crashes:
        os._exit(1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs"


def drain(generator):
    """Read a generator to its end: values, and the types of the errors."""
    seen = []
    for ref in generator:
        try:
            seen.append(ray.get(ref, timeout=DEADLINE_S))
        except Exception as error:
            seen.append(type(error))
    return seen


@pytest.mark.parametrize("crash_at", [0, 1, 3, 4])
def test_retried_stream_has_each_item_once(path, crash_at):
    generator = stream.options(max_retries=1).remote(path, 4, crash_at)
    assert drain(generator) == [0, 1, 2, 3]
    assert runs_in(path) == 2


def test_items_seen_before_the_crash_do_not_come_again(tmp_path, path):
    @ray.remote(max_retries=1)
    def gated():
        runs = note_run(path)
        yield "a"
        yield "b"
        if runs == 1:
            wait_for_file(tmp_path / "go")
            os._exit(1)
        yield "c"

    generator = gated.remote()
    assert [ray.get(next(generator)), ray.get(next(generator))] == ["a", "b"]
    (tmp_path / "go").touch()
    assert drain(generator) == ["c"]


def test_large_items_of_a_retried_stream(path):
    @ray.remote(max_retries=1)
    def large():
        runs = note_run(path)
        for i in range(3):
            if i == 2 and runs == 1:
                os._exit(1)
            yield np.full(200_000, i)

    assert [int(ray.get(ref).sum()) for ref in large.remote()] == [0, 200_000, 400_000]


@pytest.mark.parametrize("retries", [0, 1])
def test_crash_ends_the_stream_with_one_error(tmp_path, path, retries):
    gate = tmp_path / "go"
    generator = stream.options(max_retries=retries).remote(path, 4, 2, 9, gate)
    assert [ray.get(next(generator)), ray.get(next(generator))] == [0, 1]
    gate.touch()
    assert drain(generator) == [WorkerCrashedError]
    assert runs_in(path) == 1 + retries
    with pytest.raises(StopIteration):
        next(generator)


def test_items_made_before_the_crash_stay(tmp_path):
    @ray.remote(max_retries=0)
    def large():
        yield np.ones(200_000)
        yield 5
        wait_for_file(tmp_path / "go")
        os._exit(1)

    generator = large.remote()
    first, second = next(generator), next(generator)
    (tmp_path / "go").touch()
    assert drain(generator) == [WorkerCrashedError]
    assert ray.get(first, timeout=DEADLINE_S).sum() == 200_000
    assert ray.get(echo.remote(second), timeout=DEADLINE_S) == 5


def test_error_item_fails_its_consumer(path):
    refs = list(stream.options(max_retries=0).remote(path, 2, 1))
    with pytest.raises(RayTaskError, match="WorkerCrashedError"):
        ray.get(echo.remote(refs[-1]), timeout=DEADLINE_S)


def test_error_item_is_ready_for_wait(path):
    generator = stream.options(max_retries=0).remote(path, 2, 0)
    ref = next(generator)
    assert ray.wait([ref], timeout=DEADLINE_S) == ([ref], [])


@pytest.mark.filterwarnings("ignore:.*dynamic")
@pytest.mark.parametrize("retries", [0, 1])
def test_dynamic_generator_that_crashes(path, retries):
    ref = stream.options(num_returns="dynamic", max_retries=retries).remote(path, 3, 2)
    if retries == 0:
        with pytest.raises(WorkerCrashedError):
            ray.get(ref, timeout=DEADLINE_S)
    else:
        assert drain(ray.get(ref, timeout=DEADLINE_S)) == [0, 1, 2]
    assert runs_in(path) == 1 + retries


def test_fixed_generator_is_retried_as_a_whole(path):
    refs = stream.options(num_returns=3, max_retries=1).remote(path, 3, 2)
    assert ray.get(refs, timeout=DEADLINE_S) == [0, 1, 2]
    assert runs_in(path) == 2


def test_last_value_of_a_fixed_generator_that_crashes(path):
    *_, last = stream.options(num_returns=3, max_retries=0).remote(path, 3, 2)
    with pytest.raises(WorkerCrashedError):
        ray.get(last, timeout=DEADLINE_S)


def test_error_in_every_run_of_a_retried_stream(path):
    @ray.remote(max_retries=1, retry_exceptions=[KeyError])
    def failing():
        note_run(path)
        yield 1
        raise KeyError("again")

    *values, error = drain(failing.remote())
    assert values == [1]
    assert issubclass(error, KeyError)
    assert runs_in(path) == 2


def test_stream_read_in_a_task_that_survives_the_crash(path):
    @ray.remote
    def reader():
        return drain(stream.options(max_retries=1).remote(path, 3, 1))

    assert ray.get(reader.remote(), timeout=DEADLINE_S) == [0, 1, 2]


def test_dropped_stream_of_a_crashing_task_is_harmless(path, wait_until):
    generator = stream.options(max_retries=0).remote(path, 3, 1)
    ray.get(next(generator), timeout=DEADLINE_S)
    del generator
    wait_until(lambda: runs_in(path) == 1)
    assert ray.get(echo.remote("still here"), timeout=DEADLINE_S) == "still here"


def test_reader_that_stops_midway_keeps_what_it_read(path):
    generator = stream.options(max_retries=1).remote(path, 50, 10)
    refs = [next(generator) for _ in range(5)]
    del generator
    assert ray.get(refs, timeout=DEADLINE_S) == [0, 1, 2, 3, 4]


def test_cancelled_stream_is_not_retried(tmp_path, path, wait_until):
    @ray.remote(max_retries=-1, retry_exceptions=True)
    def endless():
        note_run(path)
        yield 1
        wait_for_file(tmp_path / "never")

    generator = endless.remote()
    assert ray.get(next(generator), timeout=DEADLINE_S) == 1
    ray.cancel(generator, force=True)
    (error,) = drain(generator)
    assert issubclass(error, (TaskCancelledError, WorkerCrashedError))
    assert runs_in(path) == 1


@ray.remote
class Source:
    def numbers(self, length, crash_at=None, path=None, gate=None):
        runs = 1 if path is None else note_run(path)
        for i in range(length):
            if i == crash_at and runs == 1:
                if gate is not None:
                    wait_for_file(gate)
                os._exit(1)
            yield i

    async def numbers_until(self, path):
        yield 1
        note_run(path)
        wait_for_file(f"{path}.never")
        yield 2


def test_stream_of_an_actor_that_dies(tmp_path):
    gate = tmp_path / "go"
    generator = Source.remote().numbers.remote(4, crash_at=2, gate=gate)
    assert [ray.get(next(generator)), ray.get(next(generator))] == [0, 1]
    gate.touch()
    assert drain(generator) == [ActorDiedError]
    with pytest.raises(StopIteration):
        next(generator)


def test_stream_of_an_actor_that_is_restarted(path):
    source = Source.options(max_restarts=1, max_task_retries=5).remote()
    assert drain(source.numbers.remote(4, 2, path)) == [0, 1, 2, 3]


def test_stream_of_an_actor_that_is_killed(path, wait_until):
    source = Source.remote()
    generator = source.numbers_until.remote(path)
    assert ray.get(next(generator), timeout=DEADLINE_S) == 1
    wait_until(lambda: runs_in(path) == 1)
    ray.kill(source)
    assert drain(generator) == [ActorDiedError]


def test_stream_of_a_dead_actor():
    source = Source.remote()
    assert drain(source.numbers.remote(2, crash_at=0)) == [ActorDiedError]
    assert drain(source.numbers.remote(2)) == [ActorDiedError]


def test_completed_of_a_crashed_stream(path):
    generator = stream.options(max_retries=0).remote(path, 2, 1)
    with pytest.raises(WorkerCrashedError):
        ray.get(generator.completed(), timeout=DEADLINE_S)
