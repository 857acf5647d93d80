"""Actors whose place two lives of the head looked for: one process, whatever came."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fake_wire
from actor_calls_of_peers import start
from cluster_process import ClusterProcesses
from node_process import wait_until
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.lineage.leases import LIFE_HOPS


class FakeNode:
    """A node as the head sees it, which answers what a test says."""

    def __init__(self) -> None:
        self.node_id = secrets.token_hex(28)
        self.address = f"tcp:127.0.0.1:1/{self.node_id[:8]}/node"
        self.channel: fake_wire.Channel | None = None

    def join(self, cluster: ClusterProcesses) -> None:
        """Joins, or joins again."""
        self.close()
        self.channel = fake_wire.Channel.connect(
            cluster.head.address, cluster.head.token
        )
        hello = wire.Hello("raylet", bytes.fromhex(self.node_id), self.address, 1, b"")
        self.send(hello)
        info = nodes.NodeInfo(self.node_id, self.address, "", "127.0.0.1", True)
        resources = {"CPU": 1.0}
        self.send(nodes.JoinNode(info, resources, {}, "host", 1, False, "", "", ""))
        self.send(nodes.NodeLoad(resources))

    def send(self, message: Any) -> None:
        """Tells the head."""
        assert self.channel is not None
        self.channel.send(message)

    def close(self) -> None:
        """Closes its channel."""
        if self.channel is not None:
            self.channel.close()

    def expect(self, kind: type) -> Any:
        """The next message of a kind."""
        assert self.channel is not None
        while True:
            message = self.channel.receive()
            assert message is not None, "the head closed the channel"
            if isinstance(message, kind):
                return message

    def grant(self, request: wire.RequestLease) -> bytes:
        """Finds an executor for a request; its worker id."""
        worker_id = secrets.token_bytes(28)
        address = f"{self.address}-w"
        self.send(wire.LeaseGranted(request.lease_id, address, worker_id, 7, {}, []))
        return worker_id


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    """A head whose journal outlives it."""
    with ClusterProcesses(
        journal_url=f"sqlite://{tmp_path}/journal",
        cluster_name="lives",
        head_rejoin_s=0.5,
        node_timeout_s=30.0,
    ) as made:
        yield made


@pytest.fixture
def pair() -> Iterator[tuple[FakeNode, FakeNode]]:
    """Two nodes that have not joined yet."""
    made = FakeNode(), FakeNode()
    yield made
    for node in made:
        node.close()


def test_an_actor_that_two_lives_of_the_head_placed_has_one_process(
    cluster: ClusterProcesses, pair: tuple[FakeNode, FakeNode]
) -> None:
    first, second = pair
    first.join(cluster)
    actor_id = start(cluster.observer, detached=True)
    asked = first.expect(wire.RequestLease)
    port = int(cluster.head.address.split("/")[0].rpartition(":")[2])
    cluster.restart_head(port)
    second.join(cluster)
    # The first node is late: its place is looked for elsewhere when all had time.
    anew = second.expect(wire.RequestLease)
    assert anew.lease_id == asked.lease_id
    # Else a node that has seen the first request would take it for a copy.
    assert anew.hops >= LIFE_HOPS > asked.hops

    chosen = second.grant(anew)
    assert second.expect(nodes.RelayToExecutor).worker_id == chosen
    first.join(cluster)
    first.grant(asked)
    assert first.expect(wire.KillExecutor).lease_id == asked.lease_id
    first.send(wire.LeaseLost(asked.lease_id, "it was killed", -9))
    second.send(wire.ActorCreated(actor_id, 0, ""))

    def row() -> Any:
        (found,) = cluster.observer.request("state", kind="actors")
        return found if found["state"] == "ALIVE" else None

    found = wait_until(row, "an actor that lives")
    assert (found["node_id"], found["num_restarts"]) == (second.node_id, 0)


def test_a_load_that_was_told_before_does_not_make_room_again(
    cluster: ClusterProcesses, pair: tuple[FakeNode, FakeNode]
) -> None:
    node, asker = pair
    node.join(cluster)
    asker.join(cluster)
    requests = [
        wire.RequestLease(bytes([number]) * 16, b"jobj", "f", {"CPU": 1.0}, {}, 0)
        for number in range(2)
    ]
    for request in requests:
        asker.send(nodes.PlaceLease(request))
    placed = asker.expect(nodes.LeasePlaced)
    assert (placed.lease_id, placed.address) == (requests[0].lease_id, node.address)
    # It was on its way when the first request was placed.
    node.send(nodes.NodeLoad({"CPU": 1.0}))
    # Now that request is there, granted and over.
    node.send(nodes.NodeLoad({}, arrived=[placed.lease_id]))
    wait_until(
        lambda: cluster.observer.request("state", kind="demand"), "what was not placed"
    )
    node.send(nodes.NodeLoad({"CPU": 1.0}))
    assert asker.expect(nodes.LeasePlaced).lease_id == requests[1].lease_id
