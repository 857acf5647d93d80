"""Nodes that come when work waits, and go when nothing needs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_S = 90.0
#: Long enough that a node is there for the next look, short enough to wait for.
IDLE_S = 4.0
WORKER_TYPES = {
    "small": {
        "resources": {"CPU": 2, "small": 2},
        "labels": {"region": "here"},
        "node_config": {},
        "min_workers": 0,
        "max_workers": 2,
    },
    "gpu": {
        "resources": {"CPU": 1, "GPU": 1},
        "node_config": {},
        "min_workers": 0,
        "max_workers": 1,
    },
}


@pytest.fixture(scope="module")
def autoscaled(backend: str, shared_cluster: Any) -> Iterator[Any]:
    if backend == "ray":
        pytest.skip(
            "its wheels lack the file that AutoscalingCluster reads, and start() runs "
            "`ray stop --force`, which ends every Ray of the machine"
        )
    from ray.cluster_utils import AutoscalingCluster

    shared_cluster.stop()
    cluster = AutoscalingCluster(
        {"CPU": 0}, WORKER_TYPES, idle_timeout_minutes=IDLE_S / 60
    )
    try:
        cluster.start()
        ray.init("auto", log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def wait_until(condition: Callable[[], Any]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, f"it did not happen: {ray.nodes()}"
        time.sleep(0.1)


def workers() -> list[dict[str, float]]:
    """Resources of the living nodes but the head's."""
    return [
        node["Resources"]
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU")
    ]


def wait_for_none() -> None:
    wait_until(lambda: not workers())


def test_a_call_brings_a_node_which_goes_when_it_is_idle(autoscaled: Any) -> None:
    @ray.remote(num_cpus=1)
    def where() -> str:
        return str(ray.get_runtime_context().get_node_id())

    assert workers() == []
    node_id = ray.get(where.remote(), timeout=LIMIT_S)
    (row,) = [row for row in ray.nodes() if row["NodeID"] == node_id]
    assert row["Resources"]["small"] == 2
    assert row["Labels"]["region"] == "here"
    wait_for_none()


def test_a_call_with_a_gpu_gets_a_node_that_has_one(autoscaled: Any) -> None:
    @ray.remote(num_gpus=1, num_cpus=0)
    def gpus() -> list[int]:
        return list(map(int, ray.get_gpu_ids()))

    assert ray.get(gpus.remote(), timeout=LIMIT_S) == [0]
    assert [node.get("GPU") for node in workers()] == [1]
    wait_for_none()


def test_a_node_stays_while_an_actor_lives_there(autoscaled: Any) -> None:
    @ray.remote(num_cpus=1)
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

    counter = Counter.remote()
    assert ray.get(counter.add.remote(), timeout=LIMIT_S) == 1
    time.sleep(2 * IDLE_S)  # nothing must happen in this time
    assert ray.get(counter.add.remote(), timeout=LIMIT_S) == 2
    assert len(workers()) == 1
    del counter
    wait_for_none()


def test_a_spread_placement_group_brings_all_of_its_nodes(autoscaled: Any) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": 2}] * 2, strategy="STRICT_SPREAD")
    assert group.wait(LIMIT_S)
    assert [node["CPU"] for node in workers()] == [2, 2]
    remove_placement_group(group)
    wait_for_none()


def test_no_more_nodes_come_than_may(autoscaled: Any) -> None:
    @ray.remote(num_cpus=1)
    def hold() -> str:
        time.sleep(1.0)
        return str(ray.get_runtime_context().get_node_id())

    calls = [hold.remote() for _ in range(12)]
    most = 0
    while calls:
        done, calls = ray.wait(calls, timeout=0.1)
        ray.get(done)
        most = max(most, len([one for one in workers() if "small" in one]))
    assert most == 2
    wait_for_none()
