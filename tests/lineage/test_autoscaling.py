"""Plans for situations with names."""

from __future__ import annotations

from typing import Any

import pytest

from rayshim.lineage.autoscaling import STALE_S, plan
from rayshim.lineage.demand import (
    NODE_GROUP_LABEL,
    Demand,
    GangDemand,
    NodeFacts,
    ShapeDemand,
)
from rayshim.lineage.node_groups import Launching, NodeGroup, Plan

NOW = 10_000.0
CPU = NodeGroup("cpu", {"CPU": 4}, max_nodes=8, upscaling_speed=100)
GPU = NodeGroup("gpu-train", {"CPU": 8, "GPU": 4}, max_nodes=4, upscaling_speed=100)


def make(*groups: NodeGroup, **facts: Any) -> Plan:
    options = {
        name: facts.pop(name)
        for name in ("launching", "draining", "may_drain")
        if name in facts
    }
    demand = Demand("life", facts.pop("time_s", NOW), **facts)
    return plan(demand, groups, now=NOW, **options)


def node(group: NodeGroup, number: int = 1, **options: Any) -> NodeFacts:
    free = options.pop("available", dict(group.resources))
    return NodeFacts(
        f"{number:08x}",
        group.name,
        dict(group.resources),
        free,
        labels={**group.labels, NODE_GROUP_LABEL: group.name},
        **options,
    )


def test_requests_that_fit_no_group_start_nothing_and_are_explained() -> None:
    made = make(
        CPU, GPU, leases=(ShapeDemand({"GPU": 8}, 2, label="gpu-train {GPU: 8}"),)
    )

    assert not made.launch
    (item,) = made.infeasible
    assert (item.kind, item.subject, item.count) == ("lease", "gpu-train {GPU: 8}", 2)
    assert item.text == (
        "gpu-train: bundle {GPU: 8} fits no group (largest has GPU: 4); change the "
        "request or add a group"
    )


def test_a_request_whose_labels_no_group_has_is_infeasible() -> None:
    made = make(CPU, leases=(ShapeDemand({"CPU": 1}, 1, labels={"zone": "b"}),))

    assert not made.launch
    assert "lacks labels {zone: b}" in made.infeasible[0].text


def test_fallback_labels_lead_to_another_group() -> None:
    near = NodeGroup("near", {"CPU": 4}, labels={"zone": "a"}, max_nodes=0)
    far = NodeGroup("far", {"CPU": 4}, labels={"zone": "b"})
    shape = ShapeDemand(
        {"CPU": 1}, 1, labels={"zone": "a"}, fallback_labels=({"zone": "b"},)
    )

    assert make(near, far, leases=(shape,)).launch == {"far": 1}


def test_small_requests_share_nodes() -> None:
    made = make(CPU, GPU, leases=(ShapeDemand({"CPU": 1}, 10),))

    assert made.launch == {"cpu": 3}
    assert made.waiting[0].text == "request: 10 x {CPU: 1} get 3 new nodes of cpu"


def test_cpu_requests_avoid_gpu_groups_even_at_the_limit() -> None:
    made = make(CPU, GPU, leases=(ShapeDemand({"CPU": 4}, 20),))

    assert made.launch == {"cpu": 8}
    assert "cpu is limited to 8 nodes" in made.waiting[-1].text


def test_cpu_requests_take_a_gpu_group_if_no_other_could_hold_them() -> None:
    assert make(CPU, GPU, leases=(ShapeDemand({"CPU": 8}, 1),)).launch == {
        "gpu-train": 1
    }


def test_parts_of_gpus_do_not_add_up() -> None:
    # Four requests of 0.6 need four GPUs, though 2.4 would fit three.
    made = make(GPU, leases=(ShapeDemand({"GPU": 0.6}, 5),))

    assert made.launch == {"gpu-train": 2}


def test_a_request_for_gpus_that_seems_to_fit_is_believed_after_a_while() -> None:
    busy = node(GPU, available={"CPU": 4, "GPU": 1.6})  # Four times 0.4.
    shape = {"GPU": 0.6}

    assert not make(
        GPU, nodes=(busy,), leases=(ShapeDemand(shape, 1, oldest_s=1),)
    ).launch
    assert make(
        GPU, nodes=(busy,), leases=(ShapeDemand(shape, 1, oldest_s=20),)
    ).launch == {"gpu-train": 1}


def test_at_most_so_many_start_at_once_for_single_requests() -> None:
    slow = NodeGroup("cpu", {"CPU": 1}, max_nodes=50, upscaling_speed=0.5)
    leases = (ShapeDemand({"CPU": 1}, 40),)
    busy = tuple(node(slow, at, available={}) for at in range(6))

    assert make(slow, leases=leases).launch == {"cpu": 1}
    made = make(slow, nodes=busy, leases=leases)
    assert made.launch == {"cpu": 3}
    assert "wait for their turn" in made.waiting[-1].text
    coming = [Launching("cpu", NOW)] * 3
    assert not make(slow, nodes=busy, leases=leases, launching=coming).launch


def test_a_gang_starts_whole_whatever_the_launch_limit() -> None:
    slow = NodeGroup("gpu", {"GPU": 1}, max_nodes=4, upscaling_speed=0)
    three = GangDemand("g1", "STRICT_SPREAD", ({"GPU": 1},) * 3)

    assert make(slow, gangs=(three,)).launch == {"gpu": 3}


def test_of_two_gangs_the_second_waits_for_the_first() -> None:
    group = NodeGroup("gpu", {"GPU": 1}, max_nodes=4)
    first = GangDemand("g1", "PACK", ({"GPU": 1},) * 3, oldest_s=9)
    second = GangDemand("g2", "PACK", ({"GPU": 1},) * 3, oldest_s=5)

    made = make(group, gangs=(second, first))

    assert made.launch == {"gpu": 3}
    assert [one.subject for one in made.waiting] == ["g1", "g2"]
    assert "gpu is limited to 4 nodes" in made.waiting[1].text
    assert not made.infeasible


@pytest.mark.parametrize(
    ("strategy", "bundles", "launch"),
    [
        ("STRICT_PACK", ({"CPU": 2}, {"CPU": 2}), {"cpu": 1}),
        ("STRICT_PACK", ({"CPU": 4}, {"CPU": 4}), {"gpu-train": 1}),
        ("STRICT_SPREAD", ({"CPU": 1},) * 3, {"cpu": 3}),
        ("PACK", ({"CPU": 2},) * 3, {"cpu": 2}),
        ("PACK", ({"CPU": 3}, {"GPU": 2}), {"cpu": 1, "gpu-train": 1}),
        ("SPREAD", ({"CPU": 1},) * 4, {"cpu": 1}),
    ],
)
def test_nodes_for_each_strategy(
    strategy: str, bundles: tuple[dict[str, float], ...], launch: dict[str, int]
) -> None:
    made = make(CPU, GPU, gangs=(GangDemand("g1", strategy, bundles),))

    assert made.launch == launch


@pytest.mark.parametrize(
    ("strategy", "bundles", "text"),
    [
        ("PACK", ({"GPU": 8},), "pair: bundle {GPU: 8} fits no group (largest has"),
        ("STRICT_PACK", ({"GPU": 3},) * 2, "must be on one node (STRICT_PACK)"),
        ("STRICT_SPREAD", ({"GPU": 1},) * 5, "must be on different nodes"),
        ("PACK", ({"GPU": 4},) * 5, "need {GPU: 20} together"),
    ],
)
def test_gangs_that_can_never_be_placed_start_nothing(
    strategy: str, bundles: tuple[dict[str, float], ...], text: str
) -> None:
    made = make(GPU, gangs=(GangDemand("g1", strategy, bundles, name="pair"),))

    assert not made.launch
    assert text in made.infeasible[0].text


def test_a_gang_stays_with_one_value_of_its_topology_label() -> None:
    racks = [
        NodeGroup(f"rack-{name}", {"GPU": 1}, labels={"rack": name}, max_nodes=2)
        for name in "ab"
    ]
    two = GangDemand("g1", "STRICT_SPREAD", ({"GPU": 1},) * 2, topology="rack")
    three = GangDemand("g2", "STRICT_SPREAD", ({"GPU": 1},) * 3, topology="rack")

    assert make(*racks, gangs=(two,)).launch == {"rack-a": 2}
    made = make(*racks, gangs=(three,))
    assert not made.launch
    assert "the same value of label rack" in made.infeasible[0].text


def test_what_is_asked_for_ahead_counts_busy_nodes_and_keeps_idle_ones() -> None:
    asked = ({"CPU": 4},) * 2
    busy = node(CPU, 1, available={"CPU": 0})
    idle = node(CPU, 2, idle_s=90.0)

    assert make(CPU, nodes=(busy,), requested=asked).launch == {"cpu": 1}
    assert not make(CPU, nodes=(busy, idle), requested=asked).drain
    assert [one.node_id for one in make(CPU, nodes=(busy, idle)).drain] == ["00000002"]


def test_idle_nodes_go_down_to_min_and_warm() -> None:
    group = NodeGroup("cpu", {"CPU": 4}, min_nodes=1, max_nodes=6, warm_nodes=2)
    idle = tuple(node(group, at, idle_s=60.0 + at) for at in range(4))

    made = make(group, nodes=idle)

    assert [one.node_id for one in made.drain] == ["00000003", "00000002"]
    assert made.drain[0].reason == ("idle for 63 s (idle_timeout_s of group cpu: 60)")
    busy = node(group, 9, available={"CPU": 0})
    assert make(group, nodes=(busy,)).launch == {"cpu": 2}


def test_the_node_with_the_fewest_sole_copies_goes_first() -> None:
    group = NodeGroup("cpu", {"CPU": 4}, min_nodes=1, max_nodes=6)
    nodes = (
        node(group, 1, idle_s=99.0, sole_copies_bytes=10),
        node(group, 2, idle_s=61.0),
    )

    assert [one.node_id for one in make(group, nodes=nodes).drain] == ["00000002"]


def test_busy_pinned_and_wanted_nodes_stay() -> None:
    nodes = (
        node(CPU, 1, available={"CPU": 3}),
        node(CPU, 2, idle_s=90.0, is_pinned=True),
        node(CPU, 3, idle_s=90.0),
    )
    leases = (ShapeDemand({"CPU": 4}, 2),)

    made = make(CPU, nodes=nodes, leases=leases)

    assert (made.launch, made.drain) == ({}, ())


def test_nodes_above_the_limit_go_before_their_time() -> None:
    group = NodeGroup("cpu", {"CPU": 4}, max_nodes=1)
    nodes = tuple(node(group, at, idle_s=1.0) for at in range(3))

    made = make(group, nodes=nodes)

    assert len(made.drain) == 2
    assert made.drain[0].reason == "group cpu has 3 nodes, 1 may be"


def test_demand_that_comes_back_gives_a_drain_up_before_anything_starts() -> None:
    going = node(CPU, 1, idle_s=70.0)

    made = make(
        CPU,
        nodes=(going,),
        draining={going.node_id},
        leases=(ShapeDemand({"CPU": 4}, 1),),
    )

    assert (made.undrain, made.launch) == ((going.node_id,), {})
    assert make(CPU, nodes=(going,), draining={going.node_id}) == Plan()


def test_launches_that_nothing_needs_any_more_are_cancelled() -> None:
    coming = [Launching("cpu", NOW - 130), Launching("cpu", NOW - 70)]

    made = make(CPU, launching=coming)

    assert set(made.cancel) == set(coming)
    assert made.late == (coming[0],)
    assert not make(CPU, launching=[Launching("cpu", NOW - 10)]).cancel


def test_a_launch_that_joined_is_not_counted_twice() -> None:
    group = NodeGroup("cpu", {"CPU": 4}, max_nodes=2)
    joined = node(group, 1, available={"CPU": 0})

    made = make(
        group,
        nodes=(joined,),
        launching=[Launching("cpu", NOW, joined.node_id)],
        leases=(ShapeDemand({"CPU": 4}, 1),),
    )

    assert made.launch == {"cpu": 1}


def test_old_demand_stops_nothing_and_starts_only_what_must_be() -> None:
    group = NodeGroup("cpu", {"CPU": 4}, min_nodes=1, max_nodes=4)
    leases = (ShapeDemand({"CPU": 4}, 3),)
    old = NOW - STALE_S - 1

    assert make(group, leases=leases, time_s=old).launch == {"cpu": 1}
    idle = tuple(node(group, at, idle_s=90.0) for at in range(3))
    assert make(group, nodes=idle, time_s=old) == Plan()
    assert make(group, nodes=idle, may_drain=False) == Plan()


def test_a_request_for_a_certain_node_starts_none() -> None:
    busy = node(CPU, 1, available={"CPU": 0})
    shape = ShapeDemand({"CPU": 1}, 1, node_ids=(busy.node_id,))

    made = make(CPU, nodes=(busy,), leases=(shape,))

    assert not made.launch
    assert "must run on node 00000001" in made.waiting[0].text


def test_prices_choose_between_groups_that_do_equally() -> None:
    dear = NodeGroup("dear", {"CPU": 4}, price=2.0)
    cheap = NodeGroup("cheap", {"CPU": 4}, price=1.0)

    assert make(dear, cheap, leases=(ShapeDemand({"CPU": 1}, 1),)).launch == {
        "cheap": 1
    }


def test_groups_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="different names: cpu, cpu"):
        make(CPU, CPU)


def test_a_group_whose_numbers_contradict_each_other_is_refused() -> None:
    with pytest.raises(ValueError, match="min_nodes must be between 0 and max_nodes"):
        NodeGroup("cpu", {"CPU": 1}, min_nodes=2, max_nodes=1)


def test_demand_survives_json() -> None:
    demand = Demand(
        "life",
        NOW,
        nodes=(node(CPU),),
        leases=(ShapeDemand({"CPU": 1}, 1, fallback_labels=({"zone": "b"},)),),
        gangs=(GangDemand("g1", "PACK", ({"GPU": 1},), labels=({"zone": "a"},)),),
        requested=({"CPU": 1},),
        requested_labels=({"zone": "a"},),
    )

    assert Demand.from_json(demand.to_json()) == demand
    with pytest.raises(ValueError, match="version 2"):
        Demand.from_json({**demand.to_json(), "version": 2})
