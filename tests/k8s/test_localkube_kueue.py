"""The emulated Kueue: groups pass whole or not at all, in order, within their quota."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from localkube_objects import (
    WAITING,
    Object,
    container,
    is_ready,
    pod,
    workload,
)
from rayshim.k8s import names
from rayshim.k8s.api import Forbidden
from rayshim.k8s.testing.localkube import FakeNode, LocalCluster
from rayshim.k8s.testing.localkube.quotas import (
    ClusterQueue,
    ResourceGroup,
    assign,
    flavor_obstacle,
    plain_queue,
)

GPU = {"limits": {"nvidia.com/gpu": "1"}}


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    nodes = [FakeNode("gpu-0", gpus=8, labels={"pool": "a100"})]
    with LocalCluster(nodes, kueue={"train": {"nvidia.com/gpu": 4}}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: LocalCluster) -> Iterator[LocalCluster]:
    yield shared
    kube = shared.kube()
    for kind in ("Deployment", "LocalQueue", "ClusterQueue", "ResourceFlavor"):
        for one in kube.list(kind):
            kube.delete(kind, one["metadata"]["name"])
    for one in kube.list("WorkloadPriorityClass"):
        kube.delete("WorkloadPriorityClass", one["metadata"]["name"])
    for one in shared.pods():
        kube.delete("Pod", one["metadata"]["name"], grace_s=0)
    shared.wait_for("no pods", lambda: not shared.pods())
    assert shared.kueue is not None
    kueue = shared.kueue
    shared.wait_for("nothing is admitted", lambda: not kueue.admitted())


def gang(group: str, size: int, *, queue: str = "train", priority: str = "") -> Object:
    labels = {names.QUEUE: queue, names.POD_GROUP: group}
    if priority:
        labels[names.PRIORITY_CLASS] = priority
    return workload(
        "Deployment",
        group,
        container(WAITING, resources=GPU),
        replicas=size,
        labels=labels,
        annotations={names.POD_GROUP_SIZE: str(size)},
        pod_spec={"terminationGracePeriodSeconds": 1},
    )


def ready(cluster: LocalCluster, app: str) -> int:
    return sum(is_ready(one) for one in cluster.pods("default", {"app": app}))


def gated(cluster: LocalCluster, app: str) -> int:
    found = cluster.pods("default", {"app": app})
    return sum(bool(one["spec"].get("schedulingGates")) for one in found)


def events(cluster: LocalCluster, group: str) -> list[str]:
    assert cluster.kueue is not None
    return [one.event for one in cluster.kueue.history if one.group == group]


@pytest.mark.slow
def test_the_second_gang_starts_when_the_first_ends(cluster: LocalCluster) -> None:
    kube, kueue = cluster.kube(), cluster.kueue
    assert kueue is not None
    kube.apply(gang("one", 3))
    cluster.wait_for("the first gang", lambda: ready(cluster, "one") == 3)

    kube.apply(gang("two", 3))
    cluster.wait_for(
        "its reason", lambda: "insufficient" in kueue.waiting().get(TWO, "")
    )
    assert kueue.waiting()[TWO] == (
        "couldn't assign flavors to pod set main: insufficient unused quota for "
        "nvidia.com/gpu in flavor default, 2 more needed"
    )
    assert gated(cluster, "two") == 3
    assert any(one["reason"] == "Pending" for one in kube.list("Event"))
    kube.delete("Deployment", "one")

    cluster.wait_for("the second gang", lambda: ready(cluster, "two") == 3)
    admitted = [one for one in kueue.history if one.event == "admitted"]
    assert all(len(one.pods) == one.total == 3 for one in admitted)
    assert events(cluster, "one") == ["admitted", "finished"]


TWO = ("default", "two")


@pytest.mark.slow
def test_a_lost_member_is_replaced_and_an_incomplete_group_waits(
    cluster: LocalCluster,
) -> None:
    kube, kueue = cluster.kube(), cluster.kueue
    assert kueue is not None
    kube.apply(gang("lost", 2))
    cluster.wait_for("the gang", lambda: ready(cluster, "lost") == 2)
    victim = cluster.pods("default", {"app": "lost"})[0]["metadata"]["name"]

    kube.delete("Pod", victim)
    cluster.wait_for(
        "a replacement",
        lambda: kube.get("Pod", victim) is None and ready(cluster, "lost") == 2,
    )
    assert events(cluster, "lost") == ["admitted", "replaced"]

    kube.apply({**(few := gang("few", 2)), "spec": {**few["spec"], "replicas": 1}})
    cluster.wait_for(
        "its reason",
        lambda: "fewer runnable pods" in kueue.waiting().get(("default", "few"), ""),
    )
    assert gated(cluster, "few") == 1


@pytest.mark.slow
def test_a_preempted_gang_ends_and_queues_again(cluster: LocalCluster) -> None:
    kube, kueue = cluster.kube(), cluster.kueue
    assert kueue is not None
    kube.apply(gang("old", 3))
    cluster.wait_for("the gang", lambda: ready(cluster, "old") == 3)
    kube.apply(gang("next", 3))
    cluster.wait_for("it waits", lambda: gated(cluster, "next") == 3)

    kueue.preempt("old")
    with pytest.raises(LookupError, match="no group old is admitted"):
        kueue.preempt("old")
    # Its quota is free when its last pod has ended.
    while gated(cluster, "next") == 3:
        time.sleep(0.01)
    pods = cluster.pods("default", {"app": "old"})
    assert all(one["spec"].get("schedulingGates") for one in pods)
    cluster.wait_for("the next one", lambda: ready(cluster, "next") == 3)
    cluster.wait_for("the old one waits", lambda: gated(cluster, "old") == 3)

    assert events(cluster, "old") == ["admitted", "preempted"]
    kube.delete("Deployment", "next")
    cluster.wait_for("the gang again", lambda: ready(cluster, "old") == 3)


@pytest.mark.slow
def test_queues_of_the_api_server_say_quota_priority_and_usage(
    cluster: LocalCluster,
) -> None:
    kube = cluster.kube()
    version = "kueue.x-k8s.io/v1beta2"
    for kind, name, more in (
        ("ResourceFlavor", "a100", {"spec": {"nodeLabels": {"pool": "a100"}}}),
        ("WorkloadPriorityClass", "high", {"value": 100}),
        (
            "ClusterQueue",
            "gpus",
            {
                "spec": {
                    "queueingStrategy": "StrictFIFO",
                    "resourceGroups": [
                        {
                            "coveredResources": ["nvidia.com/gpu"],
                            "flavors": [
                                {
                                    "name": "a100",
                                    "resources": [
                                        {"name": "nvidia.com/gpu", "nominalQuota": "2"}
                                    ],
                                }
                            ],
                        }
                    ],
                }
            },
        ),
        ("LocalQueue", "mine", {"spec": {"clusterQueue": "gpus"}}),
    ):
        meta: Object = {"name": name}
        if kind == "LocalQueue":
            meta["namespace"] = "default"
        kube.create({"apiVersion": version, "kind": kind, "metadata": meta, **more})
    kube.apply(gang("first", 2, queue="mine"))
    cluster.wait_for("the gang", lambda: ready(cluster, "first") == 2)

    def usage(kind: str, name: str) -> str:
        status = (kube.get(kind, name) or {}).get("status") or {}
        return str(status["flavorsUsage"][0]["resources"][0]["total"])

    cluster.wait_for("the usage", lambda: usage("LocalQueue", "mine") == "2")
    cluster.wait_for("the usage", lambda: usage("ClusterQueue", "gpus") == "2")
    (placed, _) = cluster.pods("default", {"app": "first"})
    assert placed["spec"]["nodeSelector"] == {"pool": "a100"}

    kube.apply(gang("low", 2, queue="mine"))
    cluster.wait_for("it waits", lambda: gated(cluster, "low") == 2)
    kube.apply(gang("urgent", 2, queue="mine", priority="high"))
    cluster.wait_for("it waits", lambda: gated(cluster, "urgent") == 2)
    kube.delete("Deployment", "first")

    cluster.wait_for("the urgent one", lambda: ready(cluster, "urgent") == 2)
    assert gated(cluster, "low") == 2


@pytest.mark.slow
def test_a_pod_group_without_its_size_is_refused(cluster: LocalCluster) -> None:
    made = pod("odd")
    made["metadata"]["labels"] = {names.QUEUE: "train", names.POD_GROUP: "g"}

    with pytest.raises(Forbidden, match="pod-group-total-count"):
        cluster.kube().create(made)

    sizeless = gang("sizeless", 1)
    del sizeless["spec"]["template"]["metadata"]["annotations"]
    cluster.kube().apply(sizeless)

    def said() -> str:
        status = (cluster.kube().get("Deployment", "sizeless") or {}).get("status", {})
        found = {one["type"]: one for one in status.get("conditions") or ()}
        return str(found.get("ReplicaFailure", {}).get("message", ""))

    assert "pod-group-total-count" in cluster.wait_for("its reason", said)


def test_a_queue_borrows_what_its_cohort_has_left() -> None:
    place = ("a100", "gpu")
    group = (ResourceGroup(("gpu",), ("a100",)),)
    mine = ClusterQueue("mine", group, {place: 2.0}, {place: 1.0}, "all")
    other = ClusterQueue("other", group, {place: 2.0}, {}, "all")

    def ask(amount: float, used: float) -> object:
        found = assign(
            {"gpu": amount},
            mine,
            [mine, other],
            {"other": {place: used}},
            lambda flavor: "",
        )
        return found if isinstance(found, str) else found.usage

    assert ask(3, 0) == {place: 3}
    assert "1 more needed" in str(ask(4, 0))
    assert "1 more needed" in str(ask(3, 2))


def test_the_next_flavor_is_taken_if_the_first_does_not_fit() -> None:
    queue = ClusterQueue(
        "q",
        (ResourceGroup(("gpu",), ("small", "large")),),
        {("small", "gpu"): 1.0, ("large", "gpu"): 8.0},
    )
    found = assign({"gpu": 4.0}, queue, [queue], {}, lambda flavor: "")
    refused = assign({"gpu": 1.0, "tpu": 1.0}, queue, [queue], {}, lambda flavor: "")
    lenient = assign(
        {"gpu": 1.0, "tpu": 1.0}, plain_queue("p", {"gpu": 1}), [], {}, lambda f: ""
    )

    assert not isinstance(found, str) and found.flavors == ("large",)
    assert refused == (
        "couldn't assign flavors to pod set main: resource tpu unavailable in "
        "ClusterQueue"
    )
    assert not isinstance(lenient, str)


def test_a_flavor_fits_pods_by_labels_and_taints() -> None:
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    flavor = {"spec": {"nodeLabels": {"pool": "a"}, "nodeTaints": [taint]}}
    tolerant = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}

    assert flavor_obstacle(flavor, "f", {}) == "untolerated taint gpu in flavor f"
    assert flavor_obstacle(flavor, "f", tolerant) == ""
    assert (
        flavor_obstacle(flavor, "f", {**tolerant, "nodeSelector": {"pool": "b"}})
        == "flavor f doesn't match node affinity"
    )
    assert flavor_obstacle(None, "f", {}) == "flavor f not found"
