"""Machines that exist on paper: what the scheduler places pods on.

All pods run on this machine, whatever node they are bound to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayshim.k8s import names
from rayshim.k8s.api import Object
from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import machines


@dataclass(frozen=True, slots=True)
class FakeNode:
    """A node of the cluster.

    Example:
        >>> FakeNode("gpu-0", gpus=4, labels={"rayshim.io/group": "gpu-train"})
        ... # doctest: +ELLIPSIS
        FakeNode(name='gpu-0', ...)
    """

    name: str
    cpus: float = 8.0
    memory_gib: float = 32.0
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    #: As in ``spec.taints``: maps with key, value and effect.
    taints: tuple[Mapping[str, str], ...] = ()
    #: Further allocatable resources, as Kubernetes writes them.
    allocatable: Mapping[str, str] = field(default_factory=dict)
    #: Nothing is ever placed here: a pool of machines that do not come.
    never_schedules: bool = False

    def to_object(self) -> Object:
        """The node as the API server keeps it."""
        allocatable: dict[str, str] = {
            "cpu": f"{self.cpus:g}",
            "memory": f"{int(self.memory_gib * 1024)}Mi",
            "pods": "110",
            "ephemeral-storage": "1Ti",
            **self.allocatable,
        }
        if self.gpus:
            allocatable["nvidia.com/gpu"] = str(self.gpus)
        taints: list[dict[str, Any]] = [dict(one) for one in self.taints]
        spec: Object = {"providerID": f"localkube:///{self.name}"}
        if taints:
            spec["taints"] = taints
        if self.never_schedules:
            spec["unschedulable"] = True
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": {
                    "kubernetes.io/hostname": self.name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    **self.labels,
                },
            },
            "spec": spec,
            "status": {
                "capacity": dict(allocatable),
                "allocatable": allocatable,
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "reason": "KubeletReady",
                        "message": "processes of this machine",
                    }
                ],
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1.33.0-localkube"},
            },
        }


#: Two machines without and one with GPUs, the latter tainted as on EKS.
DEFAULT_NODES = (
    FakeNode("cpu-0"),
    FakeNode("cpu-1"),
    FakeNode(
        "gpu-0",
        gpus=4,
        taints=({"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},),
    ),
)


def platform_nodes(platform: Platform, *, machines_of_group: int = 4) -> list[FakeNode]:
    """A machine for the head, and some for the workers of each group.

    Args:
        platform: whose labels they have, and on EKS its taints.
        machines_of_group: how many each group has at most, one worker on each.
    """
    is_tainted = bool(platform.eks_cluster)
    head_taint = machines.group_taint(names.HEAD)
    found = [
        FakeNode(
            f"{names.HEAD}-0",
            platform.head.cpus + 4,
            platform.head.memory_gib + 16,
            labels={names.GROUP: names.HEAD},
            taints=(head_taint,) if is_tainted else (),
        )
    ]
    for group in platform.groups:
        resource = group.accelerator.resource if group.accelerator else ""
        count = group.accelerator.count if group.accelerator else 0
        found += [
            FakeNode(
                f"{group.name}-{number}",
                group.cpus + 1,
                group.memory_gib + 2,
                labels={names.GROUP: group.name, **group.node_selector},
                taints=tuple(machines.taints(group)) if is_tainted else (),
                allocatable={resource: str(count)} if resource else {},
            )
            for number in range(min(group.max, machines_of_group))
        ]
    return found
