"""Where bundles go: rules that hold for every strategy, and small cases."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayshim.lineage import bundle_placement as bp
from rayshim.lineage.labels import matches
from rayshim.lineage.placement import View
from rayshim.lineage.resources import Units


def view(node_id: str, cpus: int, /, labels: Any = None, **more: int) -> View:
    amounts = {"CPU": cpus, **more}
    return View(node_id, amounts, amounts, labels or {})


def nodes(
    bundles: list[Units], strategy: str, views: list[View], **more: Any
) -> dict[int, str] | None:
    placed = more.pop("placed", None)
    needs = bp.Needs(dict(enumerate(bundles)), strategy, **more)
    found = bp.place(needs, views, placed)
    return None if found is None else found.nodes


def cpus(*counts: int) -> list[Units]:
    return [{"CPU": count} for count in counts]


def test_pack_takes_the_node_that_holds_most() -> None:
    views = [view("a", 1), view("b", 1), view("c", 2)]
    assert nodes(cpus(1, 1, 1), "PACK", views) == {0: "c", 1: "c", 2: "a"}


def test_pack_stays_where_the_group_is() -> None:
    views = [view("a", 4), view("b", 1), view("c", 4)]
    found = nodes(cpus(1), "PACK", views, placed={5: "c"})
    assert found == {0: "c"}
    found = nodes(cpus(1, 1), "PACK", views, placed={5: "b"})
    assert found == {0: "a", 1: "a"}  # as few nodes as with one of them on b


def test_pack_searches_when_greed_fails() -> None:
    # The large node must not take both twos: the three fits nowhere else.
    views = [view("a", 4), view("b", 3), view("c", 3)]
    assert nodes(cpus(2, 2, 3, 3), "PACK", views) is not None


def test_spread_searches_when_evenness_fails() -> None:
    views = [view("a", 2, {"zone": "x"}), view("b", 2)]
    selectors = {1: {"zone": "x"}, 2: {"zone": "x"}}
    found = nodes(cpus(1, 1, 1), "SPREAD", views, selectors=selectors)
    assert found == {0: "b", 1: "a", 2: "a"}


def test_strict_spread_finds_the_only_way() -> None:
    views = [view("a", 3), view("b", 1)]
    assert nodes(cpus(1, 3), "STRICT_SPREAD", views) == {0: "b", 1: "a"}
    assert nodes(cpus(1, 1, 1), "STRICT_SPREAD", views) is None


def test_a_target_is_first_for_strict_pack() -> None:
    views = [view("a", 2), view("b", 2)]
    assert nodes(cpus(1, 1), "STRICT_PACK", views, target="b") == {0: "b", 1: "b"}
    assert nodes(cpus(1), "STRICT_PACK", views, target="gone") == {0: "a"}


def test_gpus_are_left_to_those_who_need_them() -> None:
    views = [view("a", 2, GPU=1), view("b", 2)]
    assert nodes(cpus(1), "PACK", views) == {0: "b"}
    assert nodes([{"CPU": 1, "GPU": 1}], "PACK", views) == {0: "a"}
    assert nodes(cpus(2, 2), "SPREAD", views) == {0: "b", 1: "a"}


def test_a_topology_is_one_domain() -> None:
    views = [view(one, 1, {"rack": one[0]}) for one in ("x1", "y1", "y2", "z1")]
    needs = bp.Needs(dict(enumerate(cpus(1, 1))), "PACK", topology="rack")
    assert bp.place(needs, views) == bp.Placed({0: "y1", 1: "y2"}, "y")
    assert bp.place(needs._replace(domain="x"), views) is None
    assert bp.place(needs._replace(topology="row"), views) is None


@pytest.mark.parametrize("strategy", ["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
def test_without_nodes_there_is_no_place(strategy: str) -> None:
    assert nodes(cpus(1), strategy, []) is None


units = st.dictionaries(
    st.sampled_from(["CPU", "GPU", "disk"]), st.integers(1, 4), min_size=1, max_size=2
)
labels = st.dictionaries(
    st.sampled_from(["zone", "rack"]), st.sampled_from("ab"), max_size=2
)
selectors = st.dictionaries(
    st.sampled_from(["zone", "rack"]), st.sampled_from(["a", "!a", "b"]), max_size=1
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[bp.Needs, list[View], dict[int, str]]:
    views = []
    for number in range(draw(st.integers(1, 4))):
        total = {"CPU": 6, **draw(units)}
        free = {name: draw(st.integers(0, held)) for name, held in total.items()}
        views.append(View(f"n{number}", total, free, draw(labels)))
    count = draw(st.integers(1, 4))
    bundles = {index: draw(units) for index in range(count)}
    strategy = draw(st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]))
    wishes = {index: draw(selectors) for index in range(count)}
    topology = draw(st.sampled_from(["", "", "zone"]))
    placed = {}
    if draw(st.booleans()) and not topology:
        placed = {9: draw(st.sampled_from(views)).node_id}
    needs = bp.Needs(bundles, strategy, wishes, topology)
    return needs, views, placed


def keeps_the_rules(
    needs: bp.Needs, views: list[View], placed: dict[int, str], found: dict[int, str]
) -> bool:
    """Whether an assignment is a right one."""
    by_id = {one.node_id: one for one in views}
    taken: dict[str, Counter[str]] = {one: Counter() for one in by_id}
    for index, node_id in found.items():
        taken[node_id].update(needs.bundles[index])
        if not matches(needs.selectors[index], by_id[node_id].labels):
            return False
    for node_id, used in taken.items():
        if any(by_id[node_id].available.get(name, 0) < n for name, n in used.items()):
            return False
    homes = [*placed.values(), *found.values()]
    if needs.strategy == "STRICT_PACK" and len(set(homes)) != 1:
        return False
    if needs.strategy == "STRICT_SPREAD" and len(set(homes)) != len(homes):
        return False
    if needs.topology:
        values = {by_id[node_id].labels.get(needs.topology) for node_id in homes}
        return len(values) == 1 and None not in values
    return True


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(worlds())
def test_what_is_found_is_right_and_what_is_there_is_found(
    world: tuple[bp.Needs, list[View], dict[int, str]],
) -> None:
    needs, views, placed = world
    found = bp.place(needs, views, placed)
    if found is not None:
        assert list(found.nodes) == sorted(needs.bundles)
        assert keeps_the_rules(needs, views, placed, found.nodes)
        return
    names = [one.node_id for one in views]
    for way in itertools.product(names, repeat=len(needs.bundles)):
        assert not keeps_the_rules(
            needs, views, placed, dict(zip(needs.bundles, way, strict=True))
        )


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_spread_is_as_wide_as_evenness_allows(
    world: tuple[bp.Needs, list[View], dict[int, str]],
) -> None:
    """With room everywhere no node has two bundles before each has one."""
    needs, views, _ = world
    roomy = [View(one.node_id, ROOM, ROOM, {}) for one in views]
    needs = needs._replace(strategy="SPREAD", selectors={}, topology="")
    found = bp.place(needs, roomy)
    assert found is not None
    counts = Counter(found.nodes.values())
    assert len(counts) == min(len(roomy), len(needs.bundles))
    assert max(counts.values()) - min(counts.values()) <= 1


ROOM = {"CPU": 1000, "GPU": 1000, "disk": 1000}
