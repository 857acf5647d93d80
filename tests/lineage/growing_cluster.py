"""A cluster whose nodes come and go as a planner says, without processes or time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rayshim.lineage import bundle_placement
from rayshim.lineage.autoscaling import plan
from rayshim.lineage.demand import (
    NODE_GROUP_LABEL,
    Demand,
    GangDemand,
    NodeFacts,
    ShapeDemand,
)
from rayshim.lineage.labels import matches
from rayshim.lineage.node_groups import Launching, NodeGroup, Plan
from rayshim.lineage.placement import View
from rayshim.lineage.resources import (
    GPU,
    Allocation,
    ResourceSet,
    to_amounts,
    to_units,
)

#: Seconds between plans.
TICK_S = 5.0


class GrownNode:
    """A node that runs."""

    def __init__(self, node_id: str, group: NodeGroup, now: float) -> None:
        self.node_id = node_id
        self.group = group
        self.resources = ResourceSet(to_units(group.resources))
        self.labels = {**group.labels, NODE_GROUP_LABEL: group.name}
        self.held: list[Allocation] = []
        self.idle_since_s = now

    def facts(self, now: float, *, is_draining: bool = False) -> NodeFacts:
        return NodeFacts(
            self.node_id,
            self.group.name,
            to_amounts(self.resources.total),
            to_amounts(self.resources.available),
            labels=self.labels,
            idle_s=0.0 if self.held else now - self.idle_since_s,
            is_draining=is_draining,
        )


class GrowingCluster:
    """Groups, nodes, and demand that is placed as the cluster's placement does it."""

    def __init__(self, groups: Sequence[NodeGroup]) -> None:
        self.groups = {group.name: group for group in groups}
        self.now = 1000.0
        self.nodes: list[GrownNode] = []
        self.launching: list[Launching] = []
        self.draining: list[GrownNode] = []
        self.leases: list[ShapeDemand] = []
        self.gangs: list[GangDemand] = []
        self.requested: tuple[Mapping[str, float], ...] = ()
        self._count = 0

    def demand(self) -> Demand:
        return Demand(
            "life",
            self.now,
            nodes=tuple(
                [node.facts(self.now) for node in self.nodes]
                + [node.facts(self.now, is_draining=True) for node in self.draining]
            ),
            leases=tuple(self.leases),
            gangs=tuple(self.gangs),
            requested=self.requested,
        )

    def size(self, name: str) -> int:
        there = [*self.nodes, *self.draining]
        return sum(node.group.name == name for node in there) + sum(
            one.group == name for one in self.launching
        )

    def plan(self) -> Plan:
        return plan(
            self.demand(),
            list(self.groups.values()),
            now=self.now,
            launching=self.launching,
        )

    def follow(self, made: Plan) -> None:
        """Do as a plan says, and check that it may be done."""
        for name, count in made.launch.items():
            assert count > 0
            self.launching += [Launching(name, self.now)] * count
        for launching in made.cancel:
            self.launching.remove(launching)
        for drain in made.drain:
            (node,) = [one for one in self.nodes if one.node_id == drain.node_id]
            assert not node.held, "a busy node is drained"
            self.nodes.remove(node)
            self.draining.append(node)
        for name, group in self.groups.items():
            assert self.size(name) <= group.max_nodes
            staying = self.size(name) - sum(
                node.group.name == name for node in self.draining
            )
            assert staying >= min(group.max_nodes, max(group.min_nodes, 0))

    def pass_time(self) -> None:
        """Drained nodes leave, nodes that have started join, demand is placed."""
        self.now += TICK_S
        self.draining.clear()
        for launching in list(self.launching):
            group = self.groups[launching.group]
            if self.now - launching.started_s >= group.cold_start_s:
                self.launching.remove(launching)
                self._count += 1
                node = GrownNode(f"{self._count:08x}", group, self.now)
                self.nodes.append(node)
        self._place_gangs()
        self._place_leases()

    def run(self, limit: int = 100) -> int:
        """Plans until nothing changes any more; how many there were."""
        for count in range(limit):
            made = self.plan()
            self.follow(made)
            is_quiet = not (made.launch or made.drain or made.cancel or self.launching)
            if is_quiet and not self.draining:
                if not any(self._is_leaving(node) for node in self.nodes):
                    return count
            self.pass_time()
        raise AssertionError(f"{limit} plans, and the cluster still changes")

    def end_demand(self) -> None:
        """All that runs or waits is over."""
        self.leases, self.gangs, self.requested = [], [], ()
        for node in self.nodes:
            if node.held:
                node.idle_since_s = self.now
            for one in node.held:
                node.resources.release(one)
            node.held.clear()

    def _is_leaving(self, node: GrownNode) -> bool:
        """An idle node may be drained later."""
        idle_s = self.now - node.idle_since_s
        return not node.held and idle_s < node.group.idle_timeout_s

    def _place_leases(self) -> None:
        waiting = []
        for shape in self.leases:
            need, left = to_units(shape.resources), shape.count
            while left and self._grant(need, shape.labels):
                left -= 1
            if left:
                waiting.append(ShapeDemand(shape.resources, left, labels=shape.labels))
        self.leases = waiting

    def _grant(self, need: dict[str, int], selector: Mapping[str, str]) -> bool:
        able = [one for one in self.nodes if matches(selector, one.labels)]
        able.sort(key=lambda one: (GPU not in need and one.group.is_gpu, len(one.held)))
        for node in able:
            allocation = node.resources.acquire(need)
            if allocation is not None:
                node.held.append(allocation)
                return True
        return False

    def _place_gangs(self) -> None:
        waiting = []
        for gang in self.gangs:
            bundles = dict(enumerate(to_units(one) for one in gang.bundles))
            views = [
                View(
                    one.node_id,
                    one.resources.total,
                    one.resources.available,
                    one.labels,
                )
                for one in self.nodes
            ]
            needs = bundle_placement.Needs(bundles, gang.strategy)
            found = bundle_placement.place(needs, views)
            if found is None:
                waiting.append(gang)
                continue
            by_id = {one.node_id: one for one in self.nodes}
            for index, node_id in found.nodes.items():
                allocation = by_id[node_id].resources.acquire(bundles[index])
                assert allocation is not None
                by_id[node_id].held.append(allocation)
        self.gangs = waiting
