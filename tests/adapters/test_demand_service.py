"""What the control service says is lacking."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster_process import ClusterProcesses
from node_process import NodeProcess, Peer, wait_until
from rayshim.adapters.wire import messages as wire
from rayshim.lineage.demand import NODE_GROUP_LABEL, Demand, ShapeDemand

Join = Callable[[NodeProcess], Peer]


@pytest.fixture
def cluster() -> Iterator[ClusterProcesses]:
    with ClusterProcesses() as made:
        yield made


@pytest.fixture
def join() -> Iterator[Join]:
    """Drivers that are gone at the end."""
    with contextlib.ExitStack() as stack:

        def joined(node: NodeProcess) -> Peer:
            peer = node.peer()
            stack.callback(peer.close)
            return peer

        yield joined


def demand_of(peer: Peer) -> Demand:
    return Demand.from_json(peer.request("demand"))


def the_shape(peer: Peer) -> ShapeDemand:
    """The only shape that waits, once there is one."""
    (shape,) = wait_until(lambda: demand_of(peer).leases, "a request that waits")
    return shape


def test_requests_that_no_node_can_grant_are_counted_by_shape(
    cluster: ClusterProcesses, join: Join
) -> None:
    node = cluster.add(cpus=1, labels={NODE_GROUP_LABEL: "small"})
    owner = join(node)
    owner.lease(b"held")
    owner.ask(b"one", label="train {GPU: 8}", resources={"GPU": 8.0})
    owner.ask(b"two", label="train {GPU: 8}", resources={"GPU": 8.0})

    wait_until(
        lambda: sum(s.count for s in demand_of(cluster.observer).leases) == 2, ""
    )
    demand = demand_of(cluster.observer)

    (shape,) = demand.leases
    assert shape.resources == {"GPU": 8.0}
    assert (shape.count, shape.label) == (2, "train {GPU: 8}")
    assert shape.is_infeasible
    (facts,) = demand.nodes
    assert facts.group == "small" and facts.idle_s == 0.0
    assert facts.available.get("CPU", 0.0) == 0.0 and facts.total["CPU"] == 1.0


def test_calls_that_wait_at_their_owner_are_part_of_the_demand(
    cluster: ClusterProcesses, join: Join
) -> None:
    node = cluster.add(cpus=1)
    owner = join(node)
    owner.lease(b"held")

    owner.ask(b"one", backlog=40)

    wait_until(lambda: the_shape(cluster.observer).count == 40, "the backlog")
    assert not the_shape(cluster.observer).is_infeasible


def test_a_selector_and_a_hard_wish_for_a_node_are_told(
    cluster: ClusterProcesses, join: Join
) -> None:
    node = cluster.add(cpus=1)
    owner = join(node)
    owner.lease(b"held")

    owner.ask(b"one", labels=[{"zone": "a"}, {"zone": "b"}])
    shape = the_shape(cluster.observer)
    assert shape.labels == {"zone": "a"}
    assert shape.fallback_labels == ({"zone": "b"},)
    assert shape.is_infeasible
    owner.send(wire.CancelLease(b"one"))
    wait_until(lambda: not demand_of(cluster.observer).leases, "an end of demand")

    owner.ask(b"two", nodes=[node.node_id], soft=False)
    assert the_shape(cluster.observer).node_ids == (node.node_id,)


def test_a_node_is_idle_from_the_end_of_its_last_lease(
    cluster: ClusterProcesses, join: Join
) -> None:
    node = cluster.add(cpus=1, is_head_node=True)
    owner = join(node)
    owner.lease(b"held", resources={})

    def idle_s() -> float:
        (facts,) = demand_of(cluster.observer).nodes
        return facts.idle_s

    wait_until(lambda: idle_s() == 0.0, "a busy node")
    owner.send(wire.ReturnLease(b"held", False))
    wait_until(lambda: idle_s() > 0.0, "an idle node")
    assert idle_s() < 10.0
    (facts,) = demand_of(cluster.observer).nodes
    assert facts.is_pinned


def test_pending_placement_groups_are_gangs(
    cluster: ClusterProcesses, join: Join
) -> None:
    cluster.add(cpus=1)
    owner = join(cluster.head)
    bundles = [{"CPU": 1.0}, {"CPU": 1.0}]
    owner.request(
        "create_placement_group",
        id=b"g" * 16,
        bundles=bundles,
        strategy="STRICT_SPREAD",
        name="pair",
    )

    (gang,) = wait_until(lambda: demand_of(cluster.observer).gangs, "a gang")

    assert (gang.group_id, gang.strategy) == ((b"g" * 16).hex(), "STRICT_SPREAD")
    assert gang.bundles == tuple(bundles)
    assert (gang.name, gang.is_infeasible) == ("pair", True)
    owner.request("remove_placement_group", id=b"g" * 16)
    assert not demand_of(cluster.observer).gangs


def test_a_group_whose_nodes_are_asked_is_being_placed(
    cluster: ClusterProcesses, join: Join
) -> None:
    node = cluster.add(cpus=1)
    owner = join(cluster.head)
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        group = {"bundles": [{"CPU": 1.0}], "strategy": "PACK", "name": "one"}
        owner.request("create_placement_group", id=b"g" * 16, **group)
        demand = wait_until(
            lambda: (found := demand_of(cluster.observer)).placing and found,
            "a group that is being placed",
        )
        assert demand.placing == ((b"g" * 16).hex(),)
        assert not demand.gangs
        # If that takes long, it counts as waiting.
        demand = wait_until(
            lambda: (found := demand_of(cluster.observer)).gangs and found, "a gang"
        )
        assert not demand.placing
    finally:
        os.kill(node.process.pid, signal.SIGCONT)
    wait_until(lambda: not demand_of(cluster.observer).gangs, "its place")
    assert not demand_of(cluster.observer).placing


def test_a_restarted_head_still_knows_what_was_asked_for(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/journal.sqlite"
    with ClusterProcesses(journal_url=url, cluster_name="kept") as cluster:
        check_restart(cluster)


def check_restart(cluster: ClusterProcesses) -> None:
    ask(cluster.observer, bundles=[{"CPU": 1.0}] * 2, labels=[{}, {"zone": "a"}])
    before = demand_of(cluster.observer)

    cluster.restart_head(int(cluster.head.address.split("/")[0].rpartition(":")[2]))

    after = demand_of(cluster.observer)
    assert before.requested == after.requested == ({"CPU": 1.0}, {"CPU": 1.0})
    assert after.requested_labels == ({}, {"zone": "a"})
    assert before.instance != after.instance
    ask(cluster.observer, bundles=[])
    assert demand_of(cluster.observer).requested == ()


def test_labels_for_some_bundles_only_are_refused(cluster: ClusterProcesses) -> None:
    answer = ask(cluster.observer, bundles=[{"CPU": 1.0}], labels=[{}, {}])

    assert answer.error == "ValueError"
    assert b"2 label selectors for 1 bundles" in answer.payload


def test_a_session_on_one_node_answers_too(join: Join) -> None:
    with NodeProcess(resources={"CPU": 1.0, "memory": 1e9}) as node:
        owner = join(node)
        wait_until(lambda: demand_of(owner).nodes[0].idle_s > 0, "an idle node")
        owner.lease(b"held")
        owner.ask(b"one", label="f {CPU: 1}", backlog=3)
        owner.ask(b"more", label="f {CPU: 1}", backlog=3)
        owner.ask(b"two", label="g {GPU: 1}", resources={"GPU": 1.0})

        wait_until(lambda: len(demand_of(owner).leases) == 2, "two shapes")
        demand = demand_of(owner)

        shapes = {one.label: one for one in demand.leases}
        assert shapes["f {CPU: 1}"].count == 3
        assert not shapes["f {CPU: 1}"].is_infeasible
        assert shapes["g {GPU: 1}"].is_infeasible
        (facts,) = demand.nodes
        assert facts.is_pinned and facts.idle_s == 0.0
        owner.close()


def ask(peer: Peer, **payload: Any) -> Any:
    return peer.request("request_resources", **payload)
