"""What a cluster says of its nodes and resources while they come and go."""

from __future__ import annotations

import time

import pytest

import ray
from failures.placed import GET_LIMIT_S, nap, on, where

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)

STORE_BYTES = 100 * 1024 * 1024


def alive_ids():
    return {row["NodeID"] for row in ray.nodes() if row["Alive"]}


@ray.remote(num_cpus=0)
def context():
    here = ray.get_runtime_context()
    return {
        "node": here.get_node_id(),
        "job": here.get_job_id(),
        "namespace": here.namespace,
        "labels": here.get_node_labels(),
        "ip": ray.util.get_node_ip_address(),
    }


def test_a_node_comes_and_goes_in_the_table(nodes):
    before = alive_ids()
    node = nodes.add(resources={"disk": 2}, labels={"zone": "west"})
    assert alive_ids() == before | {node.node_id}
    row = nodes.row(node)
    assert row["alive"] is row["Alive"] is True
    assert row["Resources"]["CPU"] == 1
    assert row["Resources"]["disk"] == 2
    assert row["Labels"]["zone"] == "west"
    assert row["Labels"]["ray.io/node-id"] == node.node_id
    assert row["NodeManagerAddress"] == node.node_ip_address
    nodes.remove(node)
    assert alive_ids() == before


@pytest.mark.parametrize("how", ["kill", "remove"])
def test_a_dead_node_stays_in_the_table_without_resources(nodes, how):
    node = nodes.add(resources={"disk": 2})
    getattr(nodes, how)(node)
    row = nodes.row(node)
    assert row["Alive"] is row["alive"] is False
    assert row["Resources"] == {}


def test_a_node_that_returns_is_a_new_node(nodes):
    first = nodes.add(resources={"disk": 2})
    nodes.kill(first)
    second = nodes.add(resources={"disk": 2})
    assert second.node_id != first.node_id
    assert first.node_id not in alive_ids()
    assert second.node_id in alive_ids()


@pytest.mark.parametrize("how", ["kill", "remove"])
def test_cluster_resources_follow_the_nodes(nodes, wait_until, how):
    def total(name):
        return ray.cluster_resources().get(name, 0)

    cpus, store = total("CPU"), total("object_store_memory")
    node = nodes.add(num_cpus=2, resources={"disk": 2, "tape": 3})
    wait_until(lambda: total("CPU") == cpus + 2)
    assert (total("disk"), total("tape")) == (2, 3)
    assert total("object_store_memory") == store + STORE_BYTES
    getattr(nodes, how)(node)
    wait_until(lambda: total("CPU") == cpus)
    assert total("object_store_memory") == store
    assert "disk" not in ray.cluster_resources()
    assert "disk" not in ray.available_resources()


def test_the_head_is_marked_by_a_resource(nodes):
    nodes.stand("a")
    mark = "node:__internal_head__"
    marked = [row["NodeID"] for row in ray.nodes() if mark in row["Resources"]]
    assert marked == [nodes.head_id]
    task = where.options(num_cpus=0, resources={mark: 0.01})
    assert ray.get(task.remote(), timeout=GET_LIMIT_S) == nodes.head_id


def test_available_resources_show_a_task_of_another_node(nodes, wait_until):
    nodes.stand("a")
    wait_until(lambda: ray.available_resources().get("a") == 10)
    ref = nap.options(num_cpus=0, resources={"a": 4}).remote(300)
    wait_until(lambda: ray.available_resources().get("a") == 6)
    assert ray.cluster_resources()["a"] == 10
    ray.cancel(ref)
    wait_until(lambda: ray.available_resources().get("a") == 10)


def test_available_resources_come_back_after_a_loss(nodes, tmp_path, wait_until):
    node = nodes.add(resources={"disk": 2})
    started = tmp_path / "started"

    @ray.remote(num_cpus=1, resources={"disk": 1}, max_retries=0)
    def stay():
        started.touch()
        time.sleep(300)

    ref = stay.remote()
    wait_until(started.exists)
    nodes.kill(node)
    wait_until(lambda: "disk" not in ray.available_resources())
    assert ray.wait([ref], timeout=GET_LIMIT_S) == ([ref], [])
    wait_until(
        lambda: ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]
    )


def test_the_context_of_a_task_is_that_of_its_node(nodes):
    node = nodes.add(resources={"disk": 1}, labels={"zone": "east"})
    here = ray.get(context.options(**on("head")).remote())
    there = ray.get(context.options(**on("disk")).remote())
    assert here["node"] == nodes.head_id
    assert there["node"] == node.node_id
    assert there["job"] == here["job"] == ray.get_runtime_context().get_job_id()
    assert there["namespace"] == here["namespace"] == "failures"
    assert there["labels"]["zone"] == "east"
    assert "zone" not in here["labels"]


def test_every_process_knows_its_nodes_address(nodes):
    node = nodes.stand("a")
    assert ray.util.get_node_ip_address() == nodes.row(node)["NodeManagerAddress"]
    there = ray.get(context.options(**on("a")).remote())
    assert there["ip"] == nodes.row(node)["NodeManagerAddress"]


def test_a_task_sees_the_same_table(nodes):
    nodes.stand("a")

    @ray.remote(**on("a"))
    def table():
        ids = {row["NodeID"] for row in ray.nodes() if row["Alive"]}
        return ids, ray.cluster_resources()

    ids, resources = ray.get(table.remote(), timeout=GET_LIMIT_S)
    assert ids == alive_ids()
    assert resources == ray.cluster_resources()
