"""The autoscaler's loop against a control service and a provider that are pretended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rayshim.autoscaler.loop import (
    BACK_OFF_S,
    DRAIN_ANSWER_S,
    GONE_S,
    HOLD_S,
    SETTLE_S,
    Autoscaler,
)
from rayshim.autoscaler.provider import ProvidedNode
from rayshim.lineage.demand import Demand, GangDemand, NodeFacts, ShapeDemand
from rayshim.lineage.node_groups import NodeGroup

CPU = NodeGroup("cpu", {"CPU": 2.0}, max_nodes=4, idle_timeout_s=2.0)
HEAD = NodeFacts("head", "", {}, {}, is_pinned=True)


class World:
    """A head, its nodes, and a provider whose nodes join when they are told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.instance = "first"
        self.is_away = False
        self.nodes: dict[str, NodeFacts] = {"head": HEAD}
        self.leases: tuple[ShapeDemand, ...] = ()
        self.gangs: tuple[GangDemand, ...] = ()
        self.started: dict[str, ProvidedNode] = {}
        self.stopped: list[str] = []
        self.drains: list[str] = []
        self.notes: dict[str, str] = {}
        self.reports: list[Mapping[str, Any]] = []
        self.does_refuse = False
        self.launch_error = ""

    # The control service.

    def demand(self) -> Demand:
        if self.is_away:
            raise ConnectionError("nobody listens")
        return Demand(
            self.instance,
            self.now,
            tuple(self.nodes.values()),
            self.leases,
            self.gangs,
        )

    def drain(self, node_id: str, reason: str) -> bool:
        self.drains.append(node_id)
        if not self.does_refuse:
            self.nodes[node_id] = replace(self.nodes[node_id], is_draining=True)
        return True

    def drain_notes(self) -> Mapping[str, str]:
        return self.notes

    def report(self, report: Mapping[str, Any]) -> None:
        self.reports.append(report)

    # The provider.

    def launch(self, group: NodeGroup, count: int) -> None:
        if self.launch_error:
            raise OSError(self.launch_error)
        for _ in range(count):
            node_id = f"{group.name}-{len(self.started) + len(self.stopped)}"
            self.started[node_id] = ProvidedNode(node_id, group.name, self.now)

    def stop(self, node_id: str) -> None:
        self.stopped.append(node_id)
        self.started.pop(node_id, None)

    def list(self) -> list[ProvidedNode]:
        return list(self.started.values())

    # What happens.

    def join(self, idle_s: float = 0.0) -> None:
        """All nodes that start are there."""
        for node_id, one in self.started.items():
            self.nodes[node_id] = NodeFacts(
                node_id, one.group, CPU.resources, CPU.resources, idle_s=idle_s
            )

    def fail(self, node_id: str, reason: str) -> None:
        """A node's process ended."""
        self.started[node_id] = replace(self.started[node_id], failure=reason)

    def scaler(self, *groups: NodeGroup, **options: Any) -> Autoscaler:
        return Autoscaler(
            self, self, groups or (CPU,), clock=lambda: self.now, **options
        )


def wants(count: int, **resources: float) -> tuple[ShapeDemand, ...]:
    return (ShapeDemand(resources or {"CPU": 1.0}, count, label="f"),)


def test_starts_a_node_for_what_waits_and_not_another_while_it_starts() -> None:
    world = World()
    scaler = world.scaler()
    world.leases = wants(2)
    scaler.step()
    status = scaler.step()
    assert list(world.started) == ["cpu-0"]
    assert [one.node_id for one in status.launching] == ["cpu-0"]


def test_drains_an_idle_node_and_stops_it_when_it_has_left() -> None:
    world = World()
    scaler = world.scaler()
    world.leases = wants(1)
    scaler.step()
    world.leases = ()
    world.join(idle_s=5.0)
    scaler.step()
    assert (world.drains, world.stopped) == (["cpu-0"], [])
    scaler.step()
    assert world.stopped == []
    del world.nodes["cpu-0"]
    scaler.step()
    assert world.stopped == []
    world.now += GONE_S + 1
    scaler.step()
    assert world.stopped == ["cpu-0"]
    assert world.drains == ["cpu-0"]


def test_leaves_a_node_alone_that_refused_its_drain() -> None:
    world = World()
    world.does_refuse = True
    world.notes = {"cpu-0": "values that nobody takes"}
    scaler = world.scaler()
    world.leases = wants(1)
    scaler.step()
    world.leases = ()
    world.join(idle_s=5.0)
    scaler.step()
    world.now += DRAIN_ANSWER_S + 1
    status = scaler.step()
    assert status.held == {"cpu-0": "values that nobody takes"}
    assert world.drains == ["cpu-0"]
    world.now += HOLD_S + 1
    scaler.step()
    assert world.drains == ["cpu-0", "cpu-0"]
    assert world.stopped == []


def test_stops_nothing_while_the_head_is_away() -> None:
    world = World()
    scaler = world.scaler()
    world.leases = wants(1)
    scaler.step()
    world.leases = ()
    world.join()
    scaler.step()
    world.join(idle_s=100.0)
    world.is_away = True
    for _ in range(10):
        world.now += 10
        status = scaler.step()
        assert "does not answer" in status.note
    assert (world.drains, world.stopped) == ([], [])


def test_stops_nothing_until_a_restarted_head_knows_all_nodes_again() -> None:
    world = World()
    scaler = world.scaler(replace(CPU, upscaling_speed=2))
    world.leases = wants(4)
    scaler.step()
    world.join()
    world.leases = ()
    scaler.step()
    everybody = dict(world.nodes)
    assert len(everybody) == 3
    world.instance = "second"
    world.nodes = {"head": HEAD, "cpu-0": replace(everybody["cpu-0"], idle_s=60.0)}
    status = scaler.step()
    assert "restarted" in status.note
    assert (world.drains, world.stopped) == ([], [])
    world.nodes["cpu-1"] = replace(everybody["cpu-1"], idle_s=0.0)
    # What waited at a node is told after the node itself: a moment more.
    status = scaler.step()
    assert "tell it again what waits" in status.note
    assert world.drains == []
    world.now += SETTLE_S
    scaler.step()
    assert world.drains == ["cpu-0"]


def test_starts_nothing_anew_for_nodes_that_a_restarted_head_misses() -> None:
    world = World()
    scaler = world.scaler(replace(CPU, min_nodes=1))
    scaler.step()
    world.join()
    scaler.step()
    world.instance, world.nodes = "second", {"head": HEAD}
    scaler.step()
    assert list(world.started) == ["cpu-0"]


def test_a_node_that_joins_anew_is_not_stopped() -> None:
    world = World()
    scaler = world.scaler(replace(CPU, min_nodes=1))
    scaler.step()
    world.join()
    scaler.step()
    node = world.nodes.pop("cpu-0")
    world.now += 1
    scaler.step()
    world.nodes["cpu-0"] = node
    world.now += GONE_S
    scaler.step()
    assert world.stopped == []
    assert list(world.started) == ["cpu-0"]


def test_a_dead_node_is_cleared_away_and_replaced() -> None:
    world = World()
    scaler = world.scaler(replace(CPU, min_nodes=1))
    scaler.step()
    world.join()
    scaler.step()
    del world.nodes["cpu-0"]
    world.fail("cpu-0", "its process ended with code -9")
    status = scaler.step()
    assert world.stopped == ["cpu-0"]
    assert status.failures == {}
    assert list(world.started) == ["cpu-1"]


def test_waits_longer_after_each_node_that_did_not_come_up() -> None:
    world = World()
    scaler = world.scaler()
    world.leases = wants(1)
    scaler.step()
    world.fail("cpu-0", "no image")
    status = scaler.step()
    assert status.failures == {"cpu": "no image"}
    assert world.started == {}
    world.now += BACK_OFF_S + 0.1
    scaler.step()
    world.fail("cpu-1", "no image")
    scaler.step()
    world.now += BACK_OFF_S + 0.1
    scaler.step()
    assert world.started == {}
    world.now += BACK_OFF_S
    scaler.step()
    assert list(world.started) == ["cpu-2"]


def test_a_launch_that_the_provider_refuses_is_a_failure() -> None:
    world = World()
    world.launch_error = "quota exceeded"
    scaler = world.scaler()
    world.leases = wants(1)
    scaler.step()
    world.now += 0.1
    status = scaler.step()
    assert "quota exceeded" in status.failures["cpu"]


def test_the_common_limit_holds_over_all_groups() -> None:
    world = World()
    other = replace(CPU, name="other", labels={"zone": "b"})
    scaler = world.scaler(
        replace(CPU, upscaling_speed=10),
        replace(other, upscaling_speed=10),
        max_nodes=3,
    )
    world.leases = (
        ShapeDemand({"CPU": 2.0}, 4, label="f"),
        ShapeDemand({"CPU": 2.0}, 4, {"zone": "b"}, label="g"),
    )
    for _ in range(5):
        scaler.step()
    assert len(world.started) == 3


def test_the_common_limit_starts_a_placement_group_whole_or_not_at_all() -> None:
    world = World()
    scaler = world.scaler(max_nodes=2)
    bundles = ({"CPU": 2.0},) * 3
    world.gangs = (GangDemand("aa", "SPREAD", bundles),)
    scaler.step()
    assert world.started == {}
    world.gangs = (GangDemand("aa", "SPREAD", bundles[:2]),)
    scaler.step()
    assert len(world.started) == 2


def test_a_dry_run_says_what_it_would_do() -> None:
    world = World()
    scaler = world.scaler(dry_run=True)
    world.leases = wants(1)
    status = scaler.step()
    assert "would start 1 of group cpu" in status.lines()
    assert world.started == {}


def test_what_fits_nowhere_is_reported_with_its_reason() -> None:
    world = World()
    scaler = world.scaler()
    world.leases = wants(1, CPU=64.0)
    scaler.step()
    (note,) = world.reports[-1]["infeasible"]
    assert note["subject"] == "f"
    assert "64" in note["text"]
    assert world.started == {}


def test_a_node_that_nothing_needs_any_more_is_stopped_before_it_joins() -> None:
    world = World()
    scaler = world.scaler()
    world.leases = wants(1)
    scaler.step()
    world.leases = ()
    world.now += CPU.idle_timeout_s + 1
    scaler.step()
    assert world.stopped == ["cpu-0"]
    assert world.drains == []
