"""State of actors, objects, nodes, jobs, workers and groups: as in Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

import ray
from ray.util import state
from ray.util.placement_group import placement_group
from ray.util.state.common import (
    ActorState,
    ActorSummaries,
    ListApiOptions,
    NodeState,
    ObjectState,
    TaskSummaries,
)
from ray.util.state.exception import RayStateApiException

from .state_parts import session, until

#: Starting real Ray and its workers takes long on a busy machine.
pytestmark = pytest.mark.timeout(180)


@ray.remote(num_cpus=0.5)
class Keeper:
    def pid(self) -> int:
        return os.getpid()

    def keep(self, refs: list[ray.ObjectRef]) -> None:
        self.refs = refs


@ray.remote
class Broken:
    def __init__(self) -> None:
        raise RuntimeError("stillborn")


class World:
    """What is there before anybody looks."""

    def __init__(self) -> None:
        @ray.remote
        def endless(x: object) -> None:
            time.sleep(3600)

        self.keeper = Keeper.options(name="keeper", namespace="state").remote()
        self.keeper_pid = ray.get(self.keeper.pid.remote())
        self.second = Keeper.remote()
        ray.get(self.second.pid.remote())
        self.dead = Keeper.options(name="dead", namespace="state").remote()
        ray.get(self.dead.pid.remote())
        ray.kill(self.dead)
        self.broken = Broken.remote()
        self.unplaced = Keeper.options(num_cpus=100).remote()
        self.large = ray.put(b"x" * 1_000_000)
        self.small = ray.put(1)
        self.used = ray.put([1, 2])
        self.task = endless.remote(self.used)
        self.lent = ray.put(b"y" * 500_000)
        ray.get(self.keeper.keep.remote([self.lent]))
        self.group = placement_group([{"CPU": 1}], name="mine", strategy="SPREAD")
        ray.get(self.group.ready())
        self.pending = placement_group([{"CPU": 100}], name="too large")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with session():
        yield World()


def actor(world: World, handle: object, *states: str) -> ActorState:
    """The row of an actor, once its state is one of some."""
    actor_id = handle._actor_id.hex()  # type: ignore[attr-defined]
    return until(
        lambda: state.get_actor(actor_id),
        lambda row: row is not None and row.state in states,
    )


def test_living_actor(world: World) -> None:
    row = actor(world, world.keeper, "ALIVE")
    assert isinstance(row, ActorState)
    assert (row.class_name, row.name, row.ray_namespace) == (
        "Keeper",
        "keeper",
        "state",
    )
    assert row.pid == world.keeper_pid
    assert row.node_id == ray.get_runtime_context().get_node_id()
    assert row.job_id == ray.get_runtime_context().get_job_id()
    assert row.num_restarts == 0
    assert row.is_detached is False
    assert row.required_resources == {"CPU": 0.5}
    assert row.death_cause is None


def test_killed_actor_says_why(world: World) -> None:
    row = actor(world, world.dead, "DEAD")
    assert "ray.kill" in str(row.death_cause)


def test_actor_whose_constructor_failed(world: World) -> None:
    assert "stillborn" in str(actor(world, world.broken, "DEAD").death_cause)


def test_actor_without_a_place(world: World) -> None:
    assert actor(world, world.unplaced, "PENDING_CREATION").pid == 0


def test_actors_by_state(world: World) -> None:
    actor(world, world.broken, "DEAD")
    rows = state.list_actors(filters=[("state", "=", "ALIVE")])
    assert {row.class_name for row in rows} == {"Keeper"}
    assert len(rows) == 2


def test_actors_by_name(world: World) -> None:
    rows = state.list_actors(filters=[("name", "=", "keeper")])
    assert [row.actor_id for row in rows] == [world.keeper._actor_id.hex()]


def test_actors_by_two_filters(world: World) -> None:
    actor(world, world.dead, "DEAD")
    rows = state.list_actors(
        filters=[("class_name", "=", "Keeper"), ("state", "!=", "ALIVE")]
    )
    assert {row.state for row in rows} == {"DEAD", "PENDING_CREATION"}


def test_actor_of_a_wrong_id(world: World) -> None:
    with pytest.raises(RayStateApiException):
        state.get_actor("ab")


def test_actor_that_is_not_there(world: World) -> None:
    assert state.get_actor("00" * 12 + "01000000") is None


def test_summary_of_actors(world: World) -> None:
    actor(world, world.dead, "DEAD")
    actor(world, world.broken, "DEAD")
    found = state.summarize_actors()["cluster"]
    assert found["total_actors"] == 5
    assert found["summary_by"] == "class"
    assert found["summary"]["Keeper"]["state_counts"] == {
        "ALIVE": 2,
        "DEAD": 1,
        "PENDING_CREATION": 1,
    }


def test_node(world: World) -> None:
    rows = state.list_nodes()
    assert len(rows) == 1
    row = rows[0]
    assert isinstance(row, NodeState)
    assert row.node_id == ray.get_runtime_context().get_node_id()
    assert (row.state, row.is_head_node) == ("ALIVE", True)
    assert row.resources_total["CPU"] == 4.0
    assert row.labels["ray.io/node-id"] == row.node_id


def test_node_by_id(world: World) -> None:
    node_id = ray.get_runtime_context().get_node_id()
    row = state.get_node(node_id)
    assert row is not None
    assert row.start_time_ms > 1_600_000_000_000


def test_nodes_that_are_dead(world: World) -> None:
    assert (
        state.list_nodes(
            filters=[("state", "=", "DEAD")], raise_on_missing_output=False
        )
        == []
    )


def held(ref: ray.ObjectRef, kind: str = "") -> list[ObjectState]:
    """The rows of an object, once one has this kind of reference."""
    return until(
        lambda: state.get_objects(ref.hex()),
        lambda rows: any(kind in (row.reference_type, "") for row in rows),
    )


def test_large_object(world: World) -> None:
    row = held(world.large, "LOCAL_REFERENCE")[0]
    assert isinstance(row, ObjectState)
    assert 1_000_000 <= row.object_size < 1_001_000
    assert (row.type, row.pid) == ("DRIVER", os.getpid())
    assert row.task_status == "FINISHED"
    assert row.attempt_number == 1


def test_small_object(world: World) -> None:
    assert 0 < held(world.small)[0].object_size < 100


def test_object_that_a_call_uses(world: World) -> None:
    rows = held(world.used, "USED_BY_PENDING_TASK")
    assert os.getpid() in {row.pid for row in rows}


def test_value_that_a_running_call_makes(world: World) -> None:
    row = held(world.task)[0]
    assert row.object_size == -1
    assert row.task_status in ("SUBMITTED_TO_WORKER", "RUNNING")


def test_borrower_has_a_row_of_its_own(world: World) -> None:
    rows = until(
        lambda: state.get_objects(world.lent.hex()),
        lambda rows: {row.pid for row in rows} == {os.getpid(), world.keeper_pid},
    )
    assert {row.type for row in rows} == {"DRIVER", "WORKER"}


def test_handle_of_an_actor_is_an_object(world: World) -> None:
    rows = state.list_objects(filters=[("reference_type", "=", "ACTOR_HANDLE")])
    assert rows


def test_objects_of_a_process(world: World) -> None:
    rows = state.list_objects(filters=[("pid", "=", os.getpid())], limit=1000)
    assert world.large.hex() in {row.object_id for row in rows}
    assert {row.pid for row in rows} == {os.getpid()}


def test_summary_of_objects(world: World) -> None:
    found = state.summarize_objects()["cluster"]
    assert found["summary_by"] == "callsite"
    assert found["total_objects"] >= 5
    assert found["total_size_mb"] > 1.4


def test_driver_is_a_job(world: World) -> None:
    rows = state.list_jobs()
    assert len(rows) == 1
    row = rows[0]
    assert (row.type, row.status) == ("DRIVER", "RUNNING")
    assert row.job_id == ray.get_runtime_context().get_job_id()
    assert row.entrypoint
    assert row.submission_id is None


def test_driver_is_a_worker(world: World) -> None:
    rows = state.list_workers(filters=[("worker_type", "=", "DRIVER")], detail=True)
    assert [row.pid for row in rows] == [os.getpid()]
    assert rows[0].is_alive


def test_executor_of_an_actor_is_a_worker(world: World) -> None:
    rows = state.list_workers(filters=[("pid", "=", world.keeper_pid)])
    assert [(row.worker_type, row.is_alive) for row in rows] == [("WORKER", True)]
    row = state.get_worker(rows[0].worker_id)
    assert row is not None
    assert row.pid == world.keeper_pid


def test_killed_executor_is_a_dead_worker(world: World) -> None:
    pid = actor(world, world.dead, "DEAD").pid
    rows = until(
        lambda: state.list_workers(filters=[("is_alive", "=", False)], detail=True),
        lambda rows: pid in {row.pid for row in rows},
    )
    row = next(row for row in rows if row.pid == pid)
    assert row.exit_type is not None
    assert row.end_time_ms > 0


def test_placement_group(world: World) -> None:
    row = until(
        lambda: state.get_placement_group(world.group.id.hex()),
        lambda row: row is not None and row.state == "CREATED",
    )
    assert (row.name, row.is_detached) == ("mine", False)
    assert row.bundles[0]["unit_resources"] == {"CPU": 1.0}
    assert row.bundles[0]["node_id"] == ray.get_runtime_context().get_node_id()
    assert row.creator_job_id == ray.get_runtime_context().get_job_id()


def test_pending_placement_group(world: World) -> None:
    rows = state.list_placement_groups(filters=[("state", "=", "PENDING")], detail=True)
    assert [row.name for row in rows] == ["too large"]


def test_runtime_envs(world: World) -> None:
    @ray.remote(runtime_env={"env_vars": {"COLOUR": "blue"}})
    def colour() -> str:
        return os.environ["COLOUR"]

    assert ray.get(colour.remote()) == "blue"
    rows = until(state.list_runtime_envs, bool)
    assert {"COLOUR": "blue"} in [row.runtime_env.get("env_vars") for row in rows]
    assert all(row.success for row in rows)


def test_columns_of_a_schema() -> None:
    assert "state" in ActorState.filterable_columns()
    assert "death_cause" in ActorState.columns() - ActorState.base_columns()
    assert "death_cause" not in ActorState.filterable_columns()
    assert ActorState.list_columns(detail=False)[0] == "actor_id"


def test_humanify_makes_sizes_readable() -> None:
    row = ObjectState.humanify({"object_size": 2048})
    assert row["object_size"] == "2.000 KiB"


def test_options_know_contradictions() -> None:
    fine = ListApiOptions(filters=[("a", "=", "1"), ("b", "!=", "2")])
    assert not fine.has_conflicting_filters()


def test_summary_classes_count_rows() -> None:
    tasks = [
        {"func_or_class_name": "f", "type": "NORMAL_TASK", "state": "FINISHED"},
        {"func_or_class_name": "f", "type": "NORMAL_TASK", "state": "RUNNING"},
        {"func_or_class_name": "A.m", "type": "ACTOR_TASK", "state": "FINISHED"},
    ]
    found = TaskSummaries.to_summary_by_func_name(tasks=tasks)
    assert found.summary["f"].state_counts == {"FINISHED": 1, "RUNNING": 1}
    assert (found.total_tasks, found.total_actor_tasks) == (2, 1)
    actors = [{"class_name": "A", "state": "ALIVE"}] * 2
    assert ActorSummaries.to_summary(actors=actors).total_actors == 2
