"""An autoscaler that dies at any step of a scale-down leaves nothing half done."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaled import autoscaler_of, cpu_group, leases, platform_of, run_for, run_until
from fake_kube import World
from rayshim.k8s import names
from rayshim.k8s.autoscaler import PlatformAutoscaler


class Died(Exception):
    """The process ended here."""


def filled(count: int = 3, **options: Any) -> World:
    """A world with so many workers that run nothing any more."""
    world = World(platform_of(cpu_group(**options)))
    scaler = autoscaler_of(world)
    world.head.leases = leases(count, CPU=4.0)
    run_until(world, scaler, lambda: len(world.head.nodes) == count)
    world.head.leases = ()
    return world


def dying(world: World, step: str, number: int = 1) -> PlatformAutoscaler:
    """An autoscaler that dies before a certain write."""
    left = [number]

    def die(name: str) -> None:
        if name == step:
            left[0] -= 1
            if not left[0]:
                raise Died(name)

    return autoscaler_of(world, identity=f"dies-at-{step}", on_step=die)


@pytest.mark.parametrize(
    ("step", "number"),
    [
        *(
            (step, number)
            for step in ("annotate", "drain", "delete")
            for number in (1, 2, 3)
        ),
        ("replicas", 1),
    ],
)
def test_another_one_finishes_what_one_began(step: str, number: int) -> None:
    world = filled()
    world.use(world.workers()[0], CPU=1.0)
    if number == 3:
        world.use(world.workers()[0])
    first = dying(world, step, number)
    with pytest.raises(Died):
        run_for(world, first, 100)
    replicas = world.replicas("cpu-ingest")
    assert replicas >= len(world.workers())

    second = autoscaler_of(world, identity="second")
    wanted = 0 if number == 3 else 1
    run_until(world, second, lambda: len(world.workers()) == wanted)
    run_until(world, second, lambda: world.replicas("cpu-ingest") == wanted)
    run_for(world, second, 60)

    assert not world.picked
    assert len(world.workers()) == wanted
    assert world.replicas("cpu-ingest") == wanted


@pytest.mark.parametrize("step", ["joined", "replicas"])
def test_another_one_finishes_a_scale_up(step: str) -> None:
    world = World(platform_of())
    world.head.leases = leases(2, CPU=4.0)
    with pytest.raises(Died):
        run_for(world, dying(world, step), 30)

    second = autoscaler_of(world, identity="second")
    run_until(world, second, lambda: len(world.head.nodes) == 2)
    run_for(world, second, 15)

    assert len(world.workers()) == 2


def test_the_order_of_a_scale_down() -> None:
    world = filled(1)
    (worker,) = world.workers()
    steps: list[str] = []
    scaler = autoscaler_of(world, identity="one", on_step=steps.append)
    run_until(world, scaler, lambda: world.replicas("cpu-ingest") == 0)

    assert steps == ["annotate", "drain", "delete", "replicas"]
    writes = [
        one for one in world.kube.writes if one[1] in ("Deployment", "DaskWorkerGroup")
    ]
    assert writes[-3:] == [
        ("patch", "Deployment", worker),
        ("delete", "Deployment", worker),
        ("patch", "DaskWorkerGroup", "demo-cpu-ingest"),
    ]
    assert not world.picked


def test_what_the_operator_would_do_by_itself() -> None:
    """Why ``replicas`` is never lowered first: it takes any worker of the cluster."""
    world = World(platform_of())
    scaler = autoscaler_of(world)
    world.head.leases = leases(3, CPU=4.0)
    run_until(world, scaler, lambda: len(world.head.nodes) == 3)

    world.scale("cpu-ingest", 1)
    world.operate()

    assert len(world.picked) == 2


def test_replicas_stays_while_a_deleted_deployment_is_still_there() -> None:
    world = filled(1)
    (worker,) = world.workers()
    world.kube.kept.add(("Deployment", worker))
    scaler = autoscaler_of(world)
    run_until(
        world, scaler, lambda: ("delete", "Deployment", worker) in world.kube.writes
    )
    run_for(world, scaler, 20)
    assert world.replicas("cpu-ingest") == 1

    world.kube.kept.clear()
    world.kube.remove("Deployment", worker)
    run_until(world, scaler, lambda: world.replicas("cpu-ingest") == 0)
    assert not world.picked


def test_replicas_is_not_lowered_while_the_operator_may_be_making_workers() -> None:
    world = filled(2)
    world.has_operator = False
    world.head.leases = leases(3, CPU=4.0)
    scaler = autoscaler_of(world)
    run_until(world, scaler, lambda: world.replicas("cpu-ingest") == 3)
    world.head.leases = ()
    run_until(world, scaler, lambda: not world.workers(), limit_s=60)
    assert world.replicas("cpu-ingest") == 3

    world.has_operator = True
    run_until(world, scaler, lambda: world.replicas("cpu-ingest") == 0)
    assert not world.picked


def test_a_drain_that_is_refused_is_taken_back_and_tried_again_later() -> None:
    world = filled(1)
    (node_id,) = world.head.nodes
    (worker,) = world.workers()
    world.head.refusing[node_id] = "f runs there"
    scaler = autoscaler_of(world)

    def annotations() -> dict[str, str]:
        found = world.kube.objects["Deployment", worker]["metadata"]["annotations"]
        assert isinstance(found, dict)
        return found

    run_until(world, scaler, lambda: names.DRAINING_SINCE in annotations())
    run_until(world, scaler, lambda: names.DRAINING_SINCE not in annotations())
    refused_s = world.now
    run_until(world, scaler, lambda: names.DRAINING_SINCE in annotations())
    assert world.now - refused_s >= 15

    world.head.refusing.clear()
    run_until(world, scaler, lambda: not world.workers())


def test_a_worker_that_came_back_after_its_drain_is_drained_again() -> None:
    world = filled(1)
    (node_id,) = world.head.nodes
    scaler = autoscaler_of(world, identity="one")
    run_until(world, scaler, lambda: node_id in world.head.drains)
    for _ in range(10):  # Nobody deletes it: its pod starts anew and joins.
        world.step()
    (other,) = world.head.nodes
    assert other != node_id

    run_until(world, scaler, lambda: not world.workers())
    assert other not in world.head.nodes
    assert world.replicas("cpu-ingest") == 0


def test_a_worker_that_came_back_and_is_used_stays() -> None:
    world = filled(1)
    (worker,) = world.workers()
    scaler = autoscaler_of(world)
    run_until(world, scaler, lambda: bool(world.head.drains))
    for _ in range(10):
        world.step()
    world.use(worker, CPU=2.0)
    run_for(world, scaler, 60)

    notes = world.kube.objects["Deployment", worker]["metadata"]["annotations"]
    assert world.workers() == [worker]
    assert names.DRAINING_SINCE not in notes
