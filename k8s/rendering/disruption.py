"""PodDisruptionBudgets: how many pods may be moved at once."""

from __future__ import annotations

from typing import Any

from rayshim.k8s import names
from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import base, serving, state

Object = dict[str, Any]


def objects(platform: Platform) -> list[Object]:
    """Of the head (and Valkey), the serving group, the autoscaler.

    There is one head: draining its machine waits until somebody deletes its pod, at a
    time of his choice. One that is not ready holds nothing up.
    """
    head = {names.PLATFORM: platform.name, base.COMPONENT: "head"}
    scaler = {names.PLATFORM: platform.name, base.COMPONENT: "autoscaler"}
    found = [_budget(platform, names.scheduler(platform.name), "head", head, 0)]
    if state.kind(platform) == "valkey":
        labels = {names.PLATFORM: platform.name, base.COMPONENT: "state"}
        found.append(_budget(platform, state.name(platform), "state", labels, 0))
    if serving_labels := serving.selector(platform):
        name = serving.name(platform)
        found.append(_budget(platform, name, "serve", serving_labels, 1))
    name = names.autoscaler(platform.name)
    found.append(_budget(platform, name, "autoscaler", scaler, 1))
    return found


def _budget(
    platform: Platform,
    name: str,
    component: str,
    selector: dict[str, str],
    unavailable: int,
) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": base.metadata(platform, name, component),
        "spec": {
            "maxUnavailable": unavailable,
            "selector": {"matchLabels": selector},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
