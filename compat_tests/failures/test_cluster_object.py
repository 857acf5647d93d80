"""The ``Cluster`` object itself: starting, adding, removing, ending."""

from __future__ import annotations

import pytest

import ray
from failures.placed import GET_LIMIT_S, where

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)

STORE_BYTES = 100 * 1024 * 1024


def test_connect_needs_a_head(ray_cluster):
    with pytest.raises(RuntimeError, match="Cannot connect to uninitialized cluster"):
        ray_cluster(connect=True)


def test_an_empty_cluster_has_nothing(ray_cluster):
    cluster = ray_cluster()
    assert cluster.address is None
    assert cluster.head_node is None
    assert cluster.worker_nodes == set()
    assert cluster.list_all_nodes() == []
    assert cluster.connected is False
    cluster.shutdown()
    assert not ray.is_initialized()


def test_the_first_node_added_is_the_head(ray_cluster):
    cluster = ray_cluster()
    head = cluster.add_node(
        num_cpus=2, object_store_memory=STORE_BYTES, include_dashboard=False
    )
    assert cluster.head_node is head
    assert cluster.worker_nodes == set()
    ray.init(address=cluster.address, log_to_driver=False)
    assert ray.get_runtime_context().get_node_id() == head.node_id
    assert ray.cluster_resources()["CPU"] == 2
    assert ray.get(where.remote(), timeout=GET_LIMIT_S) == head.node_id


def test_life_of_a_cluster(ray_cluster):
    cluster = ray_cluster(initialize_head=True, connect=True)
    assert cluster.connected
    assert ray.is_initialized()
    host, port = cluster.address.rsplit(":", 1)
    assert host
    assert int(port) > 0
    assert cluster.gcs_address == cluster.address

    worker = cluster.add_node(
        num_cpus=2,
        num_gpus=1,
        resources={"disk": 3},
        labels={"zone": "north"},
        object_store_memory=STORE_BYTES,
        memory=500 * 1024 * 1024,
    )
    assert cluster.worker_nodes == {worker}
    assert cluster.list_all_nodes() == [cluster.head_node, worker]
    row = next(row for row in ray.nodes() if row["NodeID"] == worker.node_id)
    assert row["Alive"] is True
    assert row["Labels"]["zone"] == "north"
    shown = {name: row["Resources"][name] for name in ("CPU", "GPU", "disk")}
    assert shown == {"CPU": 2, "GPU": 1, "disk": 3}
    assert row["Resources"]["object_store_memory"] == STORE_BYTES
    assert row["Resources"]["memory"] == 500 * 1024 * 1024

    cluster.remove_node(worker)
    assert cluster.worker_nodes == set()
    assert cluster.list_all_nodes() == [cluster.head_node]
    cluster.wait_for_nodes()
    with pytest.raises(KeyError):
        cluster.remove_node(worker)

    ray.shutdown()
    cluster.shutdown()
    assert cluster.head_node is None
    assert cluster.address is None
    cluster.shutdown()


def test_add_node_without_arguments_has_one_cpu(ray_cluster):
    cluster = ray_cluster(initialize_head=True, connect=True)
    node = cluster.add_node()
    row = next(row for row in ray.nodes() if row["NodeID"] == node.node_id)
    assert row["Resources"]["CPU"] == 1
    assert "GPU" not in row["Resources"]
    assert row["Resources"]["object_store_memory"] == 150 * 1024 * 1024


def test_wait_for_nodes_counts_what_was_added(ray_cluster):
    cluster = ray_cluster(initialize_head=True, connect=True)
    cluster.add_node(wait=False, num_cpus=1, object_store_memory=STORE_BYTES)
    cluster.add_node(wait=False, num_cpus=1, object_store_memory=STORE_BYTES)
    cluster.wait_for_nodes()
    assert sum(row["Alive"] for row in ray.nodes()) == 3
    assert ray.cluster_resources()["CPU"] == 3


def test_wait_for_nodes_misses_a_node_that_died_by_itself(ray_cluster, wait_until):
    cluster = ray_cluster(initialize_head=True, connect=True)
    node = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
    wait_until(lambda: sum(row["Alive"] for row in ray.nodes()) == 1)
    with pytest.raises(TimeoutError):
        cluster.wait_for_nodes(timeout=1)


def test_bad_arguments_of_add_node_name_themselves(ray_cluster):
    cluster = ray_cluster(initialize_head=True)
    with pytest.raises(TypeError, match="nonsense"):
        cluster.add_node(nonsense=1)
    with pytest.raises(ValueError, match="nonnegative"):
        cluster.add_node(num_cpus=-1)
    with pytest.raises(ValueError, match="whole numbers"):
        cluster.add_node(resources={"tape": 0.5})
    assert cluster.list_all_nodes() == [cluster.head_node]


def test_the_node_of_the_driver_cannot_be_removed(ray_cluster):
    cluster = ray_cluster(initialize_head=True, connect=True)
    with pytest.raises(ValueError, match="not allowed"):
        cluster.remove_node(cluster.head_node)
    # Ray also disconnects the driver; the node stays in either case.
    ray.shutdown()
    assert cluster.head_node is not None
    ray.init(address=cluster.address, log_to_driver=False)
    assert ray.get(where.remote(), timeout=GET_LIMIT_S) == cluster.head_node.node_id


def test_a_cluster_outlives_its_drivers(ray_cluster):
    cluster = ray_cluster(initialize_head=True)
    jobs = set()
    for _ in range(3):
        ray.init(address=cluster.address, log_to_driver=False)
        jobs.add(ray.get_runtime_context().get_job_id())
        head_id = ray.get(where.remote(), timeout=GET_LIMIT_S)
        assert head_id == cluster.head_node.node_id
        ray.shutdown()
    assert len(jobs) == 3


def test_a_cluster_can_be_started_again(ray_cluster):
    cluster = ray_cluster(initialize_head=True)
    first = cluster.address
    cluster.shutdown()
    cluster.add_node(
        num_cpus=1, object_store_memory=STORE_BYTES, include_dashboard=False
    )
    assert first is not None
    ray.init(address=cluster.address, log_to_driver=False)
    assert ray.get(where.remote(), timeout=GET_LIMIT_S) == cluster.head_node.node_id
