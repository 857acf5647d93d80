"""Placement groups: which bundles go together, where, and what became of them.

    PENDING -> RESERVING -> CREATED -> REMOVED
               RESERVING -> PENDING (a node refused: try again when there is room)
    CREATED -> RESCHEDULING -> RESERVING (a node died: its bundles go elsewhere)

Any state may go to REMOVED. A reservation has two phases: every chosen node reserves
its bundles, then the group is CREATED; when one refuses or dies the others give back
what they reserved in this attempt. Rules that always hold:

1. A bundle is on at most one node, and in CREATED each is on exactly one.
2. While RESERVING, what is placed and what is asked for are apart, and every node
   that was asked has an answer or is waited for.
3. Only one group at a time is *urged*: placed where its bundles would fit if others
   gave back, and waited for. So two groups never wait for each other's halves.

A group is created once, removed once; doubled events change nothing.

Source: two-phase reservation and the strategies are those of Ray's documentation
("Placement Groups").
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from rayshim.lineage import placement
from rayshim.lineage.resources import Units

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
#: Removed groups whose row is kept.
REMEMBERED = 1000
#: Seconds that nodes may take to make room for the group that is urged.
URGE_S = 2.0
#: Patience of a reservation on the only node: for ever.
FOR_EVER = -1.0


class GroupState(Enum):
    """States of a placement group."""

    PENDING = 0
    CREATED = 1
    REMOVED = 2
    RESERVING = 3
    RESCHEDULING = 4


class ReserveBundles(NamedTuple):
    """Command: have a node reserve bundles, all or none."""

    group: bytes
    node_id: str
    #: Index -> bundle.
    bundles: dict[int, Units]
    patience_s: float
    attempt: int


class ReturnBundles(NamedTuple):
    """Command: have a node give bundles back, in which nothing runs."""

    group: bytes
    node_id: str
    indexes: tuple[int, ...]


class FreeBundles(NamedTuple):
    """Command: have all nodes free the bundles and end what runs in them."""

    group: bytes


class ReportGroup(NamedTuple):
    """Command: tell who waits for the group that it changed."""

    group: bytes


Command = ReserveBundles | ReturnBundles | FreeBundles | ReportGroup


class Group:
    """One placement group."""

    __slots__ = (
        "asked",
        "attempt",
        "bundles",
        "created_s",
        "group_id",
        "is_detached",
        "is_refused",
        "job_id",
        "name",
        "places",
        "requested_s",
        "reserved",
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
        #: Meaningful in CREATED, RESCHEDULING and REMOVED.
        self.created_s = now
        #: Index -> node, for bundles that are reserved for good.
        self.places: dict[int, str] = {}
        #: Counts the attempts; answers to earlier ones change nothing.
        self.attempt = 0
        #: Node -> its bundles in this attempt, not answered; empty but in RESERVING.
        self.asked: dict[str, tuple[int, ...]] = {}
        #: Node -> its bundles in this attempt, reserved.
        self.reserved: dict[str, tuple[int, ...]] = {}
        #: Some node refused: the attempt ends when all have answered.
        self.is_refused = False

    @property
    def missing(self) -> dict[int, Units]:
        """Index -> bundle, for those that are not placed."""
        if not self.places:
            return dict(enumerate(self.bundles))
        return {
            index: bundle
            for index, bundle in enumerate(self.bundles)
            if index not in self.places
        }


class PlacementGroups:
    """All groups of the cluster."""

    def __init__(self) -> None:
        #: Group id -> group; removed ones are the oldest and at most REMEMBERED.
        self.groups: dict[bytes, Group] = {}
        #: (name) -> id of the group that has it now.
        self._names: dict[str, bytes] = {}
        #: Exactly the ids of groups in PENDING and RESCHEDULING, by arrival.
        self.waiting: dict[bytes, None] = {}
        #: Id of the group that is urged, which is in RESERVING.
        self._urged: bytes | None = None
        #: Exactly the ids of groups in REMOVED, oldest first.
        self._removed: OrderedDict[bytes, None] = OrderedDict()

    def requested(self, group: Group) -> list[Command]:
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
        self.waiting[group.group_id] = None
        return []

    def tried(
        self, group_id: bytes, views: Sequence[placement.View]
    ) -> list[ReserveBundles]:
        """There may be room for a group that waits.

        Args:
            group_id: of the group.
            views: the nodes that may get work, in order of joining.
        """
        group = self.groups[group_id]
        if group_id not in self.waiting:
            return []
        missing = group.missing
        found = placement.place_bundles(missing, group.strategy, views, group.places)
        patience_s = 0.0
        if found is None and self._urged is None:
            idle = [
                placement.View(view.node_id, view.total, view.total) for view in views
            ]
            found = placement.place_bundles(missing, group.strategy, idle, group.places)
            patience_s = URGE_S
        if found is None:
            return []
        if patience_s:
            self._urged = group_id
        by_node: dict[str, dict[int, Units]] = {}
        for index, node_id in found.items():
            by_node.setdefault(node_id, {})[index] = missing[index]
        return self._ask(group, by_node, patience_s)

    def tried_alone(self, group_id: bytes, node_id: str) -> list[ReserveBundles]:
        """A group that waits gets its bundles on the only node there will ever be.

        They wait at the node, as all else does that does not fit now.
        """
        group = self.groups[group_id]
        is_hopeless = group.strategy == "STRICT_SPREAD" and len(group.bundles) > 1
        if is_hopeless or group_id not in self.waiting:
            return []
        return self._ask(group, {node_id: group.missing}, FOR_EVER)

    def _ask(
        self, group: Group, by_node: dict[str, dict[int, Units]], patience_s: float
    ) -> list[ReserveBundles]:
        """Begins an attempt."""
        del self.waiting[group.group_id]
        group.state = GroupState.RESERVING
        group.attempt += 1
        commands: list[ReserveBundles] = []
        for node_id, bundles in by_node.items():
            group.asked[node_id] = tuple(bundles)
            commands.append(
                ReserveBundles(
                    group.group_id, node_id, bundles, patience_s, group.attempt
                )
            )
        return commands

    def restore(self, group: Group) -> None:
        """Takes up a group that an earlier life of the control service had."""
        self.groups[group.group_id] = group
        if group.name:
            self._names[group.name] = group.group_id
        if group.state in (GroupState.PENDING, GroupState.RESCHEDULING):
            self.waiting[group.group_id] = None

    def answered(
        self,
        group_id: bytes,
        node_id: str,
        *,
        attempt: int,
        is_reserved: bool,
        now: float,
    ) -> list[Command]:
        """A node has reserved what it was asked for in an attempt, or not."""
        group = self.groups.get(group_id)
        if group is None or node_id not in group.asked or attempt != group.attempt:
            return []
        indexes = group.asked.pop(node_id)
        if is_reserved:
            group.reserved[node_id] = indexes
        else:
            group.is_refused = True
        return self._settle(group, now)

    def _settle(self, group: Group, now: float) -> list[Command]:
        """Ends an attempt once all nodes have answered, a failed one at once."""
        commands: list[Command] = []
        if group.is_refused:
            # Who has not answered may have reserved: that goes back, too.
            for node_id, indexes in (group.reserved | group.asked).items():
                commands.append(ReturnBundles(group.group_id, node_id, indexes))
            self._wait(group)
            return commands
        if group.asked:
            return []
        places = group.places
        for node_id, indexes in group.reserved.items():
            for index in indexes:
                places[index] = node_id
        self._end_attempt(group)
        if len(places) < len(group.bundles):
            self._wait(group)  # A node died meanwhile.
            return []
        group.state = GroupState.CREATED
        group.created_s = now
        return [ReportGroup(group.group_id)]

    def _wait(self, group: Group) -> None:
        self._end_attempt(group)
        is_new = not group.places
        group.state = GroupState.PENDING if is_new else GroupState.RESCHEDULING
        self.waiting[group.group_id] = None

    def _end_attempt(self, group: Group) -> None:
        group.asked.clear()
        group.reserved.clear()
        group.is_refused = False
        if self._urged == group.group_id:
            self._urged = None

    def node_died(self, node_id: str, now: float) -> list[Command]:
        """The bundles on a node are gone."""
        commands: list[Command] = []
        for group in list(self.groups.values()):
            if group.state is GroupState.REMOVED:
                continue
            lost = [index for index, one in group.places.items() if one == node_id]
            for index in lost:
                del group.places[index]
            if group.state is GroupState.RESERVING:
                in_attempt = node_id in group.asked or node_id in group.reserved
                group.asked.pop(node_id, None)
                group.reserved.pop(node_id, None)
                if in_attempt:
                    group.is_refused = True
                    commands += self._settle(group, now)
            elif lost and group.state is GroupState.CREATED:
                group.state = GroupState.RESCHEDULING
                self.waiting[group.group_id] = None
        return commands

    def removed(self, group_id: bytes) -> list[Command]:
        """A peer does not want the group any more."""
        group = self.groups.get(group_id)
        if group is None or group.state is GroupState.REMOVED:
            return []
        group.state = GroupState.REMOVED
        self.waiting.pop(group_id, None)
        self._end_attempt(group)
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
        states: dict[GroupState, set[bytes]] = {state: set() for state in GroupState}
        for key, group in self.groups.items():
            states[group.state].add(key)
            is_reserving = group.state is GroupState.RESERVING
            assert is_reserving == bool(group.asked)
            assert is_reserving or not (group.reserved or key == self._urged)
            tried = [
                index
                for indexes in (*group.asked.values(), *group.reserved.values())
                for index in indexes
            ]
            assert len(tried) == len(set(tried))
            assert not set(tried) & group.places.keys()
            # A node that died during the attempt leaves others missing.
            assert set(tried) <= group.missing.keys()
            if group.state is GroupState.CREATED:
                assert not group.missing
        assert states[GroupState.REMOVED] == set(self._removed)
        waiting = states[GroupState.PENDING] | states[GroupState.RESCHEDULING]
        assert waiting == set(self.waiting)
        assert self._urged is None or self._urged in states[GroupState.RESERVING]
        assert all(
            self.groups[key].state is not GroupState.REMOVED
            and self.groups[key].name == name
            for name, key in self._names.items()
        )
