"""Labels, taints and limits of the machines that a group's workers run on."""

from __future__ import annotations

import math
from typing import Final

from rayshim.k8s import names
from rayshim.k8s.config import Group, Platform
from rayshim.k8s.instances import INSTANCES

#: Value of the taint of machines with accelerators.
TAINT_VALUE: Final = "true"
#: Node label by which NVIDIA's device plugin knows where to run.
GPU_PRESENT: Final = "nvidia.com/gpu.present"


def node_labels(group: Group) -> dict[str, str]:
    """Labels of the nodes of a group; its workers select the first."""
    found = {names.GROUP: group.name}
    if is_nvidia(group):
        found[GPU_PRESENT] = "true"
    return found


def group_taint(group: str) -> dict[str, str]:
    """Taint that keeps all but a group's own pods from its nodes."""
    return {"key": names.GROUP, "value": group, "effect": "NoSchedule"}


def taints(group: Group) -> list[dict[str, str]]:
    """Taints of the nodes of a group; those with accelerators have a second one.

    The second is what AWS' and NVIDIA's own components expect there.
    """
    found = [group_taint(group.name)]
    if group.accelerator is not None and group.is_gpu:
        resource = group.accelerator.resource
        found.append({"key": resource, "value": TAINT_VALUE, "effect": "NoSchedule"})
    return found


def tolerations(group: Group) -> list[dict[str, str]]:
    """What a pod needs to be put on the nodes of a group."""
    return [
        {
            "key": one["key"],
            "operator": "Equal",
            "value": one["value"],
            "effect": one["effect"],
        }
        for one in taints(group)
    ]


def is_nvidia(group: Group) -> bool:
    """Whether its accelerators are offered by NVIDIA's device plugin."""
    return (
        group.is_gpu
        and group.accelerator is not None
        and group.accelerator.resource.startswith("nvidia.com/")
    )


def limits(group: Group) -> dict[str, str]:
    """What Karpenter may start for a group at most, as its NodePools take it.

    One machine for each worker up to ``max``, of the largest instance type: a bound for
    the bill if something asks for machines without end, not a size.

    Returns:
        Resource -> amount. A type that is not known counts as twice a worker's CPUs,
        and as having a worker's accelerators.
    """
    known = [INSTANCES[one] for one in group.instances if one in INSTANCES]
    cpus = max((one.vcpus for one in known), default=0)
    if len(known) < len(group.instances) or not known:
        cpus = max(cpus, 2 * math.ceil(group.cpus))
    found = {"cpu": str(group.max * cpus)}
    if group.accelerator is not None and group.is_gpu:
        count = max([group.accelerator.count, *(one.accelerators for one in known)])
        found[group.accelerator.resource] = str(group.max * count)
    return found


def head_limits(platform: Platform) -> dict[str, str]:
    """As :func:`limits`, for the head: a second machine while one is replaced."""
    known = INSTANCES.get(platform.head.instance)
    cpus = known.vcpus if known else 2 * math.ceil(platform.head.cpus)
    return {"cpu": str(2 * cpus)}
