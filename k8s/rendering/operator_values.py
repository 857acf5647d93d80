"""Values for the Helm chart of the dask-kubernetes operator.

The operator is kept to the namespace of the platform: a Role instead of a ClusterRole,
and only that namespace is watched. Its chart binds the Role in the namespace of the
release, so it must be installed into the platform's.
Source: the chart in the wheel of dask-kubernetes,
``operator/deployment/helm/dask-kubernetes-operator``.
"""

from __future__ import annotations

from typing import Any, Final

from rayshim.k8s.config import Platform
from rayshim.k8s.rendering.values_file import Chart, values_text

#: Release of dask-kubernetes whose chart and image are used.
OPERATOR_VERSION: Final = "2026.3.0"
RELEASE: Final = "dask-operator"


def files(platform: Platform) -> dict[str, str]:
    """Path -> text."""
    chart = Chart(
        RELEASE, "dask/dask-kubernetes-operator", OPERATOR_VERSION, platform.namespace
    )
    path = "dask-operator/values.yaml"
    return {path: values_text(platform, chart, values(platform))}


def values(platform: Platform) -> dict[str, Any]:
    """Values of the chart."""
    return {
        "image": {
            "name": "ghcr.io/dask/dask-kubernetes-operator",
            "tag": OPERATOR_VERSION,
            "pullPolicy": "IfNotPresent",
        },
        "rbac": {"create": True, "cluster": False},
        # The namespace takes "restricted" pods only, and the chart leaves this out.
        "podSecurityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # Standalone: another operator is no reason to pause, and the CRD by which
        # they would find each other is not needed.
        "kopfArgs": [f"--namespace={platform.namespace}", "--standalone"],
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "512Mi"},
        },
        # Ours (monitoring/) read rayshim's metrics, with the token.
        "metrics": {"scheduler": {"enabled": False}, "worker": {"enabled": False}},
    }
