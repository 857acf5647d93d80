"""The two phases of placement groups between the head's machine and nodes' machines.

Messages of a channel come in order, but channels overtake each other; nodes join and
die, leases come and go. Nothing may be reserved twice, or stay reserved.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from rayshim.lineage import lease_events as ev
from rayshim.lineage import placement_groups as pg
from rayshim.lineage.placement import View, fits
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import ResourceSet, Units, to_units

CPU = 10_000


class Node:
    """A node's lease machine, and its channel to the head in both directions."""

    def __init__(self, name: str, cpus: int, zone: str) -> None:
        numbers = itertools.count()
        total = to_units({"CPU": float(cpus)})
        self.name = name
        self.total: Units = dict(total)
        self.labels = {"zone": zone}
        self.raylet = Raylet(
            ResourceSet(dict(total)),
            lambda: b"%s-%d" % (name.encode(), next(numbers)),
            is_clustered=True,
        )
        #: Orders on their way, and events on theirs.
        self.orders: deque[Any] = deque()
        self.said: deque[Any] = deque()
        self.granted: list[bytes] = []

    def do(self, event: Any, now: float) -> None:
        """Has it handle an event and send what it says."""
        for command in self.raylet.handle(event, now):
            if isinstance(command, ev.StartExecutor):
                self.do(ev.ExecutorReady(command.worker_id, "unix:w", 1), now)
            elif isinstance(command, ev.EndExecutor):
                self.do(ev.ExecutorExited(command.worker_id, "killed", None), now)
            elif isinstance(command, ev.GrantLease):
                self.granted.append(command.lease_id)
            elif isinstance(command, (ev.ReportBundles, ev.RefuseBundles)):
                self.said.append(command)
        self.raylet.validate()


class Protocol(RuleBasedStateMachine):
    """The head, up to four nodes, and whatever may happen between them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = pg.PlacementGroups()
        self.nodes: dict[str, Node] = {}
        self.now = 0.0
        self.numbers = itertools.count()

    @initialize(counts=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def start(self, counts: list[int]) -> None:
        for count in counts:
            self.add(count, "x")

    # What happens.

    @precondition(lambda self: len(self.nodes) < 4)
    @rule(cpus=st.integers(1, 3), zone=st.sampled_from("xy"))
    def add(self, cpus: int, zone: str) -> None:
        name = f"n{next(self.numbers)}"
        self.nodes[name] = Node(name, cpus, zone)

    @rule(
        sizes=st.lists(st.integers(1, 2), min_size=1, max_size=3),
        strategy=st.sampled_from(pg.STRATEGIES),
        zone=st.sampled_from(["", "", "", "y"]),
        has_actor=st.booleans(),
    )
    def create(
        self, sizes: list[int], strategy: str, zone: str, has_actor: bool
    ) -> None:
        group_id = b"g%d" % next(self.numbers)
        group = pg.Group(
            group_id,
            tuple({"CPU": size * CPU} for size in sizes),
            strategy=strategy,
            name="",
            job_id=b"job",
            is_detached=False,
            now=self.now,
            selectors=[{"zone": zone}] * len(sizes) if zone else (),
            creator=group_id if has_actor else b"",
        )
        self.run(self.head.requested(group))

    @rule()
    def look_for_room(self) -> None:
        """The head's view is what nodes have now; real ones are older."""
        for group_id in self.head.turns():
            self.run(self.head.tried(group_id, self.views(), self.now))
        self.head.all_tried()

    @precondition(lambda self: self.head.groups)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(sorted(self.head.groups)))
        self.run(self.head.removed(group_id))

    @precondition(lambda self: self.head.groups)
    @rule(data=st.data())
    def end_actor(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(sorted(self.head.groups)))
        is_detached = data.draw(st.booleans())
        self.run(self.head.creator_ended(group_id, is_detached=is_detached))

    @precondition(lambda self: len(self.nodes) > 1)
    @rule(data=st.data())
    def kill_node(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        del self.nodes[name]
        self.run(self.head.node_died(name, self.now))

    @precondition(lambda self: any(one.orders for one in self.nodes.values()))
    @rule(data=st.data())
    def deliver_order(self, data: st.DataObject) -> None:
        busy = sorted(name for name, one in self.nodes.items() if one.orders)
        self.deliver(self.nodes[data.draw(st.sampled_from(busy))])

    @precondition(lambda self: any(one.said for one in self.nodes.values()))
    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        busy = sorted(name for name, one in self.nodes.items() if one.said)
        self.answer(self.nodes[data.draw(st.sampled_from(busy))])

    @precondition(lambda self: any(one.raylet._reservations for one in self.all()))
    @rule()
    def lose_patience(self) -> None:
        self.now += pg.URGE_S
        for node in self.all():
            for group, waiting in list(node.raylet._reservations.items()):
                node.do(ev.ReservationExpired(group, waiting.attempt), self.now)

    @rule(data=st.data(), cpus=st.integers(1, 2))
    def lease(self, data: st.DataObject, cpus: int) -> None:
        """A task wants a part of a node, or of a bundle there."""
        node = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        groups = [b"", *node.raylet.groups]
        node.do(
            ev.LeaseRequested(
                b"l%d" % next(self.numbers),
                "owner",
                b"job",
                "f",
                {"CPU": cpus * CPU},
                group=data.draw(st.sampled_from(groups)),
            ),
            self.now,
        )

    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        node = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        if node.granted:
            node.do(ev.LeaseReturned(node.granted.pop(0)), self.now)

    # How it goes.

    def all(self) -> list[Node]:
        return list(self.nodes.values())

    def views(self) -> list[View]:
        return [
            View(one.name, one.total, one.raylet.resources.available, one.labels)
            for one in self.all()
        ]

    def run(self, commands: Any) -> None:
        self.head.validate()
        for command in commands:
            if isinstance(command, pg.FreeBundles):
                for node in self.all():
                    node.orders.append(command)
            elif not isinstance(command, pg.ReportGroup):
                node_id = command.node_id
                if node_id in self.nodes:
                    self.nodes[node_id].orders.append(command)

    def deliver(self, node: Node) -> None:
        order = node.orders.popleft()
        if isinstance(order, pg.FreeBundles):
            node.do(ev.BundlesRemoved(order.group), self.now)
        elif isinstance(order, pg.ReturnBundles):
            node.do(ev.BundlesReturned(order.group, order.indexes), self.now)
        else:
            request = ev.BundlesRequested(
                order.group,
                tuple(order.bundles.values()),
                tuple(order.bundles),
                bool(order.patience_s),
                order.attempt,
            )
            node.do(request, self.now)

    def answer(self, node: Node) -> None:
        said = node.said.popleft()
        is_reserved = isinstance(said, ev.ReportBundles)
        self.run(
            self.head.answered(
                said.group,
                node.name,
                attempt=said.attempt,
                is_reserved=is_reserved,
                now=self.now,
            )
        )

    def settle(self) -> None:
        """Everything that was sent arrives."""
        while any(one.orders or one.said for one in self.all()):
            for node in self.all():
                if node.orders:
                    self.deliver(node)
                if node.said:
                    self.answer(node)

    # What holds.

    @invariant()
    def no_node_gives_more_than_it_has(self) -> None:
        for node in self.all():
            held: Units = {}
            for bundles in node.raylet.groups.values():
                for bundle in bundles.values():
                    for name, count in bundle.allocation.units.items():
                        held[name] = held.get(name, 0) + count
            assert fits(held, node.total)

    @invariant()
    def a_created_group_has_each_bundle_where_it_says(self) -> None:
        for group in self.head.groups.values():
            if group.state is not pg.GroupState.CREATED:
                continue
            homes = list(group.places.values())
            assert len(homes) == len(group.bundles)
            if group.strategy == "STRICT_PACK":
                assert len(set(homes)) == 1
            if group.strategy == "STRICT_SPREAD":
                assert len(set(homes)) == len(homes)
            for index, node_id in group.places.items():
                node = self.nodes[node_id]
                assert index in node.raylet.groups[group.group_id]
                if group.selectors:
                    assert node.labels == group.selectors[index]

    def teardown(self) -> None:
        """What is settled is all or nothing; what is removed is free."""
        self.settle()
        for node in self.all():
            for group_id, bundles in node.raylet.groups.items():
                group = self.head.groups[group_id]
                if group.state is pg.GroupState.RESERVING:
                    continue  # It waits at another node, for a while.
                placed = {i for i, one in group.places.items() if one == node.name}
                assert set(bundles) == placed
        for group_id in list(self.head.groups):
            self.run(self.head.removed(group_id))
        self.settle()
        for node in self.all():
            assert not node.raylet.groups
            assert not node.raylet._reservations
            while node.granted:
                node.do(ev.LeaseReturned(node.granted.pop(0)), self.now)
            assert node.raylet.resources.available == node.total


TestProtocol = pytest.mark.slow(Protocol.TestCase)
TestProtocol.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
