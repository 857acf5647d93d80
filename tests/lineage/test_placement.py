"""Which node gets what."""

from __future__ import annotations

from rayshim.lineage.placement import Choice, View, Wish, choose
from rayshim.lineage.resources import to_units


def view(name: str, total: float, free: float, **more: float) -> View:
    units = to_units(more)
    return View(
        name,
        to_units({"CPU": total}) | units,
        to_units({"CPU": free}) | units,
    )


CPU = to_units({"CPU": 1.0})


def test_home_is_taken_while_it_has_room() -> None:
    views = [view("a", 8, 8), view("b", 2, 1)]
    assert choose(CPU, views, Wish("b")) == Choice("b", True)
    assert choose(CPU, [view("a", 8, 8), view("b", 2, 0)], Wish("b")) == Choice(
        "a", True
    )


def test_the_least_used_node_is_taken_without_a_home() -> None:
    views = [view("a", 4, 2), view("b", 4, 3), view("c", 4, 3)]
    assert choose(CPU, views) == Choice("b", True)
    assert choose(CPU, views, Wish("a", is_spread=True)) == Choice("b", True)


def test_what_is_to_be_spread_takes_turns_among_equals() -> None:
    views = [view("a", 4, 3), view("b", 4, 4), view("c", 4, 4)]
    spread = Wish("a", is_spread=True)
    chosen = [choose(CPU, views, spread, draw=draw) for draw in range(3)]
    assert [one.node_id for one in chosen if one] == ["b", "c", "b"]
    chosen = [choose({}, views, spread, draw=draw) for draw in range(3)]
    assert {one.node_id for one in chosen if one} == {"a", "b", "c"}


def test_what_could_never_fit_has_no_node() -> None:
    assert choose(to_units({"CPU": 9}), [view("a", 8, 8)]) is None
    assert choose(CPU, [view("a", 1, 1)], Wish(nodes=["b"], is_soft=False)) is None


def test_what_fits_later_waits_at_the_least_used_node() -> None:
    views = [view("a", 2, 0), view("b", 4, 0.5)]
    assert choose(CPU, views) == Choice("b", False)


def test_wanted_nodes_come_in_their_order() -> None:
    views = [view("a", 2, 2), view("b", 2, 0), view("c", 2, 2)]
    assert choose(CPU, views, Wish("a", ["b", "c"])) == Choice("c", True)
    assert choose(CPU, views, Wish("a", ["b"])) == Choice("a", True)
    assert choose(CPU, views, Wish("a", ["b"], is_soft=False)) == Choice("b", False)
    assert choose(CPU, views, Wish("a", ["b"], is_patient=True)) == Choice("b", False)
    assert choose(CPU, views, Wish("a", ["x"], is_patient=True)) == Choice("a", True)


def test_gpus_are_left_to_those_that_need_them() -> None:
    views = [view("a", 4, 4, GPU=1), view("b", 4, 1)]
    assert choose(CPU, views, Wish("a")) == Choice("b", True)
    assert choose(to_units({"GPU": 1}), views) == Choice("a", True)
    assert choose(CPU, views[:1]) == Choice("a", True)
