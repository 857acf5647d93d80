"""Leases through the head when messages cross, come late, or nodes change their mind.

The head is real, the nodes are fake; no Dask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lease_world import World
from rayshim.adapters.raylet.head_leases import ARRIVAL_S

Story = Callable[[World], Awaitable[None]]


def play(story: Story) -> None:
    """Runs a story."""

    async def run() -> None:
        world = World()
        await story(world)

    asyncio.run(run())


def test_a_request_of_a_node_that_stays_goes_back_to_it() -> None:
    async def story(world: World) -> None:
        a = await world.add("a")
        a.load(0)
        a.ask(b"one")
        # A drain begins: the node does not keep it, and gets it only as the answer.
        a.leave()
        a.ask(b"one", is_away=True)
        a.load(1)
        assert a.placed() == []
        a.join()
        a.load(1)
        assert a.placed() == [(b"one", a.address)]

    play(story)


def test_a_request_that_came_elsewhere_is_given_up_where_it_was_sent() -> None:
    async def story(world: World) -> None:
        a, b, c = await world.add("a"), await world.add("b"), await world.add("c", 2)
        for node in (a, b, c):
            node.load(0)
        a.ask(b"one")
        b.load(1)
        assert a.placed() == [(b"one", b.address)]
        # While the answer is under way, a leaves it to the head: it goes to c, too.
        b.load(0)
        c.load(2)
        a.ask(b"one", is_away=True)
        assert a.placed() == [(b"one", c.address)]
        # The first answer counted; the lease began and ended at b between two loads.
        b.load(1, arrived=[b"one"], ended=[b"one"])
        world.server.ahead_s = ARRIVAL_S + 1
        c.load(2)
        assert world.states() == {}

    play(story)
