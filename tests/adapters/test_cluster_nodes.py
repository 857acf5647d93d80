"""Nodes join a head, leave it, die, and everybody is told."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_process import ClusterProcesses
from node_process import is_alive, wait_until
from rayshim.adapters.raylet.config import DRAINED_CODE
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes


@pytest.fixture
def cluster() -> Iterator[ClusterProcesses]:
    with ClusterProcesses() as made:
        yield made


def test_nodes_join_and_are_listed(cluster: ClusterProcesses) -> None:
    first = cluster.add(2, is_head_node=True, labels={"zone": "a"})
    second = cluster.add(3, resources={"GPU": 1.0})
    assert cluster.head.ready["address"].endswith("/head/head")
    assert cluster.head.ready["address"].startswith("tcp:127.0.0.1:")
    row = cluster.row(first)
    assert row["Labels"] == {"ray.io/node-id": first.node_id, "zone": "a"}
    assert row["Resources"]["node:__internal_head__"] == 1.0
    assert "node:__internal_head__" not in cluster.row(second)["Resources"]
    total = cluster.observer.request("cluster_resources")
    assert (total["CPU"], total["GPU"], total["node:127.0.0.1"]) == (5.0, 1.0, 2.0)
    cluster.wait_free(CPU=5.0)


def test_the_cluster_file_says_how_to_join(cluster: ClusterProcesses) -> None:
    path = Path(cluster.head.session_dir, "cluster.json")
    facts = json.loads(wait_until(lambda: path.exists() and path.read_text(), "a file"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert facts["head_address"] == cluster.head.address
    assert facts["address"] == cluster.head.address[4:].split("/")[0]
    assert bytes.fromhex(facts["token"]) == cluster.head.token
    assert facts["pid"] == cluster.head.process.pid


def test_peers_are_told_of_nodes(cluster: ClusterProcesses) -> None:
    first = cluster.add()
    at_head, at_node = cluster.head.peer(), first.peer()
    for peer in (at_head, at_node):
        table = peer.expect(nodes.NodeTable)
        assert [(one.node_id, one.alive) for one in table.nodes] == [
            (first.node_id, True)
        ]
    second = cluster.add()
    for peer in (at_head, at_node):
        table = peer.expect(nodes.NodeTable)
        while len(table.nodes) < 2:
            table = peer.expect(nodes.NodeTable)
        assert table.nodes[1].address == second.address
        peer.close()


def test_a_killed_node_is_dead_at_once(cluster: ClusterProcesses) -> None:
    cluster.add(1)
    node = cluster.add(2)
    driver = cluster.head.peer()
    node.process.kill()
    row = cluster.wait_alive(node, False)
    assert "connection ended" in row["DeathReasonMessage"]
    assert row["Resources"] == {}
    assert cluster.observer.request("cluster_resources")["CPU"] == 1.0
    table = driver.expect(nodes.NodeTable)
    while all(one.alive for one in table.nodes):
        table = driver.expect(nodes.NodeTable)
    assert [one.death for one in table.nodes if not one.alive] == [
        row["DeathReasonMessage"]
    ]
    driver.close()


def test_a_silent_node_is_dead_after_the_time_limit_and_leaves() -> None:
    with ClusterProcesses(node_timeout_s=0.5) as cluster:
        node = cluster.add()
        os.kill(node.process.pid, signal.SIGSTOP)
        row = cluster.wait_alive(node, False)
        assert "nothing was heard of it" in row["DeathReasonMessage"]
        os.kill(node.process.pid, signal.SIGCONT)
        assert node.process.wait(10) == 0
        assert not node.session_dir.exists()
        assert not node.store_dir.exists()


def test_sigterm_is_a_good_bye(cluster: ClusterProcesses) -> None:
    node = cluster.add()
    node.process.terminate()
    row = cluster.wait_alive(node, False)
    assert row["DeathReasonMessage"].startswith("it left the cluster")
    assert node.process.wait(10) == 0
    assert not node.session_dir.exists()
    assert not node.store_dir.exists()


def test_a_node_without_its_lifeline_ends(cluster: ClusterProcesses) -> None:
    node = cluster.add()
    node.close_lifeline()
    assert node.process.wait(10) == 0
    cluster.wait_alive(node, False)


@pytest.mark.slow
def test_the_head_runs_the_scheduler() -> None:
    with ClusterProcesses(dask="background", dask_delay_s=0) as cluster:
        address = cluster.observer.request("dask_address")
        assert address.startswith("rayshim://127.0.0.1:")


def test_nodes_come_back_to_a_head_that_restarts() -> None:
    with ClusterProcesses() as cluster:
        node = cluster.add(2)
        driver = node.peer()
        driver.lease(b"1")
        port = int(cluster.head.address.split("/")[0].rpartition(":")[2])
        cluster.restart_head(port)
        cluster.wait_alive(node, True)
        cluster.wait_free(CPU=1.0)
        driver.lease(b"2")
        driver.close()


def test_the_dead_stay_dead_when_the_head_restarts(tmp_path: Path) -> None:
    with ClusterProcesses(
        node_timeout_s=0.5,
        journal_url=f"sqlite://{tmp_path}/journal",
        cluster_name="one",
    ) as cluster:
        node = cluster.add()
        os.kill(node.process.pid, signal.SIGSTOP)
        death = cluster.wait_alive(node, False)["DeathReasonMessage"]
        port = int(cluster.head.address.split("/")[0].rpartition(":")[2])
        cluster.restart_head(port)
        late = cluster.head.peer()
        table = late.expect(nodes.NodeTable)
        assert [(one.node_id, one.death) for one in table.nodes] == [
            (node.node_id, death)
        ]
        os.kill(node.process.pid, signal.SIGCONT)
        assert node.process.wait(10) == 0
        late.close()


def test_jobs_are_numbered_and_end_everywhere(cluster: ClusterProcesses) -> None:
    first, second = cluster.add(1), cluster.add(1)
    attached = cluster.observer.request("attach", hostname=os.uname().nodename)
    assert attached["node"]["node_id"] in (first.node_id, second.node_id)
    assert cluster.observer.request("register_job") == attached["job_id"] + 1
    assert "no live node" in str(cluster.observer.request("attach", hostname="x"))
    job = (1).to_bytes(4, "little")
    at_head, at_first = cluster.head.peer(job_id=job), first.peer(job_id=job)
    remote = second.peer("remote", job_id=job)
    used = [at_first.lease(b"1").pid, remote.lease(b"2").pid]
    cluster.wait_lacks("CPU")
    at_head.close()  # The driver's death as the head sees it, and then the nodes.
    for peer in (at_first, remote):
        peer.close()
    cluster.wait_free(CPU=2.0)
    wait_until(lambda: not any(map(is_alive, used)), "the end of the executors")


def test_lines_of_executors_reach_the_driver_of_another_node(
    cluster: ClusterProcesses,
) -> None:
    cluster.add(1)
    other = cluster.add(1)
    job = (7).to_bytes(4, "little")
    driver = cluster.head.peer(job_id=job)
    remote = other.peer("remote", job_id=job)
    from node_process import call

    channel = remote.open(remote.lease(b"1"))
    call(channel, "print:hello")
    lines = driver.expect(wire.LogLines)
    assert lines.lines == ["hello"]
    for one in (channel, driver, remote):
        one.close()


def test_a_node_drains_until_its_leases_are_back(cluster: ClusterProcesses) -> None:
    node = cluster.add(2)
    driver = node.peer()
    driver.lease(b"1")
    assert cluster.observer.request("drain_node", node_id=node.node_id) is True
    driver.ask(b"2")
    driver.ask(b"3")
    wait_until(
        lambda: len(cluster.observer.request("state", kind="demand")) == 2,
        "requests that nobody grants",
    )
    assert node.process.poll() is None
    driver.send(wire.ReturnLease(b"1"))
    assert node.process.wait(10) == DRAINED_CODE
    row = cluster.wait_alive(node, False)
    assert "asked to leave" in row["DeathReasonMessage"]
    driver.close()
