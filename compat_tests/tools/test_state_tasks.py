"""``list_tasks``, ``get_task`` and ``summarize_tasks``: the same on both back ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import ray
from ray.util import state
from ray.util.state.common import ListApiOptions, StateResource, TaskState
from ray.util.state.exception import RayStateApiException

from .state_parts import session, until

#: Starting real Ray and its workers takes long on a busy machine.
pytestmark = pytest.mark.timeout(180)


class World:
    """What was done before anybody looks."""

    def __init__(self) -> None:
        @ray.remote
        def square(x: int) -> int:
            return x * x

        @ray.remote(name="renamed")
        def outer() -> int:
            return ray.get(square.remote(3))

        @ray.remote(max_retries=0)
        def broken() -> None:
            raise ValueError("no luck")

        @ray.remote
        def endless() -> None:
            time.sleep(3600)

        @ray.remote(num_cpus=2, max_retries=1)
        def crashing() -> None:
            import os

            os._exit(1)

        @ray.remote
        class Counter:
            def up(self) -> int:
                return 1

            def fall(self) -> None:
                raise KeyError("down")

        self.counter = Counter.remote()
        self.up = self.counter.up.remote()
        self.squares = [square.remote(i) for i in range(3)]
        self.outer = outer.remote()
        ray.get([self.up, self.outer, *self.squares])
        # A process that crashes may take with it what it has not told yet.
        until(
            lambda: state.list_tasks(filters=[("name", "=", "square")]),
            lambda rows: [row.state for row in rows] == ["FINISHED"] * 4,
        )
        self.broken = broken.remote()
        self.fallen = self.counter.fall.remote()
        ray.wait([self.broken, self.fallen], num_returns=2)
        until(
            lambda: [of(self.broken), of(self.fallen)],
            lambda rows: all(row is not None and row.state == "FAILED" for row in rows),
        )
        self.crashed = crashing.remote()
        ray.wait([self.crashed])
        self.after_broken = square.remote(self.broken)
        ray.wait([self.after_broken])
        self.running = [endless.options(num_cpus=2).remote() for _ in range(2)]
        self.waiting = endless.options(num_cpus=4).remote()
        self.blocked = square.remote(self.running[0])
        self.cancelled = endless.options(num_cpus=4).remote()
        ray.cancel(self.cancelled)
        ray.wait([self.cancelled])


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with session():
        world = World()
        until(
            lambda: state.list_tasks(filters=[("state", "=", "RUNNING")]),
            lambda rows: len(rows) == 2,
        )
        yield world


def of(ref: Any) -> Any:
    """The row of the call that made a reference."""
    return state.get_task(ref)


def settled(ref: Any, *states: str) -> Any:
    """The row of a call, once its state is one of some."""
    return until(lambda: of(ref), lambda row: row is not None and row.state in states)


def test_finished_task(world: World) -> None:
    row = settled(world.squares[0], "FINISHED")
    assert isinstance(row, TaskState)
    assert row.task_id == world.squares[0].task_id().hex()
    assert (row.name, row.func_or_class_name) == ("square", "square")
    assert (row.type, row.attempt_number, row.error_type) == ("NORMAL_TASK", 0, None)
    assert row.job_id == ray.get_runtime_context().get_job_id()
    assert row.node_id == ray.get_runtime_context().get_node_id()
    assert row.worker_pid > 0
    assert row.worker_id


def test_details_of_a_finished_task(world: World) -> None:
    row = settled(world.squares[1], "FINISHED")
    assert row.language == "PYTHON"
    assert row.required_resources == {"CPU": 1.0}
    assert row.start_time_ms <= row.end_time_ms
    assert [event["state"] for event in row.events][-2:] == ["RUNNING", "FINISHED"]
    assert row.placement_group_id is None


def test_renamed_task_goes_by_its_name(world: World) -> None:
    row = settled(world.outer, "FINISHED")
    assert (row.name, row.func_or_class_name) == ("renamed", "outer")


def test_parent_of_a_nested_task(world: World) -> None:
    outer = settled(world.outer, "FINISHED")
    children = until(
        lambda: state.list_tasks(filters=[("parent_task_id", "=", outer.task_id)]),
        bool,
    )
    assert [child.name for child in children] == ["square"]


def test_parent_of_a_drivers_task(world: World) -> None:
    row = settled(world.squares[0], "FINISHED")
    assert row.parent_task_id == "ff" * 20 + row.job_id


def test_failed_task(world: World) -> None:
    row = settled(world.broken, "FAILED")
    assert row.error_type == "TASK_EXECUTION_EXCEPTION"
    assert "no luck" in row.error_message


def test_actor_method(world: World) -> None:
    row = settled(world.up, "FINISHED")
    assert (row.name, row.type) == ("Counter.up", "ACTOR_TASK")
    assert row.actor_id == world.counter._actor_id.hex()


def test_failed_actor_method(world: World) -> None:
    row = settled(world.fallen, "FAILED")
    assert (row.name, row.error_type) == ("Counter.fall", "TASK_EXECUTION_EXCEPTION")


def test_constructor(world: World) -> None:
    rows = until(
        lambda: state.list_tasks(filters=[("type", "=", "ACTOR_CREATION_TASK")]), bool
    )
    assert [(row.name, row.state) for row in rows] == [("Counter.__init__", "FINISHED")]
    assert rows[0].actor_id == world.counter._actor_id.hex()


def test_running_task(world: World) -> None:
    row = settled(world.running[0], "RUNNING")
    assert row.worker_pid > 0
    assert row.start_time_ms > 0
    assert not row.end_time_ms


def test_task_that_waits_for_a_place(world: World) -> None:
    assert settled(world.waiting, "PENDING_NODE_ASSIGNMENT").worker_pid is None


def test_task_that_waits_for_an_argument(world: World) -> None:
    assert settled(world.blocked, "PENDING_ARGS_AVAIL").node_id is None


def test_cancelled_task(world: World) -> None:
    assert settled(world.cancelled, "FAILED").error_type == "TASK_CANCELLED"


def test_task_whose_argument_failed(world: World) -> None:
    assert settled(world.after_broken, "FAILED").error_type is not None


def test_attempts_of_a_crashed_task_are_rows(world: World) -> None:
    rows = until(
        lambda: state.list_tasks(filters=[("name", "=", "crashing")]),
        lambda rows: [row.state for row in rows] == ["FAILED", "FAILED"],
    )
    assert sorted(row.attempt_number for row in rows) == [0, 1]
    assert {row.error_type for row in rows} == {"WORKER_DIED"}
    assert len({row.task_id for row in rows}) == 1


def test_get_task_of_several_attempts_is_a_list(world: World) -> None:
    rows = until(lambda: of(world.crashed), lambda rows: isinstance(rows, list))
    assert len(rows) == 2


def test_get_task_by_hex(world: World) -> None:
    text = world.squares[0].task_id().hex()
    assert settled(world.squares[0], "FINISHED") == state.get_task(text)


def test_get_task_that_is_not_there(world: World) -> None:
    assert state.get_task("00" * 24) is None


def test_get_task_of_a_wrong_id(world: World) -> None:
    with pytest.raises(RayStateApiException):
        state.get_task("ff")


def test_filters_are_joined(world: World) -> None:
    rows = until(
        lambda: state.list_tasks(
            filters=[("state", "=", "FINISHED"), ("name", "=", "square")]
        ),
        lambda rows: len(rows) == 4,
    )
    assert {row.name for row in rows} == {"square"}


def test_filter_without(world: World) -> None:
    rows = state.list_tasks(filters=[("name", "!=", "square")], limit=1000)
    assert rows
    assert "square" not in {row.name for row in rows}


def test_filter_regards_no_case(world: World) -> None:
    rows = state.list_tasks(filters=[("state", "=", "running")])
    assert len(rows) == 2


def test_filter_of_a_number_as_text(world: World) -> None:
    row = settled(world.running[0], "RUNNING")
    rows = state.list_tasks(filters=[("worker_pid", "=", str(row.worker_pid))])
    assert row.task_id in {one.task_id for one in rows}


def test_filter_of_an_unknown_column(world: World) -> None:
    with pytest.raises(RayStateApiException, match="foo"):
        state.list_tasks(filters=[("foo", "=", "1")])


def test_filter_of_a_column_that_does_not_filter(world: World) -> None:
    with pytest.raises(RayStateApiException, match="required_resources"):
        state.list_tasks(filters=[("required_resources", "=", "1")])


def test_filter_with_another_comparison(world: World) -> None:
    with pytest.raises(ValueError, match="predicate"):
        state.list_tasks(filters=[("state", ">", "RUNNING")])


def test_filters_that_are_no_list(world: World) -> None:
    with pytest.raises(ValueError, match="filters"):
        state.list_tasks(filters="state=RUNNING")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*multiple.*", "ignore:two.*")
def test_filters_that_contradict_find_nothing(world: World) -> None:
    rows = state.list_tasks(
        filters=[("state", "=", "RUNNING"), ("state", "=", "FAILED")]
    )
    assert rows == []


def test_limit(world: World) -> None:
    assert len(state.list_tasks(limit=2)) == 2
    assert state.list_tasks(limit=0) == []


def test_negative_limit(world: World) -> None:
    with pytest.raises(RayStateApiException):
        state.list_tasks(limit=-1)


@pytest.mark.differs("state-limit")
def test_limit_above_ten_thousand(world: World) -> None:
    with pytest.raises(RayStateApiException):
        state.list_tasks(limit=20_000)


def test_without_detail_columns_are_none(world: World) -> None:
    rows = state.list_tasks(filters=[("name", "=", "square")])
    assert {row.start_time_ms for row in rows} == {None}
    assert {row.required_resources for row in rows} == {None}


def test_with_detail_columns_are_filled(world: World) -> None:
    rows = state.list_tasks(filters=[("name", "=", "square")], detail=True)
    assert {row.language for row in rows} == {"PYTHON"}


def test_rows_are_mappings_too(world: World) -> None:
    row = state.list_tasks(limit=1)[0]
    assert row["name"] == row.name == row.get("name")
    assert row.get("nothing", 3) == 3
    assert row.asdict()["task_id"] == row.task_id


def test_summary_counts_by_name_and_state(world: World) -> None:
    summary = until(
        lambda: state.summarize_tasks()["cluster"],
        lambda found: found["summary"]["square"]["state_counts"].get("FINISHED") == 4,
    )
    assert summary["summary_by"] == "func_name"
    square = summary["summary"]["square"]
    assert square["type"] == "NORMAL_TASK"
    assert square["state_counts"]["PENDING_ARGS_AVAIL"] == 1
    assert summary["total_actor_tasks"] == 2
    assert summary["total_actor_scheduled"] == 1


def test_client_lists_as_the_function_does(world: World) -> None:
    client = state.StateApiClient()
    options = ListApiOptions(filters=[("name", "=", "renamed")])
    rows = client.list(StateResource.TASKS, options, raise_on_missing_output=True)
    assert [row.name for row in rows] == ["renamed"]


def test_timeline_has_a_bar_for_each_call(world: World) -> None:
    def bars() -> list[dict[str, Any]]:
        return [one for one in ray.timeline() if one["cat"] == "task::square"]

    found = until(bars, lambda found: len(found) >= 4)
    for bar in found:
        assert bar["ph"] == "X"
        assert bar["dur"] >= 0
        assert bar["tid"].startswith("worker:")
        assert bar["args"]["task_id"]


def test_timeline_writes_a_file(world: World, tmp_path: Any) -> None:
    import json

    path = tmp_path / "timeline.json"
    assert ray.timeline(str(path)) is None
    assert json.loads(path.read_text())
