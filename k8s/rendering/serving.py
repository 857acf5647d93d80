"""The Service and the Ingress of the serving group."""

from __future__ import annotations

import json
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import base, pods

Object = dict[str, Any]

#: Path that Serve's proxy answers as long as it takes requests.
HEALTH_PATH: Final = "/-/healthz"


def name(platform: Platform) -> str:
    """Of the Service, the Ingress and the PodDisruptionBudget."""
    return f"{platform.name}-serve"


def selector(platform: Platform) -> dict[str, str]:
    """Labels of the pods that answer requests; empty: the platform serves nothing."""
    if platform.serve is None:
        return {}
    return {names.PLATFORM: platform.name, names.GROUP: platform.serve.group}


def objects(platform: Platform) -> list[Object]:
    """A Service of the serving pods; an Ingress for the load balancer if it has a host.

    The load balancer is in the VPC only (``internal``), and speaks HTTPS with the
    certificate that AWS Certificate Manager has for the host. Annotations:
    https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/guide/ingress/annotations
    """
    if platform.serve is None:
        return []
    port = {
        "name": "http",
        "protocol": "TCP",
        "port": 80,
        "targetPort": pods.SERVE_PORT,
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": base.metadata(platform, name(platform), "serve"),
        "spec": {
            "type": "ClusterIP",
            "selector": selector(platform),
            "ports": [port],
        },
    }
    return [service, _ingress(platform)] if platform.serve_host else [service]


def _ingress(platform: Platform) -> Object:
    prefix = "alb.ingress.kubernetes.io"
    annotations = {
        f"{prefix}/scheme": "internal",
        f"{prefix}/target-type": "ip",
        f"{prefix}/listen-ports": json.dumps([{"HTTPS": 443}]),
        f"{prefix}/healthcheck-path": HEALTH_PATH,
        f"{prefix}/healthcheck-interval-seconds": "5",
        f"{prefix}/healthy-threshold-count": "2",
        f"{prefix}/unhealthy-threshold-count": "2",
        f"{prefix}/target-group-attributes": "deregistration_delay.timeout_seconds=30",
    }
    backend = {"service": {"name": name(platform), "port": {"name": "http"}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": base.metadata(
            platform, name(platform), "serve", annotations=annotations
        ),
        "spec": {
            "ingressClassName": "alb",
            "rules": [{"host": platform.serve_host, "http": {"paths": [path]}}],
        },
    }
