"""Leases over nodes: spillback, wishes for nodes, remote holders, dead nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fake_wire
from cluster_process import ClusterProcesses
from node_process import NodeProcess, Peer, call, wait_until
from rayshim.adapters.wire import messages as wire


@pytest.fixture
def cluster() -> Iterator[ClusterProcesses]:
    with ClusterProcesses() as made:
        yield made


class Owner:
    """A driver on the first node that follows spillbacks, as owners do."""

    def __init__(self, *nodes: NodeProcess) -> None:
        self.job_id = (9).to_bytes(4, "little")
        self.by_address = {node.address: node for node in nodes}
        self.home = nodes[0].peer(job_id=self.job_id)
        self.peers: dict[str, Peer] = {nodes[0].address: self.home}
        self.channels: list[fake_wire.Channel] = []

    def at(self, address: str) -> Peer:
        """The channel to a raylet."""
        if address not in self.peers:
            peer = self.by_address[address].peer("remote", job_id=self.job_id)
            peer.address = self.home.address
            peer._prefix = self.home._prefix
            self.peers[address] = peer
        return self.peers[address]

    def spilled(self, lease_id: bytes, peer: Peer | None = None) -> str:
        """Where a request should go instead."""
        rejected = (peer or self.home).expect(wire.LeaseRejected)
        assert (rejected.lease_id, rejected.kind) == (lease_id, "spillback")
        return str(rejected.spill_to)

    def lease(self, lease_id: bytes, **options: Any) -> tuple[Peer, Any]:
        """The raylet that granted, and what."""
        peer, hops = self.home, 0
        while True:
            peer.ask(lease_id, hops=hops, **options)
            answer = peer.expect_one_of(wire.LeaseGranted, wire.LeaseRejected)
            assert answer.lease_id == lease_id
            if isinstance(answer, wire.LeaseGranted):
                return peer, answer
            assert answer.kind == "spillback", answer
            peer, hops = self.at(answer.spill_to), answer.hops + 1

    def close(self) -> None:
        """Ends it as a dead process does."""
        for peer in self.peers.values():
            peer.close()


Owners = Callable[..., Owner]


@pytest.fixture
def owners() -> Iterator[Owners]:
    """Makes drivers, and ends them before the cluster's own end is checked."""
    made: list[Owner] = []

    def make(*nodes: NodeProcess) -> Owner:
        made.append(Owner(*nodes))
        return made[-1]

    yield make
    for owner in made:
        owner.close()


def test_what_does_not_fit_here_goes_where_it_does(
    cluster: ClusterProcesses, owners: Owners
) -> None:
    first, second = cluster.add(1), cluster.add(1)
    owner = owners(first, second)
    assert owner.lease(b"1")[0] is owner.home
    peer, granted = owner.lease(b"2")
    assert peer.node is second
    channel = peer.open(granted)
    assert int(call(channel, "pid")) == granted.pid
    channel.close()
    owner.close()
    cluster.wait_free(CPU=2.0)


def test_a_request_that_waits_goes_when_another_node_has_room(
    cluster: ClusterProcesses, owners: Owners
) -> None:
    first, second = cluster.add(1), cluster.add(1)
    owner = owners(first, second)
    owner.lease(b"1")
    peer, _ = owner.lease(b"2")
    owner.home.ask(b"3")
    wait_until(
        lambda: cluster.observer.request("state", kind="demand"), "a known demand"
    )
    peer.send(wire.ReturnLease(b"2"))
    assert owner.spilled(b"3") == second.address


def test_a_request_that_waits_is_granted_here_when_there_is_room_first(
    cluster: ClusterProcesses, owners: Owners
) -> None:
    first, second = cluster.add(1), cluster.add(1)
    owner = owners(first, second)
    owner.lease(b"1")
    owner.lease(b"2")
    owner.home.ask(b"3")
    wait_until(
        lambda: cluster.observer.request("state", kind="demand"), "a known demand"
    )
    owner.home.send(wire.ReturnLease(b"1"))
    assert owner.home.expect(wire.LeaseGranted).lease_id == b"3"
    wait_until(
        lambda: cluster.observer.request("state", kind="demand") == [], "no demand"
    )


def test_a_request_may_come_back_to_the_node_that_passed_it_on(
    cluster: ClusterProcesses, owners: Owners
) -> None:
    first, second = cluster.add(1), cluster.add(1)
    owner = owners(first, second)
    owner.lease(b"1")
    peer, _ = owner.lease(b"2")
    owner.home.ask(b"3")
    peer.send(wire.ReturnLease(b"2"))
    assert owner.spilled(b"3") == second.address
    peer.lease(b"4")
    peer.ask(b"3", hops=1)
    owner.home.send(wire.ReturnLease(b"1"))
    assert owner.spilled(b"3", peer) == first.address
    owner.home.ask(b"3", hops=2)
    assert owner.home.expect(wire.LeaseGranted).lease_id == b"3"


def test_what_no_node_has_waits_and_is_explained(
    cluster: ClusterProcesses, owners: Owners
) -> None:
    first, second = cluster.add(1), cluster.add(2)
    owner = owners(first, second)
    owner.home.ask(b"1", resources={"GPU": 1.0}, label="train")
    lease_id = owner.home.lease_id(b"1")

    def explained() -> list[str]:
        lines = cluster.observer.request("explain", lease_ids=[lease_id])
        assert isinstance(lines, list)
        return lines

    (line,) = wait_until(explained, "a reason")
    assert line.startswith("train waits for ")
    assert "no node of the cluster has that" in line
    assert f"node {second.node_id[:8]} (127.0.0.1) has free {{GPU: 0}}" in line
    third = cluster.add(1, resources={"GPU": 1.0})
    assert owner.spilled(b"1") == third.address


def test_a_hard_wish_for_a_node_is_kept(
    cluster: ClusterProcesses, owners: Owners
) -> None:
    first, second = cluster.add(1), cluster.add(1)
    owner = owners(first, second)
    wish: dict[str, Any] = {"nodes": [second.node_id], "soft": False}
    peer, _ = owner.lease(b"1", **wish)
    assert peer.node is second
    owner.home.ask(b"2", **wish)
    # It is full, and waited for: the request queues there.
    assert owner.spilled(b"2") == second.address
    second.process.kill()
    cluster.wait_alive(second, False)
    owner.home.ask(b"3", **wish)
    rejected = owner.home.expect(wire.LeaseRejected)
    assert rejected.kind == "infeasible"
    assert "is dead or was never part of this cluster" in rejected.reason


def test_a_soft_wish_for_nodes_is_taken_while_they_have_room(
    cluster: ClusterProcesses, owners: Owners
) -> None:
    first, second = cluster.add(2), cluster.add(1)
    owner = owners(first, second)
    wish: dict[str, Any] = {"nodes": [second.node_id, first.node_id]}
    assert owner.lease(b"1", **wish)[0].node is second
    assert owner.lease(b"2", **wish)[0].node is first


def test_spread_goes_round(cluster: ClusterProcesses, owners: Owners) -> None:
    first, second = cluster.add(2), cluster.add(2)
    owner = owners(first, second)
    taken = [
        owner.lease(b"%d" % number, strategy="SPREAD")[0].node.node_id
        for number in range(4)
    ]
    assert sorted(taken) == sorted([first.node_id, second.node_id] * 2)


def test_labels_choose_nodes(cluster: ClusterProcesses, owners: Owners) -> None:
    first = cluster.add(1, labels={"zone": "a"})
    second = cluster.add(1, labels={"zone": "b"})
    owner = owners(first, second)
    assert owner.lease(b"1", labels=[{"zone": "b"}])[0].node is second
    choice = [{"zone": "in(b, c)"}, {"zone": "!b"}]
    assert owner.lease(b"2", labels=choice)[0].node is first
    owner.home.ask(b"3", labels=[{"zone": "x"}])
    third = cluster.add(1, labels={"zone": "x"})
    assert owner.spilled(b"3") == third.address


def test_the_end_of_a_remote_holder_frees_its_leases(
    cluster: ClusterProcesses, owners: Owners
) -> None:
    first, second = cluster.add(1), cluster.add(1)
    owner = owners(first, second)
    owner.lease(b"1")
    peer, _ = owner.lease(b"2")
    peer.close()
    cluster.wait_free(CPU=1.0)
    owner.close()
    cluster.wait_free(CPU=2.0)


def test_the_death_of_an_executor_is_told_to_a_remote_holder(
    cluster: ClusterProcesses, owners: Owners
) -> None:
    first, second = cluster.add(1), cluster.add(1)
    owner = owners(first, second)
    owner.lease(b"1")
    peer, granted = owner.lease(b"2")
    channel = peer.open(granted)
    channel.send(wire.PushTasks([_spec("exit:3")]))
    lost = peer.expect(wire.LeaseLost)
    assert (lost.lease_id, lost.exit_code) == (b"2", 3)
    channel.close()


def test_what_a_dead_node_held_of_others_is_free(
    cluster: ClusterProcesses, owners: Owners
) -> None:
    first, second = cluster.add(1), cluster.add(1)
    # An executor of the second node holds a lease on the first.
    holder = Peer(first, "remote", (3).to_bytes(4, "little"))
    place = second.address.rsplit("/", 1)[0]
    holder.channel.close()
    holder.address = f"{place}/w-0000"
    holder.channel = fake_wire.Channel.connect(first.address, first.token)
    holder.channel.send(wire.Hello("remote", b"", holder.address, 1, holder.job_id))
    holder.lease(b"1")
    cluster.wait_free(CPU=1.0)
    second.process.kill()
    cluster.wait_alive(second, False)
    cluster.wait_free(CPU=1.0)
    assert cluster.observer.request("cluster_resources")["CPU"] == 1.0
    holder.close()


def test_requests_wait_for_a_head_that_is_away(owners: Owners) -> None:
    with ClusterProcesses() as cluster:
        first, second = cluster.add(1), cluster.add(1)
        owner = owners(first, second)
        owner.lease(b"1")
        port = int(cluster.head.address.split("/")[0].rpartition(":")[2])
        cluster.head.process.kill()
        cluster.head.process.wait()
        owner.home.ask(b"2")
        cluster.restart_head(port)
        assert owner.spilled(b"2") == second.address


def _spec(method: str) -> wire.TaskSpec:
    return wire.TaskSpec(b"t" * 24, b"", method, b"", [], [], [], 1, "f", 0)
