"""Machines that never come: no more is asked for than is wanted."""

from __future__ import annotations

import pytest

from autoscaled import autoscaler_of, cpu_group, gang, leases, platform_of, run_for
from fake_kube import World
from rayshim.k8s.observed import PodState
from rayshim.k8s.observing import pod_state

pytestmark = [pytest.mark.slow]


def test_ten_minutes_without_machines_make_no_more_pods_than_are_wanted() -> None:
    world = World(platform_of(cpu_group(max=50, upscaling_speed=5.0)))
    world.denied.add("cpu-ingest")
    world.head.leases = leases(12, CPU=4.0)
    scaler = autoscaler_of(world)

    run_for(world, scaler, 600)

    # Five may start at once for each that runs, and none does.
    assert world.most["cpu-ingest"] == 5
    assert world.replicas("cpu-ingest") == 5
    status = scaler.status
    assert len(status.decisions.late) == 5
    assert status.groups["cpu-ingest"].notes == (
        "5 workers pending (Unschedulable: 0/3 nodes are available), did not join "
        "within 60 s",
    )
    patches = [one for one in world.kube.writes if one[1] == "DaskWorkerGroup"]
    assert len(patches) == 1
    events = [
        one["reason"]
        for (kind, _), one in world.kube.objects.items()
        if kind == "Event"
    ]
    assert sorted(events) == ["ScaledUp", "WorkerLate"]


def test_a_gang_without_machines_is_asked_for_once() -> None:
    world = World(platform_of())
    world.denied.add("gpu-train")
    world.head.gangs = (gang(1, 3, GPU=4.0), gang(2, 3, GPU=4.0))
    scaler = autoscaler_of(world)

    run_for(world, scaler, 600)

    assert world.most["gpu-train"] == 3
    made = [
        one for one in world.kube.writes if one[:2] == ("create", "DaskWorkerGroup")
    ]
    assert len(made) == 1


def test_pods_that_fail_are_told_and_not_multiplied() -> None:
    world = World(platform_of(cpu_group(upscaling_speed=10.0)))
    world.failing.add("cpu-ingest")
    world.head.leases = leases(2, CPU=4.0)
    scaler = autoscaler_of(world)

    run_for(world, scaler, 600)

    assert world.most["cpu-ingest"] == 2
    failure = scaler.status.groups["cpu-ingest"].failure
    assert failure.endswith("ImagePullBackOff: no such image")
    assert world.head.reports[-1]["failures"] == {"cpu-ingest": failure}


def test_demand_that_goes_cancels_gated_and_pending_pods_first() -> None:
    world = World(platform_of(cpu_group(max=6, upscaling_speed=10.0)), cold_start_s=1e9)
    scaler = autoscaler_of(world)
    world.head.leases = leases(2, CPU=4.0)
    run_for(world, scaler, 5)  # Two run, and have not joined.
    world.denied.add("cpu-ingest")
    world.head.leases = leases(4, CPU=4.0)
    run_for(world, scaler, 5)  # Two are pending.
    pods = [one for (kind, _), one in world.kube.objects.items() if kind == "Pod"]
    for pod, state in zip(pods[:2], [PodState.READY] * 2, strict=True):
        pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        assert pod_state(pod)[0] is state
    first = {one["metadata"]["name"] for one in pods[:2]}

    world.head.leases = leases(2, CPU=4.0)
    run_for(world, scaler, 60)

    left = {name for (kind, name) in world.kube.objects if kind == "Pod"}
    assert left == first
    assert world.replicas("cpu-ingest") == 2
    world.head.leases = ()
    run_for(world, scaler, 60)
    assert not world.workers()
    assert world.replicas("cpu-ingest") == 0
    assert not world.picked
