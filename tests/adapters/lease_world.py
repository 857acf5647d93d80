"""A head with fake nodes in one event loop, with or without Dask's scheduler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from distributed.utils import offload

from rayshim.adapters.raylet.head_leases import LeasePlacer
from rayshim.adapters.raylet.head_nodes import NodeDirectory
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes

LIMIT_S = 20.0

# Dask's thread for this lasts as long as the process; no test has left it behind.
asyncio.run(offload(int))


class FakeServer:
    """What a control service needs of its process."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(
            with_raylet=False, listen_ip="127.0.0.1", settings={}, node_id="head"
        )
        self.loop = asyncio.get_running_loop()
        self.peers: dict[str, Any] = {}
        #: Seconds by which the clock is ahead.
        self.ahead_s = 0.0

    def now(self) -> float:
        """The time."""
        return time.monotonic() + self.ahead_s

    def close_node(self, info: nodes.NodeInfo) -> None:
        """There are no channels."""


class FakeNode:
    """A node that says what a test says; its own channel and link."""

    def __init__(self, world: World, name: str, cpus: float) -> None:
        self._world = world
        self.node_id = name * 56
        self.address = f"tcp:127.0.0.1:1/{name * 8}/node"
        self.cpus = cpus
        self.connection = self
        self.number = ord(name)
        #: What the head sent.
        self.inbox: list[Any] = []

    def send(self, message: Any) -> None:
        """The head sends (as a link)."""
        self.inbox.append(message)

    def join(self) -> None:
        """Joins."""
        info = nodes.NodeInfo(self.node_id, self.address, "", "127.0.0.1", True)
        join = nodes.JoinNode(
            info, {"CPU": self.cpus}, {}, "host", 1, False, "", "", ""
        )
        self._world.nodes.joined(self, join)  # type: ignore[arg-type]  # as a peer

    def load(self, free: float, **told: Any) -> None:
        """Tells what it has free."""
        load = nodes.NodeLoad({"CPU": free}, **told)
        self._world.nodes.loaded(self, load)  # type: ignore[arg-type]  # as a peer

    def leave(self) -> None:
        """It drains."""
        leaving = nodes.LeaveCluster("drained", True)
        self._world.nodes.leaving(self, leaving)  # type: ignore[arg-type]  # as a peer

    def die(self) -> None:
        """Its channel ends."""
        self._world.nodes.peer_left(self)  # type: ignore[arg-type]  # as a peer

    def ask(self, name: bytes, hops: int = 0, **options: Any) -> None:
        """Its raylet cannot grant a request."""
        values: dict[str, Any] = {"resources": {"CPU": 1.0}, **options}
        is_away = values.pop("is_away", False)
        request = wire.RequestLease(
            name, b"job", name.decode(), env_vars={}, backlog=0, hops=hops, **values
        )
        self._world.placer.ask(self.node_id, request, is_away)

    def placed(self) -> list[tuple[bytes, str]]:
        """Lease and address of each ``LeasePlaced`` that came since the last look."""
        found = [m for m in self.inbox if isinstance(m, nodes.LeasePlaced)]
        self.inbox = [m for m in self.inbox if m not in found]
        return [(one.lease_id, one.address) for one in found]


class World:
    """The head."""

    def __init__(self) -> None:
        self.server = FakeServer()
        server: Any = self.server
        self.nodes = NodeDirectory(server)
        self.placer = LeasePlacer(server, self.nodes)
        self.refused: list[tuple[bytes, str, str]] = []
        self.placer.on_refused = lambda *what: self.refused.append(what)
        self.placer.groups = SimpleNamespace(  # type: ignore[assignment]  # no group
            is_removed=lambda group: False, places=lambda group: {}
        )
        self.scheduler: Any = None

    async def add(self, name: str, cpus: float = 1.0) -> FakeNode:
        """A node that has joined, with all of it free."""
        node = FakeNode(self, name, cpus)
        node.join()
        node.load(cpus)
        tasks = self.placer.engine.tasks
        if tasks is not None:
            await wait_for(lambda: tasks.has_node(node.node_id))
        return node

    async def start_dask(self) -> None:
        """From now on leases are tasks of Dask's scheduler."""
        from rayshim.adapters.dask.lease_scheduler import LeaseScheduler
        from rayshim.adapters.dask.lease_tasks import LeaseTasks

        self.scheduler = await LeaseScheduler(
            protocol="tcp",
            host="127.0.0.1",
            port=0,
            dashboard=False,
            dashboard_address=None,
            validate=True,
        )
        tasks = LeaseTasks(self.scheduler)
        self.placer.attach(tasks)
        alive = [node.node_id for node in self.nodes.alive()]
        await wait_for(lambda: all(tasks.has_node(one) for one in alive))

    def states(self) -> dict[str, tuple[str, str]]:
        """Label -> state and first letter of the node, as Dask has them if it runs.

        What the head says must be the same.
        """
        rows = self.placer.task_rows()
        entries = {**self.placer._entries, **self.placer._placed}
        for row in rows:
            entry = entries[bytes.fromhex(row["key"].removeprefix("lease-"))]
            assert (row["state"], row["node"]) == (entry.state, entry.node), row
            assert row["engine"] == ("dask" if self.scheduler else ""), row
        return {row["label"]: (row["state"], row["node"][:1]) for row in rows}

    async def close(self) -> None:
        """Ends Dask."""
        if self.scheduler is not None:
            await self.scheduler.close()


async def wait_for(condition: Callable[[], Any]) -> None:
    """Waits until something is true."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.001)
