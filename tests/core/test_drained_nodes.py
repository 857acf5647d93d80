"""Nodes that leave as they were asked to: no value is lost, no work is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from live_session import wait_until
from rayshim import exceptions
from rayshim.adapters.wire.oneshot import OneShot
from rayshim.cluster_utils import Cluster, ClusterNode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SIZE = 1 << 20
LIMIT_S = 30.0


class Nodes:
    """A cluster whose driver is on a node of its own, which nothing else runs on."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def add(self, name: str, **options: Any) -> ClusterNode:
        return self.cluster.add_node(num_cpus=1, resources={name: 9}, **options)

    def ask(self, method: str, **payload: Any) -> Any:
        cluster = self.cluster
        with OneShot(cluster.head_process_address, cluster.token) as head:
            return head.ask(method, payload)

    def drain(self, node: ClusterNode, **options: Any) -> None:
        assert self.ask("drain_node", node_id=node.node_id, **options) is True

    def row(self, node: ClusterNode) -> dict[str, Any]:
        rows = self.ask("node_table")
        return next(row for row in rows if row["node_id"] == node.node_id)

    def leases(self, node: ClusterNode) -> list[dict[str, Any]]:
        cluster = self.cluster
        with OneShot(self.row(node)["address"], cluster.token) as raylet:
            return list(raylet.ask("state", {"kind": "leases"}))

    def wait_gone(self, node: ClusterNode) -> None:
        wait_until(lambda: not self.row(node)["alive"], deadline_s=LIMIT_S)

    def wait_refused(self, node: ClusterNode) -> str:
        def is_refused() -> bool:
            row = self.row(node)
            return "it is not drained" in row["drain_note"] and row["usable"]

        wait_until(is_refused, deadline_s=LIMIT_S)
        return str(self.row(node)["drain_note"])


@pytest.fixture(scope="module")
def module_nodes() -> Iterator[Nodes]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        yield Nodes(cluster)
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def nodes(module_nodes: Nodes) -> Iterator[Nodes]:
    yield module_nodes
    for node in list(module_nodes.cluster.worker_nodes):
        module_nodes.cluster.remove_node(node, allow_graceful=False)


@ray.remote(num_cpus=0, max_retries=0)
def make(value: int, size_bytes: int = SIZE) -> np.ndarray:
    return np.full(size_bytes, value, np.uint8)


@ray.remote(num_cpus=0)
def first(value: np.ndarray) -> int:
    return int(value[0])


@ray.remote(num_cpus=0)
def first_of(holder: list[Any]) -> int:
    return int(ray.get(holder[0])[0])


@ray.remote(num_cpus=0)
class Keeper:
    """Owns what it puts, and holds references of others."""

    def __init__(self) -> None:
        self.held: Any = None

    def put(self) -> list[Any]:
        return [ray.put(np.ones(SIZE, np.uint8))]

    def make(self, node: str) -> list[Any]:
        self.held = make.options(resources={node: 0.1}).remote(5)
        ray.wait([self.held], fetch_local=False)
        return [self.held]

    def hold(self, holder: list[Any]) -> None:
        self.held = holder[0]

    def read(self) -> int:
        return int(ray.get(self.held)[0])

    def where(self) -> str:
        return ray.get_runtime_context().get_node_id()


def at(name: str) -> dict[str, Any]:
    return {"resources": {name: 0.1}}


def test_the_only_copies_of_values_survive_a_removal(nodes: Nodes) -> None:
    node = nodes.add("a")
    made = [make.options(**at("a")).remote(value) for value in range(20)]
    ray.wait(made, num_returns=20, fetch_local=False)

    nodes.cluster.remove_node(node)

    assert [int(ray.get(one)[0]) for one in made] == list(range(20))


def test_values_that_were_spilled_survive_a_removal(nodes: Nodes) -> None:
    node = nodes.add("a", _system_config={"object_store_limit_bytes": 8 * SIZE})
    made = [make.options(**at("a")).remote(value) for value in range(20)]
    ray.wait(made, num_returns=20, fetch_local=False)

    nodes.cluster.remove_node(node)

    assert [int(ray.get(one)[0]) for one in made] == list(range(20))


def test_values_of_other_owners_survive_a_removal(nodes: Nodes) -> None:
    node = nodes.add("a")
    nodes.add("b")
    keeper = Keeper.options(**at("b")).remote()
    (made,) = ray.get(keeper.make.remote("a"))

    nodes.cluster.remove_node(node)

    assert ray.get(keeper.read.remote()) == 5
    assert int(ray.get(made)[0]) == 5


def test_borrowers_and_calls_find_a_value_where_it_went(nodes: Nodes) -> None:
    node = nodes.add("a")
    nodes.add("b")
    made = make.options(**at("a")).remote(7)
    ray.wait([made], fetch_local=False)
    keeper = Keeper.options(**at("b")).remote()
    ray.get(keeper.hold.remote([made]))

    nodes.cluster.remove_node(node)

    assert ray.get(keeper.read.remote()) == 7
    assert ray.get(first.options(**at("b")).remote(made)) == 7
    assert ray.get(first_of.options(**at("b")).remote([made])) == 7


def test_a_value_moves_on_each_time_its_node_leaves(nodes: Nodes) -> None:
    made = None
    before = nodes.add("a0")
    made = make.options(**at("a0")).remote(3)
    ray.wait([made], fetch_local=False)
    for turn in range(1, 3):
        after = nodes.add(f"a{turn}")
        nodes.cluster.remove_node(before)
        before = after
    assert ray.get(first.options(**at("a2")).remote(made)) == 3


def test_running_calls_end_and_their_values_are_moved(nodes: Nodes) -> None:
    node = nodes.add("a")
    nodes.add("b")
    gate = Gate.options(**at("b")).remote()
    made = after_gate.options(**at("a")).remote(gate)
    ray.get(gate.wait_entered.remote())

    nodes.drain(node)
    wait_until(
        lambda: "runs there" in nodes.row(node)["drain_note"], deadline_s=LIMIT_S
    )
    late = first.options(resources={"a": 0.1}).remote(np.zeros(1))
    ray.get(gate.open.remote())

    nodes.wait_gone(node)
    assert int(ray.get(made)[0]) == 9
    assert ray.wait([late], timeout=0)[0] == []
    ray.cancel(late)


@ray.remote(num_cpus=0, max_concurrency=3)
class Gate:
    def __init__(self) -> None:
        import threading

        self._entered, self._open = threading.Event(), threading.Event()

    def enter(self) -> None:
        self._entered.set()
        self._open.wait()

    def wait_entered(self) -> None:
        self._entered.wait()

    def open(self) -> None:
        self._open.set()


@ray.remote(num_cpus=0, max_retries=0)
def after_gate(gate: Any) -> np.ndarray:
    ray.get(gate.enter.remote())
    return np.full(SIZE, 9, np.uint8)


def test_an_actor_that_may_restart_goes_on_elsewhere(nodes: Nodes) -> None:
    node = nodes.add("a", labels={"kind": "x"})
    other = nodes.add("b", labels={"kind": "x"})
    keeper = Keeper.options(
        max_restarts=1, max_task_retries=-1, label_selector={"kind": "x"}
    ).remote()
    here = ray.get(keeper.where.remote())
    leaving, staying = (node, other) if here == node.node_id else (other, node)

    nodes.drain(leaving, is_refusable=True)

    nodes.wait_gone(leaving)
    assert ray.get(keeper.where.remote()) == staying.node_id


def test_a_node_with_an_actor_that_may_not_restart_stays(nodes: Nodes) -> None:
    node = nodes.add("a")
    keeper = Keeper.options(**at("a")).remote()
    ray.get(keeper.where.remote())

    nodes.drain(node, is_refusable=True)

    assert "Keeper" in nodes.wait_refused(node)
    assert ray.get(keeper.where.remote()) == node.node_id


def test_an_ordered_drain_waits_for_an_actor_that_may_not_restart(
    nodes: Nodes,
) -> None:
    node = nodes.add("a")
    keeper = Keeper.options(**at("a")).remote()
    ray.get(keeper.where.remote())

    nodes.drain(node)
    wait_until(lambda: "Keeper" in nodes.row(node)["drain_note"], deadline_s=LIMIT_S)
    assert ray.get(keeper.where.remote()) == node.node_id
    del keeper

    nodes.wait_gone(node)


def test_a_node_stays_while_others_hold_what_its_executors_own(nodes: Nodes) -> None:
    node = nodes.add("a")
    keeper = Keeper.options(max_restarts=1, **at("a")).remote()
    (put,) = ray.get(keeper.put.remote())

    nodes.drain(node, is_refusable=True, limit_s=1.0)

    assert "hold 1 objects" in nodes.wait_refused(node)
    assert int(ray.get(put)[0]) == 1


def test_a_node_stays_when_no_other_has_room_for_its_values(
    small_nodes: Nodes,
) -> None:
    nodes = small_nodes
    node = nodes.add("a")
    made = make.options(**at("a")).remote(4, 32 * SIZE)
    ray.wait([made], fetch_local=False)

    # Its lease is given back a second after the call.
    wait_until(lambda: not nodes.leases(node), deadline_s=LIMIT_S)
    nodes.drain(node, is_refusable=True, limit_s=2.0)

    note = nodes.wait_refused(node)
    assert "1 values" in note
    assert "full" in note
    # It is a node like any other again.
    assert ray.get(first.options(**at("a")).remote(made), timeout=LIMIT_S) == 4


@pytest.fixture
def small_nodes(module_nodes: Nodes) -> Iterator[Nodes]:
    """A cluster whose first node has hardly any memory, and no disk for values."""
    ray.shutdown()
    cluster = Cluster()
    try:
        cluster.add_node(
            num_cpus=0,
            _system_config={
                "object_store_limit_bytes": 4 * SIZE,
                "spill_limit_bytes": -1,
            },
        )
        ray.init(address=cluster.address, log_to_driver=False)
        yield Nodes(cluster)
    finally:
        ray.shutdown()
        cluster.shutdown()
        ray.init(address=module_nodes.cluster.address, log_to_driver=False)


def test_a_driver_keeps_its_node(nodes: Nodes) -> None:
    head_node = nodes.cluster.head_node
    assert head_node is not None

    nodes.drain(head_node, is_refusable=True)

    assert "driver" in nodes.wait_refused(head_node)


def test_a_node_that_dies_in_its_drain_is_as_dead_as_any(nodes: Nodes) -> None:
    node = nodes.add("a")
    nodes.add("b")
    gate = Gate.options(**at("b")).remote()
    made = after_gate.options(**at("a")).remote(gate)
    ray.get(gate.wait_entered.remote())
    nodes.drain(node)
    wait_until(lambda: nodes.row(node)["draining"], deadline_s=LIMIT_S)

    nodes.cluster.remove_node(node, allow_graceful=False)

    with pytest.raises(exceptions.NodeDiedError):
        ray.get(made, timeout=LIMIT_S)
