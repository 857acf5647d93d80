"""Karpenter: one NodePool for the head and one for each group, over two EC2NodeClasses.

A node with a running worker is never taken away to save money: what a worker holds (an
actor, objects, a share of a training run) is worth more than the rest of its machine's
hour. Karpenter only ends nodes that are empty, which they are soon after the autoscaler
has drained and removed their workers.
Source: https://karpenter.sh/docs/concepts/nodepools and .../disruption.
"""

from __future__ import annotations

from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Group, Platform
from rayshim.k8s.rendering import iam, machines
from rayshim.k8s.rendering.values_file import Chart, values_text

Object = dict[str, Any]

#: The CloudFormation template of this release makes the policy and the roles that
#: eksctl's file names; later ones split the policy into several.
CHART: Final = Chart(
    "karpenter", "oci://public.ecr.aws/karpenter/karpenter", "1.6.3", "kube-system"
)
#: Release of Amazon's image for EKS. Not ``latest``: then each new release would be a
#: drift of all nodes.
IMAGE_RELEASE: Final = "al2023@v20250915"
CPU_CLASS: Final = "rayshim-cpu"
GPU_CLASS: Final = "rayshim-gpu"
#: Of the root volume: images, and values that the store spills. Images with CUDA are
#: large.
CPU_VOLUME: Final = "100Gi"
GPU_VOLUME: Final = "200Gi"
#: Tag of the subnets and security groups that nodes are put into.
DISCOVERY: Final = "karpenter.sh/discovery"
#: After which an always-on machine is replaced, if its pods allow.
EXPIRE_AFTER: Final = "720h"


def files(platform: Platform) -> dict[str, str | list[Object]]:
    """Path -> text or objects; nothing for a platform without ``eks_cluster``."""
    if not platform.eks_cluster:
        return {}
    classes = [_node_class(platform, CPU_CLASS, CPU_VOLUME)]
    if any(group.is_gpu for group in platform.groups):
        classes.append(_node_class(platform, GPU_CLASS, GPU_VOLUME))
    pools = [_group_pool(platform, group) for group in platform.groups]
    return {
        "karpenter/values.yaml": values_text(platform, CHART, values(platform)),
        "karpenter/ec2nodeclasses.yaml": classes,
        "karpenter/nodepools.yaml": [_head_pool(platform), *pools],
    }


def values(platform: Platform) -> dict[str, Any]:
    """Values of Karpenter's chart.

    The queue, of the cluster's name, is where EC2 tells of spot machines that go.
    """
    return {
        "settings": {
            "clusterName": platform.eks_cluster,
            "interruptionQueue": platform.eks_cluster,
        },
        "controller": {
            "resources": {
                "requests": {"cpu": "500m", "memory": "512Mi"},
                "limits": {"memory": "1Gi"},
            }
        },
    }


def node_role(platform: Platform) -> str:
    """Name of the IAM role of the nodes that Karpenter starts."""
    return iam.checked_role(platform, f"KarpenterNodeRole-{platform.eks_cluster}")


def _node_class(platform: Platform, name: str, volume: str) -> Object:
    found = [{"tags": {DISCOVERY: platform.eks_cluster}}]
    return {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": name, "labels": names.labels(platform.name)},
        "spec": {
            "amiSelectorTerms": [{"alias": IMAGE_RELEASE}],
            "role": node_role(platform),
            "subnetSelectorTerms": found,
            "securityGroupSelectorTerms": [dict(one) for one in found],
            # Local disks, where the type has some, take what is spilled.
            "instanceStorePolicy": "RAID0",
            "blockDeviceMappings": [
                {
                    "deviceName": "/dev/xvda",
                    "rootVolume": True,
                    "ebs": {
                        "volumeSize": volume,
                        "volumeType": "gp3",
                        "encrypted": True,
                        "deleteOnTermination": True,
                    },
                }
            ],
            # One hop: pods cannot take the node's role, and use their own.
            "metadataOptions": {
                "httpEndpoint": "enabled",
                "httpProtocolIPv6": "disabled",
                "httpPutResponseHopLimit": 1,
                "httpTokens": "required",
            },
            "tags": {names.PLATFORM: platform.name},
        },
    }


def _head_pool(platform: Platform) -> Object:
    head = platform.head
    return _pool(
        platform,
        names.HEAD,
        node_class=CPU_CLASS,
        labels={names.GROUP: names.HEAD},
        taints=[machines.group_taint(names.HEAD)],
        requirements=[
            _is_in("karpenter.sh/capacity-type", ["on-demand"]),
            _is_in("node.kubernetes.io/instance-type", [head.instance]),
        ],
        limits=machines.head_limits(platform),
        is_fixed=True,
        consolidate_after="5m",
        expire_after="Never",
    )


def _group_pool(platform: Platform, group: Group) -> Object:
    is_fixed = group.min + group.warm > 0
    return _pool(
        platform,
        group.name,
        node_class=GPU_CLASS if group.is_gpu else CPU_CLASS,
        labels=machines.node_labels(group),
        taints=machines.taints(group),
        requirements=[
            _is_in("karpenter.sh/capacity-type", [group.capacity]),
            *_instances(group),
        ],
        limits=machines.limits(group),
        is_fixed=is_fixed,
        consolidate_after=f"{max(1, round(group.idle_timeout_s))}s",
        # A machine that is only there for a job ends with it, never before.
        expire_after=EXPIRE_AFTER if is_fixed else "Never",
    )


def _pool(
    platform: Platform,
    name: str,
    *,
    node_class: str,
    labels: dict[str, str],
    taints: list[dict[str, str]],
    requirements: list[Object],
    limits: dict[str, str],
    is_fixed: bool,
    consolidate_after: str,
    expire_after: str,
) -> Object:
    requirements = [
        *requirements,
        _is_in("kubernetes.io/os", ["linux"]),
        _is_in("topology.kubernetes.io/zone", list(platform.zones)),
    ]
    spec: Object = {
        "nodeClassRef": {
            "group": "karpenter.k8s.aws",
            "kind": "EC2NodeClass",
            "name": node_class,
        },
        "taints": taints,
        "requirements": sorted(requirements, key=lambda one: str(one["key"])),
        "expireAfter": expire_after,
    }
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name, "labels": names.labels(platform.name)},
        "spec": {
            "template": {
                "metadata": {"labels": {**labels, names.PLATFORM: platform.name}},
                "spec": spec,
            },
            "limits": limits,
            "disruption": {
                "consolidationPolicy": "WhenEmpty",
                "consolidateAfter": consolidate_after,
                "budgets": _budgets(is_fixed, is_head=name == names.HEAD),
            },
        },
    }


def _budgets(is_fixed: bool, *, is_head: bool) -> list[Object]:
    """How many nodes may go at a time, by reason.

    Always-on machines follow a new image one by one, as PodDisruptionBudgets allow;
    those of jobs are gone before long anyway; the head's is replaced by hand.
    """
    drifted = "1" if is_fixed and not is_head else "0"
    return [
        {"nodes": "100%", "reasons": ["Empty"]},
        {"nodes": drifted, "reasons": ["Drifted"]},
        {"nodes": "0", "reasons": ["Underutilized"]},
    ]


def _instances(group: Group) -> list[Object]:
    if group.instances:
        return [_is_in("node.kubernetes.io/instance-type", list(group.instances))]
    # Karpenter chooses, and takes the cheapest that the pods fit on.
    found = [_is_in("kubernetes.io/arch", ["amd64"])]
    if group.accelerator is not None and group.is_gpu:
        gpu = group.accelerator
        found += [
            _is_in("karpenter.k8s.aws/instance-gpu-name", [gpu.type.lower()]),
            _more_than("karpenter.k8s.aws/instance-gpu-count", gpu.count - 1),
        ]
    else:
        found += [
            _is_in("karpenter.k8s.aws/instance-category", ["c", "m", "r"]),
            _more_than("karpenter.k8s.aws/instance-generation", 5),
        ]
    return found


def _is_in(key: str, values: list[str]) -> Object:
    return {"key": key, "operator": "In", "values": values}


def _more_than(key: str, value: int) -> Object:
    return {"key": key, "operator": "Gt", "values": [str(value)]}
