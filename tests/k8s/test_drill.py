"""Drills on real nodes: Kubernetes is a map of pods whose deletion kills a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dask_processes import DaskProcesses, wait_until
from platforms import small_platform
from rayshim.adapters.dask.platform_link import DaskLink
from rayshim.adapters.dask.platform_probe import DaskProbe
from rayshim.adapters.wire.address import parse_tcp
from rayshim.cluster_utils import Cluster
from rayshim.k8s import names
from rayshim.k8s.config import DrillLimits, HeadState, Platform
from rayshim.k8s.demand import ClusterLink, labels_of, open_link
from rayshim.k8s.drill import DRILLS, DrillError, DrillResult, run_drill
from rayshim.k8s.drill_probes import RayshimProbe
from rayshim.lineage.demand import NODE_GROUP_LABEL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LIMITS = DrillLimits(train_worker_s=30.0, serve_replica_s=30.0, head_s=30.0)


def platform_of(**changes: Any) -> Platform:
    made = small_platform(drill=LIMITS)
    cpu, gpu = made.groups
    head = replace(made.head, state=HeadState(kind="valkey"))
    groups = (replace(gpu, accelerator=None), replace(cpu, min=1))
    return replace(made, head=head, groups=groups, **changes)


class Pods:
    """Just enough of Kubernetes: pods with labels, whose deletion does something."""

    namespace = "ray-prod"

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, str]] = {}
        self.on_delete: Callable[[str], None] = lambda name: None
        self.graces: list[int | None] = []
        self._threads: list[threading.Thread] = []

    def list(self, kind: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        assert kind == "Pod"
        return [
            {"metadata": {"name": name, "labels": own}}
            for name, own in self.pods.items()
            if labels.items() <= own.items()
        ]

    def delete(self, kind: str, name: str, *, grace_s: int | None = None) -> bool:
        self.graces.append(grace_s)
        thread = threading.Thread(target=self.on_delete, args=(name,))
        thread.start()
        self._threads.append(thread)
        return True

    def close(self) -> None:
        for one in self._threads:
            one.join()


class World:
    """A cluster of real nodes, one for each pod."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        self.kube = Pods()
        self.kube.on_delete = self.deleted
        self.nodes: dict[str, Any] = {}
        self.kube.pods["demo-scheduler-0-0"] = {
            names.CLUSTER_NAME: "demo",
            names.COMPONENT: "scheduler",
        }
        for group, index in (("gpu", 1), ("gpu", 2), ("cpu", 3)):
            self.start(group, f"demo-{group}-worker-{index:010x}")
        self.place = parse_tcp(self.cluster.head_process_address)
        head = self.cluster._head
        assert head is not None
        self.token_path = head.config["token_path"]

    def start(self, group: str, worker: str) -> None:
        labels = {NODE_GROUP_LABEL: group, names.WORKER: worker}
        pod = f"{worker}-0-0"
        self.nodes[pod] = self.cluster.add_node(num_cpus=1, labels=labels)
        self.kube.pods[pod] = {names.GROUP: group}

    def deleted(self, pod: str) -> None:
        """The pod's process is killed; its Deployment brings another one."""
        if pod.startswith("demo-scheduler"):
            assert self.cluster.head_node is not None
            self.cluster.head_node.kill_gcs_server()
            self.cluster.head_node.start_gcs_server()
            return
        node = self.nodes.pop(pod)
        group = self.kube.pods[pod][names.GROUP]
        self.cluster.remove_node(node, allow_graceful=False)
        self.start(group, pod.removesuffix("-0-0"))

    def drill(self, name: str) -> tuple[DrillResult, list[str]]:
        said: list[str] = []
        host, port = self.place.host, self.place.port
        link = open_link(
            self.platform, host=host, port=port, token_path=self.token_path
        )
        try:
            found = run_drill(
                name,
                self.kube,  # type: ignore[arg-type]
                self.platform,
                link=link,
                probe=RayshimProbe(f"{host}:{port}", self.token_path),
                say=said.append,
            )
        finally:
            link.close()
            self.kube.close()
        return found, said

    def close(self) -> None:
        self.cluster.shutdown()


@pytest.fixture
def world() -> Iterator[World]:
    made = World(platform_of())
    yield made
    made.close()


def texts(result: DrillResult) -> list[str]:
    return [one.text for one in result.steps]


def test_a_training_worker_is_replaced_and_its_work_is_complete(world: World) -> None:
    result, said = world.drill("train-worker")

    assert result.is_passed, said
    assert result.exit_code == 0 and 0 < result.recovery_s < 30
    assert world.kube.graces == [0]
    killed, known, joined, works, complete = texts(result)
    assert killed.startswith("killed worker demo-gpu-worker-00000000")
    assert known == "the head knows that it is gone"
    assert joined.startswith("worker demo-gpu-worker-") and works == "it takes work"
    assert complete.endswith("pieces of work are complete")
    assert any("train-worker: kill a worker" in line for line in said)


def test_an_actor_answers_again_after_its_node_was_killed(world: World) -> None:
    result, said = world.drill("serve-replica")

    assert result.is_passed, said
    assert texts(result)[0].startswith("killed worker demo-cpu-worker-")
    assert texts(result)[1].startswith("the actor answers again, on node ")


def test_the_head_comes_back_with_its_state_and_all_workers(world: World) -> None:
    result, said = world.drill("head")

    assert result.is_passed, said
    assert texts(result)[1:] == [
        "another head answers",
        "the actor answers, with its state",
        "all 3 workers are back",
    ]


def test_more_than_the_limit_is_a_failed_check(world: World) -> None:
    world.platform = platform_of()
    limits = replace(LIMITS, serve_replica_s=0.001)
    world.platform = replace(world.platform, drill=limits)

    result, said = world.drill("serve-replica")

    assert not result.is_passed and result.exit_code == 1
    assert "the actor does not answer again" in result.failure
    assert said[-1].endswith(result.failure)


def test_what_cannot_be_held_says_why() -> None:
    link: Any = None

    class Silent:
        def demand(self) -> Any:
            raise ConnectionError("the head at demo:6379 does not answer")

    def drill(name: str, platform: Platform, link: Any = link) -> None:
        run_drill(name, Pods(), platform, link=link, probe=Idle(), say=list)  # type: ignore[arg-type]

    class Idle:
        keeps_state = True

        def end(self) -> None:
            pass

    with pytest.raises(DrillError, match="there are train-worker, serve-replica, head"):
        drill("all", platform_of(), Silent())
    with pytest.raises(DrillError, match=r"set head\.state in platform\.yaml"):
        drill("head", small_platform(), Silent())
    idle = replace(platform_of(), groups=(replace(small_platform().groups[0], min=0),))
    with pytest.raises(DrillError, match="has no serving group"):
        drill("serve-replica", idle, Silent())
    with pytest.raises(ConnectionError, match="does not answer"):
        drill("train-worker", platform_of(), Silent())
    assert set(DRILLS) == {"train-worker", "serve-replica", "head"}


# Dask's own.


@pytest.mark.chaos
@pytest.mark.parametrize("name", list(DRILLS))
def test_drills_of_dask(name: str, tmp_path: Path) -> None:
    platform = replace(platform_of(), runtime="dask")
    dask, kube = DaskProcesses(tmp_path), Pods()
    for group, index in (("gpu", 1), ("gpu", 2), ("cpu", 3), ("cpu", 4)):
        worker = f"demo-{group}-worker-{index:010x}"
        dask.start_worker(worker, "CPU=1")
        kube.pods[f"{worker}-0-0"] = {names.GROUP: group}
    kube.pods["demo-scheduler-0-0"] = {
        names.CLUSTER_NAME: "demo",
        names.COMPONENT: "scheduler",
    }

    def deleted(pod: str) -> None:
        name = pod.removesuffix("-0-0")
        if name == "demo-scheduler":
            workers = [one for one in dask.processes if one != "scheduler"]
            for one in ["scheduler", *workers]:
                dask.end(one)
            dask.start_scheduler()
            for one in workers:
                dask.start_worker(one, "CPU=1")
        else:
            dask.end(name)
            dask.start_worker(name, "CPU=1")

    kube.on_delete = deleted
    link: ClusterLink = DaskLink(dask.address, labels_of=labels_of(platform))
    said: list[str] = []

    def has_all() -> bool:
        try:
            return len(link.demand().nodes) == 4
        except ConnectionError:
            return False

    try:
        wait_until(has_all, "four workers")
        probe = DaskProbe(f"127.0.0.1:{dask.port}", link)
        result = run_drill(
            name,
            kube,  # type: ignore[arg-type]
            platform,
            link=link,
            probe=probe,
            say=said.append,
        )
    finally:
        link.close()
        kube.close()
        dask.close()
    assert result.is_passed, said
