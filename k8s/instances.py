"""Machines of AWS that are known here, to refuse a worker that fits on none of them.

Source: https://aws.amazon.com/ec2/instance-types/ (vCPUs, GiB, accelerators of a size).
A type that is not listed is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instance:
    """What one machine has."""

    vcpus: int
    memory_gib: float
    #: As in the labels of nodes; empty: none.
    accelerator: str = ""
    accelerators: int = 0


#: Size -> vCPUs, for the families whose sizes grow in step.
_VCPUS = {
    "large": 2,
    "xlarge": 4,
    "2xlarge": 8,
    "4xlarge": 16,
    "8xlarge": 32,
    "12xlarge": 48,
    "16xlarge": 64,
    "24xlarge": 96,
    "48xlarge": 192,
}
#: Family -> GiB for each vCPU.
_PLAIN = {
    **dict.fromkeys(["m6i", "m6a", "m7i", "m7a"], 4.0),
    **dict.fromkeys(["c6i", "c6a", "c7i", "c7a"], 2.0),
    **dict.fromkeys(["r6i", "r6a", "r7i", "r7a"], 8.0),
}
#: Family -> accelerator and GiB for each vCPU, where those sizes have that many of it.
_WITH_ACCELERATOR = {"g5": ("A10G", 4.0), "g6": ("L4", 4.0), "g6e": ("L40S", 8.0)}
_COUNTS = {
    "xlarge": 1,
    "2xlarge": 1,
    "4xlarge": 1,
    "8xlarge": 1,
    "12xlarge": 4,
    "16xlarge": 1,
    "24xlarge": 4,
    "48xlarge": 8,
}


def _known() -> dict[str, Instance]:
    found = {
        f"{family}.{size}": Instance(vcpus, vcpus * ratio)
        for family, ratio in _PLAIN.items()
        for size, vcpus in _VCPUS.items()
    }
    for family, (accelerator, ratio) in _WITH_ACCELERATOR.items():
        for size, count in _COUNTS.items():
            vcpus = _VCPUS[size]
            made = Instance(vcpus, vcpus * ratio, accelerator, count)
            found[f"{family}.{size}"] = made
    return {
        **found,
        "g4dn.xlarge": Instance(4, 16, "T4", 1),
        "g4dn.2xlarge": Instance(8, 32, "T4", 1),
        "g4dn.4xlarge": Instance(16, 64, "T4", 1),
        "g4dn.8xlarge": Instance(32, 128, "T4", 1),
        "g4dn.12xlarge": Instance(48, 192, "T4", 4),
        "p3.2xlarge": Instance(8, 61, "V100", 1),
        "p3.8xlarge": Instance(32, 244, "V100", 4),
        "p3.16xlarge": Instance(64, 488, "V100", 8),
        "p4d.24xlarge": Instance(96, 1152, "A100", 8),
        "p4de.24xlarge": Instance(96, 1152, "A100", 8),
        "p5.4xlarge": Instance(16, 256, "H100", 1),
        "p5.48xlarge": Instance(192, 2048, "H100", 8),
    }


#: Type -> what it has.
INSTANCES: dict[str, Instance] = _known()


def misfit(
    name: str, cpus: float, memory_gib: float, accelerator: str, count: int
) -> str:
    """Why a worker does not fit on a machine of a type; empty: it does, or is unknown.

    A worker must leave some of the CPUs and memory to the kubelet and to the pods that
    each node runs.

    Example:
        >>> misfit("g6.2xlarge", 8, 26, "L4", 1)
        'g6.2xlarge has 8 vCPUs, and a worker must leave some of them to the kubelet'
    """
    machine = INSTANCES.get(name)
    if machine is None:
        return ""
    if cpus >= machine.vcpus:
        return (
            f"{name} has {machine.vcpus} vCPUs, and a worker must leave some of them "
            "to the kubelet"
        )
    if memory_gib >= machine.memory_gib:
        return (
            f"{name} has {machine.memory_gib:g} GiB, and a worker must leave some of "
            "them to the kubelet"
        )
    if count > machine.accelerators:
        return f"{name} has {machine.accelerators} accelerators"
    if count and accelerator != machine.accelerator:
        return f"{name} has {machine.accelerator}, not {accelerator}"
    return ""
