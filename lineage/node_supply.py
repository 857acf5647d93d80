"""The slots of all nodes and groups while a plan is made, and placing demand on them.

:class:`Supply` opens new slots only where a group has room below its limit. A trial
copy is made for whatever is placed as a whole or not at all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from rayshim.lineage import bundle_placement
from rayshim.lineage.demand import NODE_GROUP_LABEL, Demand, GangDemand, NodeFacts
from rayshim.lineage.labels import matches
from rayshim.lineage.node_groups import Launching, NodeGroup
from rayshim.lineage.node_slots import (
    Bundle,
    Slot,
    SlotState,
    by_size,
    fits_all,
    fits_bundle,
    match,
)
from rayshim.lineage.placement import View
from rayshim.lineage.resources import GPU, Units, to_units

#: Seconds after which a request for GPUs that seems to fit a node is taken at its word
#: that it does not: the parts that are free are on different GPUs.
STUCK_S = 10.0


class Shape:
    """What one node of a group has."""

    __slots__ = ("group", "labels", "total")

    def __init__(self, group: NodeGroup) -> None:
        self.group = group
        self.total: Units = to_units(group.resources)
        self.labels = {**group.labels, NODE_GROUP_LABEL: group.name}

    def new_slot(self) -> Slot:
        """A node that would be started."""
        return Slot(SlotState.NEW, self.group.name, self.total, self.labels)


class Supply:
    """Slots, and how many more each group may have.

    Args:
        shapes: of the groups by name, in order of preference.
        slots: of the nodes that are there, start, or drain and could stay.
        room: group -> nodes that may be added.
    """

    def __init__(
        self, shapes: Mapping[str, Shape], slots: list[Slot], room: dict[str, int]
    ) -> None:
        self.shapes = shapes
        self.slots = slots
        self.room = room

    def trial(self, *, is_empty: bool = False) -> Supply:
        """A copy; ``is_empty``: nobody holds anything."""
        slots = [slot.copy(is_empty=is_empty) for slot in self.slots]
        return Supply(self.shapes, slots, dict(self.room))

    def open(self, name: str) -> Slot:
        """Adds a node to a group that has room."""
        assert self.room[name] > 0, name
        self.room[name] -= 1
        slot = self.shapes[name].new_slot()
        self.slots.append(slot)
        return slot

    def opened(self, name: str) -> int:
        """Nodes that would be started for a group."""
        return sum(
            slot.state is SlotState.NEW and slot.group == name for slot in self.slots
        )

    def able_groups(
        self, need: Units, selector: Mapping[str, str], count: int = 1
    ) -> list[Shape]:
        """The groups whose nodes could hold a request, the best one first.

        A request that needs no GPU gets a group with GPUs only if no other could ever
        hold it. Else what ``count`` of them cost decides if all prices are known, then
        what would be left over.
        """
        able = [
            shape
            for shape in self.shapes.values()
            if shape.group.max_nodes > 0
            and matches(selector, shape.labels)
            and shape.new_slot().room(need) > 0
        ]
        if GPU not in need:
            able = [shape for shape in able if not shape.group.is_gpu] or able
        is_priced = all(shape.group.price is not None for shape in able)

        def cost(shape: Shape) -> tuple[float, int, float]:
            here = max(min(shape.new_slot().room(need), count), 1)
            price = shape.group.price if is_priced else None
            nodes = math.ceil(count / here)
            waste = max(
                (
                    1 - units * here / shape.total[name]
                    for name, units in need.items()
                    if shape.total.get(name)
                ),
                default=0.0,
            )
            extra = len(shape.total.keys() - need.keys())
            return (price * nodes if price is not None else 0.0, extra, waste)

        return sorted(able, key=cost)

    # Gangs.

    def place_gang(self, gang: GangDemand) -> Supply | None:
        """The supply with a placement group on it, whole, or None.

        What the nodes that are there can hold is not put on new ones.
        """
        if not gang.topology:
            return self._place_whole(gang)
        for value in [gang.domain] if gang.domain else self._values(gang.topology):
            where = {gang.topology: value}
            labels = tuple({**one.selector, **where} for one in bundles_of(gang))
            placed = self._place_whole(replace(gang, topology="", labels=labels))
            if placed is not None:
                return placed
        return None

    def place_apart(self, gang: GangDemand, name: str) -> tuple[Supply, int] | None:
        """The supply with new nodes of one group that only a placement group uses.

        Returns:
            The supply, and how many nodes these are; None: the group has no room for
            all of them, or they could not hold it.
        """
        shapes = {name: self.shapes[name]}
        placed = Supply(shapes, [], {name: self.room[name]}).place_gang(gang)
        if placed is None:
            return None
        trial, count = self.trial(), len(placed.slots)
        for _ in range(count):
            trial.open(name).close()
        return trial, count

    def _values(self, label: str) -> list[str]:
        """All values of a label, those of nodes that are there first."""
        labels = [slot.labels for slot in self.slots]
        labels += [shape.labels for shape in self.shapes.values()]
        return list(dict.fromkeys(one[label] for one in labels if label in one))

    def _place_whole(self, gang: GangDemand) -> Supply | None:
        trial = self.trial()
        if trial._place_near(gang):
            return trial
        bundles = by_size(bundles_of(gang))
        trial = self.trial()
        near = [slot for slot in trial.slots if slot.node_id not in gang.placed_on]
        homes = [slot for slot in trial.slots if slot.node_id in gang.placed_on]
        if gang.strategy == "STRICT_PACK":
            is_placed = trial._pack_tight(bundles, homes, near, bool(gang.placed_on))
        elif gang.strategy == "STRICT_SPREAD":
            is_placed = trial._spread_strictly(bundles, near)
        else:
            is_placed = trial._place_loosely(gang, bundles, [*homes, *near])
            if not is_placed:
                # First fit may fail where a node for each bundle would do.
                trial = self.trial()
                is_placed = trial._spread_strictly(bundles, list(trial.slots))
        return trial if is_placed else None

    def _place_near(self, gang: GangDemand) -> bool:
        """Whether the cluster's own placement puts it on the nodes that are there."""
        views = [
            View(str(place), slot.total, slot.free, slot.labels)
            for place, slot in enumerate(self.slots)
        ]
        bundles = bundles_of(gang)
        homes = [
            str(place)
            for node_id in gang.placed_on
            for place, slot in enumerate(self.slots)
            if slot.node_id == node_id
        ]
        found = bundle_placement.place(
            bundle_placement.Needs(
                {index: bundle.need for index, bundle in enumerate(bundles)},
                gang.strategy,
                {index: bundle.selector for index, bundle in enumerate(bundles)},
            ),
            views,
            dict(enumerate(homes, len(bundles))),
        )
        if found is None:
            return False
        for index, name in found.nodes.items():
            slot = self.slots[int(name)]
            if not fits_bundle(slot, bundles[index]):
                return False  # The parts of its GPUs that are free are different ones.
            _put(slot, [bundles[index]])
        return True

    def _pack_tight(
        self, bundles: list[Bundle], homes: list[Slot], near: list[Slot], is_bound: bool
    ) -> bool:
        candidates = homes if is_bound else near
        for slot in candidates:
            if fits_all(slot, bundles):
                _put(slot, bundles)
                return True
        if is_bound:
            return False
        whole = merged(bundles)
        for shape in self.able_groups(whole.need, {}):
            if self.room[shape.group.name] > 0 and fits_all(shape.new_slot(), bundles):
                _put(self.open(shape.group.name), bundles)
                return True
        return False

    def _spread_strictly(self, bundles: list[Bundle], near: list[Slot]) -> bool:
        far: list[Slot] = []
        for shape in self._preferred(bundles):
            count = min(self.room[shape.group.name], len(bundles))
            far += [shape.new_slot() for _ in range(count)]
        found = match(bundles, near, far)
        if found is None:
            return False
        for slot, bundle in zip(found, bundles, strict=True):
            if slot.state is SlotState.NEW and slot not in self.slots:
                slot = self.open(slot.group)
            _put(slot, [bundle])
        return True

    def _place_loosely(
        self, gang: GangDemand, bundles: list[Bundle], slots: list[Slot]
    ) -> bool:
        if gang.strategy == "PACK":
            for slot in slots:
                if fits_all(slot, bundles):
                    _put(slot, bundles)
                    return True
        used = {id(slot): 0 for slot in slots}
        for slot in slots:
            used[id(slot)] = gang.placed_on.count(slot.node_id) if slot.node_id else 0
        for place, bundle in enumerate(bundles):
            able = [slot for slot in slots if fits_bundle(slot, bundle)]
            if able:
                chosen = able[0]
                if gang.strategy == "SPREAD":
                    chosen = min(able, key=lambda slot: used[id(slot)])
            else:
                opened = self._open_for(bundle, bundles[place:])
                if opened is None:
                    return False
                chosen = opened
                slots.append(chosen)
                used[id(chosen)] = 0
            used[id(chosen)] += 1
            _put(chosen, [bundle])
        return True

    def _open_for(self, bundle: Bundle, rest: list[Bundle]) -> Slot | None:
        """A new node for a bundle, best one that holds much of the rest, too."""
        able = [
            shape
            for shape in self.able_groups(bundle.need, bundle.selector, len(rest))
            if self.room[shape.group.name] > 0
        ]
        if not able:
            return None
        able.sort(key=lambda shape: -_held(shape.new_slot(), rest))
        return self.open(able[0].group.name)

    def _preferred(self, bundles: list[Bundle]) -> list[Shape]:
        """All groups that could hold any of the bundles, in order of preference."""
        found: dict[str, Shape] = {}
        for bundle in bundles:
            for shape in self.able_groups(bundle.need, bundle.selector):
                found[shape.group.name] = shape
        return list(found.values())

    # Requests one by one.

    def place_near(
        self,
        need: Units,
        selector: Mapping[str, str],
        count: int,
        *,
        accepts: Callable[[Slot], bool],
    ) -> dict[SlotState, int]:
        """Puts as many of equal requests as fit on the slots; how many on which kind.

        Those that need no GPU go to nodes without one first.
        """
        placed: dict[SlotState, int] = {}
        passes: Sequence[bool | None] = (None,) if GPU in need else (False, True)
        for wanted in passes:
            for slot in self.slots:
                if count <= 0:
                    return placed
                if wanted is not None and slot.is_gpu is not wanted:
                    continue
                if not accepts(slot) or not matches(selector, slot.labels):
                    continue
                taken = min(slot.room(need), count)
                if taken > 0:
                    slot.take(need, taken)
                    slot.is_used = True
                    placed[slot.state] = placed.get(slot.state, 0) + taken
                    count -= taken
        return placed


def bundles_of(gang: GangDemand) -> list[Bundle]:
    """The bundles of a group that have no node."""
    labels = gang.labels or ({},) * len(gang.bundles)
    return [
        Bundle(to_units(need), selector)
        for need, selector in zip(gang.bundles, labels, strict=True)
    ]


def merged(bundles: Sequence[Bundle]) -> Bundle:
    """What all bundles need together."""
    need: Units = {}
    for bundle in bundles:
        for name, units in bundle.need.items():
            need[name] = need.get(name, 0) + units
    return Bundle(need, {})


def _put(slot: Slot, bundles: Sequence[Bundle]) -> None:
    for bundle in bundles:
        slot.take(bundle.need)
    slot.is_used = True


def _held(slot: Slot, bundles: Sequence[Bundle]) -> int:
    """How many of the bundles fit on an empty node, one after the other."""
    count = 0
    for bundle in bundles:
        if fits_bundle(slot, bundle):
            slot.take(bundle.need)
            count += 1
    return count


def survey(
    demand: Demand,
    groups: Sequence[NodeGroup],
    launching: Sequence[Launching],
    going: Collection[str],
) -> Supply:
    """The supply before anything is planned.

    Args:
        demand: whose nodes they are.
        groups: all of them.
        launching: of these groups.
        going: hex ids of nodes whose drain can be given up, if that leaves their group
            below its limit.
    """
    is_stuck = any(
        one.oldest_s > STUCK_S and one.resources.get(GPU, 0) for one in demand.leases
    )
    shapes = {group.name: Shape(group) for group in groups}
    active = Counter(one.group for one in launching)
    #: Those that nothing can keep, too.
    there = Counter(active)
    slots: list[Slot] = []
    for facts in demand.nodes:
        there[facts.group] += 1
        if not facts.is_draining and facts.node_id not in going:
            active[facts.group] += 1
            slots.append(_slot_of(facts, SlotState.RUNNING, is_stuck))
    for facts in demand.nodes:
        shape = shapes.get(facts.group)
        if facts.is_draining or facts.node_id not in going:
            continue
        if shape is None or active[facts.group] < shape.group.max_nodes:
            active[facts.group] += 1
            slots.append(_slot_of(facts, SlotState.DRAINING, is_stuck))
    slots += [
        Slot(
            SlotState.LAUNCHING,
            one.group,
            shapes[one.group].total,
            shapes[one.group].labels,
            launching=one,
        )
        for one in launching
    ]
    room = {group.name: max(group.max_nodes - there[group.name], 0) for group in groups}
    return Supply(shapes, slots, room)


def _slot_of(facts: NodeFacts, state: SlotState, has_even_gpus: bool) -> Slot:
    return Slot(
        state,
        facts.group,
        to_units(facts.total),
        facts.labels,
        free=to_units(facts.available),
        facts=facts,
        has_even_gpus=has_even_gpus,
    )
