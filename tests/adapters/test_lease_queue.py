"""The order in which leases get nodes, and what a pass over them costs."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from lease_world import FakeNode, World
from rayshim.adapters.raylet.lease_entry import LeaseEntry
from rayshim.adapters.raylet.lease_queue import LeaseQueue
from rayshim.adapters.wire import messages as wire


def entry(number: int, cpus: float, asker: str, label: str = "f") -> LeaseEntry:
    request = wire.RequestLease(
        b"%d" % number, b"job", label, {"CPU": cpus}, {}, backlog=0
    )
    return LeaseEntry(request, asker, asker, 0.0, number)


@pytest.mark.parametrize("seed", range(20))
def test_a_pass_gives_room_by_priority_and_leaves_none(seed: int) -> None:
    draw = random.Random(seed)
    queue = LeaseQueue()
    waiting = {}
    for number in range(60):
        one = entry(number, draw.choice((1.0, 2.0, 3.0)), draw.choice("abcd"))
        waiting[one.request.lease_id] = one
        queue.add(one)
    for lease_id in draw.sample(sorted(waiting), 15):
        queue.remove(lease_id)
        del waiting[lease_id]
    room = float(draw.randrange(20))
    # As if nodes were so large that only the sum counts: by priority what fits.
    expected, left = [], room
    for lease_id, one in sorted(waiting.items(), key=lambda item: item[1].priority):
        need = one.request.resources["CPU"]
        if need <= left:
            left -= need
            expected.append(lease_id)
    given: list[bytes] = []
    free = room

    def fits(lease_id: bytes) -> bool:
        return waiting[lease_id].request.resources["CPU"] <= free

    def try_one(lease_id: bytes) -> bool:
        nonlocal free
        if not fits(lease_id):
            return False
        free -= waiting[lease_id].request.resources["CPU"]
        queue.remove(lease_id)
        given.append(lease_id)
        return True

    queue.try_all(try_one, fits)
    assert given == expected
    left_over = sum(count for _, count in queue.counts())
    assert left_over == len(waiting) - len(given)


def test_what_one_node_may_not_have_another_one_gets() -> None:
    queue = LeaseQueue()
    for number, asker in enumerate("aab"):
        queue.add(entry(number, 1.0, asker))
    tried: list[bytes] = []

    def try_one(lease_id: bytes) -> bool:
        tried.append(lease_id)
        if lease_id != b"2":
            return False  # The room is at its own node, which knows better.
        queue.remove(lease_id)
        return True

    queue.try_all(try_one, lambda lease_id: True)
    assert tried == [b"0", b"2"]


def choices_of(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fills up with each choice that is made over the nodes."""
    made: list[Any] = []
    index = world.placer._known.index
    choose = index.choose

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return choose(*args, **kwargs)

    monkeypatch.setattr(index, "choose", counted)
    return made


def test_a_pass_over_a_full_cluster_costs_the_kinds_however_many_nodes_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World()
        nodes: list[FakeNode] = []
        for name in map(chr, range(0x4E00, 0x4E00 + 50)):
            nodes.append(await world.add(name, 4))
        for node in nodes:
            node.load(0)
        for number, node in enumerate(nodes):
            for cpus in range(1, 5):
                name = b"%d-%d" % (number, cpus)
                node.ask(name, resources={"CPU": cpus / 2 + 0.5})
        made = choices_of(world, monkeypatch)
        nodes[0].load(0.5)  # It has more room, and too little for all.
        assert len(made) <= 4
        made.clear()
        nodes[0].load(0)
        nodes[0].load(1)  # For one, of some other node.
        assert len(nodes[1].placed()) == 1
        # The asker that comes first is the node itself; then one got it.
        assert len(made) <= 12

    asyncio.run(story())


def test_leases_that_wait_at_full_nodes_cost_nothing_at_each_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World()
        nodes = [await world.add(name, 2) for name in "abcdefgh"]
        nodes[0].load(0)
        for number in range(7):
            nodes[0].ask(b"%d" % number, resources={"CPU": 2.0})
        # All got a node, and found it taken.
        by_address = {node.address: node for node in nodes}
        for lease_id, address in nodes[0].placed():
            node = by_address[address]
            node.load(0, arrived=[lease_id])
            node.ask(lease_id, hops=1, resources={"CPU": 2.0})
        made = choices_of(world, monkeypatch)
        views = world.placer._known.views
        monkeypatch.setattr(
            world.placer._known, "views", lambda: made.append("all") or views()
        )
        for _ in range(10):
            for node in nodes:
                node.load(0)
        # At times they are looked at, since they may have rested long enough.
        assert len(made) <= 7

    asyncio.run(story())


def test_a_change_at_one_node_is_noted_of_that_node_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        world = World()
        nodes = [await world.add(chr(0x4E00 + number), 4) for number in range(20)]
        nodes[0].load(0)
        index = world.placer._known.index
        noted = []
        put = index.put
        monkeypatch.setattr(
            index, "put", lambda view: noted.append(view.node_id) or put(view)
        )
        late = await world.add("z", 4)
        assert noted == [late.node_id]
        # A placement group gives back what it had there, before the node says so.
        known = world.nodes.find(nodes[0].node_id)
        assert known is not None
        world.nodes.give(known, {"CPU": 40_000})
        world.nodes.changed()
        assert noted == [late.node_id, known.node_id]
        assert known.available == {"CPU": 40_000}
        world.nodes.give(known, {"CPU": -10_000})
        world.nodes.changed()
        assert known.available == {"CPU": 30_000}
        assert noted == [late.node_id, known.node_id, known.node_id]

    asyncio.run(story())
