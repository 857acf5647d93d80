"""Leases of a real cluster as tasks of the scheduler in its head."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster_process import ClusterProcesses
from node_process import Peer, wait_until
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire.address import parse_tcp
from test_cluster_leases import Owner


def wait_for_dask(cluster: ClusterProcesses) -> None:
    wait_until(
        lambda: cluster.observer.request("cluster_info")["dask_address"],
        "Dask's scheduler",
    )


def tasks(cluster: ClusterProcesses) -> list[dict[str, Any]]:
    return list(cluster.observer.request("state", kind="lease_tasks"))


def wait_for_state(cluster: ClusterProcesses, state: str) -> dict[str, Any]:
    def seen() -> dict[str, Any]:
        rows = tasks(cluster)
        is_it = len(rows) == 1 and rows[0]["state"] == state
        return rows[0] if is_it and rows[0]["engine"] == "dask" else {}

    return dict(wait_until(seen, f"one lease task that is {state}"))


@pytest.fixture
def cluster() -> Iterator[ClusterProcesses]:
    with ClusterProcesses(dask="background") as made:
        wait_for_dask(made)
        yield made


def test_a_lease_on_another_node_is_a_task_until_it_ends(
    cluster: ClusterProcesses,
) -> None:
    a, b = cluster.add(1), cluster.add(1)
    owner = Owner(a, b)
    owner.lease(b"local")
    assert tasks(cluster) == [], "what the own node grants is no task"
    cluster.wait_free(CPU=1)
    peer, _ = owner.lease(b"remote")
    row = wait_for_state(cluster, "long-running")
    assert (row["node"], row["hops"]) == (b.node_id, 1)
    owner.home.ask(b"third")
    wait_until(
        lambda: (
            {row["state"] for row in tasks(cluster)} == {"long-running", "no-worker"}
        ),
        "a request that waits",
    )
    owner.home.send(wire.CancelLease(b"third"))
    wait_for_state(cluster, "long-running")
    peer.send(wire.ReturnLease(b"remote"))
    wait_until(lambda: not tasks(cluster), "the end of the task")
    owner.close()


def test_a_node_that_dies_ends_the_tasks_there(cluster: ClusterProcesses) -> None:
    a, b = cluster.add(1), cluster.add(1)
    owner = Owner(a, b)
    owner.lease(b"local")
    cluster.wait_free(CPU=1)
    owner.lease(b"remote")
    wait_for_state(cluster, "long-running")
    b.process.kill()
    cluster.wait_alive(b, False)
    wait_until(lambda: not tasks(cluster), "the end of the task")
    owner.close()


def test_a_new_head_takes_up_leases_that_run(cluster: ClusterProcesses) -> None:
    a, b = cluster.add(1), cluster.add(1)
    owner = Owner(a, b)
    owner.lease(b"local")
    cluster.wait_free(CPU=1)
    peer, _ = owner.lease(b"remote")
    key = wait_for_state(cluster, "long-running")["key"]
    cluster.restart_head(parse_tcp(cluster.head.address).port)
    wait_for_dask(cluster)
    row = wait_for_state(cluster, "long-running")
    assert (row["key"], row["node"]) == (key, b.node_id)
    peer.send(wire.ReturnLease(b"remote"))
    wait_until(lambda: not tasks(cluster), "the end of the task")
    owner.close()


def test_many_leases_spread_over_the_nodes(cluster: ClusterProcesses) -> None:
    nodes = [cluster.add(2) for _ in range(3)]
    owner = Owner(*nodes)
    granted: list[tuple[Peer, Any]] = [
        owner.lease(b"lease %d" % number) for number in range(6)
    ]
    assert len({id(peer) for peer, _ in granted}) == 3
    begin = time.monotonic()
    wait_until(lambda: len(tasks(cluster)) == 4, "four tasks")
    assert {row["hops"] for row in tasks(cluster)} == {1}
    assert time.monotonic() - begin < 10
    for number, (peer, _) in enumerate(granted):
        peer.send(wire.ReturnLease(b"lease %d" % number))
    wait_until(lambda: not tasks(cluster), "the end of all tasks")
    owner.close()
