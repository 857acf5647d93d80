"""Placement groups: which bundles go together, and what became of them.

    PENDING -> CREATED -> REMOVED,  PENDING -> REMOVED

Strategies decide over nodes; the bundles themselves are reserved by each node's
lease machine. With one node every strategy but STRICT_SPREAD puts all bundles there,
and STRICT_SPREAD with more than one bundle waits for nodes that are not there.

A group is created once, removed once; doubled events change nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from rayshim.lineage.resources import Units

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
#: Removed groups whose row is kept.
REMEMBERED = 1000


class GroupState(Enum):
    """States of a placement group."""

    PENDING = 0
    CREATED = 1
    REMOVED = 2


class ReserveBundles(NamedTuple):
    """Command: have the node reserve all bundles."""

    group: bytes
    bundles: tuple[Units, ...]


class FreeBundles(NamedTuple):
    """Command: have the node free the bundles and end what runs in them."""

    group: bytes


class ReportGroup(NamedTuple):
    """Command: tell who waits for the group that it changed."""

    group: bytes


Command = ReserveBundles | FreeBundles | ReportGroup


class Group:
    """One placement group."""

    __slots__ = (
        "bundles",
        "created_s",
        "group_id",
        "is_detached",
        "job_id",
        "name",
        "requested_s",
        "state",
        "strategy",
    )

    def __init__(
        self,
        group_id: bytes,
        bundles: tuple[Units, ...],
        *,
        strategy: str,
        name: str,
        job_id: bytes,
        is_detached: bool,
        now: float,
    ) -> None:
        self.group_id = group_id
        self.bundles = bundles
        self.strategy = strategy
        self.name = name
        self.job_id = job_id
        self.is_detached = is_detached
        self.state = GroupState.PENDING
        self.requested_s = now
        #: Meaningful unless PENDING.
        self.created_s = now


def places(bundles: Sequence[Units], strategy: str, node_count: int) -> bool:
    """Whether ``node_count`` nodes are enough for the strategy alone."""
    return strategy != "STRICT_SPREAD" or len(bundles) <= node_count


class PlacementGroups:
    """All groups of the cluster."""

    def __init__(self) -> None:
        #: Group id -> group; removed ones are the oldest and at most REMEMBERED.
        self.groups: dict[bytes, Group] = {}
        #: (name) -> id of the group that has it now.
        self._names: dict[str, bytes] = {}
        #: Exactly the ids of groups in REMOVED, oldest first.
        self._removed: OrderedDict[bytes, None] = OrderedDict()

    def requested(self, group: Group, *, node_count: int) -> list[Command]:
        """A peer wants a group.

        Raises:
            ValueError: no bundles, an unknown strategy, or a name that is taken.
        """
        if group.group_id in self.groups:
            return []
        if group.strategy not in STRATEGIES:
            raise ValueError(
                f"invalid placement group strategy {group.strategy!r}; it must be one "
                f"of {', '.join(STRATEGIES)}"
            )
        if not group.bundles or not all(group.bundles):
            raise ValueError("a placement group needs bundles that are not empty")
        if group.name and group.name in self._names:
            raise ValueError(f"a placement group named {group.name!r} exists already")
        self.groups[group.group_id] = group
        if group.name:
            self._names[group.name] = group.group_id
        if not places(group.bundles, group.strategy, node_count):
            return []
        return [ReserveBundles(group.group_id, group.bundles)]

    def reserved(self, group_id: bytes, now: float) -> list[Command]:
        """The node has reserved all bundles."""
        group = self.groups.get(group_id)
        if group is None or group.state is not GroupState.PENDING:
            return []
        group.state = GroupState.CREATED
        group.created_s = now
        return [ReportGroup(group_id)]

    def removed(self, group_id: bytes) -> list[Command]:
        """A peer does not want the group any more."""
        group = self.groups.get(group_id)
        if group is None or group.state is GroupState.REMOVED:
            return []
        group.state = GroupState.REMOVED
        if group.name:
            del self._names[group.name]
        self._removed[group_id] = None
        if len(self._removed) > REMEMBERED:
            oldest, _ = self._removed.popitem(last=False)
            del self.groups[oldest]
        return [FreeBundles(group_id), ReportGroup(group_id)]

    def job_ended(self, job_id: bytes) -> list[Command]:
        """A job's groups go with it, but for detached ones."""
        commands: list[Command] = []
        for group in list(self.groups.values()):
            if group.job_id == job_id and not group.is_detached:
                commands += self.removed(group.group_id)
        return commands

    def validate(self) -> None:
        """Checks the invariants.

        Raises:
            AssertionError: one does not hold.
        """
        removed = {
            key
            for key, group in self.groups.items()
            if group.state is GroupState.REMOVED
        }
        assert removed == set(self._removed)
        assert all(
            self.groups[key].state is not GroupState.REMOVED
            and self.groups[key].name == name
            for name, key in self._names.items()
        )
