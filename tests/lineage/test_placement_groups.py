"""The placement group machine's rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayshim.lineage import placement_groups as pg
from rayshim.lineage.placement import View
from typed_list import TypedList

ONE = {"CPU": 10_000}
TWO = {"CPU": 20_000}


def view(node_id: str, free: int = 2, total: int = 4) -> View:
    return View(node_id, {"CPU": total * 10_000}, {"CPU": free * 10_000})


class World:
    """A machine, checked after each event."""

    def __init__(self) -> None:
        self.machine = pg.PlacementGroups()

    def request(self, group_id: bytes = b"g", **options: Any) -> list[pg.Command]:
        values: dict[str, Any] = {
            "bundles": (ONE, ONE),
            "strategy": "PACK",
            "name": "",
            "job_id": b"job",
            "is_detached": False,
            "now": 1.0,
            **options,
        }
        bundles = values.pop("bundles")
        group = pg.Group(group_id, bundles, **values)
        return self.checked(self.machine.requested(group))

    def checked(self, commands: list[pg.Command]) -> list[pg.Command]:
        self.machine.validate()
        return TypedList(commands)

    def try_on(self, *views: View, group_id: bytes = b"g") -> list[pg.Command]:
        return self.checked(self.machine.tried(group_id, views))

    def answer(
        self, node_id: str, *, ok: bool = True, attempt: int = 1, group_id: bytes = b"g"
    ) -> list[pg.Command]:
        commands = self.machine.answered(
            group_id, node_id, attempt=attempt, is_reserved=ok, now=2.0
        )
        return self.checked(commands)

    def state(self, group_id: bytes = b"g") -> pg.GroupState:
        return self.machine.groups[group_id].state


def test_a_group_is_reserved_then_created() -> None:
    world = World()
    assert world.request() == []
    assert world.state() is pg.GroupState.PENDING
    assert world.try_on(view("a")) == [
        pg.ReserveBundles(b"g", "a", {0: ONE, 1: ONE}, 0.0, 1)
    ]
    assert world.state() is pg.GroupState.RESERVING
    assert world.answer("a") == [pg.ReportGroup(b"g")]
    assert world.state() is pg.GroupState.CREATED
    assert world.machine.groups[b"g"].places == {0: "a", 1: "a"}


def test_doubled_events_change_nothing() -> None:
    world = World()
    world.request()
    assert world.request() == []
    world.try_on(view("a"))
    assert world.try_on(view("a")) == []
    world.answer("a")
    assert world.answer("a") == []
    assert world.try_on(view("a")) == []
    world.machine.removed(b"g")
    assert world.machine.removed(b"g") == []
    assert world.machine.removed(b"unknown") == []
    assert world.answer("a") == []


def test_one_refusal_gives_back_what_others_reserved() -> None:
    world = World()
    world.request(strategy="STRICT_SPREAD", bundles=(ONE, ONE, ONE))
    world.try_on(view("a"), view("b"), view("c"))
    assert world.answer("a") == []
    assert world.answer("b", ok=False) == [
        pg.ReturnBundles(b"g", "a", (0,)),
        pg.ReturnBundles(b"g", "c", (2,)),
    ]
    assert world.state() is pg.GroupState.PENDING
    # The late answer of the first attempt is none of the second.
    world.try_on(view("a"), view("b"), view("c"))
    assert world.answer("c") == []
    assert world.machine.groups[b"g"].asked.keys() == {"a", "b", "c"}


def test_a_strict_spread_waits_for_a_node_for_each_bundle() -> None:
    world = World()
    world.request(strategy="STRICT_SPREAD")
    assert world.try_on(view("a")) == []
    assert len(world.try_on(view("a"), view("b"))) == 2


def test_only_one_group_is_urged() -> None:
    world = World()
    world.request()
    world.request(b"h")
    assert world.try_on(view("a", free=0)) == [
        pg.ReserveBundles(b"g", "a", {0: ONE, 1: ONE}, pg.URGE_S, 1)
    ]
    assert world.try_on(view("a", free=0), group_id=b"h") == []
    world.answer("a", ok=False)
    assert len(world.try_on(view("a", free=0), group_id=b"h")) == 1


def test_the_only_node_is_waited_for_for_ever() -> None:
    world = World()
    world.request(bundles=({"CPU": 90_000},))
    assert world.try_on(view("a")) == []
    commands = world.checked(world.machine.tried_alone(b"g", view("a")))
    assert commands == [pg.ReserveBundles(b"g", "a", {0: {"CPU": 90_000}}, -1.0, 1)]
    assert world.machine.tried_alone(b"g", view("a")) == []
    assert world.answer("a") == [pg.ReportGroup(b"g")]


def test_the_only_node_is_not_asked_for_what_needs_two() -> None:
    world = World()
    world.request(strategy="STRICT_SPREAD")
    assert world.checked(world.machine.tried_alone(b"g", view("a"))) == []
    assert list(world.machine.waiting) == [b"g"]


def test_lost_bundles_are_placed_again() -> None:
    world = World()
    world.request(strategy="SPREAD")
    world.try_on(view("a"), view("b"))
    world.answer("a")
    world.answer("b")
    assert world.checked(world.machine.node_died("b", 3.0)) == []
    assert world.state() is pg.GroupState.RESCHEDULING
    assert world.try_on(view("a"), view("c")) == [
        pg.ReserveBundles(b"g", "c", {1: ONE}, 0.0, 2)
    ]
    assert world.answer("c", attempt=2) == [pg.ReportGroup(b"g")]
    assert world.machine.groups[b"g"].places == {0: "a", 1: "c"}


def test_the_death_of_an_asked_node_ends_the_attempt() -> None:
    world = World()
    world.request(strategy="SPREAD")
    world.try_on(view("a"), view("b"))
    assert world.checked(world.machine.node_died("b", 3.0)) == [
        pg.ReturnBundles(b"g", "a", (0,))
    ]
    assert world.state() is pg.GroupState.PENDING


def test_the_death_of_an_earlier_node_in_an_attempt_leaves_its_bundles_missing() -> (
    None
):
    world = World()
    world.request(strategy="SPREAD", bundles=(ONE, ONE, ONE))
    world.try_on(view("a"), view("b"), view("c"))
    for node_id in "abc":
        world.answer(node_id)
    world.machine.node_died("c", 3.0)
    world.try_on(view("a"), view("b"), view("d"))
    world.checked(world.machine.node_died("a", 3.0))
    assert world.answer("d", attempt=2) == []
    assert world.state() is pg.GroupState.RESCHEDULING
    assert world.machine.groups[b"g"].missing.keys() == {0}


_STEPS = st.one_of(
    st.tuples(st.just("try"), st.sampled_from([b"g", b"h"]), st.integers(0, 3)),
    st.tuples(st.just("answer"), st.sampled_from([b"g", b"h"]), st.booleans()),
    st.tuples(st.just("die"), st.sampled_from("abc"), st.just(0)),
    st.tuples(st.just("remove"), st.sampled_from([b"g", b"h"]), st.just(0)),
)


@given(
    st.lists(_STEPS, max_size=25),
    st.sampled_from(["PACK", "SPREAD", "STRICT_SPREAD"]),
)
def test_any_order_of_events_keeps_the_rules(steps: list[Any], strategy: str) -> None:
    world = World()
    world.request(strategy=strategy)
    world.request(b"h", strategy=strategy)
    for verb, which, value in steps:
        machine = world.machine
        if verb == "try":
            world.try_on(
                *(view(one, free=value) for one in "abc"[:value]), group_id=which
            )
        elif verb == "answer":
            group = machine.groups[which]
            for node_id in list(group.asked)[:1]:
                world.answer(node_id, ok=value, attempt=group.attempt, group_id=which)
        elif verb == "die":
            world.checked(machine.node_died(which, 1.0))
        else:
            world.checked(machine.removed(which))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strategy": "NEAR"}, "invalid placement group strategy 'NEAR'"),
        ({"bundles": ()}, "needs bundles"),
        ({"bundles": (ONE, {})}, "needs bundles"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], text: str) -> None:
    world = World()
    with pytest.raises(ValueError, match=text):
        world.request(**options)
    assert world.machine.groups == {}


def test_a_name_is_free_again_after_removal() -> None:
    world = World()
    world.request(name="n")
    with pytest.raises(ValueError, match="'n' already exists"):
        world.request(b"h", name="n")
    world.machine.removed(b"g")
    world.request(b"h", name="n")


def test_a_job_takes_its_groups_along_but_not_detached_ones() -> None:
    world = World()
    world.request()
    world.request(b"h", is_detached=True)
    world.request(b"i", job_id=b"other")
    assert TypedList(world.machine.job_ended(b"job")) == [
        pg.FreeBundles(b"g"),
        pg.ReportGroup(b"g"),
    ]
    assert world.state(b"h") is world.state(b"i") is pg.GroupState.PENDING


def test_old_removed_groups_are_forgotten() -> None:
    world = World()
    for number in range(pg.REMEMBERED + 1):
        group = pg.Group(
            b"%d" % number,
            (ONE,),
            strategy="PACK",
            name="",
            job_id=b"",
            is_detached=False,
            now=0.0,
        )
        world.machine.requested(group)
        world.machine.removed(b"%d" % number)
    assert b"0" not in world.machine.groups
    assert b"1" in world.machine.groups
    world.machine.validate()
