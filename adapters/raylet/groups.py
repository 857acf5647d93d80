"""Placement group requests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.raylet.group_notices import GroupNotices
from rayshim.adapters.raylet.pacing import Pace
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.lineage import lease_events as ev
from rayshim.lineage import placement
from rayshim.lineage import placement_groups as pg
from rayshim.lineage.actors import Actor, ActorState
from rayshim.lineage.resources import to_amounts, to_units

if TYPE_CHECKING:
    import asyncio

    from rayshim.adapters.raylet.actor_service import ActorService
    from rayshim.adapters.raylet.channels import ChannelServer, Peer
    from rayshim.adapters.raylet.head_nodes import KnownNode, NodeDirectory

logger = logging.getLogger(__name__)


class Deferred(Exception):
    """A request that is answered later."""


class Create(msgspec.Struct):
    """Payload of ``create_placement_group``."""

    id: bytes
    bundles: list[dict[str, float]]
    strategy: str = "PACK"
    name: str | None = ""
    lifetime: str | None = None
    #: The name is one of this namespace.
    namespace: str = ""
    #: Label selector of each bundle; empty: none has one.
    selectors: list[dict[str, str]] = []
    #: Label of which all nodes must have the same value; empty: none.
    topology: str = ""
    #: Hex id of the node that is tried first; may be empty.
    target: str = ""
    #: Its job; empty: that of the channel.
    job: bytes = b""
    #: The actor that makes it; may be empty.
    actor: bytes = b""


class Wait(msgspec.Struct):
    """Payload of ``wait_placement_group``."""

    id: bytes
    #: None: for ever.
    timeout_s: float | None = None


class Named(msgspec.Struct):
    """Payload of ``get_placement_group``."""

    name: str
    namespace: str = ""


class Which(msgspec.Struct):
    """Payload of ``remove_placement_group`` and ``placement_group_table``."""

    id: bytes | None = None


#: Answer to who waits for a group that is removed.
_REMOVED = ("TaskPlacementGroupRemoved", "")
#: States of an actor with a process.
_RUNNING = (ActorState.CREATING, ActorState.ALIVE, ActorState.ENDING)
_NAMED = msgspec.msgpack.Decoder(Named)
_CREATE = msgspec.msgpack.Decoder(Create)
_WAIT = msgspec.msgpack.Decoder(Wait)
_WHICH = msgspec.msgpack.Decoder(Which)


class GroupService:
    """Runs the placement group machine.

    Args:
        server: The process of the control service.
        directory: The nodes, whose lease machines reserve bundles.
        respond: ``respond(peer, request_id, value=...)`` answers a request.
    """

    def __init__(
        self,
        server: ChannelServer,
        directory: NodeDirectory,
        respond: Callable[..., None],
    ) -> None:
        self._server = server
        self._nodes = directory
        directory.on_died.append(self._node_died)
        #: Some node may have room for a group now.
        self.retry = Pace(server.loop, self._retry)
        directory.on_room.append(self.retry)
        #: Gives the node in this process, if there is one, an event as it is.
        self._feed: Callable[[Any], None] | None = getattr(server, "feed", None)
        #: The actors, of which some make groups.
        self.actors: ActorService
        #: Called with a group that changed, before anybody hears of it.
        self.on_change: Callable[[pg.Group], None] | None = None
        #: The same, for those who look on.
        self.on_news: Callable[[pg.Group], None] | None = None
        self._respond = respond
        self.machine = pg.PlacementGroups()
        self._notices = GroupNotices(server, self.machine, self._views)
        #: Group -> who waits for it: peer, request, timer.
        self._waiters: dict[
            bytes, list[tuple[Peer, int, asyncio.TimerHandle | None]]
        ] = {}

    def create(self, peer: Peer, message: wire.Request) -> None:
        """Registers a group and asks for its bundles."""
        args = _CREATE.decode(message.payload)
        group = pg.Group(
            args.id,
            tuple(to_units(bundle) for bundle in args.bundles),
            strategy=args.strategy,
            name=args.name or "",
            job_id=args.job or peer.job_id,
            is_detached=args.lifetime == "detached",
            now=self._server.now(),
            namespace=args.namespace,
            amounts=[
                {name: amount for name, amount in bundle.items() if amount}
                for bundle in args.bundles
            ],
            selectors=args.selectors,
            topology=args.topology,
            target=args.target,
            creator=args.actor,
        )
        try:
            self.machine.requested(group)
        except pg.GroupNameTakenError as error:
            text = str(error)
            self._respond(peer, message.request_id, error=("RaySystemError", text))
            raise Deferred from None
        if args.id not in self.machine.waiting:
            return  # It came twice.
        if self.on_change is not None:
            self.on_change(self.machine.groups[args.id])
        if self.on_news is not None:
            self.on_news(self.machine.groups[args.id])
        if self._feed is not None and not self._nodes.is_cluster:
            self._try_alone(args.id)
        else:
            self.retry()
        if args.actor:
            self._look_at_creator(args.actor)  # It may have died meanwhile.
        if group.state is not pg.GroupState.CREATED:
            self._notices.watch(args.id)

    def wait(self, peer: Peer, message: wire.Request) -> bool:
        """Whether a group is created in time; answered later if it is pending."""
        args = _WAIT.decode(message.payload)
        group = self.machine.groups.get(args.id)
        if group is not None and group.state is pg.GroupState.CREATED:
            return True
        if self.machine.is_gone(args.id):
            self._respond(peer, message.request_id, error=_REMOVED)
            raise Deferred
        # One that nobody knows may be created in a moment: its handle was faster.
        timeout_s = args.timeout_s
        timer = None
        if timeout_s is not None:
            if timeout_s <= 0:
                return False
            timer = self._server.loop.call_later(
                timeout_s, self._late, args.id, peer, message.request_id
            )
        waiters = self._waiters.setdefault(args.id, [])
        waiters.append((peer, message.request_id, timer))
        raise Deferred

    def remove(self, message: wire.Request) -> None:
        """Frees a group's bundles and ends what runs in them."""
        args = _WHICH.decode(message.payload)
        if args.id is not None:
            self._run(self.machine.removed(args.id))

    def find(self, message: wire.Request) -> str:
        """Hex id of the group with a name, or empty."""
        args = _NAMED.decode(message.payload)
        group = self.machine.named(args.namespace, args.name)
        return "" if group is None else group.group_id.hex()

    def table(self, message: wire.Request) -> dict[str, Any]:
        """One group's row, or all rows by hex id."""
        args = _WHICH.decode(message.payload or b"\x80")
        if args.id is None:
            return {
                key.hex(): self._row(one) for key, one in self.machine.groups.items()
            }
        group = self.machine.groups.get(args.id)
        return self._row(group) if group is not None else {}

    def rows(self) -> list[dict[str, Any]]:
        """All rows."""
        return [self._row(group) for group in self.machine.groups.values()]

    def answered(self, node_id: str, message: nodes.BundlesReserved) -> None:
        """A node has reserved bundles, or refuses to."""
        self.reserved(message.group, node_id, message.attempt, is_reserved=message.ok)

    def reserved(
        self, group_id: bytes, node_id: str, attempt: int, *, is_reserved: bool = True
    ) -> None:
        """The same, as the node in this process says it."""
        self._run(
            self.machine.answered(
                group_id,
                node_id,
                attempt=attempt,
                is_reserved=is_reserved,
                now=self._server.now(),
            )
        )

    def job_ended(self, job_id: bytes) -> None:
        """Removes a job's groups, but for those that outlive it."""
        self._run(self.machine.job_ended(job_id))

    def actor_changed(self, actor: Actor) -> None:
        """Removes the groups that only the process of an actor kept."""
        if actor.state not in _RUNNING:
            self._creator_gone(actor.spec.actor_id, actor)

    def _creator_gone(self, actor_id: bytes, actor: Actor | None) -> None:
        made = self.machine.made_by(actor_id)
        is_detached = actor is not None and actor.spec.is_detached
        self._run(self.machine.creator_ended(actor_id, is_detached=is_detached))
        if self.on_change is not None:
            for group in made:
                if group.state is not pg.GroupState.REMOVED:
                    self.on_change(group)

    def recovered(self) -> None:
        """All who knew an earlier life of the head are back, or gone."""
        for group in list(self.machine.groups.values()):
            if not group.is_creator_over:
                self._look_at_creator(group.creator)

    def _look_at_creator(self, actor_id: bytes) -> None:
        actor = self.actors.machine.actors.get(actor_id)
        if actor is None or actor.state not in _RUNNING:
            self._creator_gone(actor_id, actor)

    def _retry(self) -> None:
        if not self.machine.waiting:
            return
        turns = self.machine.turns()
        if not self._nodes.is_cluster:
            for group_id in turns:
                self._try_alone(group_id)
            return
        failed = set()
        views = self._views()
        for group_id in turns:
            group = self.machine.groups[group_id]
            if len(turns) > 1 and group.shape in failed:
                continue
            commands = self.machine.tried(group_id, views, self._server.now())
            if commands:
                self._run(commands)
                views = self._views()
            else:
                failed.add(group.shape)
        self.machine.all_tried()

    def _views(self) -> list[placement.View]:
        return [
            placement.View(one.node_id, one.total, one.available, one.labels)
            for one in self._nodes.usable()
        ]

    def _try_alone(self, group_id: bytes) -> None:
        """Tries a group on the only node there can be."""
        for node_id, node in self._nodes.known.items():
            if self._nodes.machine.is_usable(node_id):
                view = placement.View(node_id, node.total, {}, node.labels)
                now = self._server.now()
                commands = self.machine.tried_alone(group_id, view, now)
                if self._feed is None or self.on_change is not None:
                    self._run(commands)
                    return
                for _, _, bundles, _, attempt in commands:
                    # The node is this process: it takes the event itself.
                    asked = tuple(bundles.values()), tuple(bundles)
                    self._feed(ev.BundlesRequested(group_id, *asked, True, attempt))
                return

    # For leases.

    def is_removed(self, group_id: bytes) -> bool:
        """Whether a group is gone."""
        return self.machine.is_gone(group_id)

    def places(self, group_id: bytes) -> Mapping[int, str]:
        """Index -> node of the bundles that leases may use."""
        group = self.machine.groups.get(group_id)
        return {} if group is None else group.places

    def describe(self, group_id: bytes) -> str:
        """What a group is like, for explanations."""
        name = f"placement group {group_id.hex()[:12]}"
        group = self.machine.groups.get(group_id)
        if group is None:
            return f"{name}, which this cluster does not know (yet)"
        placed, wanted = len(group.places), len(group.bundles)
        return (
            f"{name}, which is {group.state.name}: {placed} of {wanted} bundles placed"
        )

    # Nodes.

    def _node_died(self, node: KnownNode, death: str) -> None:
        self._run(self.machine.node_died(node.node_id, self._server.now()))
        if self.on_change is not None:
            for group in self.machine.groups.values():
                if group.state is pg.GroupState.RESCHEDULING:
                    self.on_change(group)
        for group_id in self.machine.waiting:
            if self.machine.groups[group_id].state is pg.GroupState.RESCHEDULING:
                self._notices.watch(group_id)

    def settled(self, node: KnownNode) -> None:
        """A node joined: bundles of groups that nobody knows are freed."""
        for group_id in dict.fromkeys(held.group for held in node.join.bundles):
            group = self.machine.groups.get(group_id)
            if group is None or group.state is pg.GroupState.REMOVED:
                # A row of the journal is gone when its group is removed, so that a
                # node that was away then is told now.
                logger.warning(
                    "node %s holds bundles of group %s, which is not there (any "
                    "more): they are freed",
                    node.node_id[:8],
                    group_id.hex(),
                )
                node.link.send(nodes.FreeBundles(group_id))
                continue
            # What a lost attempt of an earlier life of the head had reserved.
            tried = (*group.asked.values(), *group.reserved.values())
            known = {index for indexes in tried for index in indexes}
            stray = [
                held.index
                for held in node.join.bundles
                if held.group == group_id
                and held.index not in known
                and group.places.get(held.index) != node.node_id
            ]
            if stray:
                node.link.send(nodes.FreeBundles(group_id, False, stray))

    def _run(self, commands: Sequence[pg.Command]) -> None:
        if self.on_change is not None:
            for group_id in dict.fromkeys(command.group for command in commands):
                group = self.machine.groups.get(group_id)
                if group is not None:
                    self.on_change(group)
        for command in commands:
            if isinstance(command, pg.ReserveBundles):
                self._reserve(command)
            elif isinstance(command, pg.ReturnBundles):
                back = nodes.FreeBundles(command.group, False, list(command.indexes))
                self._nodes.send(command.node_id, back)
            elif isinstance(command, pg.FreeBundles):
                if self._feed is not None and not self._nodes.is_cluster:
                    self._feed(ev.BundlesRemoved(command.group))
                else:
                    self._nodes.broadcast(nodes.FreeBundles(command.group))
                    self._give_back(command.group)
            else:
                if self._waiters:
                    self._report(command.group)
                self._nodes.changed()
        if self.on_news is not None:
            for group_id in dict.fromkeys(command.group for command in commands):
                group = self.machine.groups.get(group_id)
                if group is not None:
                    self.on_news(group)

    def _reserve(self, command: pg.ReserveBundles) -> None:
        node = self._nodes.find(command.node_id)
        if node is None:
            return
        bundles = command.bundles
        for bundle in bundles.values():
            taken = {name: -units for name, units in bundle.items()}
            self._nodes.give(node, taken)
        node.link.send(
            nodes.ReserveBundles(
                command.group,
                list(bundles),
                [to_amounts(bundle) for bundle in bundles.values()],
                command.patience_s,
                command.attempt,
            )
        )

    def _give_back(self, group_id: bytes) -> None:
        """Reckons with what nodes will have, so that the next group need not wait."""
        group = self.machine.groups[group_id]
        for index, node_id in group.places.items():
            node = self._nodes.find(node_id)
            if node is not None:
                self._nodes.give(node, group.bundles[index])

    def _report(self, group_id: bytes) -> None:
        state = self.machine.groups[group_id].state
        is_gone = state is pg.GroupState.REMOVED
        for peer, request_id, timer in self._waiters.pop(group_id, ()):
            if timer is not None:
                timer.cancel()
            if is_gone:
                self._respond(peer, request_id, error=_REMOVED)
            else:
                self._respond(peer, request_id, value=state is pg.GroupState.CREATED)

    def _late(self, group_id: bytes, peer: Peer, request_id: int) -> None:
        waiters = self._waiters.get(group_id, [])
        rest = [one for one in waiters if one[:2] != (peer, request_id)]
        if rest:
            self._waiters[group_id] = rest
        else:
            self._waiters.pop(group_id, None)
        self._respond(peer, request_id, value=False)

    def peer_left(self, peer: Peer) -> None:
        """A peer waits for nothing any more."""
        for group_id, waiters in list(self._waiters.items()):
            rest = []
            for one in waiters:
                if one[0] is not peer:
                    rest.append(one)
                elif one[2] is not None:
                    one[2].cancel()
            if rest:
                self._waiters[group_id] = rest
            else:
                del self._waiters[group_id]

    def _row(self, group: pg.Group) -> dict[str, Any]:
        is_new = group.created_s == group.requested_s and not group.places
        return {
            "placement_group_id": group.group_id.hex(),
            "name": group.name,
            "bundles": dict(enumerate(group.amounts)),
            "bundles_to_node_id": {
                index: group.places.get(index, "")
                for index in range(len(group.bundles))
            },
            "strategy": group.strategy,
            "state": _shown(group),
            "stats": {
                "end_to_end_creation_latency_ms": 0.0
                if is_new
                else (group.created_s - group.requested_s) * 1000,
                "scheduling_latency_ms": 0.0
                if is_new
                else (group.created_s - group.tried_s) * 1000,
                "scheduling_attempt": max(1, group.attempt),
                "highest_retry_delay_ms": 0.0,
                "scheduling_state": self._progress(group),
            },
        }

    def _progress(self, group: pg.Group) -> str:
        """How far a group is, in Ray's words."""
        if group.state is pg.GroupState.CREATED:
            return "FINISHED"
        if group.state is pg.GroupState.REMOVED:
            return "REMOVED"
        if self.machine.is_infeasible(group.group_id, self._views()):
            return "INFEASIBLE"
        return "NO_RESOURCES"


def _shown(group: pg.Group) -> str:
    """The state's name for people; while RESERVING, what it was before."""
    if group.state is not pg.GroupState.RESERVING:
        return group.state.name
    return "RESCHEDULING" if group.places else "PENDING"
