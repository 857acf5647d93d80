"""The autoscaler's Deployment and the ConfigMap with the platform file."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import ConfigError, Platform
from rayshim.k8s.rendering import base, pods

Object = dict[str, Any]

CONFIG_PATH: Final = "/etc/rayshim/platform.yaml"
#: Annotation that starts new pods when the file has changed.
CONFIG_HASH: Final = "rayshim.io/config-hash"
#: One works, the other takes over when it is gone (leader election).
REPLICAS: Final = 2


def config_map_name(platform: Platform) -> str:
    """Name of the ConfigMap with the platform file."""
    return f"{platform.name}-platform"


def objects(platform: Platform, *, is_other: bool = False) -> list[Object]:
    """ConfigMap and Deployment.

    Args:
        platform: the file.
        is_other: whether it is one of the ``others`` of the file, which then has to be
            named.

    Raises:
        ConfigError: the platform was not read from a file.
    """
    if not platform.text:
        raise ConfigError(
            "text",
            "the autoscaler's pod needs the file itself; read it with load_platform()",
            platform.source,
        )
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": base.metadata(platform, config_map_name(platform), "autoscaler"),
        "data": {"platform.yaml": platform.text},
    }
    args = ["k8s", "autoscaler", f"--config={CONFIG_PATH}", "--metrics-host=0.0.0.0"]
    args.append(f"--metrics-port={pods.NODE_PORTS['metrics']}")
    if platform.scale != 1:
        args.append(f"--scale={platform.scale:g}")
    if is_other:
        args.append(f"--platform={platform.name}")
    return [config, _deployment(platform, args)]


def _deployment(platform: Platform, args: list[str]) -> Object:
    name = names.autoscaler(platform.name)
    selector, tolerations = base.placement(platform, names.HEAD)
    volumes, mounts = pods.secret_volumes(platform)
    volumes = [
        {"name": "platform", "configMap": {"name": config_map_name(platform)}},
        {"name": "tmp", "emptyDir": {}},
        *volumes,
    ]
    mounts = [
        {
            "name": "platform",
            "mountPath": CONFIG_PATH,
            # A folder of a ConfigMap leaves no room for those of the Secrets in it.
            "subPath": "platform.yaml",
            "readOnly": True,
        },
        {"name": "tmp", "mountPath": "/tmp"},
        *mounts,
    ]
    env: list[Object] = [
        {
            "name": "POD_NAME",
            "valueFrom": {
                "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}
            },
        },
        {"name": "HOME", "value": "/tmp"},
    ]
    if platform.runtime == "rayshim":
        env += pods.rayshim_env(platform)
    else:
        env += pods.tls_env(platform)
    container = {
        "name": "autoscaler",
        "image": platform.images.cpu,
        "command": ["rayshim"],
        "args": args,
        "env": env,
        "ports": pods.ports({"metrics": pods.NODE_PORTS["metrics"]}),
        # It listens once file, token and certificates are read: one that ends over
        # them again and again is never ready, and `up` says so.
        "readinessProbe": {
            "tcpSocket": {"port": "metrics"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": base.container_security(),
        "volumeMounts": mounts,
    }
    labels = base.labels(platform, "autoscaler")
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    pod: Object = {
        "serviceAccountName": name,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "securityContext": base.pod_security(),
        "terminationGracePeriodSeconds": 30,
        "tolerations": tolerations,
        "topologySpreadConstraints": [spread],
        "containers": [container],
        "volumes": volumes,
    }
    if selector:
        pod["nodeSelector"] = selector
    digest = hashlib.sha256(platform.text.encode()).hexdigest()[:16]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": base.metadata(platform, name, "autoscaler"),
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {
                    "labels": {**labels, names.CLIENT: "true"},
                    "annotations": {CONFIG_HASH: digest},
                },
                "spec": pod,
            },
        },
    }
