"""Objects for tests of the local cluster."""

from __future__ import annotations

import base64
from typing import Any

Object = dict[str, Any]

#: A program that prints its environment variable WORD, and then waits.
WAITING = ["sh", "-c", 'echo "word: $WORD"; exec sleep 1000']
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def container(command: list[str], **more: Any) -> Object:
    return {"name": "main", "image": "any", "command": command, **more}


def pod(name: str, command: list[str] | None = None, **spec: Any) -> Object:
    made = {
        "terminationGracePeriodSeconds": 5,
        "containers": [container(command or WAITING)],
        **spec,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": made,
    }


def workload(
    kind: str,
    name: str,
    main: Object,
    *,
    replicas: int = 1,
    labels: Object | None = None,
    annotations: Object | None = None,
    pod_spec: Object | None = None,
    **spec: Any,
) -> Object:
    mine = {"app": name, **(labels or {})}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": mine, "annotations": annotations or {}},
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "containers": [main],
                    **(pod_spec or {}),
                },
            },
            **spec,
        },
    }


def service(name: str, app: str, ports: dict[int, int], **spec: Any) -> Object:
    listed = [
        {"name": f"p{port}", "port": port, "targetPort": target}
        for port, target in ports.items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"app": app}, "ports": listed, **spec},
    }


def secret(name: str, **data: bytes) -> Object:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "default"},
        "data": encoded,
    }


def is_ready(made: Object | None) -> bool:
    conditions = ((made or {}).get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def state(made: Object | None) -> Object:
    """The status of a pod's first container."""
    statuses = ((made or {}).get("status") or {}).get("containerStatuses") or [{}]
    found: Object = statuses[0]
    return found
