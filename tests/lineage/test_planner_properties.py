"""What holds for every plan, whatever the groups and the demand are like."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from growing_cluster import GrowingCluster
from rayshim.lineage.autoscaling import plan
from rayshim.lineage.demand import (
    NODE_GROUP_LABEL,
    Demand,
    GangDemand,
    NodeFacts,
    ShapeDemand,
)
from rayshim.lineage.labels import matches
from rayshim.lineage.node_groups import Launching, NodeGroup
from rayshim.lineage.placement_groups import STRATEGIES

T = TypeVar("T")
NOW = 10_000.0
#: Random cases of one plan; those of whole clusters are plans by the dozen.
CASES = 1_000
CLUSTERS = 100


class Pick(Protocol):
    """Draws one of several; drawn by hypothesis, a failing case shrinks."""

    def __call__(self, options: Sequence[T], /) -> T: ...


@dataclasses.dataclass
class Situation:
    """What a plan is made of."""

    demand: Demand
    groups: list[NodeGroup]
    launching: list[Launching]
    draining: set[str]


def several(pick: Pick, most: int, make: Callable[[Pick], T]) -> list[T]:
    return [make(pick) for _ in range(pick(range(most + 1)))]


def any_amounts(pick: Pick) -> dict[str, float]:
    found = {
        "CPU": pick([0, 0.5, 1, 2, 4]),
        "GPU": pick([0, 0, 0, 0.4, 0.5, 1, 2]),
        "disk": pick([0, 0, 0, 1]),
    }
    return {name: amount for name, amount in found.items() if amount}


def whole_amounts(pick: Pick) -> dict[str, float]:
    found = {
        "CPU": pick([1, 2, 4]),
        "GPU": pick([0, 0, 1, 2]),
        "disk": pick([0, 0, 1]),
    }
    return {name: amount for name, amount in found.items() if amount}


def any_shape(pick: Pick) -> ShapeDemand:
    return ShapeDemand(
        any_amounts(pick),
        pick([1, 2, 3, 5, 12]),
        labels=pick([{}, {}, {}, {"zone": "a"}, {"zone": "!a"}]),
        oldest_s=pick([0.0, 20.0]),
    )


def any_gangs(pick: Pick) -> list[GangDemand]:
    return [
        GangDemand(
            f"{number:04x}",
            pick(STRATEGIES),
            (whole_amounts(pick), *several(pick, 3, whole_amounts)),
            oldest_s=pick([0.0, 5.0]),
        )
        for number in range(pick([0, 1, 2]))
    ]


def any_groups(pick: Pick) -> list[NodeGroup]:
    found = []
    for number in range(pick([1, 2, 3])):
        resources = {
            "CPU": pick([1, 2, 4, 8]),
            "GPU": pick([0, 0, 1, 2, 4]),
            "disk": pick([0, 1, 2]),
        }
        max_nodes = pick(range(7))
        found.append(
            NodeGroup(
                f"group{number}",
                {name: amount for name, amount in resources.items() if amount},
                labels=pick([{}, {"zone": "a"}, {"zone": "b"}]),
                min_nodes=min(pick([0, 0, 1, 2]), max_nodes),
                max_nodes=max_nodes,
                warm_nodes=pick([0, 0, 1, 2]),
                upscaling_speed=pick([0.0, 0.5, 1.0, 3.0]),
                cold_start_s=pick([0.0, 20.0]),
                price=pick([None, 1.0, 3.0]),
            )
        )
    return found


def any_nodes(pick: Pick, groups: list[NodeGroup]) -> list[NodeFacts]:
    found = []
    for number in range(pick(range(9))):
        group = pick([*groups, None])
        total = {"CPU": 4.0} if group is None else dict(group.resources)
        share = pick([0, 0, 0.25, 0.5, 1.0])
        labels = {}
        if group is not None:
            labels = {**group.labels, NODE_GROUP_LABEL: group.name}
        found.append(
            NodeFacts(
                f"{number:08x}",
                "" if group is None else group.name,
                total,
                {name: amount * (1 - share) for name, amount in total.items()},
                labels=labels,
                idle_s=0.0 if share else pick([0.0, 10.0, 61.0]),
                is_draining=pick([False, False, False, True]),
                is_pinned=pick([False, False, True]),
                sole_copies_bytes=pick([0, 1, 2]),
            )
        )
    return found


def any_situation(pick: Pick) -> Situation:
    groups = any_groups(pick)
    there = any_nodes(pick, groups)
    demand = Demand(
        "life",
        NOW,
        nodes=tuple(there),
        leases=tuple(several(pick, 3, any_shape)),
        gangs=tuple(any_gangs(pick)),
        requested=tuple(several(pick, 3, whole_amounts)),
    )
    names = [group.name for group in groups]
    launching = several(
        pick, 3, lambda pick: Launching(pick(names), NOW - pick([1, 90]))
    )
    draining = {one.node_id for one in there if pick([False, False, True])}
    return Situation(demand, groups, launching, draining)


@st.composite
def drawn(draw: st.DrawFn, make: Callable[[Pick], T]) -> T:
    return make(lambda options: draw(st.sampled_from(options)))


def from_seed(seed: int) -> Pick:
    return random.Random(seed).choice


def few(cases: int) -> settings:
    return settings(
        max_examples=cases, deadline=None, suppress_health_check=list(HealthCheck)
    )


def could_hold(
    group: NodeGroup, need: dict[str, float], labels: dict[str, str]
) -> bool:
    mine = {**group.labels, NODE_GROUP_LABEL: group.name}
    return matches(labels, mine) and all(
        group.resources.get(name, 0) >= amount for name, amount in need.items()
    )


@pytest.mark.parametrize("start", range(0, CASES, 250))
def test_no_plan_breaks_a_rule(start: int) -> None:
    for seed in range(start, start + 250):
        try:
            check_plan(any_situation(from_seed(seed)))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@few(100)
@given(drawn(any_situation))
def test_no_drawn_plan_breaks_a_rule(situation: Situation) -> None:
    check_plan(situation)


def check_plan(case: Situation) -> None:
    demand, groups = case.demand, case.groups
    launching, draining = case.launching, case.draining

    made = plan(demand, groups, now=NOW, launching=launching, draining=draining)

    facts = {node.node_id: node for node in demand.nodes}
    drained = {one.node_id for one in made.drain}
    stays = draining - set(made.undrain)
    assert set(made.undrain) <= draining
    assert len(drained) == len(made.drain)
    for node_id in drained:
        node = facts[node_id]
        assert node.idle_s > 0 and node.available == node.total
        assert not node.is_pinned and not node.is_draining
        assert node_id not in draining
    for group in groups:
        there = [node for node in demand.nodes if node.group == group.name]
        coming = sum(one.group == group.name for one in launching)
        cancelled = sum(one.group == group.name for one in made.cancel)
        launched = made.launch.get(group.name, 0)
        # Never above the limit.
        assert launched == 0 or len(there) + coming + launched <= group.max_nodes
        # Never below what has to be there, if the limit allows it.
        kept = [
            node
            for node in there
            if not node.is_draining and node.node_id not in drained | stays
        ]
        after = len(kept) + coming + launched - cancelled
        least = min(group.min_nodes, group.max_nodes - len(there) + len(kept))
        assert after >= least
        if any(one.group == group.name for one in made.drain):
            assert len(kept) >= group.min_nodes
    # Nothing starts but for a reason.
    if not (demand.leases or demand.gangs or demand.requested):
        for name, count in made.launch.items():
            (group,) = [one for one in groups if one.name == name]
            assert count <= group.min_nodes + group.warm_nodes
    # Nothing starts for what fits no group, and it is said of that alone.
    hopeless = [
        shape
        for shape in demand.leases
        if is_hopeless(shape, demand.nodes, groups, launching)
    ]
    in_the_end = [
        shape
        for shape in demand.leases
        if is_hopeless(
            shape,
            [node for node in demand.nodes if node.node_id not in draining],
            [group for group in groups if group.max_nodes],
            [],
        )
    ]
    reported = [one for one in made.infeasible if one.kind == "lease"]
    assert len(hopeless) <= len(reported) <= len(in_the_end)
    if len(hopeless) == len(demand.leases) and not (demand.gangs or demand.requested):
        assert (
            made.launch
            == plan(
                dataclasses.replace(demand, leases=()),
                groups,
                now=NOW,
                launching=launching,
                draining=draining,
            ).launch
        )
    # The same facts, the same plan.
    assert made == plan(demand, groups, now=NOW, launching=launching, draining=draining)
    check_that_it_settles(demand, groups, launching, draining)


def is_hopeless(
    shape: ShapeDemand,
    there: Sequence[NodeFacts],
    groups: Sequence[NodeGroup],
    launching: Sequence[Launching],
) -> bool:
    coming = {one.group for one in launching}
    return not any(
        (group.max_nodes or group.name in coming)
        and could_hold(group, dict(shape.resources), dict(shape.labels))
        for group in groups
    ) and not any(
        matches(shape.labels, node.labels)
        and all(node.total.get(name, 0) >= n for name, n in shape.resources.items())
        for node in there
        if not node.is_draining
    )


def check_that_it_settles(
    demand: Demand,
    groups: list[NodeGroup],
    launching: list[Launching],
    draining: set[str],
) -> None:
    """What was launched is not launched again, unless it changes what is idle."""
    has_warm = any(group.warm_nodes for group in groups)
    coming, going = list(launching), set(draining)
    for turn in range(12):
        made = plan(demand, groups, now=NOW, launching=coming, draining=going)
        if not (made.launch or made.undrain or made.cancel or made.drain):
            return
        assert has_warm or turn < 2, made
        for one in made.cancel:
            coming.remove(one)
        for name, count in made.launch.items():
            coming += [Launching(name, NOW)] * count
        going -= set(made.undrain)
        going |= {one.node_id for one in made.drain}
    raise AssertionError("the same facts lead to ever new plans")


@pytest.mark.parametrize("start", range(0, CLUSTERS, 25))
def test_a_cluster_grows_to_its_demand_and_shrinks_back(start: int) -> None:
    for seed in range(start, start + 25):
        try:
            check_cluster(from_seed(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def check_cluster(pick: Pick) -> None:
    groups = any_groups(pick)
    cluster = GrowingCluster(groups)
    cluster.leases = [
        dataclasses.replace(one, oldest_s=0.0) for one in several(pick, 3, any_shape)
    ]
    cluster.gangs = any_gangs(pick)
    cluster.requested = tuple(several(pick, 2, whole_amounts))

    cluster.run()

    made = cluster.plan()
    unmet = len(made.infeasible) + len(made.waiting)
    for shape in cluster.leases:
        # What still waits has no group that may have another node.
        able = [
            group
            for group in groups
            if could_hold(group, dict(shape.resources), dict(shape.labels))
        ]
        if "GPU" not in shape.resources:
            able = [one for one in able if not one.is_gpu and one.max_nodes] or able
        assert all(cluster.size(one.name) == one.max_nodes for one in able)
    assert unmet >= len(cluster.leases) + len(cluster.gangs)

    cluster.end_demand()
    cluster.run()

    for group in groups:
        least = min(group.max_nodes, max(group.min_nodes, group.warm_nodes))
        assert cluster.size(group.name) == least
