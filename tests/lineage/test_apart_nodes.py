"""Placement groups whose new nodes are started together, for them alone."""

from __future__ import annotations

from typing import Any

from rayshim.lineage.autoscaling import plan
from rayshim.lineage.demand import (
    NODE_GROUP_LABEL,
    Demand,
    GangDemand,
    NodeFacts,
    ShapeDemand,
)
from rayshim.lineage.node_groups import Apart, Launching, NodeGroup, Plan

NOW = 10_000.0
CPU = NodeGroup("cpu", {"CPU": 4}, max_nodes=8, upscaling_speed=100)
TRAIN = NodeGroup(
    "train",
    {"CPU": 8, "GPU": 4},
    max_nodes=4,
    upscaling_speed=100,
    is_apart=True,
)


def make(*groups: NodeGroup, **facts: Any) -> Plan:
    launching = facts.pop("launching", ())
    return plan(Demand("life", NOW, **facts), groups, now=NOW, launching=launching)


def gang(count: int, need: dict[str, float], number: int = 1) -> GangDemand:
    name = f"{number:x}" * 12
    return GangDemand(name, "PACK", (need,) * count, oldest_s=100.0 - number)


def node(group: NodeGroup, number: int, available: dict[str, float]) -> NodeFacts:
    labels = {NODE_GROUP_LABEL: group.name}
    return NodeFacts(
        f"{number:08x}", group.name, dict(group.resources), available, labels
    )


def test_a_gang_gets_all_its_nodes_new() -> None:
    made = make(
        CPU,
        TRAIN,
        nodes=(node(TRAIN, 1, {"CPU": 8, "GPU": 4}),),
        gangs=(gang(2, {"GPU": 4}),),
    )

    assert made.apart == (Apart("1" * 12, "train", 2),)
    assert not made.launch


def test_a_gang_that_the_nodes_that_are_there_hold_starts_none() -> None:
    made = make(
        TRAIN,
        nodes=(node(TRAIN, 1, {"CPU": 8, "GPU": 4}),),
        gangs=(gang(2, {"GPU": 2}),),
    )

    assert made == Plan()


def test_a_gang_that_other_groups_could_hold_leaves_them_their_way() -> None:
    made = make(CPU, TRAIN, gangs=(gang(3, {"CPU": 4}),))

    assert made.launch == {"cpu": 3}
    assert not made.apart


def test_gangs_share_the_limit_of_their_group_with_single_requests() -> None:
    made = make(
        TRAIN,
        gangs=(gang(3, {"GPU": 4}), gang(2, {"GPU": 4}, 2)),
        leases=(ShapeDemand({"GPU": 1}, 9, label="f"),),
    )

    assert made.apart == (Apart("1" * 12, "train", 3),)
    assert made.launch == {"train": 1}
    texts = [one.text for one in made.waiting]
    assert texts[1] == (
        "placement group 222222222222: its 2 bundles (PACK) wait until others give "
        "back, train is limited to 4 nodes; raise the limit to have it sooner"
    )


def test_single_requests_do_not_count_on_a_gangs_nodes() -> None:
    made = make(
        TRAIN,
        gangs=(gang(1, {"GPU": 1}),),
        leases=(ShapeDemand({"GPU": 1}, 1, label="f"),),
    )

    assert made.apart == (Apart("1" * 12, "train", 1),)
    assert made.launch == {"train": 1}


def test_a_gang_that_needs_two_groups_is_infeasible() -> None:
    mixed = GangDemand("1" * 12, "PACK", ({"GPU": 4}, {"disk": 1}))
    disks = NodeGroup("disks", {"disk": 1}, max_nodes=2)
    made = make(TRAIN, disks, gangs=(mixed,))

    assert not made.apart
    assert not made.launch
    assert [one.text for one in made.infeasible] == [
        "placement group 111111111111: its 2 bundles need nodes of train and disks, "
        "and are started together only in one group; make it smaller, or make two of it"
    ]


def test_launches_that_have_come_less_far_are_cancelled_first() -> None:
    launching = [
        Launching("cpu", NOW - 300, f"{number:08x}", progress)
        for number, progress in enumerate([2, 0, 1])
    ]
    made = plan(
        Demand("life", NOW),
        [NodeGroup("cpu", {"CPU": 4}, min_nodes=1, max_nodes=8)],
        now=NOW,
        launching=launching,
    )

    assert [one.progress for one in made.cancel] == [0, 1]
