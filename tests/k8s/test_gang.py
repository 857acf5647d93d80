"""Gangs: their ids, objects and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from platforms import GPU_TRAIN, example_platform
from rayshim.k8s import names
from rayshim.k8s.gang import (
    Gang,
    GangError,
    gang_id,
    gang_object,
    is_admitted,
    is_gang,
    is_partial,
    is_resized,
    quantity,
    quota_of,
    read_gang,
    waits_for_quota,
)
from rayshim.k8s.observed import PodState, Worker
from rayshim.k8s.rendering.workers import worker_group

GROUP_ID = "7f20c1d2e3a4b5c6d7e8f9a0b1c2d3e4f5a6"
PLATFORM = example_platform()


def made(size: int = 3) -> dict[str, Any]:
    return gang_object(PLATFORM, "gpu-train", "g7f20c1d2e", size, subject=GROUP_ID)


def test_the_id_is_of_the_placement_group() -> None:
    assert gang_id(GROUP_ID) == gang_id(GROUP_ID.upper()) == "g7f20c1d2e"
    for bad in ("", "7f20", "xyz" * 6):
        with pytest.raises(ValueError, match="is no hex id of a placement group"):
            gang_id(bad)


def test_a_gang_is_a_worker_group_whose_pods_are_admitted_together() -> None:
    found = made()

    assert found["kind"] == "DaskWorkerGroup"
    assert found["metadata"]["name"] == "demo-gpu-train-g7f20c1d2e"
    assert found["metadata"]["labels"][names.GANG] == "g7f20c1d2e"
    assert found["metadata"]["labels"][names.GROUP] == "gpu-train"
    worker = found["spec"]["worker"]
    assert worker["replicas"] == 3
    labels, annotations = (worker["metadata"][one] for one in ("labels", "annotations"))
    assert labels["kueue.x-k8s.io/queue-name"] == "train"
    assert labels["kueue.x-k8s.io/pod-group-name"] == "demo-gpu-train-g7f20c1d2e"
    assert labels["kueue.x-k8s.io/priority-class"] == "train"
    assert labels[names.GANG] == "g7f20c1d2e"
    assert annotations["kueue.x-k8s.io/pod-group-total-count"] == "3"
    assert annotations["kueue.x-k8s.io/pod-group-serving"] == "true"


def test_its_pods_are_those_of_the_group() -> None:
    usual = worker_group(PLATFORM, GPU_TRAIN)
    found = made()

    assert found["spec"]["worker"]["spec"] == usual["spec"]["worker"]["spec"]
    assert names.GANG not in usual["metadata"]["labels"]
    assert not is_gang(usual) and is_gang(found)


def test_it_is_read_back() -> None:
    found = made(2)

    assert read_gang(found) == Gang(
        "g7f20c1d2e", "demo-gpu-train-g7f20c1d2e", "gpu-train", 2, GROUP_ID
    )
    assert not is_resized(found)
    found["spec"]["worker"]["replicas"] = 1
    assert is_resized(found) and read_gang(found).size == 2


def test_what_is_no_gang_says_so() -> None:
    with pytest.raises(GangError, match="demo-gpu-train is no gang"):
        read_gang(worker_group(PLATFORM, GPU_TRAIN))
    broken = made()
    del broken["spec"]["worker"]["metadata"]["annotations"]
    with pytest.raises(GangError, match="delete it, it is made again"):
        read_gang(broken)


def test_groups_without_a_queue_and_sizes_beyond_max_are_refused() -> None:
    with pytest.raises(ValueError, match="cpu-ingest: a gang needs Kueue"):
        gang_object(PLATFORM, "cpu-ingest", "g7f20c1d2e", 2)
    without = replace(PLATFORM, groups=(replace(GPU_TRAIN, queue=""),))
    with pytest.raises(ValueError, match="no queue"):
        gang_object(without, "gpu-train", "g7f20c1d2e", 2)
    with pytest.raises(ValueError, match=r"max is 4.*groups\.gpu-train\.max"):
        made(5)


def pods(*states: PodState) -> list[Worker]:
    return [
        Worker(f"w{index}", "gpu-train", "g", 0.0, state)
        for index, state in enumerate(states)
    ]


def test_a_gang_is_admitted_as_a_whole() -> None:
    gated, running = PodState.GATED, PodState.RUNNING

    assert is_admitted(pods(running, PodState.PENDING))
    assert not is_admitted(pods(running, gated))
    assert not is_admitted([])
    assert is_partial(pods(running, gated))
    assert not is_partial(pods(gated, gated, PodState.MISSING))
    assert not is_partial(pods(running, running))


def test_what_waits_for_quota_says_how_much_is_used() -> None:
    queue = {
        "spec": {
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", "nvidia.com/gpu"],
                    "flavors": [
                        {
                            "name": "a100",
                            "resources": [
                                {"name": "cpu", "nominalQuota": "96"},
                                {"name": "nvidia.com/gpu", "nominalQuota": 8},
                            ],
                        }
                    ],
                }
            ]
        },
        "status": {
            "flavorsUsage": [
                {
                    "name": "a100",
                    "resources": [
                        {"name": "cpu", "total": "12500m"},
                        {"name": "nvidia.com/gpu", "total": "8"},
                    ],
                }
            ]
        },
    }

    assert quota_of(queue) == {"a100": (8.0, 8.0)}
    assert quota_of(queue, "cpu") == {"a100": (12.5, 96.0)}
    assert waits_for_quota("tr-7f2", 3, 4, "train", quota_of(queue)) == (
        "3 of 4 pods of gang tr-7f2 wait for quota in ClusterQueue train "
        "(a100: 8 used of 8)"
    )
    assert waits_for_quota("tr-7f2", 3, 4, "train", {}).endswith("ClusterQueue train")


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("8", 8.0), ("2Gi", 2.0 * 2**30), ("1k", 1000.0), (3, 3.0)],
)
def test_quantities_of_kubernetes(text: object, value: float) -> None:
    assert quantity(text) == value
    with pytest.raises(ValueError, match="is no quantity"):
        quantity(f"{text}x")
