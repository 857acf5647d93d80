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
   gave back, and waited for. So two groups never wait for each other's halves. They
   take turns, in order of arrival.
4. A group that is not detached is removed when both its job and the actor that made
   it, if one did, are over. For one that a detached actor made only the actor counts.

A group is created once, removed once; doubled events change nothing.

Source: two-phase reservation and the strategies are those of Ray's documentation
("Placement Groups").
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from rayshim.lineage import bundle_placement
from rayshim.lineage.bundle_placement import Needs
from rayshim.lineage.placement import View
from rayshim.lineage.resources import Units, to_amounts

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
#: Removed groups whose row is kept.
REMEMBERED = 1000
#: Ids of removed groups that are remembered against late messages.
REMEMBERED_IDS = 20_000
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


class GroupNameTakenError(ValueError):
    """Another group of the namespace has that name."""


class Group:
    """One placement group."""

    __slots__ = (
        "amounts",
        "asked",
        "attempt",
        "bundles",
        "created_s",
        "creator",
        "domain",
        "group_id",
        "is_creator_over",
        "is_detached",
        "is_job_over",
        "is_refused",
        "job_id",
        "name",
        "namespace",
        "number",
        "places",
        "requested_s",
        "reserved",
        "selectors",
        "state",
        "strategy",
        "target",
        "topology",
        "tried_s",
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
        namespace: str = "",
        amounts: Sequence[Mapping[str, float]] = (),
        selectors: Sequence[Mapping[str, str]] = (),
        topology: str = "",
        target: str = "",
        creator: bytes = b"",
    ) -> None:
        self.group_id = group_id
        self.bundles = bundles
        #: The bundles as they were asked for, for people.
        self.amounts = tuple(amounts or map(to_amounts, bundles))
        self.strategy = strategy
        #: Label selector of each bundle; empty: none has one.
        self.selectors = tuple(selectors)
        #: Label of which all nodes have the same value; empty: none.
        self.topology = topology
        #: That value, for the bundles that are placed.
        self.domain = ""
        #: Node that is tried first; may be empty.
        self.target = target
        self.name = name
        self.namespace = namespace
        self.job_id = job_id
        #: Id of the actor that made it; may be empty.
        self.creator = creator
        self.is_detached = is_detached
        self.is_job_over = False
        self.is_creator_over = not creator
        self.state = GroupState.PENDING
        #: Order of arrival; set when it is requested.
        self.number = 0
        self.requested_s = now
        #: Start of the newest attempt.
        self.tried_s = now
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
    def is_over(self) -> bool:
        """Nobody is left for whom it is kept."""
        return self.is_job_over and self.is_creator_over and not self.is_detached

    @property
    def needs(self) -> Needs:
        """What its bundles need that are not placed."""
        return Needs(
            self.missing,
            self.strategy,
            dict(enumerate(self.selectors)),
            self.topology,
            self.domain if self.places else "",
            self.target,
        )

    @property
    def shape(self) -> tuple[object, ...]:
        """Groups of one shape find room together or not at all."""
        return (
            tuple(tuple(sorted(bundle.items())) for bundle in self.bundles),
            self.strategy,
            tuple(tuple(sorted(selector.items())) for selector in self.selectors),
            self.topology,
            tuple(self.places.items()),
        )

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
        #: (namespace, name) -> id of the group that has it now.
        self._names: dict[tuple[str, str], bytes] = {}
        #: Exactly the ids of groups in PENDING and RESCHEDULING.
        self.waiting: dict[bytes, None] = {}
        #: Actor id -> ids of the groups that it made and still keeps.
        self._made_by: dict[bytes, list[bytes]] = {}
        #: Arrivals so far.
        self._count = 0
        #: Id of the group that is urged, which is in RESERVING.
        self._urged: bytes | None = None
        #: Number of the group that was urged last: those that came after it are next.
        self._turn = 0
        #: Ids of groups that were removed, also of those whose row is gone.
        self._gone: OrderedDict[bytes, None] = OrderedDict()
        #: Exactly the ids of groups in REMOVED, oldest first.
        self._removed: OrderedDict[bytes, None] = OrderedDict()

    def requested(self, group: Group) -> list[Command]:
        """A peer wants a group.

        Raises:
            ValueError: no bundles, or an unknown strategy.
            GroupNameTakenError: a name that is taken.
        """
        if group.group_id in self.groups or group.group_id in self._gone:
            return []
        if group.strategy not in STRATEGIES:
            raise ValueError(
                f"invalid placement group strategy {group.strategy!r}; it must be one "
                f"of {', '.join(STRATEGIES)}"
            )
        if not group.bundles or not all(group.bundles):
            raise ValueError("a placement group needs bundles that are not empty")
        holder = self.named(group.namespace, group.name)
        if holder is not None:
            raise GroupNameTakenError(
                f"Failed to create placement group '{group.group_id.hex()}' because "
                f"name '{group.name}' already exists: group "
                f"{holder.group_id.hex()[:12]} of the same namespace has it until it "
                "is removed"
            )
        self.restore(group)
        return []

    def named(self, namespace: str, name: str) -> Group | None:
        """The group that has a name now."""
        group_id = self._names.get((namespace, name))
        return None if group_id is None else self.groups[group_id]

    def is_gone(self, group_id: bytes) -> bool:
        """Whether a group was here and was removed."""
        return group_id in self._gone

    def turns(self) -> list[bytes]:
        """Ids of the groups that wait, in order of arrival."""
        return sorted(self.waiting, key=lambda group_id: self.groups[group_id].number)

    def is_infeasible(self, group_id: bytes, views: Sequence[View]) -> bool:
        """Whether a group that waits would not fit if nobody held anything."""
        group = self.groups[group_id]
        return bundle_placement.place(group.needs, _idle(views), group.places) is None

    def tried(
        self, group_id: bytes, views: Sequence[View], now: float = 0.0
    ) -> list[ReserveBundles]:
        """There may be room for a group that waits.

        Args:
            group_id: of the group.
            views: the nodes that may get work, in order of joining.
            now: the time.
        """
        group = self.groups[group_id]
        if group_id not in self.waiting:
            return []
        needs = group.needs
        found = bundle_placement.place(needs, views, group.places)
        patience_s = 0.0
        if found is None and self._urged is None and group.number > self._turn:
            found = bundle_placement.place(needs, _idle(views), group.places)
            patience_s = URGE_S
        if found is None:
            return []
        if patience_s:
            self._urged = group_id
            self._turn = group.number
        by_node: dict[str, dict[int, Units]] = {}
        for index, node_id in found.nodes.items():
            by_node.setdefault(node_id, {})[index] = needs.bundles[index]
        group.domain = found.domain
        return self._ask(group, by_node, patience_s, now)

    def all_tried(self) -> None:
        """All groups that wait had their chance; who was urged may be so again."""
        if self._urged is None:
            self._turn = 0

    def tried_alone(
        self, group_id: bytes, view: View, now: float = 0.0
    ) -> list[ReserveBundles]:
        """A group that waits gets its bundles on the only node there will ever be.

        They wait at the node, as all else does that does not fit now.
        """
        group = self.groups[group_id]
        if group_id not in self.waiting:
            return []
        needs = group.needs
        room: Units = {}
        for bundle in needs.bundles.values():
            for name, units in bundle.items():
                room[name] = room.get(name, 0) + units
        found = bundle_placement.place(needs, [view._replace(available=room)])
        if found is None:
            return []  # It needs several nodes, or one with other labels.
        group.domain = found.domain
        return self._ask(group, {view.node_id: dict(needs.bundles)}, FOR_EVER, now)

    def _ask(
        self,
        group: Group,
        by_node: dict[str, dict[int, Units]],
        patience_s: float,
        now: float,
    ) -> list[ReserveBundles]:
        """Begins an attempt."""
        del self.waiting[group.group_id]
        group.tried_s = now
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
        self._count += 1
        group.number = self._count
        self.groups[group.group_id] = group
        if group.name:
            self._names[group.namespace, group.name] = group.group_id
        if not group.is_creator_over:
            self._made_by.setdefault(group.creator, []).append(group.group_id)
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
            del self._names[group.namespace, group.name]
        self._removed[group_id] = None
        self._gone[group_id] = None
        if len(self._gone) > REMEMBERED_IDS:
            self._gone.popitem(last=False)
        if len(self._removed) > REMEMBERED:
            oldest, _ = self._removed.popitem(last=False)
            del self.groups[oldest]
        return [FreeBundles(group_id), ReportGroup(group_id)]

    def job_ended(self, job_id: bytes) -> list[Command]:
        """A job's groups go with it, but for detached ones and those of its actors."""
        ended = []
        for group in self.groups.values():
            if group.job_id == job_id and not group.is_job_over:
                group.is_job_over = True
                ended.append(group)
        return self._end(ended)

    def creator_ended(self, actor_id: bytes, *, is_detached: bool) -> list[Command]:
        """An actor's process is gone, also if the actor is restarted."""
        made = self.made_by(actor_id)
        self._made_by.pop(actor_id, None)
        for group in made:
            group.is_creator_over = True
            group.is_job_over = group.is_job_over or is_detached
        return self._end(made)

    def made_by(self, actor_id: bytes) -> list[Group]:
        """The groups that an actor made and still keeps."""
        ids = self._made_by.get(actor_id, ())
        return [self.groups[group_id] for group_id in ids if group_id in self.groups]

    def _end(self, groups: Collection[Group]) -> list[Command]:
        commands: list[Command] = []
        for group in groups:
            if group.is_over:
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
            and (self.groups[key].namespace, self.groups[key].name) == name
            for name, key in self._names.items()
        )
        assert self._removed.keys() <= self._gone.keys()


def _idle(views: Sequence[View]) -> list[View]:
    """The nodes as they would be if nobody held anything."""
    return [view._replace(available=view.total) for view in views]
