"""Where calls, actors and placement groups of a cluster go."""

from __future__ import annotations

import time
from collections import Counter

import pytest

import ray
from failures.placed import GET_LIMIT_S, Keeper, nap, on, where
from ray.exceptions import (
    ActorUnschedulableError,
    GetTimeoutError,
    TaskCancelledError,
    TaskUnschedulableError,
)
from ray.util.placement_group import (
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)

UNKNOWN_NODE = "ab" * 28


@ray.remote(num_cpus=1)
def meet(folder, name, count):
    """Wait until `count` calls run at the same time; return the node."""
    (folder / name).touch()
    deadline = time.monotonic() + 40
    while len(list(folder.iterdir())) < count:
        if time.monotonic() > deadline:
            raise TimeoutError("the others did not start")
        time.sleep(0.02)
    return ray.get_runtime_context().get_node_id()


def get(ref):
    return ray.get(ref, timeout=GET_LIMIT_S)


def affinity(node_id, **options):
    return NodeAffinitySchedulingStrategy(node_id, **options)


@pytest.fixture
def group():
    """Make placement groups that are removed at the end."""
    made = []

    def make(*args, **options):
        made.append(placement_group(*args, **options))
        return made[-1]

    yield make
    for each in made:
        remove_placement_group(each)


def test_a_custom_resource_places_a_task(nodes):
    there = nodes.stand("a")
    other = nodes.stand("b")
    assert get(where.options(**on("a")).remote()) == there.node_id
    assert get(where.options(**on("b")).remote()) == other.node_id
    assert get(where.options(**on("head")).remote()) == nodes.head_id


def test_a_custom_resource_places_an_actor(nodes):
    there = nodes.stand("a")
    keeper = Keeper.options(**on("a")).remote()
    assert get(keeper.node.remote()) == there.node_id


def test_a_full_resource_makes_tasks_wait(nodes, wait_until):
    nodes.stand("a")
    first = nap.options(num_cpus=0, resources={"a": 10}).remote(300)
    wait_until(lambda: ray.available_resources().get("a", 0) == 0)
    second = where.options(num_cpus=0, resources={"a": 1}).remote()
    assert ray.wait([second], timeout=0.3) == ([], [second])
    ray.cancel(first)
    assert get(second) == nodes.stand("a").node_id


def test_tasks_go_to_other_nodes_when_one_is_full(nodes, tmp_path):
    ids = {nodes.head_id, nodes.stand("a").node_id, nodes.stand("b").node_id}
    refs = [meet.remote(tmp_path, str(number), 3) for number in range(3)]
    assert set(get(refs)) == ids


def test_a_large_task_goes_to_the_only_node_that_fits(nodes):
    nodes.stand("a")
    wide = nodes.add(num_cpus=2)
    assert get(where.options(num_cpus=2).remote()) == wide.node_id


def test_spread_uses_several_nodes(nodes):
    nodes.stand("a")
    nodes.stand("b")
    spread = where.options(num_cpus=0.1, scheduling_strategy="SPREAD")
    assert len(set(get([spread.remote() for _ in range(12)]))) >= 2


def test_spread_places_actors_on_several_nodes(nodes):
    nodes.stand("a")
    nodes.stand("b")
    spread = Keeper.options(num_cpus=0.5, scheduling_strategy="SPREAD")
    keepers = [spread.remote() for _ in range(3)]
    assert len(set(get([keeper.node.remote() for keeper in keepers]))) >= 2


def test_many_small_tasks_over_all_nodes(nodes):
    nodes.stand("a")
    nodes.stand("b")

    @ray.remote
    def square(number):
        return number * number

    assert get([square.remote(number) for number in range(400)]) == [
        number * number for number in range(400)
    ]


def test_affinity_places_a_task_and_an_actor(nodes):
    there = nodes.stand("a")
    strategy = affinity(there.node_id, soft=False)
    task = where.options(scheduling_strategy=strategy)
    assert set(get([task.remote() for _ in range(5)])) == {there.node_id}
    keeper = Keeper.options(scheduling_strategy=strategy).remote()
    assert get(keeper.node.remote()) == there.node_id
    soft = where.options(scheduling_strategy=affinity(there.node_id, soft=True))
    assert get(soft.remote()) == there.node_id


def test_hard_affinity_waits_for_a_full_node(nodes, wait_until):
    there = nodes.stand("a")
    strategy = affinity(there.node_id, soft=False)
    busy = nap.options(num_cpus=1, scheduling_strategy=strategy).remote(300)
    free = ray.cluster_resources()["CPU"] - 1
    wait_until(lambda: ray.available_resources().get("CPU", 0) == free)
    queued = where.options(num_cpus=1, scheduling_strategy=strategy).remote()
    assert ray.wait([queued], timeout=0.5) == ([], [queued])
    ray.cancel(busy)
    assert get(queued) == there.node_id


@pytest.mark.parametrize("known", [True, False])
def test_hard_affinity_to_a_node_that_is_not_there(nodes, known):
    node_id = UNKNOWN_NODE
    if known:
        node = nodes.add()
        nodes.kill(node)
        node_id = node.node_id
    strategy = affinity(node_id, soft=False)
    with pytest.raises(TaskUnschedulableError, match="soft=False"):
        get(where.options(scheduling_strategy=strategy).remote())
    keeper = Keeper.options(scheduling_strategy=strategy).remote()
    with pytest.raises(ActorUnschedulableError, match="soft=False"):
        get(keeper.node.remote())


@pytest.mark.parametrize("known", [True, False])
def test_soft_affinity_to_a_node_that_is_not_there(nodes, known):
    node_id = UNKNOWN_NODE
    if known:
        node = nodes.add()
        nodes.kill(node)
        node_id = node.node_id
    alive = {row["NodeID"] for row in ray.nodes() if row["Alive"]}
    strategy = affinity(node_id, soft=True)
    assert get(where.options(scheduling_strategy=strategy).remote()) in alive
    keeper = Keeper.options(scheduling_strategy=strategy).remote()
    assert get(keeper.node.remote()) in alive


def test_affinity_needs_a_hex_id(nodes):
    with pytest.raises(ValueError, match="zz"):
        where.options(scheduling_strategy=affinity("zz", soft=False)).remote()


def test_a_task_nobody_can_run_waits_for_a_node(nodes):
    ref = where.options(num_cpus=0, resources={"later": 1}).remote()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.5)
    node = nodes.add(resources={"later": 1})
    assert get(ref) == node.node_id


def test_many_tasks_wait_for_a_node(nodes):
    refs = [where.options(num_cpus=1, resources={"later": 1}).remote() for _ in "1234"]
    assert ray.wait(refs, timeout=0.3) == ([], refs)
    node = nodes.add(resources={"later": 1})
    assert get(refs) == [node.node_id] * 4


def test_an_actor_nobody_can_hold_waits_for_a_node(nodes):
    keeper = Keeper.options(num_cpus=0, resources={"later": 1}).remote()
    ref = keeper.node.remote()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.5)
    node = nodes.add(resources={"later": 1})
    assert get(ref) == node.node_id


def test_a_task_that_waits_for_a_node_can_be_cancelled(nodes):
    ref = where.options(num_cpus=0, resources={"never": 1}).remote()
    assert ray.wait([ref], timeout=0.3) == ([], [ref])
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        get(ref)


def test_pending_tasks_use_a_node_that_is_added(nodes, tmp_path):
    # One more than the CPUs of the cluster: they can only meet on a new node.
    count = int(ray.cluster_resources()["CPU"]) + 1
    refs = [meet.remote(tmp_path, str(number), count) for number in range(count)]
    assert ray.wait(refs, timeout=1) == ([], refs)
    node = nodes.add()
    assert node.node_id in get(refs)


def test_a_child_task_goes_to_another_node(nodes):
    nodes.stand("a")
    there = nodes.stand("b")

    @ray.remote(**on("a"))
    def parent():
        child = where.options(**on("b")).remote()
        return ray.get_runtime_context().get_node_id(), ray.get(child)

    assert get(parent.remote()) == (nodes.stand("a").node_id, there.node_id)


def test_gpus_of_another_node(nodes):
    node = nodes.add(num_gpus=2)

    @ray.remote(num_cpus=0, num_gpus=1)
    def gpu():
        return ray.get_gpu_ids(), ray.get_runtime_context().get_node_id()

    ids, where_it_ran = get(gpu.remote())
    assert where_it_ran == node.node_id
    assert len(ids) == 1
    assert ids[0] in (0, 1)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({"zone": "north"}, True),
        ({"zone": "in(north, south)"}, True),
        ({"zone": "!north"}, False),
        ({"zone": "!in(north, south)"}, False),
    ],
)
def test_label_selectors(nodes, selector, matches):
    node = nodes.add(labels={"zone": "north"})
    task = where.options(num_cpus=0, label_selector=selector)
    ran_on = set(get([task.remote() for _ in range(3)]))
    assert (node.node_id in ran_on) is matches
    assert len(ran_on) >= 1
    keeper = Keeper.options(label_selector=selector).remote()
    assert (get(keeper.node.remote()) == node.node_id) is matches


def test_a_selector_that_no_node_matches_waits(nodes):
    ref = where.options(num_cpus=0, label_selector={"zone": "moon"}).remote()
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.5)
    node = nodes.add(labels={"zone": "moon"})
    assert get(ref) == node.node_id


def test_a_strictly_spread_group_has_one_bundle_on_each_node(nodes, group):
    ids = {nodes.head_id, nodes.stand("a").node_id, nodes.stand("b").node_id}
    spread = group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
    assert spread.wait(30)
    placed = placement_group_table(spread)["bundles_to_node_id"]
    assert set(placed.values()) == ids
    for index, node_id in placed.items():
        strategy = PlacementGroupSchedulingStrategy(spread, index)
        task = where.options(num_cpus=1, scheduling_strategy=strategy)
        assert get(task.remote()) == node_id
        keeper = Keeper.options(num_cpus=1, scheduling_strategy=strategy).remote()
        assert get(keeper.node.remote()) == node_id


def test_a_group_too_spread_for_the_cluster_waits(nodes, group):
    alive = [row for row in ray.nodes() if row["Alive"]]
    spread = group([{"CPU": 0.5}] * (len(alive) + 1), strategy="STRICT_SPREAD")
    assert not spread.wait(0.5)
    nodes.add()
    assert spread.wait(30)


def test_a_packed_group_is_on_one_node(nodes, group):
    nodes.stand("a")
    wide = nodes.add(num_cpus=2)
    packed = group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_PACK")
    assert packed.wait(30)
    placed = placement_group_table(packed)["bundles_to_node_id"]
    assert set(placed.values()) == {wide.node_id}


def test_a_packed_group_too_large_for_each_node_waits(nodes, group):
    nodes.stand("a")
    packed = group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_PACK")
    assert not packed.wait(0.5)
    assert packed.ready() not in ray.wait([packed.ready()], timeout=0.1)[0]


def test_bundles_go_to_the_nodes_of_their_resources(nodes, group):
    first = nodes.stand("a")
    second = nodes.stand("b")
    placed = group([{"a": 1}, {"b": 1}, {"head": 1}], strategy="PACK")
    assert placed.wait(30)
    assert placement_group_table(placed)["bundles_to_node_id"] == {
        0: first.node_id,
        1: second.node_id,
        2: nodes.head_id,
    }


def test_removing_a_group_gives_the_resources_of_all_nodes_back(nodes, wait_until):
    nodes.stand("a")
    nodes.stand("b")
    cpus = ray.cluster_resources()["CPU"]
    wait_until(lambda: ray.available_resources().get("CPU") == cpus)
    spread = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
    assert spread.wait(30)
    wait_until(lambda: ray.available_resources().get("CPU", 0) == cpus - 3)
    remove_placement_group(spread)
    wait_until(lambda: ray.available_resources().get("CPU", 0) == cpus)


def test_tasks_of_a_group_share_their_bundle(nodes, group):
    there = nodes.stand("a")
    one = group([{"CPU": 1, "a": 1}])
    assert one.wait(30)
    strategy = PlacementGroupSchedulingStrategy(one)
    task = where.options(num_cpus=0.5, scheduling_strategy=strategy)
    assert Counter(get([task.remote() for _ in range(4)])) == {there.node_id: 4}
