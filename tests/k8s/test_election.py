"""Of several autoscalers one decides, and another one after it."""

from __future__ import annotations

import pytest

from autoscaled import autoscaler_of, leases, platform_of, run_for
from fake_kube import FakeKube, World
from rayshim.k8s.api import Unreachable
from rayshim.k8s.election import DURATION_S, Election


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kube(clock: Clock) -> FakeKube:
    return FakeKube(clock)


def candidate(kube: FakeKube, clock: Clock, identity: str) -> Election:
    return Election(kube, "demo-autoscaler", identity, clock=clock)


def test_the_first_one_holds_the_lease_and_renews_it(
    kube: FakeKube, clock: Clock
) -> None:
    one, two = candidate(kube, clock, "one"), candidate(kube, clock, "two")

    assert one.campaign()
    assert not two.campaign()
    assert two.holder == "one"
    for _ in range(10):
        clock.now += DURATION_S - 1
        assert one.campaign()
        assert not two.campaign()
    spec = kube.objects["Lease", "demo-autoscaler"]["spec"]
    assert spec["holderIdentity"] == "one"
    assert spec["leaseTransitions"] == 0


def test_a_lease_that_is_not_renewed_is_taken_over(
    kube: FakeKube, clock: Clock
) -> None:
    one, two = candidate(kube, clock, "one"), candidate(kube, clock, "two")
    one.campaign()
    two.campaign()

    clock.now += DURATION_S
    assert not one.holds()
    assert two.campaign()

    assert not one.campaign()
    assert kube.objects["Lease", "demo-autoscaler"]["spec"]["leaseTransitions"] == 1


def test_how_old_a_lease_is_is_told_by_ones_own_clock(
    kube: FakeKube, clock: Clock
) -> None:
    candidate(kube, clock, "one").campaign()
    clock.now += 1_000_000

    two = candidate(kube, clock, "two")
    assert not two.campaign()  # Seen for the first time: its clock may be another.
    clock.now += DURATION_S
    assert two.campaign()


def test_a_lease_that_is_given_up_is_free_at_once(kube: FakeKube, clock: Clock) -> None:
    one, two = candidate(kube, clock, "one"), candidate(kube, clock, "two")
    one.campaign()
    two.campaign()

    one.release()

    assert not one.holds()
    assert two.campaign()
    one.release()
    assert two.campaign()


def test_of_two_that_write_at_once_one_holds_it(kube: FakeKube, clock: Clock) -> None:
    one, two = candidate(kube, clock, "one"), candidate(kube, clock, "two")
    one.campaign()
    two.campaign()
    clock.now += DURATION_S
    written = kube.replace

    def late(made: dict[str, object]) -> dict[str, object]:
        kube.replace = written  # type: ignore[method-assign]
        assert two.campaign()
        return written(made)

    kube.replace = late  # type: ignore[method-assign]

    assert not one.campaign()
    assert not one.holds()
    assert two.holds()


def test_nobody_is_given_up_to_when_the_api_server_is_away(
    kube: FakeKube, clock: Clock
) -> None:
    one = candidate(kube, clock, "one")
    one.campaign()
    kube.is_unreachable = True

    with pytest.raises(Unreachable):
        one.campaign()
    one.release()

    assert not one.holds()


def test_the_one_without_the_lease_writes_nothing_but_it() -> None:
    world = World(platform_of())
    one = autoscaler_of(world, identity="one")
    two = autoscaler_of(world, identity="two")
    one.turn()
    world.head.leases = leases(3, CPU=4.0)
    world.kube.writes.clear()

    status = two.turn()

    assert not world.kube.writes
    assert not world.head.reports[1:]
    assert status.lines() == ["stands by: one holds the Lease"]
    assert two.metrics.registry.get_sample_value("rayshim_autoscaler_is_leader") == 0

    run_for(world, two, int(DURATION_S) + 1)
    assert two.status.is_leader
    assert world.replicas("cpu-ingest") == 1
    one.turn()
    assert not one.status.is_leader


def test_a_turn_ends_when_the_lease_runs_out_in_it() -> None:
    world = World(platform_of())

    def slow(step: str) -> None:
        world.now += DURATION_S

    scaler = autoscaler_of(world, on_step=slow)
    world.head.leases = leases(1, CPU=4.0)

    status = scaler.turn()

    assert not status.is_leader
    assert "the Lease ran out in the middle of a turn" in status.problems[0]
    assert world.replicas("cpu-ingest") == 0
