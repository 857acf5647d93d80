"""Placement groups whose nodes die."""

from __future__ import annotations

import time

import pytest

import ray
from failures.placed import GET_LIMIT_S, Keeper, where
from failures.witness import note_run, runs_in
from ray.exceptions import GetTimeoutError, NodeDiedError, RayActorError
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)


def get(ref):
    return ray.get(ref, timeout=GET_LIMIT_S)


@ray.remote(num_cpus=1)
def held(runs, gate):
    note_run(runs)
    while not gate.exists():
        time.sleep(0.02)
    return ray.get_runtime_context().get_node_id()


@pytest.fixture
def group(nodes):
    """A group with bundle 0 on the head's node and bundle 1 on a new one."""
    node = nodes.add(resources={"disk": 1})
    bundles = [{"CPU": 1, "head": 1}, {"CPU": 1, "disk": 1}]
    made = placement_group(bundles, strategy="STRICT_SPREAD")
    assert made.wait(30)
    yield made, node
    remove_placement_group(made)


def state(group):
    return placement_group_table(group)["state"]


def in_bundle(group, index):
    return {
        "num_cpus": 1,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(group, index),
    }


def test_a_group_waits_for_a_node_and_goes_on(nodes, group, wait_until):
    made, node = group
    nodes.kill(node)
    wait_until(lambda: state(made) == "RESCHEDULING")
    assert not made.wait(0.3)
    ref = where.options(**in_bundle(made, 1)).remote()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.5)
    other = nodes.add(resources={"disk": 1})
    assert made.wait(30)
    assert state(made) == "CREATED"
    assert placement_group_table(made)["bundles_to_node_id"] == {
        0: nodes.head_id,
        1: other.node_id,
    }
    assert get(ref) == other.node_id


def test_the_bundles_of_other_nodes_stay(nodes, group, wait_until):
    made, node = group
    keeper = Keeper.options(**in_bundle(made, 0)).remote()
    assert get(keeper.add.remote()) == 1
    nodes.kill(node)
    wait_until(lambda: state(made) == "RESCHEDULING")
    assert get(keeper.add.remote()) == 2
    assert get(keeper.node.remote()) == nodes.head_id


def test_a_running_task_of_a_lost_bundle(nodes, group, tmp_path, wait_until):
    made, node = group
    runs, gate = tmp_path / "runs", tmp_path / "gate"
    ref = held.options(max_retries=0, **in_bundle(made, 1)).remote(runs, gate)
    wait_until(lambda: runs_in(runs) == 1)
    nodes.kill(node)
    with pytest.raises(NodeDiedError):
        get(ref)


def test_a_task_of_a_lost_bundle_is_retried_in_it(nodes, group, tmp_path, wait_until):
    made, node = group
    runs, gate = tmp_path / "runs", tmp_path / "gate"
    ref = held.options(**in_bundle(made, 1)).remote(runs, gate)
    wait_until(lambda: runs_in(runs) == 1)
    nodes.kill(node)
    gate.touch()
    other = nodes.add(resources={"disk": 1})
    assert get(ref) == other.node_id
    assert runs_in(runs) == 2


def test_an_actor_of_a_lost_bundle_restarts_in_it(nodes, group):
    made, node = group
    options = in_bundle(made, 1)
    keeper = Keeper.options(max_restarts=1, max_task_retries=-1, **options).remote()
    assert get(keeper.node.remote()) == node.node_id
    nodes.kill(node)
    ref = keeper.node.remote()
    other = nodes.add(resources={"disk": 1})
    assert get(ref) == other.node_id


def test_an_actor_of_a_lost_bundle_dies(nodes, group):
    made, node = group
    keeper = Keeper.options(**in_bundle(made, 1)).remote()
    assert get(keeper.node.remote()) == node.node_id
    nodes.kill(node)
    with pytest.raises(RayActorError):
        get(keeper.node.remote())


def test_removing_a_group_that_waits_for_a_node(nodes, group, wait_until):
    made, node = group
    nodes.kill(node)
    wait_until(lambda: state(made) == "RESCHEDULING")
    remove_placement_group(made)
    wait_until(lambda: state(made) == "REMOVED")
    cpus = ray.cluster_resources()["CPU"]
    wait_until(lambda: ray.available_resources().get("CPU", 0) == cpus)


def test_a_spread_group_moves_to_another_node(nodes, wait_until):
    node = nodes.add()
    made = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
    assert made.wait(30)
    other = nodes.add()
    nodes.kill(node)
    wait_until(
        lambda: (
            state(made) == "CREATED"
            and set(placement_group_table(made)["bundles_to_node_id"].values())
            == {nodes.head_id, other.node_id}
        ),
        timeout_s=40,
    )
    remove_placement_group(made)
