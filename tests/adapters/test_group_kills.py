"""Processes that are killed between the two phases of a placement group."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from cluster_process import ClusterProcesses
from node_process import Peer, wait_until
from rayshim.adapters.wire import messages as wire

ONE = {"CPU": 1.0}


def row(owner: Peer, group_id: bytes) -> dict[str, Any]:
    return dict(owner.request("placement_group_table", id=group_id))


def cpus(owner: Peer, name: str) -> dict[str, float]:
    """Node -> free CPUs."""
    rows = owner.request("node_table")
    return {one["node_id"]: one[name].get("CPU", 0) for one in rows if one["alive"]}


def start_group(cluster: ClusterProcesses, owner: Peer) -> tuple[bytes, Any, Any]:
    """A group that has reserved on the first node and waits for the second."""
    free, busy = cluster.add(1), cluster.add(1)
    holder = busy.peer(job_id=(5).to_bytes(4, "little"))
    holder.lease(b"1")
    wait_until(lambda: cpus(owner, "available")[busy.node_id] == 0, "a lease")
    group_id = secrets.token_bytes(18)
    owner.request(
        "create_placement_group", id=group_id, bundles=[ONE, ONE], strategy="SPREAD"
    )
    # The group is urged, so that the lease is asked back.
    assert holder.expect(wire.ReclaimLease).lease_id == b"1"
    wait_until(lambda: cpus(owner, "available")[free.node_id] == 0, "a reservation")
    return group_id, free, (busy, holder)


def test_a_node_that_is_killed_before_it_answers(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    group_id, free, (busy, holder) = start_group(cluster, owner)
    busy.process.kill()
    holder.close()
    wait_until(lambda: len(cpus(owner, "available")) == 1, "its death")
    assert row(owner, group_id)["state"] == "PENDING"
    wait_until(lambda: cpus(owner, "available")[free.node_id] == 1, "its CPU back")
    third = cluster.add(1)
    answer = owner.request("wait_placement_group", id=group_id, timeout_s=20.0)
    assert answer is True
    homes = row(owner, group_id)["bundles_to_node_id"]
    assert set(homes.values()) == {free.node_id, third.node_id}


def test_a_node_that_is_killed_after_it_has_reserved(
    cluster: ClusterProcesses, owner: Peer
) -> None:
    group_id, free, (busy, holder) = start_group(cluster, owner)
    free.process.kill()
    wait_until(lambda: len(cpus(owner, "available")) == 1, "its death")
    assert row(owner, group_id)["state"] == "PENDING"
    holder.send(wire.ReturnLease(b"1"))
    wait_until(lambda: cpus(owner, "available")[busy.node_id] == 1, "its CPU back")
    owner.request("remove_placement_group", id=group_id)
    assert row(owner, group_id)["state"] == "REMOVED"
    assert cpus(owner, "available")[busy.node_id] == 1
    holder.close()


def test_a_head_that_is_killed_between_the_phases(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/journal.sqlite"
    with ClusterProcesses(journal_url=url, cluster_name="one") as cluster:
        job_id = (1).to_bytes(4, "little")
        owner = cluster.head.peer(job_id=job_id)
        group_id, free, (busy, holder) = start_group(cluster, owner)
        port = int(cluster.head.address.split("/")[0].rpartition(":")[2])
        cluster.restart_head(port)
        owner.close()
        owner = cluster.head.peer(job_id=job_id)
        holder.send(wire.ReturnLease(b"1"))
        answer = owner.request("wait_placement_group", id=group_id, timeout_s=20.0)
        assert answer is True
        homes = row(owner, group_id)["bundles_to_node_id"]
        assert set(homes.values()) == {free.node_id, busy.node_id}
        owner.request("remove_placement_group", id=group_id)
        cluster.wait_free(CPU=2.0)
        holder.close()
        owner.close()
