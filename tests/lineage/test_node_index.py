"""Choices over many nodes: as good as looking at each of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayshim.lineage import node_index
from rayshim.lineage.node_index import NodeIndex
from rayshim.lineage.placement import (
    Choice,
    Policy,
    View,
    Wish,
    choose,
    usage,
)

ONE = {"CPU": 1}
NAMES = tuple("abcdef")

amounts = st.dictionaries(
    st.sampled_from(["CPU", "GPU", "x"]), st.integers(1, 4), max_size=3
)
labels = st.dictionaries(
    st.sampled_from(["zone", "spot"]), st.sampled_from(["n", "s"]), max_size=2
)
selectors = st.dictionaries(
    st.sampled_from(["zone", "spot"]),
    st.sampled_from(["n", "!n", "in(n,s)", "*", "!*"]),
    max_size=2,
)
policies = st.builds(
    Policy, st.sampled_from([0.0, 0.5, 9.0]), st.sampled_from([0, 0.4, 1])
)


@st.composite
def views(draw: st.DrawFn) -> View:
    total = draw(amounts)
    free = {name: draw(st.integers(0, units)) for name, units in total.items()}
    return View(draw(st.sampled_from(NAMES)), total, free, draw(labels))


wishes = st.builds(
    Wish,
    home=st.sampled_from(["", *NAMES]),
    nodes=st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
    is_soft=st.booleans(),
    is_spread=st.booleans(),
    is_patient=st.booleans(),
    selectors=st.lists(selectors, max_size=2),
)
steps = st.one_of(
    st.tuples(st.just("put"), views()),
    st.tuples(st.sampled_from(["pause", "drop"]), st.sampled_from(NAMES)),
    st.tuples(
        st.just("choose"),
        amounts,
        wishes,
        st.sampled_from(["", *NAMES]),
        st.integers(0, 3),
    ),
)


class Naive:
    """Keeps the nodes in a list and looks at all of them."""

    def __init__(self) -> None:
        self.nodes: dict[str, View | None] = {}

    def put(self, view: View) -> None:
        self.nodes[view.node_id] = view

    def pause(self, node_id: str) -> None:
        if node_id in self.nodes:
            self.nodes[node_id] = None

    def drop(self, node_id: str) -> None:
        self.nodes.pop(node_id, None)

    def views(self, without: str = "") -> list[View]:
        return [one for one in self.nodes.values() if one and one.node_id != without]


@settings(max_examples=400, deadline=None)
@given(policies, st.lists(steps, max_size=25))
def test_choices_are_as_good_as_those_over_all_nodes(
    policy: Policy, story: list[Any]
) -> None:
    index, naive = NodeIndex(policy), Naive()
    for kind, *arguments in story:
        if kind != "choose":
            getattr(index, kind)(*arguments)
            getattr(naive, kind)(*arguments)
            index.validate()
            assert index.views() == naive.views()
            continue
        need, wish, without, draw = arguments
        if wish.is_spread:
            draw = 0
        found = index.choose(need, wish, without=without, draw=draw)
        known = naive.views(without)
        expected = choose(need, known, wish, policy=policy, draw=draw)
        index.validate()
        if found == expected:
            continue
        assert found is not None
        assert expected is not None
        assert found.has_room is expected.has_room
        by_id = {one.node_id: one for one in known}
        # Others are as good if they are used as little: of those that wait always, and
        # of those to be spread, which take turns.
        assert wish.is_spread or not found.has_room
        if need or not found.has_room:
            assert usage(by_id[found.node_id], need) == usage(
                by_id[expected.node_id], need
            )


def filled(*frees: int, policy: Policy | None = None) -> NodeIndex:
    """Nodes "0", "1", ... with 4 CPUs of which so many are free."""
    index = NodeIndex(policy) if policy else NodeIndex()
    for number, free in enumerate(frees):
        index.put(View(str(number), {"CPU": 4}, {"CPU": free}))
    return index


def test_home_comes_first_until_half_of_it_is_used() -> None:
    hybrid = Policy(0.5)
    assert filled(3, 4, policy=hybrid).choose(ONE, Wish("0")) == Choice("0", True)
    assert filled(2, 4, policy=hybrid).choose(ONE, Wish("0")) == Choice("1", True)
    assert filled(2, 2, 2, policy=hybrid).choose(ONE, Wish("1")) == Choice("1", True)
    assert filled(1, 4).choose(ONE, Wish("0")) == Choice("0", True)


def test_a_draw_picks_among_the_best_nodes() -> None:
    index = filled(1, 4, 3, 2, 0, policy=Policy(0.5, 0.4))
    chosen = [index.choose(ONE, draw=draw) for draw in range(4)]
    assert chosen == [Choice(name, True) for name in "1212"]


def test_equally_used_nodes_take_turns_when_work_is_spread() -> None:
    index = filled(4, 4, 2, 4)
    chosen = [index.choose(ONE, Wish(is_spread=True)) for _ in range(5)]
    assert [one.node_id for one in chosen if one] == ["0", "1", "3", "0", "1"]


def test_what_takes_nothing_goes_around_all_nodes_when_it_is_spread() -> None:
    index = filled(4, 0, 2)
    chosen = [index.choose({}, Wish(is_spread=True)) for _ in range(4)]
    assert [one.node_id for one in chosen if one] == ["0", "1", "2", "0"]


def test_an_amount_that_was_taken_counts_at_once() -> None:
    index = filled(2, 1)
    assert index.choose(ONE) == Choice("0", True)
    index.update("0", {"CPU": 0})
    index.update("unknown", {"CPU": 9})
    assert index.choose(ONE) == Choice("1", True)
    assert index.choose({"CPU": 2}) == Choice("1", False)
    assert index.choose(ONE, without="1") == Choice("0", False)


def test_a_node_that_comes_back_has_its_old_place() -> None:
    index = filled(2, 2)
    index.choose(ONE)
    index.pause("0")
    assert "0" not in index
    assert index.choose(ONE) == Choice("1", True)
    index.put(View("0", {"CPU": 4}, {"CPU": 2}))
    assert len(index) == 2
    assert index.choose(ONE) == Choice("0", True)


def test_labels_that_change_are_seen() -> None:
    index = filled(4)
    wish = Wish(selectors=({"zone": "n"},))
    assert index.choose(ONE, wish) is None
    index.put(View("0", {"CPU": 4}, {"CPU": 4}, {"zone": "n"}))
    assert index.choose(ONE, wish) == Choice("0", True)


def test_pools_that_nobody_asks_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_index, "MAX_POOLS", 2)
    index = filled(4, 3)
    for zone in "abacab":
        wish = Wish(selectors=({"zone": f"!{zone}"},))
        assert index.choose(ONE, wish) == Choice("0", True)
        index.validate()


def test_a_full_cluster_sees_what_becomes_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node_index, "MAX_RECENT", 2)
    index = filled(*[0] * 5)
    for freed in ("3", "0", "4", "2", "1"):
        assert index.choose(ONE) == Choice("0", False)
        index.update(freed, {"CPU": 1})
        assert index.choose({"CPU": 2}) == Choice(freed, False)
        assert index.choose(ONE) == Choice(freed, True)
        for full in "01234":
            index.update(full, {"CPU": 0})
        index.validate()


def test_what_no_node_can_run_waits_for_one_that_can() -> None:
    index = filled(4, 4)
    assert index.choose({"CPU": 5}) is None
    index.update("0", {"CPU": 3})
    assert index.choose({"CPU": 5}) is None
    index.put(View("2", {"CPU": 5}, {"CPU": 5}))
    assert index.choose({"CPU": 5}) == Choice("2", True)
    index.drop("2")
    assert index.choose({"CPU": 5}) is None
