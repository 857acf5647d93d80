"""Who waits for placement groups, and leaves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lease_world import World
from rayshim.adapters.raylet.groups import Deferred, GroupService
from rayshim.adapters.wire import messages as wire


def test_whoever_left_waits_no_more() -> None:
    async def story() -> None:
        world = World()
        server: Any = world.server
        told: list[Any] = []
        groups = GroupService(
            server, world.nodes, lambda peer, *rest, **said: told.append(peer)
        )
        first: Any = SimpleNamespace(job_id=b"job")
        other: Any = SimpleNamespace(job_id=b"job")
        # A group that nobody will ever make: its maker died before.
        for peer, timeout_s in ((first, None), (first, 1e6), (other, None)):
            payload = msgspec.msgpack.encode({"id": b"g", "timeout_s": timeout_s})
            with pytest.raises(Deferred):
                groups.wait(peer, wire.Request(1, "wait_placement_group", payload))
        groups.peer_left(first)
        assert [one[0] for one in groups._waiters[b"g"]] == [other]
        groups.peer_left(other)
        assert groups._waiters == {}
        assert told == []

    asyncio.run(story())
