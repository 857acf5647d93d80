"""Small objects for tests of the API server."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import dask_kubernetes
import yaml

Object = dict[str, Any]

CRDS = Path(dask_kubernetes.__file__).parent.joinpath(
    "operator", "deployment", "helm", "dask-kubernetes-operator", "crds"
)


@functools.cache
def dask_crds() -> list[Object]:
    """The CRDs of the installed operator."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # Ten times as fast.
    return [yaml.load(one.read_text(), loader) for one in sorted(CRDS.glob("*.yaml"))]


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def config_map(name: str, **data: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name},
        "data": data,
    }


def pod(name: str, labels: Object | None = None, **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [{"name": "main", "image": "app:1"}], **spec},
    }


def deployment(name: str, **container: Any) -> Object:
    labels = {"app": name}
    made = {"name": "main", "image": "app:1", **container}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [made]},
            },
        },
    }


def worker_group(name: str, **worker_spec: Any) -> Object:
    spec = {"containers": [{"name": "worker", "image": "app:1"}], **worker_spec}
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskWorkerGroup",
        "metadata": {"name": name},
        "spec": {"cluster": "demo", "worker": {"replicas": 1, "spec": spec}},
    }


def owned_by(owner: Object, made: Object, **more: Any) -> Object:
    """The object, with an owner."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        **more,
    }
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [reference]}}
