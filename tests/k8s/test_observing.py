"""What Kubernetes' objects say of worker groups, workers and pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autoscaled import cpu_group, gpu_group, platform_of
from rayshim.k8s import names
from rayshim.k8s.gang import SUBJECT
from rayshim.k8s.observed import ObservedGroup, PodState, Worker
from rayshim.k8s.observing import HANDLED, observe, pod_state, queue_usage, unix_time

NOW = 1_000_000.0


def worker_group(name: str, replicas: int, **meta: Any) -> dict[str, Any]:
    labels = {names.PLATFORM: "demo", names.GROUP: "cpu-ingest"}
    return {
        "metadata": {
            "name": name,
            "labels": {**labels, **meta.pop("labels", {})},
            "resourceVersion": "12",
            "uid": "u1",
            "creationTimestamp": "1970-01-12T13:46:40Z",
            **meta,
        },
        "spec": {"worker": {"replicas": replicas}},
    }


def deployment(name: str, **meta: Any) -> dict[str, Any]:
    labels = {
        names.GROUP: "cpu-ingest",
        names.WORKER_GROUP_NAME: "demo-cpu-ingest",
    }
    return {
        "metadata": {
            "name": name,
            "labels": labels,
            "uid": "u2",
            "creationTimestamp": "1970-01-12T13:46:40Z",
            **meta,
        }
    }


def pod(worker: str = "w-1", phase: str = "Pending", **options: Any) -> dict[str, Any]:
    owner = {"kind": "ReplicaSet", "name": f"{worker}-6c4f5d"}
    return {
        "metadata": {
            "name": f"{worker}-6c4f5d-abcde",
            "ownerReferences": [owner],
            **options.pop("metadata", {}),
        },
        "spec": options.pop("spec", {}),
        "status": {"phase": phase, **options},
    }


def waiting(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"state": {"waiting": {"reason": reason, "message": message}}}]


def test_a_worker_group_and_what_the_operator_has_finished_with() -> None:
    handled = json.dumps({"spec": {"worker": {"replicas": 2}}})
    notes = {HANDLED: handled, names.REPLICAS: "3"}
    found = observe(
        [worker_group("demo-cpu-ingest", 3, annotations=notes)], [], [], now=NOW
    )

    assert found.groups == (
        ObservedGroup(
            "demo-cpu-ingest",
            "cpu-ingest",
            3,
            "12",
            created_s=1_000_000.0,
            handled=2,
            written=3,
            uid="u1",
        ),
    )


@pytest.mark.parametrize("text", [None, "", "no json", "{}", "[]"])
def test_an_operator_that_does_not_say_is_not_known_to_have_finished(
    text: str | None,
) -> None:
    notes = {} if text is None else {HANDLED: text}
    found = observe([worker_group("demo-x", 3, annotations=notes)], [], [], now=NOW)

    assert found.groups[0].handled is None


def test_the_operators_default_group_is_left_out() -> None:
    other = worker_group("demo-default", 0)
    other["metadata"]["labels"] = {names.PLATFORM: "demo"}

    assert observe([other], [], [], now=NOW).groups == ()


def test_a_gang_has_the_size_that_kueue_counts() -> None:
    one = worker_group(
        "demo-gpu-g7f20c1d2e",
        2,
        labels={names.GANG: "g7f20c1d2e"},
        annotations={SUBJECT: "7f20c1d2ea"},
    )
    one["spec"]["worker"]["metadata"] = {"annotations": {names.POD_GROUP_SIZE: "4"}}
    (found,) = observe([one], [], [], now=NOW).groups

    assert (found.gang, found.size, found.replicas) == ("g7f20c1d2e", 4, 2)
    assert found.subject == "7f20c1d2ea"


def test_a_worker_with_its_annotations_and_its_pod() -> None:
    notes = {
        names.JOINED: "999000.5",
        names.DRAINING_SINCE: "999990.25",
        names.DRAIN_REASON: "idle",
        names.DRAINING_NODE: "ab",
    }
    found = observe(
        [worker_group("demo-cpu-ingest", 1)],
        [deployment("w-1", annotations=notes)],
        [pod(phase="Running", conditions=[{"type": "Ready", "status": "True"}])],
        now=NOW,
    )

    assert found.workers == (
        Worker(
            "w-1",
            "cpu-ingest",
            "demo-cpu-ingest",
            1_000_000.0,
            PodState.READY,
            has_joined=True,
            draining_since_s=999990.25,
            drain_reason="idle",
            draining_node="ab",
            uid="u2",
        ),
    )


def test_of_several_pods_of_a_worker_the_best_one_counts() -> None:
    found = observe(
        [worker_group("demo-cpu-ingest", 1)],
        [deployment("w-1")],
        [
            pod(phase="Running"),
            pod(phase="Failed", reason="Evicted"),
            pod(metadata={"deletionTimestamp": "1970-01-12T13:46:40Z"}),
        ],
        now=NOW,
    )

    assert found.workers[0].pod is PodState.RUNNING


def test_a_deployment_that_may_make_no_pod_says_why() -> None:
    one = deployment("w-1")
    one["status"] = {
        "conditions": [
            {
                "type": "ReplicaFailure",
                "status": "True",
                "reason": "FailedCreate",
                "message": "exceeded quota: compute",
            }
        ]
    }
    found = observe([worker_group("demo-cpu-ingest", 1)], [one], [], now=NOW)

    assert found.workers[0].pod is PodState.MISSING
    assert found.workers[0].note == "FailedCreate: exceeded quota: compute"


@pytest.mark.parametrize(
    ("made", "state", "note"),
    [
        (pod(), PodState.PENDING, ""),
        (
            pod(spec={"schedulingGates": [{"name": names.ADMISSION_GATE}]}),
            PodState.GATED,
            "gated by kueue.x-k8s.io/admission",
        ),
        (
            pod(
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available",
                    }
                ]
            ),
            PodState.PENDING,
            "Unschedulable: 0/3 nodes are available",
        ),
        (
            pod(containerStatuses=waiting("ContainerCreating")),
            PodState.PENDING,
            "ContainerCreating",
        ),
        (
            pod(containerStatuses=waiting("ImagePullBackOff", "no such image")),
            PodState.FAILED,
            "ImagePullBackOff: no such image",
        ),
        (
            pod(phase="Running", containerStatuses=waiting("CrashLoopBackOff", "b")),
            PodState.FAILED,
            "CrashLoopBackOff: b",
        ),
        (
            pod(phase="Running", containerStatuses=[{"state": {"terminated": {}}}]),
            PodState.PENDING,
            "its process has ended and starts anew",
        ),
        (
            pod(phase="Failed", reason="Evicted", message="disk is full"),
            PodState.FAILED,
            "Evicted: disk is full",
        ),
        (
            pod(phase="Running", containerStatuses=[{"state": {"running": {}}}]),
            PodState.RUNNING,
            "",
        ),
    ],
)
def test_how_far_a_pod_has_come(
    made: dict[str, Any], state: PodState, note: str
) -> None:
    assert pod_state(made) == (state, note)


def test_use_of_a_queue_in_what_it_is_of() -> None:
    rows = [{"name": "nvidia.com/gpu", "total": "6"}, {"name": "cpu", "total": "500m"}]
    queue = {
        "metadata": {"name": "train"},
        "status": {"flavorsUsage": [{"name": "gpu-train", "resources": rows}]},
    }
    platform = platform_of(cpu_group(), gpu_group())

    assert queue_usage(platform, [queue]) == {"train": {"a100": (6.0, 8.0)}}
    assert queue_usage(platform, []) == {}


def test_times() -> None:
    assert unix_time("1970-01-12T13:46:40Z") == NOW
    assert unix_time(None) == 0.0
