"""Selectors of what is rendered match the pods that are rendered, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from platforms import dask_platform, example_platform, small_platform, tls_platform
from pods_of_platform import matching, objects_of_operator, pods
from rayshim.k8s.config import Head, HeadState, Platform
from rayshim.k8s.render import render

pytestmark = pytest.mark.slow

Object = dict[str, Any]
Maker = Callable[..., Platform]
MAKERS = [example_platform, tls_platform, dask_platform, small_platform]


def in_namespace(platform: Platform) -> list[Object]:
    """What is rendered, and what the operator makes of it."""
    objects = list(render(platform).objects)
    return objects + objects_of_operator(objects)


def of_kind(platform: Platform, kind: str) -> dict[str, Object]:
    return {
        one["metadata"]["name"]: one["spec"]
        for one in in_namespace(platform)
        if one["kind"] == kind
    }


def podset(platform: Platform) -> dict[str, Object]:
    return pods(render(platform).objects)


@pytest.mark.parametrize("make", MAKERS)
def test_each_selector_matches_a_pod(make: Maker) -> None:
    platform = make()
    there = podset(platform)
    selectors: dict[str, Object] = {}
    for one in in_namespace(platform):
        kind, spec = one["kind"], one.get("spec", {})
        name = f"{kind}/{one['metadata']['name']}"
        if kind == "Service":
            selectors[name] = {"matchLabels": spec["selector"]}
        elif kind in ("PodDisruptionBudget", "Deployment", "StatefulSet"):
            selectors[name] = spec["selector"]
        elif kind == "NetworkPolicy":
            selectors[name] = spec["podSelector"]
            rules = [*spec.get("ingress", ()), *spec.get("egress", ())]
            for index, rule in enumerate(rules):
                for peer in [*rule.get("from", ()), *rule.get("to", ())]:
                    if "podSelector" in peer:
                        selectors[f"{name}[{index}]"] = peer["podSelector"]
    assert [name for name, one in selectors.items() if not matching(one, there)] == []
    assert {name.split("/")[0] for name in selectors} >= {
        "Service",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }


def test_a_selector_of_nobody_is_found() -> None:
    there = podset(example_platform())
    assert matching({"matchLabels": {"rayshim.io/group": "none"}}, there) == []


def test_the_services_lead_where_they_should() -> None:
    platform = example_platform()
    there = podset(platform)
    found = {
        name: matching({"matchLabels": spec["selector"]}, there)
        for name, spec in of_kind(platform, "Service").items()
    }
    assert found == {
        "demo-scheduler": ["demo-scheduler"],
        "demo-serve": ["demo-gpu-serve-worker-0123456789"],
        "demo-state": ["demo-state"],
    }


def test_the_ports_of_the_services_are_ports_of_their_pods() -> None:
    for make in MAKERS:
        platform = make()
        there = podset(platform)
        for name, spec in of_kind(platform, "Service").items():
            for pod in matching({"matchLabels": spec["selector"]}, there):
                container = there[pod]["spec"]["containers"][0]
                named = {one["name"] for one in container["ports"]}
                numbers = {one["containerPort"] for one in container["ports"]}
                for port in spec["ports"]:
                    assert port["targetPort"] in named | numbers, (name, port)


def test_the_budgets_hold_what_they_should() -> None:
    platform = example_platform()
    there = podset(platform)
    found = {
        name: (matching(spec["selector"], there), spec["maxUnavailable"])
        for name, spec in of_kind(platform, "PodDisruptionBudget").items()
    }
    assert found == {
        "demo-scheduler": (["demo-scheduler"], 0),
        "demo-state": (["demo-state"], 0),
        "demo-serve": (["demo-gpu-serve-worker-0123456789"], 1),
        "demo-autoscaler": (["demo-autoscaler"], 1),
    }


def reached_from(platform: Platform, source: str) -> dict[str, set[int]]:
    """Pod -> ports at which the policies let another pod of the platform in."""
    there = podset(platform)
    found: dict[str, set[int]] = {}
    for spec in of_kind(platform, "NetworkPolicy").values():
        for rule in spec.get("ingress", ()):
            peers = rule.get("from", [{"podSelector": {}}])
            selectors = [one["podSelector"] for one in peers if "podSelector" in one]
            if not any(source in matching(one, there) for one in selectors):
                continue
            for target in matching(spec["podSelector"], there):
                found.setdefault(target, set()).update(
                    one["port"] for one in rule["ports"]
                )
    return found


def test_only_the_head_reaches_valkey() -> None:
    platform = example_platform()
    sources = [
        name
        for name in podset(platform)
        if 6379 in reached_from(platform, name).get("demo-state", set())
    ]
    assert sources == ["demo-scheduler"]


def test_the_autoscaler_reaches_head_and_workers_as_a_driver() -> None:
    found = reached_from(example_platform(), "demo-autoscaler")
    assert found["demo-scheduler"] == {1024}
    assert found["demo-gpu-train-worker-0123456789"] == {1024}
    assert "demo-state" not in found


def test_requests_reach_the_serving_group_alone() -> None:
    spec = of_kind(example_platform(), "NetworkPolicy")["demo-requests"]
    there = podset(example_platform())
    assert matching(spec["podSelector"], there) == ["demo-gpu-serve-worker-0123456789"]
    assert spec["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8000}]}]


def test_every_pod_of_the_platform_is_closed() -> None:
    platform = example_platform()
    spec = of_kind(platform, "NetworkPolicy")["demo-closed"]
    there = podset(platform)
    assert matching(spec["podSelector"], there) == list(there)
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert (spec["ingress"], spec["egress"]) == ([], [])


def test_the_head_reaches_an_external_endpoint() -> None:
    state = HeadState("external", secret="journal", endpoint="cache.example.com")
    platform = example_platform(head=Head(state=state))
    spec = of_kind(platform, "NetworkPolicy")["demo-head-to-state"]
    assert spec["egress"] == [{"ports": [{"protocol": "TCP", "port": 6379}]}]
    assert "demo-state" not in of_kind(platform, "Service")


def test_what_the_autoscaler_says_of_labels_is_on_the_pods() -> None:
    for name, pod in podset(example_platform()).items():
        labels = pod["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "rayshim", name
        assert labels["app.kubernetes.io/managed-by"] == "rayshim", name
        assert labels["rayshim.io/platform"] == "demo", name
        assert labels["app.kubernetes.io/component"] in (
            "head",
            "worker",
            "state",
            "autoscaler",
        )
