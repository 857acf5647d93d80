"""The placement group machine's rules."""

from __future__ import annotations

from typing import Any

import pytest

from rayshim.lineage import placement_groups as pg
from typed_list import TypedList

ONE = {"CPU": 10_000}


class World:
    """A machine, checked after each event."""

    def __init__(self) -> None:
        self.machine = pg.PlacementGroups()

    def request(
        self, group_id: bytes = b"g", *, node_count: int = 1, **options: Any
    ) -> list[pg.Command]:
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
        commands = self.machine.requested(group, node_count=node_count)
        self.machine.validate()
        return TypedList(commands)

    def state(self, group_id: bytes = b"g") -> pg.GroupState:
        return self.machine.groups[group_id].state


def test_a_group_is_reserved_then_created() -> None:
    world = World()
    assert world.request() == [pg.ReserveBundles(b"g", (ONE, ONE))]
    assert world.state() is pg.GroupState.PENDING
    assert TypedList(world.machine.reserved(b"g", 2.0)) == [pg.ReportGroup(b"g")]
    assert world.state() is pg.GroupState.CREATED


def test_doubled_events_change_nothing() -> None:
    world = World()
    world.request()
    assert world.request() == []
    world.machine.reserved(b"g", 2.0)
    assert world.machine.reserved(b"g", 3.0) == []
    world.machine.removed(b"g")
    assert world.machine.removed(b"g") == []
    assert world.machine.removed(b"unknown") == []
    assert world.machine.reserved(b"g", 4.0) == []


@pytest.mark.parametrize("strategy", ["PACK", "SPREAD", "STRICT_PACK"])
def test_one_node_is_enough_for_most_strategies(strategy: str) -> None:
    assert len(World().request(strategy=strategy)) == 1


def test_strict_spread_needs_a_node_for_each_bundle() -> None:
    world = World()
    assert world.request(strategy="STRICT_SPREAD") == []
    assert world.state() is pg.GroupState.PENDING
    assert len(world.request(b"h", strategy="STRICT_SPREAD", bundles=(ONE,))) == 1
    assert len(world.request(b"i", strategy="STRICT_SPREAD", node_count=2)) == 1


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
    with pytest.raises(ValueError, match="'n' exists already"):
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
        world.machine.requested(group, node_count=1)
        world.machine.removed(b"%d" % number)
    assert b"0" not in world.machine.groups
    assert b"1" in world.machine.groups
    world.machine.validate()
