"""Placement groups over nodes."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from actor_calls_of_peers import start, until
from cluster_process import ClusterProcesses
from node_process import Peer, wait_until
from rayshim.adapters.wire import messages as wire

ONE = {"CPU": 1.0}


def group(owner: Peer, *bundles: dict[str, float], **options: Any) -> bytes:
    group_id = secrets.token_bytes(18)
    owner.request("create_placement_group", id=group_id, bundles=bundles, **options)
    return group_id


def row(owner: Peer, group_id: bytes) -> dict[str, Any]:
    return dict(owner.request("placement_group_table", id=group_id))


def places(owner: Peer, group_id: bytes) -> list[str]:
    found: dict[int, str] = row(owner, group_id)["bundles_to_node_id"]
    return [found[index] for index in sorted(found)]


def wait_created(owner: Peer, group_id: bytes) -> None:
    answer = owner.request("wait_placement_group", id=group_id, timeout_s=10.0)
    assert answer is True


@pytest.mark.parametrize("strategy", ["SPREAD", "STRICT_SPREAD"])
def test_bundles_are_spread(
    cluster: ClusterProcesses, owner: Peer, strategy: str
) -> None:
    nodes = [cluster.add(2), cluster.add(2)]
    group_id = group(owner, ONE, ONE, strategy=strategy)
    wait_created(owner, group_id)
    assert sorted(places(owner, group_id)) == sorted(node.node_id for node in nodes)
    owner.request("remove_placement_group", id=group_id)
    cluster.wait_free(CPU=4.0)


@pytest.mark.parametrize("strategy", ["PACK", "STRICT_PACK"])
def test_bundles_are_packed(
    cluster: ClusterProcesses, owner: Peer, strategy: str
) -> None:
    cluster.add(1)
    large = cluster.add(2)
    group_id = group(owner, ONE, ONE, strategy=strategy)
    wait_created(owner, group_id)
    assert places(owner, group_id) == [large.node_id] * 2


def test_a_strict_spread_waits_for_a_node(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    cluster.add(4)
    group_id = group(owner, ONE, ONE, strategy="STRICT_SPREAD")
    assert owner.request("wait_placement_group", id=group_id, timeout_s=0.2) is False
    cluster.wait_free(CPU=4.0)
    cluster.add(1)
    wait_created(owner, group_id)
    assert len(set(places(owner, group_id))) == 2


def test_leases_and_actors_go_to_their_bundle(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    nodes = {node.node_id: node for node in (cluster.add(1), cluster.add(1))}
    group_id = group(owner, ONE, ONE, strategy="STRICT_SPREAD")
    wait_created(owner, group_id)
    first, second = places(owner, group_id)
    raylet = nodes[first].peer(job_id=owner.job_id)
    raylet.lease(b"1", placement_group=group_id, bundle_index=0)
    raylet.ask(b"2", placement_group=group_id, bundle_index=1)
    rejected = raylet.expect(wire.LeaseRejected)
    assert (rejected.kind, rejected.spill_to) == ("spillback", nodes[second].address)
    actor_id = start(owner, placement_group=group_id, bundle_index=1)
    until(owner, "ALIVE")
    (found,) = cluster.observer.request("state", kind="actors")
    assert (found["actor_id"], found["node_id"]) == (actor_id.hex(), second)
    # Any bundle: the one with room.
    owner.send(wire.KillActor(actor_id, True))
    until(owner, "DEAD")
    raylet.ask(b"3", placement_group=group_id)
    assert raylet.expect(wire.LeaseRejected).spill_to == nodes[second].address
    owner.request("remove_placement_group", id=group_id)
    assert raylet.expect(wire.LeaseLost).kind == "removed"
    raylet.close()


def test_a_lease_waits_for_its_group(cluster: ClusterProcesses, owner: Peer) -> None:
    node = cluster.add(1)
    raylet = node.peer(job_id=owner.job_id)
    group_id = secrets.token_bytes(18)
    raylet.ask(b"1", placement_group=group_id, bundle_index=0)
    owner.request("create_placement_group", id=group_id, bundles=[ONE])
    assert raylet.expect(wire.LeaseGranted).lease_id == b"1"
    waiting = group(owner, ONE)
    raylet.ask(b"2", placement_group=waiting, bundle_index=0)
    lease_id = raylet.lease_id(b"2")

    def explained() -> Any:
        return cluster.observer.request("explain", lease_ids=[lease_id])

    (line,) = wait_until(explained, "a reason")
    assert "0 of 1 bundles placed" in line
    owner.request("remove_placement_group", id=waiting)
    assert raylet.expect(wire.LeaseRejected).kind == "removed"
    raylet.close()


def test_leases_in_use_are_asked_back_for_a_group(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    nodes = [cluster.add(1), cluster.add(1)]
    holders = [node.peer(job_id=(5).to_bytes(4, "little")) for node in nodes]
    for holder in holders:
        holder.lease(b"1")
    cluster.wait_lacks("CPU")
    group_id = group(owner, ONE, ONE, strategy="STRICT_SPREAD")
    for holder in holders:
        assert holder.expect(wire.ReclaimLease).lease_id == b"1"
        holder.send(wire.ReturnLease(b"1"))
    wait_created(owner, group_id)
    for holder in holders:
        holder.close()


def test_bundles_of_a_dead_node_go_elsewhere(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    nodes = {node.node_id: node for node in (cluster.add(1), cluster.add(1))}
    group_id = group(owner, ONE, ONE, strategy="STRICT_SPREAD")
    wait_created(owner, group_id)
    kept, lost = places(owner, group_id)
    actor_id = start(
        owner, placement_group=group_id, bundle_index=1, max_restarts=1, resources=ONE
    )
    until(owner, "ALIVE")
    nodes[lost].process.kill()
    assert until(owner, "RESTARTING").kind == "node"
    assert row(owner, group_id)["state"] == "RESCHEDULING"
    assert places(owner, group_id) == [kept, ""]
    third = cluster.add(1)
    until(owner, "ALIVE")
    assert places(owner, group_id) == [kept, third.node_id]
    assert row(owner, group_id)["state"] == "CREATED"
    (found,) = cluster.observer.request("state", kind="actors")
    assert (found["actor_id"], found["node_id"]) == (actor_id.hex(), third.node_id)


def test_groups_end_with_their_job_on_all_nodes(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    cluster.add(1)
    cluster.add(1)
    group_id = group(owner, ONE, ONE, strategy="STRICT_SPREAD")
    wait_created(owner, group_id)
    cluster.wait_lacks("CPU")
    owner.close()
    cluster.wait_free(CPU=2.0)
