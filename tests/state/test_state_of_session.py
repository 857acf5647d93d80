"""Lists of a session of several processes; what they say when somebody is silent."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rayshim as ray
from rayshim.util import state
from rayshim.util.state.common import StateResource
from rayshim.util.state.exception import RayStateApiException

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.init(num_cpus=3, log_to_driver=False)
    yield
    ray.shutdown()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that answers nobody for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@ray.remote
class Thing:
    def pid(self) -> int:
        return os.getpid()


@ray.remote
def add(x: int) -> int:
    return x + 1


def test_what_was_waited_for_is_there_at_once(session: None) -> None:
    refs = [add.options(name="at once").remote(i) for i in range(200)]
    ray.get(refs)
    rows = state.list_tasks(filters=[("name", "=", "at once")], limit=10_000)
    assert [row.state for row in rows] == ["FINISHED"] * 200
    assert {row.task_id for row in rows} == {ref.task_id().hex() for ref in refs}


def test_more_rows_than_ten_thousand(session: None) -> None:
    ray.get([add.options(name="many").remote(i) for i in range(11_000)])
    rows = state.list_tasks(filters=[("name", "=", "many")], limit=100_000)
    assert len(rows) == 11_000


def test_silent_process_is_named(session: None, monkeypatch: Any) -> None:
    from rayshim.util.state import client

    monkeypatch.setattr(client, "ANSWER_LIMIT_S", 0.5)
    thing = Thing.remote()
    pid = ray.get(thing.pid.remote())
    with stopped(pid):
        with pytest.raises(RayStateApiException, match=f"executor pid {pid} on node"):
            state.list_objects()
        with pytest.raises(RayStateApiException, match="no answer within"):
            state.list_tasks()
        rows = state.list_tasks(raise_on_missing_output=False)
        assert rows
        with pytest.warns(RuntimeWarning, match="not whole"):
            state.list_objects(raise_on_missing_output=False, _explain=True)
    assert state.list_objects()


def test_limit_explains_itself(session: None) -> None:
    ray.get([add.remote(i) for i in range(3)])
    with pytest.warns(UserWarning, match="1 of .* tasks are shown"):
        state.list_tasks(limit=1, _explain=True)


def test_constructor_waits_for_arguments_or_for_a_place(session: None) -> None:
    @ray.remote(num_cpus=64)
    class Large:
        def __init__(self, value: Any = None) -> None:
            pass

    @ray.remote
    class Later:
        def __init__(self, value: Any) -> None:
            pass

    never = add.options(num_cpus=64).remote(1)
    kept = [Large.remote(), Later.remote(never)]
    deadline = time.monotonic() + 20
    while True:
        rows = {row.name: row.state for row in state.list_tasks(limit=100_000)}
        states = rows.get("Large.__init__"), rows.get("Later.__init__")
        if states == ("PENDING_NODE_ASSIGNMENT", "PENDING_ARGS_AVAIL"):
            break
        assert time.monotonic() < deadline, states
        time.sleep(0.02)
    del kept
    ray.cancel(never)


def test_failed_constructor_is_a_failed_call(session: None) -> None:
    @ray.remote
    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("stillborn")

    broken = Broken.remote()
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(broken.__ray_ready__.remote())
    rows = state.list_tasks(
        filters=[("actor_id", "=", broken._actor_id.hex())], detail=True
    )
    assert [(row.name, row.state) for row in rows if "init" in row.name] == [
        ("Broken.__init__", "FAILED")
    ]


def test_retried_errors_are_attempts(session: None, tmp_path: Path) -> None:
    @ray.remote(max_retries=2, retry_exceptions=True)
    def third_time(path: str) -> int:
        with open(path, "a") as file:
            file.write("x")
        if os.path.getsize(path) < 3:
            raise ValueError("not yet")
        return 1

    ref = third_time.remote(str(tmp_path / "count"))
    assert ray.get(ref) == 1
    rows = state.get_task(ref)
    assert isinstance(rows, list)
    assert [(row.attempt_number, row.state) for row in rows] == [
        (0, "FAILED"),
        (1, "FAILED"),
        (2, "FINISHED"),
    ]


def test_calls_of_threads_and_event_loops_are_noted(session: None) -> None:
    @ray.remote(max_concurrency=2)
    class Threaded:
        def work(self) -> int:
            return 1

    @ray.remote
    class Async:
        async def work(self) -> int:
            return 1

        async def fail(self) -> None:
            raise ValueError("async")

    threaded, loop = Threaded.remote(), Async.remote()
    ray.get([threaded.work.remote(), loop.work.remote()])
    with pytest.raises(ValueError, match="async"):
        ray.get(loop.fail.remote())
    found = {
        row.name: row.state for row in state.list_tasks(limit=100_000) if row.actor_id
    }
    assert found["Threaded.work"] == found["Async.work"] == "FINISHED"
    assert found["Async.fail"] == "FAILED"


def test_running_call_has_its_process_and_time(session: None, tmp_path: Path) -> None:
    @ray.remote
    def wait(path: str) -> int:
        Path(path).touch()
        time.sleep(3600)
        return os.getpid()

    path = tmp_path / "started"
    before_ms = time.time() * 1000
    ref = wait.remote(str(path))
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    row = state.get_task(ref)
    assert row.state == "RUNNING"  # type: ignore[union-attr]
    assert before_ms - 1000 < row.start_time_ms < time.time() * 1000  # type: ignore[union-attr, operator]
    bars = [one for one in ray.timeline() if one["cat"] == "task::wait"]
    assert len(bars) == 1
    ray.cancel(ref, force=True)


def test_lineage_has_what_called_what(session: None) -> None:
    @ray.remote
    def inner() -> int:
        return 1

    @ray.remote
    def outermost() -> int:
        return sum(ray.get([inner.remote() for _ in range(3)]))

    assert ray.get(outermost.remote()) == 3
    client = state.StateApiClient()
    from rayshim.util.state.common import SummaryApiOptions, SummaryResource

    found = client.summary(
        SummaryResource.TASKS,
        options=SummaryApiOptions(summary_by="lineage"),
        raise_on_missing_output=True,
    )["cluster"]
    outer = next(one for one in found["summary"] if one["name"] == "outermost")
    assert [(one["name"], one["type"]) for one in outer["children"]] == [
        ("inner", "GROUP")
    ]
    assert outer["state_counts"] == {"FINISHED": 4}


def test_client_says_what_it_asks(session: None) -> None:
    client = state.StateApiClient()
    assert client.get_address()
    assert client.get_version() == ray.__version__
    with pytest.raises(ValueError, match="cookies"):
        state.StateApiClient(cookies={"a": "b"})
    with pytest.raises(ValueError, match="by id"):
        client.get(StateResource.RUNTIME_ENVS, "x", None)


def test_cluster_events_tell_of_actors(session: None) -> None:
    thing = Thing.remote()
    ray.get(thing.pid.remote())
    actor_id = thing._actor_id.hex()
    rows = state.list_cluster_events(detail=True, limit=10_000)
    states = [
        row.custom_fields["state"]
        for row in rows
        if row.custom_fields["id"] == actor_id
    ]
    assert states[0] == "DEPENDENCIES_UNREADY"
    assert states[-1] == "ALIVE"


def test_nothing_runs_at_an_address_without_a_cluster() -> None:
    with pytest.raises(ConnectionError):
        state.list_nodes(address="127.0.0.1:1")
