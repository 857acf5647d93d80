"""Which nodes the bundles of a group get, case by case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayshim.lineage import bundle_placement as bp
from rayshim.lineage.placement import View
from rayshim.lineage.resources import Units, to_units

CPU = to_units({"CPU": 1})


def view(name: str, total: float, free: float, **more: float) -> View:
    return View(name, to_units({"CPU": total, **more}), to_units({"CPU": free, **more}))


def place_bundles(
    bundles: Mapping[int, Units],
    strategy: str,
    views: Sequence[View],
    placed: Mapping[int, str] | None = None,
) -> dict[int, str] | None:
    found = bp.place(bp.Needs(bundles, strategy), views, placed)
    return None if found is None else found.nodes


TWO = {0: CPU, 1: CPU}


@pytest.mark.parametrize(
    ("strategy", "frees", "nodes"),
    [
        ("PACK", (2, 2), {0: "a", 1: "a"}),
        ("PACK", (1, 2), {0: "b", 1: "b"}),
        ("PACK", (1, 1), {0: "a", 1: "b"}),
        ("PACK", (1, 0), None),
        ("STRICT_PACK", (1, 2), {0: "b", 1: "b"}),
        ("STRICT_PACK", (1, 1), None),
        ("SPREAD", (2, 2), {0: "a", 1: "b"}),
        ("SPREAD", (0, 2), {0: "b", 1: "b"}),
        ("STRICT_SPREAD", (2, 2), {0: "a", 1: "b"}),
        ("STRICT_SPREAD", (0, 2), None),
    ],
)
def test_strategies(
    strategy: str, frees: tuple[int, int], nodes: dict[int, str] | None
) -> None:
    views = [view("a", 2, frees[0]), view("b", 2, frees[1])]
    assert place_bundles(TWO, strategy, views) == nodes


def test_strict_spread_finds_the_only_way() -> None:
    big, small = to_units({"CPU": 2}), to_units({"CPU": 1, "x": 1})
    views = [view("a", 4, 4, x=1), view("b", 1, 1, x=1)]
    assert place_bundles({0: big, 1: small}, "STRICT_SPREAD", views) == {
        0: "a",
        1: "b",
    }


def test_lost_bundles_mind_those_that_are_left() -> None:
    views = [view("a", 4, 4), view("b", 4, 4)]
    lost = {1: CPU}
    assert place_bundles(lost, "STRICT_SPREAD", views, {0: "a"}) == {1: "b"}
    assert place_bundles(lost, "SPREAD", views, {0: "a"}) == {1: "b"}
    assert place_bundles(lost, "PACK", views, {0: "b"}) == {1: "b"}
    assert place_bundles(lost, "STRICT_PACK", views, {0: "b"}) == {1: "b"}
    assert place_bundles(lost, "STRICT_SPREAD", views[:1], {0: "a"}) is None


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
)
def test_no_node_is_given_more_than_it_has(
    sizes: list[int], frees: list[int], strategy: str
) -> None:
    bundles = {index: {"CPU": size} for index, size in enumerate(sizes)}
    views = [View(str(at), {"CPU": 4}, {"CPU": free}) for at, free in enumerate(frees)]
    found = place_bundles(bundles, strategy, views)
    if found is None:
        return
    assert found.keys() == bundles.keys()
    for one in views:
        held = [sizes[at] for at, node_id in found.items() if node_id == one.node_id]
        assert sum(held) <= one.available["CPU"]
        assert strategy != "STRICT_SPREAD" or len(held) <= 1
    assert strategy != "STRICT_PACK" or len(set(found.values())) == 1
