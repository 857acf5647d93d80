"""Values for NVIDIA's device plugin, which offers GPUs to Kubernetes.

Amazon's image for GPU machines has the driver and the container toolkit, not this.
Source: https://github.com/NVIDIA/k8s-device-plugin (chart nvidia-device-plugin).
"""

from __future__ import annotations

from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import machines
from rayshim.k8s.rendering.values_file import Chart, values_text

CHART: Final = Chart(
    "nvidia-device-plugin", "nvdp/nvidia-device-plugin", "0.17.1", "kube-system"
)


def files(platform: Platform) -> dict[str, str]:
    """Path -> text; nothing for a platform without NVIDIA's GPUs."""
    if not any(machines.is_nvidia(group) for group in platform.groups):
        return {}
    path = "nvidia-device-plugin/values.yaml"
    return {path: values_text(platform, CHART, values(platform))}


def values(platform: Platform) -> dict[str, Any]:
    """Values of the chart.

    The chart runs the plugin where ``nvidia.com/gpu.present`` is "true" (an affinity
    of its own, which stays), a label that our NodePools and node groups set: so node
    feature discovery is not needed.
    """
    keys = sorted(
        {names.GROUP}
        | {
            group.accelerator.resource
            for group in platform.groups
            if group.accelerator is not None and machines.is_nvidia(group)
        }
    )
    return {
        "nodeSelector": {machines.GPU_PRESENT: "true"},
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys
        ],
        "updateStrategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 1},
        },
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"memory": "256Mi"},
        },
        "gfd": {"enabled": False},
    }
