"""Placement groups on one node: making, using, removing, mistakes."""

from __future__ import annotations

import uuid

import pytest

import ray
from ray.exceptions import ActorDiedError
from ray.util.placement_group import (
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Member:
    def ping(self):
        return "pong"

    def group_id(self):
        return ray.get_runtime_context().get_placement_group_id()

    def has_group(self):
        return get_current_placement_group() is not None


@ray.remote
def has_group():
    return get_current_placement_group() is not None


@pytest.fixture
def group(wait_until):
    """A ready group of two bundles of one CPU."""
    made = placement_group([{"CPU": 1}, {"CPU": 1}])
    assert made.wait(20)
    yield made
    remove_placement_group(made)
    wait_until(lambda: free_cpus() == 4)


def free_cpus():
    """Return the free CPUs outside groups."""
    return ray.available_resources().get("CPU", 0)


def inside(group, **options):
    """Return the strategy for a group."""
    return PlacementGroupSchedulingStrategy(placement_group=group, **options)


def test_ready_resolves_and_wait_is_true(group):
    ray.get(group.ready(), timeout=20)
    assert group.wait(1) is True


def test_group_describes_itself(group):
    assert group.bundle_specs == [{"CPU": 1}, {"CPU": 1}]
    assert group.bundle_count == 2
    assert len(group.id.hex()) == 36


def test_group_reserves_its_resources(group, wait_until):
    wait_until(lambda: free_cpus() == 2)
    assert ray.cluster_resources()["CPU"] == 4


def test_table_shows_state_and_bundles(group):
    entry = placement_group_table(group)
    assert entry["state"] == "CREATED"
    assert entry["strategy"] == "PACK"
    assert entry["bundles"] == {0: {"CPU": 1}, 1: {"CPU": 1}}
    assert entry["placement_group_id"] == group.id.hex()
    assert group.id.hex() in placement_group_table()


@pytest.mark.parametrize("index", [-1, 0, 1])
def test_actor_runs_in_a_bundle(group, index):
    strategy = inside(group, placement_group_bundle_index=index)
    member = Member.options(num_cpus=1, scheduling_strategy=strategy).remote()
    assert ray.get(member.ping.remote()) == "pong"
    assert ray.get(member.group_id.remote()) == group.id.hex()


def test_task_runs_in_a_group_and_knows_it(group):
    ref = has_group.options(num_cpus=1, scheduling_strategy=inside(group)).remote()
    assert ray.get(ref) is True
    assert ray.get(has_group.remote()) is False
    assert get_current_placement_group() is None


def test_bundle_bounds_what_runs_in_it(group):
    strategy = inside(group, placement_group_bundle_index=0)
    first = Member.options(num_cpus=1, scheduling_strategy=strategy).remote()
    assert ray.get(first.ping.remote()) == "pong"
    second = Member.options(num_cpus=1, scheduling_strategy=strategy).remote()
    ref = second.ping.remote()
    assert ray.wait([ref], timeout=0.2) == ([], [ref])
    ray.kill(first)
    assert ray.get(ref) == "pong"


@pytest.mark.parametrize("capture", [True, False])
def test_children_are_in_the_group_only_when_captured(group, capture):
    @ray.remote(num_cpus=1)
    def parent():
        return ray.get(has_group.options(num_cpus=1).remote())

    strategy = inside(group, placement_group_capture_child_tasks=capture)
    assert ray.get(parent.options(scheduling_strategy=strategy).remote()) is capture


@pytest.mark.parametrize("index", [2, -2])
def test_bundle_index_out_of_range_is_refused(group, index):
    strategy = inside(group, placement_group_bundle_index=index)
    with pytest.raises(ValueError, match="bundle index"):
        Member.options(num_cpus=1, scheduling_strategy=strategy).remote()


def test_request_that_fits_no_bundle_is_refused(group):
    with pytest.raises(ValueError, match="cannot fit"):
        Member.options(num_cpus=3, scheduling_strategy=inside(group)).remote()


def test_removal_ends_the_actors_and_gives_the_resources_back(group, wait_until):
    member = Member.options(num_cpus=1, scheduling_strategy=inside(group)).remote()
    ray.get(member.ping.remote())
    remove_placement_group(group)

    def is_dead():
        try:
            ray.get(member.ping.remote())
        except ActorDiedError:
            return True
        return False

    wait_until(is_dead)
    wait_until(lambda: free_cpus() == 4)
    assert placement_group_table(group)["state"] == "REMOVED"


def test_removing_twice_is_harmless(group):
    remove_placement_group(group)
    remove_placement_group(group)


@pytest.mark.parametrize("strategy", ["PACK", "SPREAD", "STRICT_PACK"])
def test_strategies_that_one_node_can_serve(strategy):
    made = placement_group([{"CPU": 1}, {"CPU": 1}], strategy=strategy)
    assert made.wait(20)
    assert placement_group_table(made)["strategy"] == strategy
    remove_placement_group(made)


@pytest.mark.parametrize(
    ("bundles", "strategy"),
    [
        ([{"CPU": 100}], "PACK"),
        ([{"CPU": 1}, {"CPU": 1}], "STRICT_SPREAD"),
        ([{"unicorn": 1}], "PACK"),
    ],
)
def test_group_that_does_not_fit_stays_pending(bundles, strategy):
    made = placement_group(bundles, strategy=strategy)
    assert made.wait(0.2) is False
    assert placement_group_table(made)["state"] == "PENDING"
    remove_placement_group(made)


@pytest.mark.parametrize(
    "bundles",
    [[], [{}], [{"CPU": 0}], {"CPU": 1}, "x", None, [3], [{"CPU": "a"}], [{1: 1}]],
    ids=repr,
)
def test_bad_bundles_are_refused(bundles):
    with pytest.raises(ValueError):
        placement_group(bundles)


@pytest.mark.parametrize("options", [{"strategy": "FOO"}, {"lifetime": "FOO"}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match="FOO"):
        placement_group([{"CPU": 1}], **options)


def test_named_group_can_be_found():
    name = f"group-{uuid.uuid4().hex[:8]}"
    made = placement_group([{"CPU": 1}], name=name)
    assert made.wait(20)
    assert ray.util.get_placement_group(name) == made
    remove_placement_group(made)
    with pytest.raises(ValueError, match="Failed to look up"):
        ray.util.get_placement_group(name + "-absent")


def test_waiting_group_starts_when_room_comes_back(group):
    later = placement_group([{"CPU": 3}])
    assert later.wait(0.2) is False
    remove_placement_group(group)
    assert later.wait(20) is True
    remove_placement_group(later)


def test_group_can_be_passed_to_a_task(group):
    @ray.remote
    def use(received):
        strategy = PlacementGroupSchedulingStrategy(placement_group=received)
        member = Member.options(num_cpus=1, scheduling_strategy=strategy).remote()
        return ray.get(member.has_group.remote())

    assert ray.get(use.remote(group)) is True
