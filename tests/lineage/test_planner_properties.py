"""What holds for every plan, whatever the groups and the demand are like."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, settings
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

NOW = 10_000.0
#: Random cases of one plan; those of whole clusters are plans by the dozen.
CASES = 1_000

amounts = st.fixed_dictionaries(
    {},
    optional={
        "CPU": st.sampled_from([0.5, 1, 2, 4]),
        "GPU": st.sampled_from([0.4, 0.5, 1, 2]),
        "disk": st.just(1),
    },
)
whole_amounts = st.fixed_dictionaries(
    {"CPU": st.sampled_from([1, 2, 4])},
    optional={"GPU": st.sampled_from([1, 2]), "disk": st.just(1)},
)
selectors = st.sampled_from([{}, {}, {}, {"zone": "a"}, {"zone": "!a"}])


@st.composite
def node_groups(draw: st.DrawFn) -> list[NodeGroup]:
    count = draw(st.integers(1, 3))
    found = []
    for number in range(count):
        resources = {"CPU": draw(st.sampled_from([1, 2, 4, 8]))}
        if draw(st.booleans()):
            resources["GPU"] = draw(st.sampled_from([1, 2, 4]))
        if draw(st.booleans()):
            resources["disk"] = draw(st.sampled_from([1, 2]))
        max_nodes = draw(st.integers(0, 6))
        found.append(
            NodeGroup(
                f"group{number}",
                resources,
                labels=draw(st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}])),
                min_nodes=draw(st.integers(0, min(2, max_nodes))),
                max_nodes=max_nodes,
                warm_nodes=draw(st.sampled_from([0, 0, 1, 2])),
                upscaling_speed=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
                cold_start_s=draw(st.sampled_from([0.0, 20.0])),
                price=draw(st.sampled_from([None, 1.0, 3.0])),
            )
        )
    return found


shapes = st.builds(
    ShapeDemand,
    amounts,
    st.integers(1, 12),
    labels=selectors,
    oldest_s=st.sampled_from([0.0, 20.0]),
)


@st.composite
def gangs(draw: st.DrawFn) -> GangDemand:
    number = draw(st.integers(0, 99))
    return GangDemand(
        f"{number:04x}",
        draw(st.sampled_from(STRATEGIES)),
        tuple(draw(st.lists(whole_amounts, min_size=1, max_size=4))),
        oldest_s=draw(st.sampled_from([0.0, 5.0])),
    )


@st.composite
def nodes(draw: st.DrawFn, groups: list[NodeGroup]) -> list[NodeFacts]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        group = draw(st.sampled_from([*groups, None]))
        total = {"CPU": 4.0} if group is None else dict(group.resources)
        used = draw(st.booleans())
        share = draw(st.sampled_from([0.25, 0.5, 1.0]))
        found.append(
            NodeFacts(
                f"{number:08x}",
                "" if group is None else group.name,
                total,
                {name: amount * (1 - share * used) for name, amount in total.items()},
                labels={}
                if group is None
                else {**group.labels, NODE_GROUP_LABEL: group.name},
                idle_s=0.0 if used else draw(st.sampled_from([0.0, 10.0, 61.0])),
                is_draining=draw(st.sampled_from([False, False, False, True])),
                is_pinned=draw(st.sampled_from([False, False, True])),
                sole_copies_bytes=draw(st.integers(0, 3)),
            )
        )
    return found


@st.composite
def situations(
    draw: st.DrawFn,
) -> tuple[Demand, list[NodeGroup], list[Launching], set[str]]:
    groups = draw(node_groups())
    there = draw(nodes(groups))
    demand = Demand(
        "life",
        NOW,
        nodes=tuple(there),
        leases=tuple(draw(st.lists(shapes, max_size=3))),
        gangs=tuple(
            draw(st.lists(gangs(), max_size=2, unique_by=lambda one: one.group_id))
        ),
        requested=tuple(draw(st.lists(whole_amounts, max_size=3))),
    )
    names = [group.name for group in groups]
    launching = [
        Launching(draw(st.sampled_from(names)), NOW - draw(st.sampled_from([1, 90])))
        for _ in range(draw(st.integers(0, 3)))
    ]
    draining = {
        one.node_id for one in there if draw(st.sampled_from([False, False, True]))
    }
    return demand, groups, launching, draining


many = settings(
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    max_examples=CASES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def could_hold(
    group: NodeGroup, need: dict[str, float], labels: dict[str, str]
) -> bool:
    mine = {**group.labels, NODE_GROUP_LABEL: group.name}
    return matches(labels, mine) and all(
        group.resources.get(name, 0) >= amount for name, amount in need.items()
    )


@many
@given(situations())
def test_no_plan_breaks_a_rule(
    situation: tuple[Demand, list[NodeGroup], list[Launching], set[str]],
) -> None:
    demand, groups, launching, draining = situation

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


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    node_groups(),
    st.lists(shapes, max_size=3),
    st.lists(gangs(), max_size=2, unique_by=lambda one: one.group_id),
    st.lists(whole_amounts, max_size=2),
)
def test_a_cluster_grows_to_its_demand_and_shrinks_back(
    groups: list[NodeGroup],
    leases: list[ShapeDemand],
    wanted: list[GangDemand],
    requested: list[dict[str, float]],
) -> None:
    cluster = GrowingCluster(groups)
    cluster.leases = [dataclasses.replace(one, oldest_s=0.0) for one in leases]
    cluster.gangs = list(wanted)
    cluster.requested = tuple(requested)

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
