"""The pods that a cluster makes of rendered objects, by the operator's builders."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from rayshim.k8s import names
from rayshim.k8s.config import Group, Platform
from rayshim.k8s.render import render

Object = dict[str, Any]


def objects_of_operator(rendered: Iterable[Object]) -> list[Object]:
    """Deployments and Services that the operator makes, one worker of each group."""
    from dask_kubernetes.operator.controller import controller

    found: list[Object] = []
    objects = copy.deepcopy(list(rendered))
    clusters = {
        one["metadata"]["name"]: one for one in objects if one["kind"] == "DaskCluster"
    }
    for name, cluster in clusters.items():
        spec = cluster["spec"]
        labels, annotations = _meta(cluster, spec["scheduler"])
        found.append(
            controller.build_scheduler_deployment_spec(
                name, spec["scheduler"]["spec"], annotations, labels
            )
        )
        found.append(
            controller.build_scheduler_service_spec(
                name, spec["scheduler"]["service"], annotations, labels
            )
        )
        labels, annotations = _meta(cluster, spec["worker"])
        default = controller.build_default_worker_group_spec(
            name, spec["worker"], annotations, labels
        )
        found.append(_worker(controller, default, cluster))
    for one in objects:
        if one["kind"] == "DaskWorkerGroup":
            cluster = clusters[one["spec"]["cluster"]]
            found.append(_worker(controller, one, cluster))
    return found


def _worker(controller: Any, group: Object, cluster: Object) -> Object:
    labels, annotations = _meta(group, group["spec"]["worker"])
    made: Object = controller.build_worker_deployment_spec(
        group["metadata"]["name"],
        cluster["metadata"]["namespace"],
        group["spec"]["cluster"],
        "0123456789",
        group["spec"]["worker"]["spec"],
        annotations,
        labels,
    )
    # As kopf.label() does, on the same map as the pod's labels and the selector.
    for key, value in cluster["metadata"]["labels"].items():
        made["metadata"]["labels"].setdefault(key, value)
    return made


def _meta(made: Object, part: Object) -> tuple[dict[str, str], dict[str, str]]:
    own, more = made["metadata"], part.get("metadata", {})
    labels = {**own.get("labels", {}), **more.get("labels", {})}
    return labels, {**own.get("annotations", {}), **more.get("annotations", {})}


def pods(rendered: Iterable[Object]) -> dict[str, Object]:
    """Name of the object that a pod is of -> its template (metadata and spec)."""
    objects = list(rendered)
    return {
        one["metadata"]["name"]: one["spec"]["template"]
        for one in [*objects, *objects_of_operator(objects)]
        if one["kind"] in ("Deployment", "StatefulSet")
    }


def matching(selector: Mapping[str, Any], pods: Mapping[str, Object]) -> list[str]:
    """Names of the pods that a selector of labels takes."""
    return [name for name, pod in pods.items() if _matches(selector, _labels(pod))]


def _labels(pod: Object) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"]["labels"]
    return found


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    exact = selector.get("matchLabels", {})
    if any(labels.get(key) != value for key, value in exact.items()):
        return False
    for one in selector.get("matchExpressions", ()):
        assert one["operator"] == "In", one
        if labels.get(one["key"]) not in one["values"]:
            return False
    return True


def group_of(pod: Object) -> str:
    """Name of the group in platform.yaml that a pod belongs to; empty: none."""
    return _labels(pod).get(names.GROUP, "")


def worker_args(platform: Platform, group: Group) -> list[str]:
    """Arguments of the container of a group's worker."""
    name = f"{platform.name}-{group.name}-worker-0123456789"
    found: list[str] = pods(render(platform).objects)[name]["spec"]["containers"][0][
        "args"
    ]
    return found


def head_container(platform: Platform) -> Object:
    """The container of the head."""
    found: Object = pods(render(platform).objects)["demo-scheduler"]["spec"][
        "containers"
    ][0]
    return found
