"""Room on nodes, real and planned, and what is put there while a plan is made.

The planner (:mod:`rayshim.lineage.autoscaling`) counts with slots: one for each node
that runs, starts, or would be started. Nothing here decides to start a node.

GPUs are kept one by one, as on nodes: two requests of 0.6 do not share one. Of a
running node only the sum that is free is known; it is taken to be whole GPUs and one
part, or, if that has turned out to be wrong, the same part of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from rayshim.lineage.demand import NodeFacts
from rayshim.lineage.labels import matches
from rayshim.lineage.node_groups import Launching
from rayshim.lineage.resources import GPU, UNITS, Units

#: Of requests that need nothing, so many fit everywhere.
UNLIMITED = 1 << 40


class SlotState(Enum):
    """How real a slot is."""

    RUNNING = 0
    #: To be drained, which can be given up.
    DRAINING = 1
    LAUNCHING = 2
    #: Would be started by the plan that is being made.
    NEW = 3


class Slot:
    """One node."""

    __slots__ = (
        "facts",
        "free",
        "gpus",
        "group",
        "is_used",
        "labels",
        "launching",
        "state",
        "total",
    )

    def __init__(
        self,
        state: SlotState,
        group: str,
        total: Units,
        labels: Mapping[str, str],
        *,
        free: Units | None = None,
        facts: NodeFacts | None = None,
        launching: Launching | None = None,
        has_even_gpus: bool = False,
    ) -> None:
        self.state = state
        #: Name; empty for a node of no group.
        self.group = group
        self.total = total
        self.labels = labels
        self.free: Units = dict(total if free is None else free)
        #: Units that are free of each GPU.
        self.gpus = _gpus(total.get(GPU, 0), self.free.get(GPU, 0), has_even_gpus)
        #: Of a node in the demand.
        self.facts = facts
        #: Of a node that starts.
        self.launching = launching
        #: Something that waits would go here, or it is asked to be kept.
        self.is_used = False

    @property
    def node_id(self) -> str:
        """Hex; empty for a node that does not run."""
        return "" if self.facts is None else self.facts.node_id

    @property
    def is_gpu(self) -> bool:
        """Whether it has GPUs."""
        return self.total.get(GPU, 0) > 0

    @property
    def is_idle(self) -> bool:
        """Whether all that it has was free before anything was planned."""
        facts = self.facts
        return facts is None or all(
            facts.available.get(name, 0) >= amount
            for name, amount in facts.total.items()
        )

    def close(self) -> None:
        """Everything that it has is spoken for."""
        self.free = dict.fromkeys(self.total, 0)
        self.gpus = [0] * len(self.gpus)
        self.is_used = True

    def copy(self, *, is_empty: bool = False) -> Slot:
        """One that is changed apart; ``is_empty``: as if nobody held anything."""
        twin = Slot(
            self.state,
            self.group,
            self.total,
            self.labels,
            facts=self.facts,
            launching=self.launching,
        )
        if not is_empty:
            twin.free = dict(self.free)
            twin.gpus = list(self.gpus)
            twin.is_used = self.is_used
        return twin

    def could_hold(self, need: Units, selector: Mapping[str, str]) -> bool:
        """Whether it would have room if nobody held anything."""
        total = self.total
        return all(
            total.get(name, 0) >= units for name, units in need.items()
        ) and matches(selector, self.labels)

    def room(self, need: Units) -> int:
        """How many requests of this kind fit."""
        best = UNLIMITED
        for name, units in need.items():
            best = min(best, max(self.free.get(name, 0), 0) // units)
        gpu = need.get(GPU, 0)
        if not best or not gpu:
            return best
        whole, part = divmod(gpu, UNITS)
        if not part:
            return min(best, self.gpus.count(UNITS) // whole)
        if not whole:
            return min(best, sum(units // part for units in self.gpus))
        gpus, count = list(self.gpus), 0
        while count < best and _take_gpus(gpus, gpu):
            count += 1
        return count

    def take(self, need: Units, count: int = 1) -> None:
        """Puts requests here, for which there is room."""
        for name, units in need.items():
            self.free[name] = self.free.get(name, 0) - units * count
        gpu = need.get(GPU, 0)
        if gpu:
            for _ in range(count):
                _take_gpus(self.gpus, gpu)


def _gpus(total: int, free: int, is_even: bool) -> list[int]:
    count = -(-total // UNITS)
    free = max(free, 0)
    if is_even and count and free < total:
        return [min(free // count, UNITS)] * count
    whole, part = divmod(free, UNITS)
    return [*[UNITS] * whole, *([part] if part else [])]


def _take_gpus(gpus: list[int], need: int) -> bool:
    """Whether there were GPUs to take; a part comes from where the least is left."""
    whole, part = divmod(need, UNITS)
    left = [place for place, units in enumerate(gpus) if units == UNITS]
    if len(left) < whole:
        return False
    chosen = left[:whole]
    if part:
        able = [
            (units, place)
            for place, units in enumerate(gpus)
            if units >= part and place not in chosen
        ]
        if not able:
            return False
        gpus[min(able)[1]] -= part
    for place in chosen:
        gpus[place] = 0
    return True


class Bundle:
    """A part of a placement group that has no node."""

    __slots__ = ("need", "selector")

    def __init__(self, need: Units, selector: Mapping[str, str]) -> None:
        self.need = need
        self.selector = selector


def by_size(bundles: Sequence[Bundle]) -> list[Bundle]:
    """What is hardest to place first, as the placement of the cluster does it."""
    return sorted(
        bundles,
        key=lambda one: (-len(one.need), -max(one.need.values(), default=0)),
    )


def fits_bundle(slot: Slot, bundle: Bundle) -> bool:
    """Whether there is room for one bundle."""
    return matches(bundle.selector, slot.labels) and slot.room(bundle.need) > 0


def fits_all(slot: Slot, bundles: Sequence[Bundle]) -> bool:
    """Whether there is room for all bundles on one node; nothing is taken."""
    trial = slot.copy()
    for bundle in bundles:
        if not fits_bundle(trial, bundle):
            return False
        trial.take(bundle.need)
    return True


def match(
    bundles: Sequence[Bundle], near: Sequence[Slot], far: Sequence[Slot]
) -> list[Slot] | None:
    """A slot of its own for each bundle, as many as possible from ``near``.

    Source: augmenting paths (Kuhn 1955). A slot that was taken stays so, so that
    looking through ``near`` alone first leaves as few as possible to ``far``.
    """
    slots = [*near, *far]
    able = [
        [place for place, slot in enumerate(slots) if fits_bundle(slot, bundle)]
        for bundle in bundles
    ]
    taken: dict[int, int] = {}

    def find(index: int, limit: int, seen: set[int]) -> bool:
        for place in able[index]:
            if place >= limit or place in seen:
                continue
            seen.add(place)
            if place not in taken or find(taken[place], limit, seen):
                taken[place] = index
                return True
        return False

    left = [one for one in range(len(bundles)) if not find(one, len(near), set())]
    if not all(find(one, len(slots), set()) for one in left):
        return None
    return [slots[place] for place, _ in sorted(taken.items(), key=lambda at: at[1])]
