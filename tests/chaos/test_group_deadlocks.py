"""Planted deadlocks between placement groups, tasks and actors: each is reported.

What holds resources waits for what needs them: a group for a group, a call for another
call of its own full bundle. ``test_group_waits_that_end.py`` has what only looks so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster
from rayshim.exceptions import DeadlockError
from rayshim.util.placement_group import (
    PlacementGroup,
    placement_group,
    remove_placement_group,
)
from rayshim.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

pytestmark = pytest.mark.slow

#: Every deadlock is reported within this time.
REPORT_S = 5.0
#: The waits inside of the calls have no timeout; a test that fails ends all the same.
LIMIT_S = 15


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.shutdown()
    ray.init(
        num_cpus=4,
        resources={"slot": 2},
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"dask": "off"},
    )
    yield
    ray.shutdown()


@pytest.fixture
def groups() -> Iterator[list[PlacementGroup]]:
    """What a test puts here is removed at its end."""
    made: list[PlacementGroup] = []
    yield made
    for one in made:
        remove_placement_group(one)


def find(ref: Any, *names: str) -> str:
    """Wait for a deadlock, as a program that does nothing else."""
    begun = time.monotonic()
    with pytest.raises(DeadlockError) as caught:
        ray.get(ref)
    assert time.monotonic() - begun < REPORT_S
    text = str(caught.value)
    for name in (*names, "Deadlock: ", "pid "):
        assert name in text, text
    return text


def inside(group: PlacementGroup, index: int = -1, *, capture: bool = False) -> Any:
    return PlacementGroupSchedulingStrategy(group, index, capture)


def ready(groups: list[PlacementGroup], *bundles: dict[str, float]) -> PlacementGroup:
    group = placement_group(list(bundles))
    groups.append(group)
    assert group.wait(10)
    return group


def get_group(bundle: dict[str, float]) -> None:
    group = placement_group([bundle])
    try:
        ray.get(group.ready())
    finally:
        remove_placement_group(group)


@ray.remote(num_cpus=0)
def waits_for_group(bundle: dict[str, float]) -> None:
    get_group(bundle)


@ray.remote(num_cpus=0)
def child() -> int:
    return 1


@ray.remote(num_cpus=0)
def waits_for_child(options: dict[str, Any]) -> int:
    return ray.get(child.options(**options).remote())


@ray.remote(num_cpus=0)
class Parent:
    def ask(self, options: dict[str, Any]) -> int:
        return ray.get(child.options(**options).remote())

    def ask_group(self, bundle: dict[str, float]) -> None:
        get_group(bundle)

    def ask_actor(self, options: dict[str, Any]) -> int:
        self.child = Parent.options(**options).remote()
        return ray.get(self.child.one.remote())

    def one(self) -> int:
        return 1


def test_task_of_a_group_that_waits_for_another_group(
    session: None, groups: list[PlacementGroup]
) -> None:
    group = ready(groups, {"slot": 2})
    task = waits_for_group.options(scheduling_strategy=inside(group))
    text = find(task.remote({"slot": 1}), "waits_for_group", "placement group")
    assert "which is pending" in text and "slot: 1" in text


def test_actor_of_a_group_that_waits_for_another_group(
    session: None, groups: list[PlacementGroup]
) -> None:
    group = ready(groups, {"slot": 2})
    actor = Parent.options(scheduling_strategy=inside(group)).remote()
    find(actor.ask_group.remote({"slot": 1}), "Parent.ask_group", "placement group")


def test_task_that_made_the_group_and_waits_for_another(session: None) -> None:
    @ray.remote(num_cpus=0)
    def makes_two() -> None:
        first = placement_group([{"slot": 2}])
        ray.get(first.ready())
        second = placement_group([{"slot": 1}])
        try:
            ray.get(second.ready())
        finally:
            remove_placement_group(second)
            remove_placement_group(first)

    find(makes_two.remote(), "makes_two", "placement group")


def test_program_whose_group_holds_what_its_next_one_needs(
    session: None, groups: list[PlacementGroup]
) -> None:
    ready(groups, {"slot": 1}, {"slot": 1})
    second = placement_group([{"slot": 1}])
    groups.append(second)
    find(second.ready(), "the main thread", "placement group")


def test_task_that_waits_for_a_task_of_its_full_bundle(
    session: None, groups: list[PlacementGroup]
) -> None:
    group = ready(groups, {"slot": 1})
    options = {"resources": {"slot": 1}, "scheduling_strategy": inside(group, 0)}
    find(waits_for_child.options(**options).remote(options), "child", "slot: 1")


def test_child_that_its_group_captures(
    session: None, groups: list[PlacementGroup]
) -> None:
    group = ready(groups, {"slot": 1})
    strategy = inside(group, capture=True)
    task = waits_for_child.options(resources={"slot": 1}, scheduling_strategy=strategy)
    find(task.remote({"resources": {"slot": 1}}), "child", "slot: 1")


def test_actor_that_waits_for_a_task_of_its_full_bundle(
    session: None, groups: list[PlacementGroup]
) -> None:
    """An actor keeps its CPU while it waits."""
    group = ready(groups, {"CPU": 1})
    actor = Parent.options(num_cpus=1, scheduling_strategy=inside(group)).remote()
    options = {"num_cpus": 1, "scheduling_strategy": inside(group)}
    find(actor.ask.remote(options), "Parent.ask", "child", "CPU: 1")


def test_actor_that_waits_for_an_actor_of_its_full_bundle(
    session: None, groups: list[PlacementGroup]
) -> None:
    group = ready(groups, {"slot": 1})
    options = {"resources": {"slot": 1}, "scheduling_strategy": inside(group)}
    actor = Parent.options(**options).remote()
    find(actor.ask_actor.remote(options), "Parent.ask_actor", "Parent.one")


def test_task_that_waits_for_a_task_of_a_pending_group(
    session: None, groups: list[PlacementGroup]
) -> None:
    """The group waits for what the task holds."""

    @ray.remote(num_cpus=0, resources={"slot": 2})
    def outer() -> int:
        group = placement_group([{"slot": 1}])
        options = {"resources": {"slot": 1}, "scheduling_strategy": inside(group)}
        try:
            return ray.get(child.options(**options).remote())
        finally:
            remove_placement_group(group)

    text = find(outer.remote(), "outer", "child", "in placement group")
    assert "which is pending" in text


def test_tasks_of_two_groups_that_wait_for_what_the_other_holds(
    session: None, groups: list[PlacementGroup]
) -> None:
    both = [ready(groups, {"slot": 1}) for _ in range(2)]
    options = {"resources": {"slot": 1}}
    refs = [
        waits_for_child.options(scheduling_strategy=inside(one)).remote(options)
        for one in both
    ]
    find(refs, "waits_for_child", "child", "slot: 1")


def test_actor_that_holds_all_cpus_and_waits_for_a_group(session: None) -> None:
    actor = Parent.options(num_cpus=4).remote()
    find(actor.ask_group.remote({"CPU": 1}), "Parent.ask_group", "CPU: 1")
    del actor


def test_every_bundle_is_held_by_who_waits(
    session: None, groups: list[PlacementGroup]
) -> None:
    """Any bundle would do, and in each one somebody waits for such a place."""
    group = ready(groups, {"slot": 1}, {"slot": 1})
    options = {"resources": {"slot": 1}, "scheduling_strategy": inside(group)}

    @ray.remote(**{"num_cpus": 0, **options})
    def holder() -> int:
        time.sleep(0.5)
        return ray.get(child.options(**options).remote())

    find([holder.remote(), holder.remote()], "holder", "child", "slot: 1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1, resources={"slot": 1})
    cluster.add_node(num_cpus=1, resources={"slot": 1})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_full_bundle_on_another_node(
    cluster: Cluster, groups: list[PlacementGroup]
) -> None:
    group = ready(groups, {"slot": 1})
    options = {"resources": {"slot": 1}, "scheduling_strategy": inside(group, 0)}
    find(waits_for_child.options(**options).remote(options), "child", "slot: 1")


def test_bundles_on_two_nodes_are_held_by_who_waits(
    cluster: Cluster, groups: list[PlacementGroup]
) -> None:
    group = ready(groups, {"slot": 1}, {"slot": 1})
    options = {"resources": {"slot": 1}, "scheduling_strategy": inside(group)}

    @ray.remote(**{"num_cpus": 0, **options})
    def holder() -> int:
        time.sleep(0.5)
        return ray.get(child.options(**options).remote())

    text = find([holder.remote(), holder.remote()], "holder", "child", "slot: 1")
    nodes = {line.split("node ")[1][:8] for line in text.split("\n") if "node " in line}
    assert nodes


def test_node_that_must_be_taken_and_is_held_by_who_waits(cluster: Cluster) -> None:
    """No node that joins would help: it has to be this one."""

    @ray.remote(num_cpus=0, resources={"slot": 1})
    def outer() -> int:
        here = ray.get_runtime_context().get_node_id()
        strategy = NodeAffinitySchedulingStrategy(here, soft=False)
        options = {"resources": {"slot": 1}, "scheduling_strategy": strategy}
        return ray.get(child.options(**options).remote())

    find(outer.remote(), "outer", "child", "slot: 1")
