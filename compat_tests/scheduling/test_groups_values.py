"""Placement groups on one node: parameters, handles, the table, waiting, names."""

from __future__ import annotations

import copy
import pickle
import threading
import time
import uuid

import pytest

import ray
from ray.exceptions import GetTimeoutError, RaySystemError, TaskPlacementGroupRemoved
from ray.util.placement_group import (
    VALID_PLACEMENT_GROUP_STRATEGIES,
    PlacementGroup,
    check_placement_group_index,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
    validate_placement_group,
)

pytestmark = pytest.mark.usefixtures("ray_start")

ONE = {"CPU": 1}
STAT_KEYS = {
    "end_to_end_creation_latency_ms",
    "scheduling_latency_ms",
    "scheduling_attempt",
    "highest_retry_delay_ms",
    "scheduling_state",
}


@pytest.fixture
def make(wait_until):
    """Make groups that are removed at the end of the test."""
    made = []

    def new(bundles=(ONE,), *, wait=True, **options):
        group = placement_group(list(bundles), **options)
        made.append(group)
        if wait:
            assert group.wait(20)
        return group

    yield new
    for group in made:
        remove_placement_group(group)
    wait_until(lambda: ray.available_resources().get("CPU") == 4)


def new_name():
    return f"group-{uuid.uuid4().hex[:8]}"


def progress(group):
    return placement_group_table(group)["stats"]["scheduling_state"]


def test_the_strategies_have_names():
    assert {
        "PACK",
        "SPREAD",
        "STRICT_PACK",
        "STRICT_SPREAD",
    } == VALID_PLACEMENT_GROUP_STRATEGIES


def test_the_default_strategy_is_pack(make):
    assert placement_group_table(make())["strategy"] == "PACK"
    assert placement_group_table(make(strategy=None))["strategy"] == "PACK"


def test_the_empty_group_is_none_and_ready():
    empty = PlacementGroup.empty()
    assert empty.is_empty
    assert empty.id.is_nil()
    assert ray.get(empty.ready(), timeout=20) == empty
    assert placement_group_table(empty) == {}
    assert remove_placement_group(empty) is None


def test_a_group_is_not_empty(make):
    group = make()
    assert not group.is_empty
    assert group.bundle_cache == [{"CPU": 1.0}]


def test_a_handle_is_a_value(make):
    group = make()
    other = pickle.loads(pickle.dumps(group))
    assert other == group == copy.deepcopy(group)
    assert {group, other} == {group}
    assert other.bundle_specs == [{"CPU": 1.0}]
    assert group != PlacementGroup.empty()
    assert group != "group"


def test_a_handle_passes_through_a_task(make):
    @ray.remote(num_cpus=0)
    def back(group):
        return group, group.bundle_count, group.wait(10)

    group = make([ONE, {"CPU": 0.5}])
    assert ray.get(back.remote(group)) == (group, 2, True)


def test_ready_gives_the_group(make):
    group = make()
    assert ray.get(group.ready(), timeout=20) == group


def test_ready_is_pending_until_the_bundles_are_there(make):
    first = make([{"CPU": 4}])
    ready = make([ONE], wait=False).ready()
    with pytest.raises(GetTimeoutError):
        ray.get(ready, timeout=0.3)
    remove_placement_group(first)
    assert ray.get(ready, timeout=20).bundle_count == 1


def test_ready_passes_to_a_task(make):
    @ray.remote(num_cpus=0)
    def count(group):
        return group.bundle_count

    assert ray.get(count.remote(make().ready()), timeout=20) == 1


@pytest.mark.parametrize(("seconds", "is_ready"), [(0, True), (20, True), (-1, False)])
def test_wait_of_a_group_that_is_there(make, seconds, is_ready):
    assert make().wait(seconds) is is_ready


@pytest.mark.parametrize("seconds", [None, "x"])
def test_wait_needs_a_number(make, seconds):
    with pytest.raises(TypeError):
        make().wait(seconds)


def test_waiting_for_a_removed_group_raises(make):
    group = make()
    remove_placement_group(group)
    with pytest.raises(Exception, match="does not exist"):
        group.wait(5)
    with pytest.raises(TaskPlacementGroupRemoved):
        ray.get(group.ready(), timeout=20)


def test_removal_ends_who_waits(make):
    group = make([{"CPU": 100}], wait=False)
    ready = group.ready()
    threading.Timer(0.3, remove_placement_group, (group,)).start()
    with pytest.raises(Exception, match="does not exist"):
        group.wait(20)
    with pytest.raises(TaskPlacementGroupRemoved):
        ray.get(ready, timeout=20)


def test_removal_while_pending(make):
    group = make([{"CPU": 100}], wait=False)
    remove_placement_group(group)
    assert placement_group_table(group)["state"] == "REMOVED"
    assert progress(group) == "REMOVED"
    remove_placement_group(group)


def test_the_row_of_a_created_group(make):
    name = new_name()
    group = make([ONE, {"CPU": 0.5, "GPU": 0}], name=name, strategy="SPREAD")
    row = placement_group_table(group)
    stats = row.pop("stats")
    node_id = ray.get_runtime_context().get_node_id()
    assert row == {
        "placement_group_id": group.id.hex(),
        "name": name,
        "bundles": {0: {"CPU": 1.0}, 1: {"CPU": 0.5}},
        "bundles_to_node_id": {0: node_id, 1: node_id},
        "strategy": "SPREAD",
        "state": "CREATED",
    }
    assert set(stats) == STAT_KEYS
    assert stats["scheduling_state"] == "FINISHED"
    assert stats["scheduling_attempt"] >= 1
    assert stats["end_to_end_creation_latency_ms"] > 0
    assert stats["scheduling_latency_ms"] > 0


def test_the_row_of_an_infeasible_group(make, wait_until):
    group = make([{"CPU": 100}], wait=False)
    wait_until(lambda: progress(group) == "INFEASIBLE")
    row = placement_group_table(group)
    assert row["state"] == "PENDING"
    assert row["bundles_to_node_id"] == {0: ""}
    assert row["stats"]["end_to_end_creation_latency_ms"] == 0


def test_the_row_of_a_group_without_room(make, wait_until):
    make([{"CPU": 4}])
    group = make(wait=False)
    wait_until(lambda: progress(group) == "NO_RESOURCES")
    assert placement_group_table(group)["state"] == "PENDING"


def test_the_whole_table_has_removed_groups(make):
    group, other = make(), make()
    remove_placement_group(other)
    table = placement_group_table()
    assert table[group.id.hex()]["state"] == "CREATED"
    assert table[other.id.hex()]["state"] == "REMOVED"


def test_amounts_are_floats(make):
    group = make([{"CPU": True, "memory": 1000}])
    assert group.bundle_specs == [{"CPU": 1.0, "memory": 1000.0}]
    assert placement_group_table(group)["bundles"] == {0: {"CPU": 1.0, "memory": 1000}}


def test_memory_of_the_object_store_is_warned_of(make):
    with pytest.warns(DeprecationWarning, match="object_store_memory"):
        make([{"object_store_memory": 1000}])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strategy": ""}, "strategy"),
        ({"strategy": "pack"}, "strategy pack"),
        ({"lifetime": "x"}, "lifetime"),
        ({"_soft_target_node_id": "ab" * 28}, "STRICT_PACK but got PACK"),
        (
            {"_soft_target_node_id": "ff" * 28, "strategy": "STRICT_PACK"},
            "Invalid hex ID",
        ),
        ({"bundle_label_selector": []}, "bundle label selector"),
        ({"bundle_label_selector": [{}, {}]}, "bundle label selector"),
        ({"bundle_label_selector": {"a": "b"}}, "must be a list"),
        ({"bundle_label_selector": ["a"]}, "must be a list of string dict"),
        ({"bundle_label_selector": [{"a": 1}]}, "must be a list of string dict"),
        ({"bundle_label_selector": [{"a": "!!x"}]}, "Invalid label selector"),
        ({"topology_strategy": [1]}, "must be a dict"),
        ({"topology_strategy": {"a": "PACK"}}, "not supported"),
        ({"topology_strategy": {"a": "FOO"}}, "Invalid topology strategy"),
        ({"topology_strategy": {"": "STRICT_PACK"}}, "non-empty strings"),
        ({"topology_strategy": {}, "strategy": "PACK"}, "cannot both be specified"),
    ],
    ids=repr,
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        placement_group([ONE], **options)
    with pytest.raises(ValueError, match=text):
        validate_placement_group([ONE], **options)


@pytest.mark.parametrize("name", [3, None])
def test_a_name_is_text(name):
    with pytest.raises(TypeError):
        placement_group([ONE], name=name)


@pytest.mark.parametrize(
    "options",
    [
        {"bundle_label_selector": [{}]},
        {"topology_strategy": {}},
        {"topology_strategy": {"ray.io/node-id": "STRICT_PACK"}},
        {"_soft_target_node_id": "ab" * 28, "strategy": "STRICT_PACK"},
    ],
    ids=repr,
)
def test_options_that_one_node_can_serve(make, options):
    make(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"bundle_label_selector": [{"zone": "nowhere"}]},
        {"topology_strategy": {"zone": "STRICT_PACK"}},
    ],
    ids=repr,
)
def test_labels_that_no_node_has_are_waited_for(make, options, wait_until):
    group = make(wait=False, **options)
    assert group.wait(0.3) is False
    wait_until(lambda: progress(group) == "INFEASIBLE")


def test_an_index_is_checked(make):
    group = make([ONE, ONE])
    for index in (-1, 0, 1):
        check_placement_group_index(group, index)
    for index in (-2, 2):
        with pytest.raises(ValueError, match=f"bundle index {index} is invalid"):
            check_placement_group_index(group, index)
    check_placement_group_index(PlacementGroup.empty(), -1)
    with pytest.raises(ValueError, match="bundle index must be -1"):
        check_placement_group_index(PlacementGroup.empty(), 0)


def test_a_name_leads_to_the_group(make):
    name = new_name()
    group = make([ONE, ONE], name=name)
    found = get_placement_group(name)
    assert found == group
    assert found.bundle_specs == [{"CPU": 1.0}, {"CPU": 1.0}]


def test_a_pending_group_is_found(make):
    name = new_name()
    assert make([{"CPU": 100}], wait=False, name=name) == get_placement_group(name)


def test_a_name_is_taken_until_its_group_is_removed(make):
    name = new_name()
    group = make(name=name)
    with pytest.raises(RaySystemError, match="already exists"):
        placement_group([ONE], name=name)
    assert get_placement_group(name) == group
    remove_placement_group(group)
    with pytest.raises(ValueError, match="Failed to look up"):
        get_placement_group(name)
    assert make(name=name) == get_placement_group(name)


def test_an_empty_name_is_refused():
    with pytest.raises(ValueError, match="non-empty"):
        get_placement_group("")


def test_groups_that_wait_start_in_order(make, wait_until):
    first = make([{"CPU": 4}])
    waiting = [make([{"CPU": 4}], wait=False) for _ in range(4)]
    time.sleep(0.3)
    remove_placement_group(first)
    for position, group in enumerate(waiting):
        assert group.wait(30)
        assert not any(later.wait(0) for later in waiting[position + 1 :])
        remove_placement_group(group)


def test_a_small_group_passes_a_large_one(make):
    make([{"CPU": 2}])
    large = make([{"CPU": 4}], wait=False)
    assert make([ONE]).wait(20)
    assert not large.wait(0)


def test_a_group_waits_for_a_task_to_end(make, tmp_path):
    gate = tmp_path / "gate"

    @ray.remote(num_cpus=4)
    def hold():
        while not gate.exists():
            time.sleep(0.02)

    ref = hold.remote()
    while ray.available_resources().get("CPU"):
        time.sleep(0.02)
    group = make(wait=False)
    assert not group.wait(0.3)
    gate.touch()
    assert group.wait(20)
    ray.get(ref)


def test_many_groups_at_once(make):
    groups = [make([{"CPU": 0.01}], wait=False) for _ in range(50)]
    assert all(group.wait(30) for group in groups)
