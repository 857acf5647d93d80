"""Which nodes to start and to stop, given what a cluster lacks.

:func:`plan` is pure and keeps nothing between two calls: what was decided before is
seen in what runs, starts and drains. It goes by this order:

1. No group ever has more than ``max_nodes``, those that start or drain included.
2. ``min_nodes`` are there.
3. What ``request_resources`` asks for would fit if nobody held anything.
4. Placement groups, the oldest first: whole, as their strategy says, or not at all.
   One that needs new nodes of a group with ``is_apart`` gets all its nodes new and for
   itself.
5. Single requests, large ones first. What needs no GPU goes to groups without.
6. ``warm_nodes`` stand idle beside the nodes that are in use.
7. What nothing needs for ``idle_timeout_s`` goes, down to ``min_nodes`` and
   ``warm_nodes``: nodes that have not come first, then idle ones, those with the fewest
   bytes that only they have first.

Nodes that start count as if they were there. For single requests a group starts at most
``max(1, ceil(upscaling_speed * max(running, 1)))`` at once, since such requests come
and go while nodes start; what is exact (2, 3, 4 and 6) is started at once. Nothing is
ever started for what fits no group. A node is not drained while it is busy, pinned, or
what waits would go there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

from rayshim.lineage import unmet
from rayshim.lineage.demand import Demand, GangDemand, ShapeDemand
from rayshim.lineage.demand_order import by_age, by_size, requested_shapes
from rayshim.lineage.node_groups import (
    Apart,
    Drain,
    Launching,
    NodeGroup,
    Plan,
    Unmet,
)
from rayshim.lineage.node_slots import Slot, SlotState
from rayshim.lineage.node_supply import Shape, survey
from rayshim.lineage.resources import GPU, Units, to_units

#: Seconds after which a demand is too old to stop, or start, anything for it.
STALE_S = 30.0


def plan(
    demand: Demand,
    groups: Sequence[NodeGroup],
    *,
    now: float,
    launching: Sequence[Launching] = (),
    draining: Collection[str] = (),
    may_drain: bool = True,
) -> Plan:
    """What to start and to stop now.

    Args:
        demand: what the control service says; one older than ``STALE_S`` starts only
            what groups must have, and stops nothing.
        groups: in order of preference, all else being equal.
        now: Unix time.
        launching: nodes that were asked for and are not in ``demand.nodes``.
        draining: hex ids of nodes whose drain was decided; it can be given up as long
            as the demand does not call the node draining.
        may_drain: False while the demand may be incomplete (a head that has just
            been restarted): nothing is stopped.

    Raises:
        ValueError: two groups have the same name.
    """
    names = [group.name for group in groups]
    if len(set(names)) < len(names):
        raise ValueError(f"node groups must have different names: {', '.join(names)}")
    known = {node.node_id for node in demand.nodes}
    coming = [one for one in launching if not one.node_id or one.node_id not in known]
    planner = _Planner(demand, groups, coming, draining, now)
    is_fresh = now - demand.time_s <= STALE_S
    planner.keep_minimum()
    if is_fresh:
        planner.keep_requested()
        for gang in by_age(demand.gangs):
            planner.place_gang(gang)
        for shape in by_size(demand.leases):
            planner.place_lease(shape)
    planner.keep_warm()
    if is_fresh and may_drain:
        planner.let_go()
    return planner.result()


class _Planner:
    """One plan being made."""

    def __init__(
        self,
        demand: Demand,
        groups: Sequence[NodeGroup],
        launching: Sequence[Launching],
        draining: Collection[str],
        now: float,
    ) -> None:
        self._demand = demand
        self._now = now
        self._groups = {group.name: group for group in groups}
        self._launching = [one for one in launching if one.group in self._groups]
        #: Nodes whose drain can be given up.
        self._going = frozenset(draining)
        self._supply = survey(demand, groups, self._launching, self._going)
        #: Groups of which more nodes are wanted than may start at once.
        self._slowed: set[str] = set()
        self._infeasible: list[Unmet] = []
        self._waiting: list[Unmet] = []
        self._drain: list[Drain] = []
        self._cancel: list[Launching] = []
        self._apart: list[Apart] = []

    # What must be there.

    def keep_minimum(self) -> None:
        """Rule 2."""
        for name, group in self._groups.items():
            self._add(name, self._staying, group.min_nodes)

    def keep_warm(self) -> None:
        """Rule 6."""
        for name, group in self._groups.items():
            if name not in self._slowed:  # else requests would take it at once
                self._add(name, self._spare, group.warm_nodes)

    def _add(
        self, name: str, counted: Callable[[str], list[Slot]], wanted: int
    ) -> None:
        """Keeps nodes that were to be drained, then adds new ones, up to a number."""
        going = [
            slot
            for slot in self._of(name, SlotState.DRAINING)
            if not slot.is_used and (slot.is_idle or counted == self._staying)
        ]
        for _ in range(wanted - len(counted(name))):
            if going:
                going.pop(0).state = SlotState.RUNNING
            elif self._supply.room[name] > 0:
                self._supply.open(name)
            else:
                return

    def keep_requested(self) -> None:
        """Rule 3, with slots of its own: who holds what does not matter."""
        demand = self._demand
        empty = self._supply.trial(is_empty=True)
        pairs = list(zip(empty.slots, self._supply.slots, strict=True))
        # What runs something is kept anyway; idle nodes may then go.
        pairs.sort(key=lambda pair: (pair[1].state.value, pair[1].is_idle))
        empty.slots = [twin for twin, _ in pairs]
        real = {id(twin): slot for twin, slot in pairs}
        for shape in by_size(requested_shapes(demand)):
            need, count = to_units(shape.resources), shape.count
            placed = empty.place_near(need, shape.labels, count, accepts=_anything)
            left = count - sum(placed.values())
            able = empty.able_groups(need, shape.labels, left)
            for one in able:
                while left > 0 and self._supply.room[one.group.name] > 0:
                    slot = self._supply.open(one.group.name)
                    twin = slot.copy()
                    empty.slots.append(twin)
                    real[id(twin)] = slot
                    taken = min(twin.room(need), left)
                    twin.take(need, taken)
                    twin.is_used = True
                    left -= taken
            if left <= 0:
                continue
            if able or any(one.could_hold(need, shape.labels) for one in empty.slots):
                self._waiting.append(
                    unmet.limited("requested", shape, left, [one.group for one in able])
                )
            else:
                self._infeasible.append(
                    unmet.no_fit("requested", shape, left, self._supply.shapes)
                )
        for twin in empty.slots:
            real[id(twin)].is_used |= twin.is_used

    # What waits.

    def place_gang(self, gang: GangDemand) -> None:
        """Rule 4."""
        supply = self._supply
        before = {name: supply.room[name] for name in self._groups}
        placed = supply.place_gang(gang)
        if placed is not None:
            started = {
                name: count - placed.room[name]
                for name, count in before.items()
                if count > placed.room[name]
            }
            if any(self._groups[name].is_apart for name in started):
                self._place_apart(gang, started)
                return
            self._supply = placed
            if started:
                self._waiting.append(unmet.gang_starts(gang, started))
            return
        empty = supply.trial(is_empty=True)
        for name, group in self._groups.items():
            empty.room[name] = max(group.max_nodes - self._count(name), 0)
            empty.room[name] += supply.opened(name)
        empty.slots = [slot for slot in empty.slots if slot.state is not SlotState.NEW]
        if empty.place_gang(gang) is not None:
            self._waiting.append(unmet.gang_limited(gang, list(self._groups.values())))
        else:
            self._infeasible.append(unmet.gang_no_fit(gang, supply.shapes, empty.slots))

    def _place_apart(self, gang: GangDemand, liked: Collection[str]) -> None:
        """Nodes that a placement group has for itself, best of a group it likes."""
        supply = self._supply
        apart = [name for name, group in self._groups.items() if group.is_apart]
        for name in sorted(apart, key=lambda name: name not in liked):
            found = supply.place_apart(gang, name)
            if found is not None:
                self._supply, count = found
                self._apart.append(Apart(gang.group_id, name, count))
                self._waiting.append(unmet.gang_starts(gang, {name: count}))
                return
        others = supply.trial()
        others.room |= dict.fromkeys(apart, 0)
        placed = others.place_gang(gang)
        if placed is not None:
            started = {
                name: supply.room[name] - room
                for name, room in placed.room.items()
                if name not in apart and room < supply.room[name]
            }
            placed.room |= {name: supply.room[name] for name in apart}
            self._supply = placed
            self._waiting.append(unmet.gang_starts(gang, started))
            return
        whole = supply.trial()
        whole.room = {name: group.max_nodes for name, group in self._groups.items()}
        able = [name for name in apart if whole.place_apart(gang, name) is not None]
        if able:
            groups = [self._groups[name] for name in able]
            self._waiting.append(unmet.gang_limited(gang, groups))
        else:
            self._infeasible.append(unmet.gang_divided(gang, list(liked)))

    def place_lease(self, shape: ShapeDemand) -> None:
        """Rule 5."""
        supply = self._supply
        need = to_units(shape.resources)
        selectors = [shape.labels, *shape.fallback_labels]
        able: list[Shape] = []
        for selector in () if shape.node_ids else selectors:
            able += supply.able_groups(need, selector, shape.count)
        has_choice = GPU not in need and any(not one.group.is_gpu for one in able)

        def accepts(slot: Slot) -> bool:
            if shape.node_ids:
                return slot.node_id in shape.node_ids
            return not (has_choice and slot.is_gpu and slot.state is SlotState.NEW)

        left = shape.count
        starting: dict[str, int] = {}
        for selector in selectors:
            placed = supply.place_near(need, selector, left, accepts=accepts)
            left -= sum(placed.values())
        if left and able:
            left = self._start_for(need, able, left, starting)
        if starting:
            self._waiting.append(unmet.starts(shape, shape.count - left, starting))
        if left <= 0:
            return
        could = [
            slot
            for slot in supply.slots
            if (not shape.node_ids or slot.node_id in shape.node_ids)
            and any(slot.could_hold(need, one) for one in selectors)
        ]
        if able:
            self._waiting.append(self._why(shape, left, able))
        elif could or shape.node_ids:
            self._waiting.append(unmet.occupied("lease", shape, left, len(could)))
        else:
            self._infeasible.append(unmet.no_fit("lease", shape, left, supply.shapes))

    def _start_for(
        self, need: Units, able: Sequence[Shape], left: int, started: dict[str, int]
    ) -> int:
        """Opens nodes for single requests; how many requests are left."""
        for shape in able:
            name = shape.group.name
            each = shape.new_slot().room(need)
            wanted = math.ceil(left / each)
            budget = min(self._budget(name), self._supply.room[name])
            for _ in range(min(wanted, budget)):
                slot = self._supply.open(name)
                taken = min(each, left)
                slot.take(need, taken)
                slot.is_used = True
                left -= taken
                started[name] = started.get(name, 0) + 1
            if left <= 0 or self._supply.room[name] > 0:
                # The rest is for a later turn, not for a group that is liked less.
                if left > 0:
                    self._slowed.add(name)
                return left
        return left

    def _budget(self, name: str) -> int:
        """Nodes of a group that may start beside those that do."""
        group = self._groups[name]
        running = len(self._of(name, SlotState.RUNNING))
        limit = max(1, math.ceil(group.upscaling_speed * max(running, 1)))
        starting = len(self._of(name, SlotState.LAUNCHING))
        return max(limit - starting - self._supply.opened(name), 0)

    def _why(self, shape: ShapeDemand, left: int, able: Sequence[Shape]) -> Unmet:
        for one in able:
            if self._supply.room[one.group.name] > 0:
                starting = self._supply.opened(one.group.name)
                starting += len(self._of(one.group.name, SlotState.LAUNCHING))
                return unmet.slowed("lease", shape, left, one.group, starting)
        return unmet.limited("lease", shape, left, [one.group for one in able])

    # What nothing needs.

    def let_go(self) -> None:
        """Rule 7."""
        for name, group in self._groups.items():
            spare = self._spare(name)
            extra = min(
                len(self._staying(name)) - group.min_nodes,
                len(spare) - group.warm_nodes,
            )
            coming = [
                slot.launching
                for slot in spare
                if slot.launching is not None
                and self._now - slot.launching.started_s >= group.idle_timeout_s
            ]
            coming.sort(key=lambda one: (one.progress, -one.started_s))
            self._cancel += coming[: max(extra, 0)]
            self._drain += self._drains(group)

    def _drains(self, group: NodeGroup) -> Iterator[Drain]:
        running = self._of(group.name, SlotState.RUNNING)
        spare = [slot for slot in running if slot.is_idle and not slot.is_used]
        idle = [
            facts
            for slot in spare
            if (facts := slot.facts) is not None
            and facts.idle_s > 0
            and not facts.is_pinned
        ]
        idle.sort(key=lambda one: (one.sole_copies_bytes, -one.idle_s))
        count = self._count(group.name) - len(self._cancel_of(group.name))
        excess = count - len(self._of(group.name, SlotState.DRAINING))
        excess -= group.max_nodes
        extra = min(
            len(running) - group.min_nodes, max(len(spare) - group.warm_nodes, excess)
        )
        for facts in idle:
            if extra <= 0:
                return
            if excess > 0:
                reason = (
                    f"group {group.name} has {count} nodes, {group.max_nodes} may be"
                )
            elif facts.idle_s >= group.idle_timeout_s:
                reason = (
                    f"idle for {facts.idle_s:.0f} s (idle_timeout_s of group "
                    f"{group.name}: {group.idle_timeout_s:g})"
                )
            else:
                continue
            extra -= 1
            excess -= 1
            yield Drain(facts.node_id, group.name, reason)

    def _cancel_of(self, name: str) -> list[Launching]:
        return [one for one in self._cancel if one.group == name]

    # The whole.

    def result(self) -> Plan:
        """The plan."""
        supply = self._supply
        launch = {name: supply.opened(name) for name in self._groups}
        for one in self._apart:
            launch[one.group] -= one.count
        undrain = [
            slot.node_id
            for slot in supply.slots
            if slot.node_id in self._going
            and (slot.is_used or slot.state is SlotState.RUNNING)
        ]
        return Plan(
            launch={name: count for name, count in launch.items() if count},
            apart=tuple(self._apart),
            drain=tuple(self._drain),
            undrain=tuple(undrain),
            cancel=tuple(self._cancel),
            infeasible=tuple(self._infeasible),
            waiting=tuple(self._waiting),
            late=tuple(
                one
                for one in self._launching
                if self._now - one.started_s > 2 * self._groups[one.group].cold_start_s
            ),
        )

    def _of(self, name: str, state: SlotState) -> list[Slot]:
        return [
            slot
            for slot in self._supply.slots
            if slot.group == name and slot.state is state
        ]

    def _staying(self, name: str) -> list[Slot]:
        """The nodes that a group has when all has come and gone."""
        return [
            slot
            for slot in self._supply.slots
            if slot.group == name
            and (slot.is_used or slot.state is not SlotState.DRAINING)
        ]

    def _spare(self, name: str) -> list[Slot]:
        """Those of them that nothing uses or will use."""
        return [
            slot for slot in self._staying(name) if slot.is_idle and not slot.is_used
        ]

    def _count(self, name: str) -> int:
        """Nodes of a group that are there or start and do not have to go."""
        return sum(
            slot.group == name and slot.state is not SlotState.NEW
            for slot in self._supply.slots
        )


def _anything(slot: Slot) -> bool:
    return True
