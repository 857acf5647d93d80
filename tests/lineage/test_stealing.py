"""Moves of leases between nodes: bounded, only to room, and never to and fro."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from rayshim.lineage.placement import View, Wish
from rayshim.lineage.spillback import MAX_HOPS
from rayshim.lineage.stealing import open_to, thief

CPU = {"CPU": 10_000}
NODES = ("a", "b", "c")


def view(node_id: str, free: int, total: int = 10_000) -> View:
    return View(node_id, {"CPU": total}, {"CPU": free})


def test_a_lease_goes_to_a_node_with_room() -> None:
    views = [view("a", 0), view("b", 0), view("c", 10_000)]
    assert thief(CPU, "a", 1, views, Wish("a")) == "c"


def test_a_lease_stays_where_nobody_has_room() -> None:
    assert thief(CPU, "a", 1, [view("a", 0), view("b", 0)], Wish("a")) == ""


def test_a_lease_is_not_sent_to_where_it_is() -> None:
    assert thief(CPU, "a", 1, [view("a", 10_000)], Wish("a")) == ""


def test_the_last_hop_is_the_last() -> None:
    views = [view("a", 0), view("b", 10_000)]
    assert thief(CPU, "a", MAX_HOPS - 1, views, Wish()) == "b"
    assert thief(CPU, "a", MAX_HOPS, views, Wish()) == ""


def test_what_moved_often_moves_again_after_a_rest_that_doubles() -> None:
    views = [view("a", 0), view("b", 10_000)]
    for hops, pause_s in ((MAX_HOPS, 1.0), (MAX_HOPS + 1, 2.0), (MAX_HOPS + 2, 4.0)):
        early, late = pause_s - 0.1, pause_s
        assert thief(CPU, "a", hops, views, Wish(), rested_s=early) == ""
        assert thief(CPU, "a", hops, views, Wish(), rested_s=late) == "b"


def test_a_hard_wish_is_kept() -> None:
    views = [view("a", 0), view("b", 10_000), view("c", 0)]
    assert thief(CPU, "a", 1, views, Wish("a", ("c",), is_soft=False)) == ""


def test_a_node_that_was_left_is_open_again_after_its_next_word() -> None:
    views = [view("a", 10_000), view("b", 10_000)]
    assert open_to(views, {"a": 4}, {"a": 4, "b": 9}) == views[1:]
    assert open_to(views, {"a": 4}, {"a": 5, "b": 9}) == views


#: What may happen: a node tells what it has free, or refuses the lease that it has.
step = st.one_of(
    st.tuples(st.sampled_from(NODES), st.sampled_from((0, 10_000))),
    st.just(("", 0)),
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(step, max_size=40))
def test_leases_never_go_to_and_fro_on_old_news(
    steps: Sequence[tuple[str, int]],
) -> None:
    """Whatever nodes say: between two stays on a node it has told that it has room."""
    free = dict.fromkeys(NODES, 10_000)
    told = dict.fromkeys(NODES, 1)
    left: dict[str, int] = {}
    at, hops = "a", 0
    #: Node -> told count at which the lease came to it, and whether room was seen.
    stays: dict[str, int] = {"a": 1}
    is_refused = False
    for node_id, amount in steps:
        if node_id:
            told[node_id] += 1
            free[node_id] = amount
        else:
            is_refused = True
            left[at] = told[at]
        if not is_refused:
            continue
        views = [view(one, free[one]) for one in NODES]
        found = thief(CPU, at, hops, open_to(views, left, told), Wish("a"))
        if not found:
            continue
        assert found != at
        assert free[found] >= 10_000
        assert found not in left or told[found] > stays[found]
        stays[found] = told[found]
        at, hops, is_refused = found, hops + 1, False
        assert hops <= MAX_HOPS
