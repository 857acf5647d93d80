"""Whole turns: what the autoscaler writes, says and holds back."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from autoscaled import (
    autoscaler_of,
    cpu_group,
    gang,
    leases,
    platform_of,
    run_for,
    run_until,
)
from fake_kube import World
from rayshim.k8s import metric_names, names
from rayshim.k8s.platform_status import PlatformStatus, read_status

LEASE_AND_STATUS = {("replace", "Lease"), ("apply", "ConfigMap")}


def events(world: World) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (one["involvedObject"]["name"], one["reason"]): one
        for (kind, _), one in world.kube.objects.items()
        if kind == "Event"
    }


def status_of(world: World) -> Mapping[str, Any]:
    found = read_status(world.kube, "demo")
    assert found is not None
    return found


def test_workers_come_and_go_with_demand() -> None:
    world = World(platform_of(cpu_group(upscaling_speed=9.0)))
    scaler = autoscaler_of(world)
    world.head.leases = leases(3, CPU=4.0)
    run_until(world, scaler, lambda: len(world.head.nodes) == 3)
    world.head.leases = ()
    for worker in world.workers():
        world.use(worker, CPU=4.0)
    run_for(world, scaler, 60)
    assert len(world.workers()) == 3

    busy, *idle = world.workers()
    for worker in idle:
        world.use(worker)
    run_until(world, scaler, lambda: world.replicas("cpu-ingest") == 1)

    assert world.workers() == [busy]
    assert not world.picked


def test_a_gang_runs_and_ends_as_a_whole_and_the_next_one_follows() -> None:
    world = World(platform_of())
    scaler = autoscaler_of(world)
    first, second = gang(1, 3, GPU=4.0), gang(2, 3, GPU=4.0)
    world.head.gangs = (first, second)
    run_until(world, scaler, lambda: len(world.head.nodes) == 3)
    workers = world.workers("gpu-train")
    assert all("g000000001" in one for one in workers)
    world.head.gangs = (second,)
    for worker in workers:
        world.use(worker, GPU=4.0)
    run_for(world, scaler, 60)
    assert world.workers("gpu-train") == workers

    for worker in workers:
        world.use(worker)
    run_until(world, scaler, lambda: "g000000002" in str(world.workers("gpu-train")))
    run_until(world, scaler, lambda: len(world.head.nodes) == 3)

    assert world.most["gpu-train"] <= 4
    assert not world.picked
    assert ("demo-gpu-train-g000000001", "GangEnded") in events(world)


def test_a_placement_group_that_goes_before_its_pods_run_cancels_them() -> None:
    world = World(platform_of())
    world.gated.add("gpu-train")
    scaler = autoscaler_of(world)
    world.head.gangs = (gang(1, 3, GPU=4.0),)
    run_until(world, scaler, lambda: len(world.workers()) == 3)

    assert "3 of 3 pods of gang g000000001 wait for quota in ClusterQueue train" in str(
        scaler.status.lines()
    )
    world.head.gangs = ()
    run_for(world, scaler, 2)
    assert len(world.workers()) == 3  # It may just be being placed.
    run_for(world, scaler, 3)
    assert not world.workers()
    assert scaler.status.groups["gpu-train"].gangs == 0


def test_nothing_is_stopped_while_the_head_does_not_answer() -> None:
    world = World(platform_of(cpu_group(min=1)))
    scaler = autoscaler_of(world)
    world.head.leases = leases(1, CPU=4.0)
    run_until(world, scaler, lambda: len(world.head.nodes) == 1)
    world.head.leases = ()
    world.scale("cpu-ingest", 3)
    run_until(world, scaler, lambda: len(world.head.nodes) == 3)
    world.head.is_away = True
    run_for(world, scaler, 60)

    assert len(world.workers()) == 3
    lines = scaler.status.lines()
    assert lines[0].startswith("the head does not answer, the demand is 60 s old")
    assert "nothing is stopped" in lines[0]

    # What must be there is still started.
    world.kube.remove("Deployment", world.workers()[0])
    world.kube.remove("Deployment", world.workers()[0])
    world.kube.remove("Deployment", world.workers()[0])
    run_until(world, scaler, lambda: len(world.workers()) == 1)

    world.head.is_away = False
    run_for(world, scaler, 90)
    assert len(world.workers()) == 1


def test_nothing_is_stopped_until_a_restarted_head_knows_all_its_workers() -> None:
    world = World(platform_of())
    scaler = autoscaler_of(world)
    world.head.leases = leases(2, CPU=4.0)
    run_until(world, scaler, lambda: len(world.head.nodes) == 2)
    world.head.leases = ()
    nodes = dict(world.head.nodes)
    world.head.instance = "life-2"
    world.head.nodes.clear()
    for worker in world.workers():
        world._running_s[worker] = 1e18
    first = next(iter(nodes))
    world.head.nodes[first] = nodes[first]

    run_for(world, scaler, 50)
    assert len(world.workers()) == 2
    assert "has not heard again of 1 workers" in scaler.status.problems[0]

    # Twice the cold start (30 s) is enough.
    run_until(world, scaler, lambda: not world.workers(), limit_s=120)
    assert not world.picked


def test_a_new_autoscaler_trusts_a_head_that_the_last_one_trusted() -> None:
    world = World(platform_of())
    scaler = autoscaler_of(world)
    world.head.leases = leases(1, CPU=4.0)
    run_until(world, scaler, lambda: len(world.head.nodes) == 1)
    run_for(world, scaler, 1)

    second = autoscaler_of(world)
    second.turn()
    assert not second.status.problems

    world.head.instance = "life-2"
    third = autoscaler_of(world)
    third.turn()
    assert third.status.problems == (
        "the head was restarted and its nodes tell it again what waits: nothing is "
        "stopped",
    )


def test_nothing_is_done_while_the_api_server_does_not_answer() -> None:
    world = World(platform_of())
    scaler = autoscaler_of(world)
    run_for(world, scaler, 3)
    decisions = scaler.status.decisions
    world.kube.is_unreachable = True
    world.head.leases = leases(3, CPU=4.0)
    pauses = []
    for _ in range(8):
        world.now += 10
        scaler.turn()
        pauses.append(scaler.pause_s())

    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    assert scaler.status.decisions == decisions
    assert scaler.status.problems[0].startswith(
        "Kubernetes is unreachable (last read 80 s ago): nothing is done"
    )
    assert "Kubernetes was last read 80 s ago" in scaler.status.lines()
    world.kube.is_unreachable = False
    run_for(world, scaler, 5)
    assert not scaler.status.problems
    assert scaler.pause_s() == 5.0
    assert world.replicas("cpu-ingest") > 0


def test_a_lacking_right_is_told_with_what_to_apply() -> None:
    world = World(platform_of())
    world.kube.forbidden.add(("patch", "DaskWorkerGroup"))
    scaler = autoscaler_of(world)
    world.head.leases = leases(1, CPU=4.0)

    status = scaler.turn()

    text = (
        "autoscaler may not patch daskworkergroups in ray-prod; apply "
        "deploy/base/rbac.yaml"
    )
    assert status.problems == (text,)
    assert status_of(world)["problems"] == [text]
    world.kube.forbidden = {("list", "Pod")}
    assert scaler.turn().problems == (
        "autoscaler may not list pods in ray-prod; apply deploy/base/rbac.yaml",
    )
    world.kube.forbidden = {("list", "LocalQueue"), ("create", "Event")}
    scaler.turn()
    assert world.replicas("cpu-ingest") == 1


def test_somebody_elses_write_is_left_alone_until_the_next_turn() -> None:
    world = World(platform_of())
    world.head.leases = leases(1, CPU=4.0)

    def meddle(step: str) -> None:
        if step == "replicas" and world.replicas("cpu-ingest") == 0:
            world.scale("cpu-ingest", 4)

    scaler = autoscaler_of(world, on_step=meddle)
    scaler.turn()

    assert world.replicas("cpu-ingest") == 4
    run_for(world, scaler, 10)
    assert world.replicas("cpu-ingest") == 4
    assert not scaler.status.problems


def test_lowered_replicas_are_repaired_and_an_event_tells() -> None:
    world = World(platform_of())
    scaler = autoscaler_of(world)
    world.head.leases = leases(2, CPU=4.0)
    run_until(world, scaler, lambda: len(world.head.nodes) == 2)
    world.has_operator = False
    world.scale("cpu-ingest", 1)
    scaler.turn()

    assert world.replicas("cpu-ingest") == 2
    event = events(world)["demo-cpu-ingest", "Repaired"]
    assert event["type"] == "Warning"
    assert event["involvedObject"]["uid"]
    world.has_operator = True
    run_for(world, scaler, 5)
    assert not world.picked


def test_a_line_is_told_once_though_its_age_grows() -> None:
    before = PlatformStatus(problems=("the demand is 31 s old, nothing is stopped",))
    again = replace(before, problems=("the demand is 32 s old, nothing is stopped",))
    assert again.news(before) == []
    more = replace(again, problems=(*again.problems, "a Role is lacking"))
    assert more.news(before) == ["a Role is lacking"]


def test_a_dry_run_writes_nothing_at_all() -> None:
    world = World(platform_of())
    world.head.leases = leases(1, CPU=4.0)
    scaler = autoscaler_of(world, dry_run=True)
    run_for(world, scaler, 30)

    assert not world.kube.writes
    assert not world.head.reports
    lines = scaler.status.lines()
    assert "would start 1 of group cpu-ingest" in lines
    assert "would set replicas of demo-cpu-ingest to 1: 1 more are needed" in lines


def test_the_head_is_told_why_things_wait() -> None:
    world = World(platform_of())
    world.head.leases = leases(1, GPU=8.0)
    autoscaler_of(world).turn()

    (report,) = world.head.reports
    assert report["infeasible"][0]["text"] == (
        "work: bundle {GPU: 8} fits no group (largest has GPU: 4); change the request "
        "or add a group"
    )
    assert events(world)["demo", "Infeasible"]["count"] == 1


def test_a_world_at_rest_is_written_of_every_thirty_seconds() -> None:
    world = World(platform_of())
    scaler = autoscaler_of(world)
    run_for(world, scaler, 5)
    world.kube.writes.clear()
    run_for(world, scaler, 60)

    kinds = [(verb, kind) for verb, kind, _ in world.kube.writes]
    assert set(kinds) == LEASE_AND_STATUS
    assert kinds.count(("apply", "ConfigMap")) == 2
    status = status_of(world)
    assert status["identity"] == "one"
    assert status["is_leader"] is True
    assert status["groups"]["cpu-ingest"]["states"]["joined"] == 0
    assert status["lines"][0] == "demand is 0 s old"


def test_a_status_of_another_release_is_refused() -> None:
    world = World(platform_of())
    assert read_status(world.kube, "demo") is None
    made = {
        "kind": "ConfigMap",
        "metadata": {"name": names.status_map("demo")},
        "data": {"status.json": json.dumps({"version": 99})},
    }
    world.kube.create(made)

    with pytest.raises(ValueError, match="version 99, this reader knows 1"):
        read_status(world.kube, "demo")


def test_events_are_counted_not_multiplied() -> None:
    world = World(platform_of())
    world.head.leases = leases(1, GPU=8.0)
    run_for(world, autoscaler_of(world), 20)
    run_for(world, autoscaler_of(world), 20)  # One that was started anew.
    assert events(world)["demo", "Infeasible"]["count"] == 1

    scaler = autoscaler_of(world)
    run_for(world, scaler, 2)
    world.head.leases = ()
    run_for(world, scaler, 2)
    world.head.leases = leases(2, GPU=9.0)
    run_for(world, scaler, 2)
    event = events(world)["demo", "Infeasible"]
    assert event["count"] == 2
    assert "{GPU: 9}" in event["message"]


def test_metrics_have_the_names_that_monitoring_asks_for() -> None:
    world = World(platform_of())
    scaler = autoscaler_of(world)
    world.head.leases = leases(1, CPU=4.0)
    run_until(world, scaler, lambda: len(world.head.nodes) == 1)
    run_for(world, scaler, 2)
    sample = scaler.metrics.registry.get_sample_value

    found = {one.name for one in scaler.metrics.registry.collect()}
    wanted = {one.name.removesuffix("_total") for one in metric_names.AUTOSCALER}
    assert found == wanted
    workers = {"group": "cpu-ingest", "state": "joined"}
    assert sample("rayshim_autoscaler_workers", workers) == 1
    assert sample("rayshim_autoscaler_decisions_total", {"kind": "launch"}) == 1
    assert sample("rayshim_autoscaler_is_leader") == 1
    assert sample("rayshim_autoscaler_demand_age_seconds") == 0


@pytest.mark.slow
def test_it_turns_until_it_is_stopped_and_gives_the_lease_up() -> None:
    world = World(platform_of())
    turned = threading.Event()
    scaler = autoscaler_of(world, interval_s=0.01)
    turn = scaler.turn

    def once() -> Any:
        status = turn()
        turned.set()
        return status

    scaler.turn = once  # type: ignore[method-assign]
    stop = threading.Event()
    thread = threading.Thread(target=scaler.run, args=(stop,))
    thread.start()
    assert turned.wait(10)
    stop.set()
    thread.join()

    assert not thread.is_alive()
    spec = world.kube.objects["Lease", "demo-autoscaler"]["spec"]
    assert spec["holderIdentity"] == ""


@pytest.mark.slow
def test_metrics_are_read_over_http() -> None:
    world = World(platform_of())
    scaler = autoscaler_of(world)
    scaler.turn()
    end = scaler.metrics.serve(0)
    url = f"http://127.0.0.1:{scaler.metrics.port}/metrics"
    try:
        with urllib.request.urlopen(url) as answer:
            text = answer.read().decode()
    finally:
        end()

    assert "rayshim_autoscaler_is_leader 1.0" in text
