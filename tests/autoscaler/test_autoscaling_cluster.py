"""Real nodes of this machine that come when work waits and go when it is done."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from rayshim.autoscaler.autoscaling_cluster import AutoscalingCluster
from rayshim.util.placement_group import placement_group, remove_placement_group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

LIMIT_S = 60.0
#: The acceptance limit for coming from no node and going back to none.
ROUND_TRIP_LIMIT_S = 20.0
IDLE_S = 1.0

CPU = {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 2}
GPU = {"resources": {"CPU": 2, "GPU": 1}, "node_config": {}, "max_workers": 1}


def wait_until(
    condition: Callable[[], Any],
    limit_s: float = LIMIT_S,
    seen: Callable[[], Any] = lambda: "",
) -> Any:
    end_s = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < end_s, f"it did not happen in time: {seen()}"
        time.sleep(0.02)
    return value


@pytest.fixture
def start() -> Iterator[Callable[..., AutoscalingCluster]]:
    made: list[AutoscalingCluster] = []

    def start(worker_types: dict[str, Any], **options: Any) -> AutoscalingCluster:
        options.setdefault("idle_timeout_minutes", IDLE_S / 60)
        cluster = AutoscalingCluster({"CPU": 0}, worker_types, **options)
        made.append(cluster)
        cluster.start()
        ray.init("auto", log_to_driver=False)
        return cluster

    yield start
    ray.shutdown()
    for cluster in made:
        cluster.shutdown()


def groups() -> dict[str, int]:
    """Group -> its living nodes."""
    found: dict[str, int] = {}
    for node in ray.nodes():
        group = node["Labels"].get("ray.io/node-group")
        if node["Alive"] and group:
            found[group] = found.get(group, 0) + 1
    return found


def alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


@ray.remote
def double(value: int) -> int:
    return 2 * value


@ray.remote(num_gpus=1)
def gpus() -> list[int]:
    return ray.get_gpu_ids()


@ray.remote(num_cpus=1)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


@ray.remote(max_retries=0)
def make(value: int) -> np.ndarray:
    return np.full(1 << 20, value, np.uint8)


@ray.remote
def wait_for(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.02)
    return ray.get_runtime_context().get_node_id()


def test_from_no_node_and_back(start: Any, record_property: Any) -> None:
    start({"cpu": CPU, "gpu": GPU})
    began_s = time.monotonic()

    calls = [double.remote(value) for value in range(20)]
    on_gpu = gpus.remote()
    counter = Counter.remote()
    assert ray.get(calls, timeout=LIMIT_S) == [2 * value for value in range(20)]
    assert ray.get(on_gpu, timeout=LIMIT_S) == [0]
    assert ray.get(counter.add.remote(), timeout=LIMIT_S) == 1
    group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
    assert group.wait(LIMIT_S)
    remove_placement_group(group)
    del counter
    wait_until(lambda: not groups())

    took_s = time.monotonic() - began_s
    record_property("round_trip_s", took_s)
    print(f"from no node and back: {took_s:.1f} s")
    assert took_s < ROUND_TRIP_LIMIT_S


def test_never_more_nodes_than_the_group_may_have(start: Any, tmp_path: Any) -> None:
    cluster = start({"cpu": CPU})
    gate = tmp_path / "open"
    held = [wait_for.remote(str(gate)) for _ in range(12)]
    wait_until(lambda: groups() == {"cpu": 2})
    wait_until(lambda: any("limited to 2" in one for one in cluster.status.lines()))
    assert len(cluster.cluster.worker_nodes) == 2
    gate.touch()
    assert len(set(ray.get(held, timeout=LIMIT_S))) <= 2


def test_a_placement_group_gets_all_of_its_nodes_or_none(start: Any) -> None:
    cluster = start({"cpu": CPU})
    large = placement_group([{"CPU": 2}] * 3, strategy="STRICT_SPREAD")
    wait_until(lambda: cluster.status.plan.infeasible or cluster.status.plan.waiting)
    assert len(cluster.cluster.worker_nodes) == 0
    remove_placement_group(large)
    small = placement_group([{"CPU": 2}] * 2, strategy="STRICT_SPREAD")
    assert small.wait(LIMIT_S)
    assert groups() == {"cpu": 2}


def test_what_fits_nowhere_is_explained(start: Any) -> None:
    start({"cpu": CPU})
    call = double.options(num_cpus=64).remote(1)

    def told() -> str:
        text = str(ray.explain(call))
        return text if "fits no group" in text else ""

    assert "64" in wait_until(told)
    assert groups() == {}


def test_a_node_in_use_and_the_only_copy_of_a_value_are_kept(
    start: Any,
) -> None:
    start({"cpu": CPU, "gpu": GPU})
    counter = Counter.remote()
    assert ray.get(counter.add.remote(), timeout=LIMIT_S) == 1
    made = make.options(num_gpus=1).remote(7)
    ray.wait([made], timeout=LIMIT_S, fetch_local=False)
    assert groups() == {"cpu": 1, "gpu": 1}

    wait_until(lambda: "gpu" not in groups())

    assert groups() == {"cpu": 1}
    assert ray.get(counter.add.remote(), timeout=LIMIT_S) == 2
    assert int(ray.get(made, timeout=LIMIT_S)[0]) == 7


def test_a_killed_node_is_replaced_while_so_many_must_be_there(start: Any) -> None:
    cluster = start({"cpu": {**CPU, "min_workers": 1}})
    wait_until(lambda: groups() == {"cpu": 1})
    (node,) = cluster.cluster.worker_nodes

    os.kill(node.pid, signal.SIGKILL)

    wait_until(lambda: node.node_id not in alive())
    wait_until(lambda: groups() == {"cpu": 1})
    assert ray.get(double.remote(4), timeout=LIMIT_S) == 8


def test_nothing_is_lost_or_started_twice_when_the_head_is_restarted(
    start: Any, tmp_path: Any
) -> None:
    cluster = start({"cpu": CPU})
    gate = tmp_path / "open"
    held = [wait_for.remote(str(gate)) for _ in range(4)]
    wait_until(lambda: groups() == {"cpu": 2})
    before = alive()

    head = cluster.cluster.head_node
    head.kill_gcs_server()
    wait_until(lambda: "does not answer" in cluster.status.note)
    head.start_gcs_server()

    wait_until(lambda: not cluster.status.note)
    wait_until(
        lambda: alive() == before,
        seen=lambda: (before, ray.nodes(), cluster.status.lines()),
    )
    gate.touch()
    ray.get(held, timeout=LIMIT_S)
    assert len(cluster.cluster.worker_nodes) <= 2
    wait_until(lambda: not groups())
