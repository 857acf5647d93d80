"""Cloud objects against the committed schema subsets; each has cases that must fail."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from object_schemas import FILES, FOLDER, problems
from platforms import (
    CPU_INGEST,
    DEPLOY,
    GPU_SERVE,
    GPU_TRAIN,
    dask_platform,
    example_platform,
    small_platform,
    tls_platform,
)
from rayshim.k8s.config import Platform, Queue
from rayshim.k8s.loading import load_platform
from rayshim.k8s.render import render

Object = dict[str, Any]

FIXED = replace(GPU_SERVE, min=6, max=6, warm=0, queue="serve")
ANY_MACHINE = replace(CPU_INGEST, instances=(), capacity="spot")
ANY_GPU = replace(GPU_TRAIN, instances=())

PLATFORMS = {
    "example": example_platform(),
    "tls": tls_platform(),
    "dask": dask_platform(),
    "small": small_platform(),
    "the file": load_platform(DEPLOY / "platform.yaml"),
    "ten times": load_platform(DEPLOY / "overlays" / "10x" / "platform.yaml"),
    "eu": load_platform(DEPLOY / "overlays" / "eu" / "platform.yaml"),
    "machines are not named": example_platform(groups=(ANY_MACHINE, ANY_GPU, FIXED)),
    "queues share a group": example_platform(
        groups=(CPU_INGEST, GPU_TRAIN, FIXED),
        queues=(
            Queue("train", {"nvidia.com/gpu": 18.0}, {"nvidia.com/gpu": 2.0}),
            Queue("serve", {"nvidia.com/gpu": 4.0}, groups=("gpu-serve", "gpu-train")),
        ),
    ),
}


def cloud_objects(platform: Platform) -> Iterator[Object]:
    """All rendered objects that are not Kubernetes' own or the operator's."""
    for content in render(platform).files.values():
        if not isinstance(content, str):
            yield from (one for one in content if one["apiVersion"] in FILES)


@pytest.mark.parametrize("name", PLATFORMS)
def test_what_is_rendered_passes(name: str) -> None:
    for made in cloud_objects(PLATFORMS[name]):
        assert problems(made) == [], (made["kind"], made["metadata"]["name"])


def test_each_kind_with_a_schema_is_rendered() -> None:
    kinds = {made["kind"] for made in cloud_objects(tls_platform())}

    assert kinds == {
        "ClusterConfig",
        "EC2NodeClass",
        "NodePool",
        "Topology",
        "ResourceFlavor",
        "ClusterQueue",
        "LocalQueue",
        "WorkloadPriorityClass",
        "ServiceMonitor",
        "PodMonitor",
        "PrometheusRule",
        "Certificate",
    }


def test_each_schema_file_is_used() -> None:
    assert {one.name for one in FOLDER.glob("*.json")} == set(FILES.values())


def _set(*path: Any, value: Any) -> Callable[[Object], None]:
    def change(made: Object) -> None:
        for one in path[:-1]:
            made = made[one]
        made[path[-1]] = value

    return change


def _remove(*path: Any) -> Callable[[Object], None]:
    def change(made: Object) -> None:
        for one in path[:-1]:
            made = made[one]
        del made[path[-1]]

    return change


RULE = ("spec", "groups", 0, "rules", 0)
POOL = ("spec", "template", "spec")
FLAVOR = ("spec", "resourceGroups", 0, "flavors", 0)
FAULTS = [
    # As v1beta1 had it.
    ("ClusterQueue", _set("spec", "cohort", value="demo")),
    ("ClusterQueue", _remove("spec", "resourceGroups")),
    (
        "ClusterQueue",
        _set("spec", "flavorFungibility", "whenCanBorrow", value="Borrow"),
    ),
    ("ClusterQueue", _set("spec", "preemption", "withinClusterQueue", value="Any")),
    ("ClusterQueue", _set("spec", "queueingStrategy", value="FIFO")),
    ("ClusterQueue", _set("metadata", "namespace", value="ray-prod")),
    ("ClusterQueue", _set(*FLAVOR, "resources", 0, "nominalQuota", value="16 GPUs")),
    ("ClusterQueue", _remove(*FLAVOR, "resources", 0)),
    ("ClusterQueue", _set("metadata", "name", value="Train_1")),
    ("ResourceFlavor", _set("spec", "nodeLabels", value={"a b": "c"})),
    ("ResourceFlavor", _set("spec", "nodeTaints", 0, "effect", value="Never")),
    ("ResourceFlavor", _set("spec", "tolerations", 0, "operator", value="Exists")),
    ("ResourceFlavor", _set("spec", value={"topologyName": "demo"})),
    ("Topology", _set("spec", "levels", value=[])),
    ("Topology", lambda made: made["spec"]["levels"].reverse()),
    ("LocalQueue", _remove("metadata", "namespace")),
    ("LocalQueue", _remove("spec", "clusterQueue")),
    ("WorkloadPriorityClass", _set("value", value="high")),
    ("WorkloadPriorityClass", _remove("value")),
    ("WorkloadPriorityClass", _set("description", value="x" * 2049)),
    # As v1beta1 had it.
    ("NodePool", _set("spec", "disruption", "expireAfter", value="720h")),
    ("NodePool", _set("spec", "disruption", "consolidationPolicy", value="WhenIdle")),
    ("NodePool", _set("spec", "disruption", "consolidateAfter", value="1 minute")),
    ("NodePool", _set("spec", "disruption", "budgets", 0, "nodes", value="200%")),
    ("NodePool", _set("spec", "disruption", "budgets", 0, "schedule", value="@daily")),
    ("NodePool", _remove(*POOL, "nodeClassRef", "group")),
    ("NodePool", _set(*POOL, "requirements", 0, "operator", value="Is")),
    ("NodePool", _set(*POOL, "requirements", 0, "values", value=[])),
    ("NodePool", _set(*POOL, "requirements", 0, "key", value="karpenter.sh/zone")),
    (
        "NodePool",
        _set("spec", "template", "metadata", "labels", value={"k8s.io/a": "b"}),
    ),
    ("NodePool", _remove("spec", "limits")),
    ("EC2NodeClass", _set("spec", "amiSelectorTerms", value=[])),
    ("EC2NodeClass", _set("spec", "amiSelectorTerms", 0, "alias", value="al2023")),
    ("EC2NodeClass", _set("spec", "instanceProfile", value="nodes")),
    ("EC2NodeClass", _remove("spec", "role")),
    ("EC2NodeClass", _set("spec", "instanceStorePolicy", value="RAID1")),
    ("EC2NodeClass", _set("spec", "metadataOptions", "httpTokens", value="none")),
    ("EC2NodeClass", _set("spec", "tags", value={"karpenter.sh/nodepool": "a"})),
    ("EC2NodeClass", _remove("spec", "subnetSelectorTerms", 0, "tags")),
    ("ClusterConfig", _set("metadata", "version", value=1.33)),
    ("ClusterConfig", _set("availabilityZones", value=["us-east-1"])),
    ("ClusterConfig", _set("vpc", "nat", "gateway", value="Many")),
    ("ClusterConfig", _set("managedNodeGroups", 0, "instanceType", value="m7i.large")),
    ("ClusterConfig", _set("managedNodeGroups", 0, "min", value=2)),
    (
        "ClusterConfig",
        _set("iam", "podIdentityAssociations", 0, value={"namespace": "kube-system"}),
    ),
    ("ClusterConfig", _set("addons", 0, value={"version": "latest"})),
    ("ServiceMonitor", _remove("spec", "endpoints", 0, "port")),
    ("ServiceMonitor", _set("spec", "podMetricsEndpoints", value=[])),
    ("ServiceMonitor", _set("spec", "endpoints", 0, "interval", value="15 s")),
    ("PodMonitor", _set("spec", "endpoints", value=[{"port": "metrics"}])),
    ("PodMonitor", _set("spec", "targetLabels", value=["a"])),
    ("PodMonitor", _remove("spec", "selector")),
    ("PrometheusRule", _remove(*RULE, "expr")),
    ("PrometheusRule", _set(*RULE, "record", value="a:b")),
    ("PrometheusRule", _set(*RULE, "for", value="soon")),
    ("PrometheusRule", _set(*RULE, "labels", value={"a-b": "c"})),
    ("PrometheusRule", _set(*RULE, "severity", value="critical")),
]


@pytest.mark.parametrize(
    ("kind", "spoil"), FAULTS, ids=[f"{kind}-{n}" for n, (kind, _) in enumerate(FAULTS)]
)
def test_a_fault_is_found(kind: str, spoil: Callable[[Object], None]) -> None:
    found = next(
        one for one in cloud_objects(example_platform()) if one["kind"] == kind
    )
    made = copy.deepcopy(found)
    assert problems(made) == []

    spoil(made)

    assert problems(made) != []


def test_borrowing_needs_a_cohort() -> None:
    platform = PLATFORMS["queues share a group"]
    made = next(one for one in cloud_objects(platform) if one["kind"] == "ClusterQueue")
    assert problems(made) == []

    del made["spec"]["cohortName"]

    assert problems(made) != []


@pytest.mark.parametrize(
    "spoil",
    [
        _remove("spec", "secretName"),
        _set("spec", "dnsNames", value=[""]),
        _set("spec", "usages", value=["server"]),
        _set("spec", "issuerRef", "kind", value="CA"),
        _set("spec", "duration", value="90d"),
        _set("spec", "altNames", value=["a"]),
    ],
)
def test_a_faulty_certificate_is_found(spoil: Callable[[Object], None]) -> None:
    found = cloud_objects(tls_platform())
    made = copy.deepcopy(next(one for one in found if one["kind"] == "Certificate"))
    assert problems(made) == []

    spoil(made)

    assert problems(made) != []


def test_an_unknown_api_has_no_schema() -> None:
    with pytest.raises(KeyError):
        problems({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue"})
