"""The nodes of the cluster as the control service sees them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from rayshim.adapters.raylet.config import CLIENT_LABEL
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.codec import ENCODER, Message
from rayshim.lineage import membership as ms
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import Units, to_units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import ChannelServer, Peer

logger = logging.getLogger(__name__)

#: Seconds that a request may take to the node that it was placed on.
ARRIVAL_S = 1.0
#: Seconds between two tables that tell of nodes that joined: each goes to everybody.
ANNOUNCE_S = 0.05


class NodeLink(Protocol):
    """The way to a node: a channel, or a call where it is the same process."""

    def send(self, message: Message) -> None:
        """Gives the node a message of the control service."""


class _Nobody:
    """The way to a node that has not come back yet."""

    def send(self, message: Message) -> None:
        """Nobody hears it."""


class KnownNode:
    """One node, alive or dead."""

    __slots__ = (
        "available",
        "bundles",
        "has_news",
        "join",
        "link",
        "load",
        "local",
        "number",
        "placed",
        "told_count",
        "total",
    )

    def __init__(self, join: nodes.JoinNode, link: NodeLink, number: int) -> None:
        self.join = join
        self.link = link
        #: Order of arrival in the cluster.
        self.number = number
        self.total: Units = to_units(join.resources)
        #: What it said last that nobody holds, less what was placed since.
        self.available: Units = dict(self.total)
        #: Lease id -> need and time of what was placed and may not be there yet: loads
        #: that were told before do not reckon with it.
        self.placed: dict[bytes, tuple[Units, float]] = {}
        #: (group, bundle) -> the same for each bundle that it has.
        self.bundles: dict[tuple[bytes, int], Units] = {}
        #: The lease machine of a node in this process.
        self.local: Raylet | None = None
        #: The newest load; None until the first one.
        self.load: nodes.NodeLoad | None = None
        #: Loads that were told so far.
        self.told_count = 0
        #: It may have more room than when somebody last took note.
        self.has_news = True

    @property
    def node_id(self) -> str:
        """Hex."""
        return self.join.info.node_id

    @property
    def is_client(self) -> bool:
        """Whether it is the store of a driver on a host without a node."""
        return CLIENT_LABEL in self.join.labels

    @property
    def free(self) -> Units:
        """What it has free by its own account."""
        if self.local is not None:
            return self.local.resources.available
        return self.available if self.load is None else to_units(self.load.available)

    @property
    def labels(self) -> dict[str, str]:
        """Its labels, with the one that every node has."""
        return {"ray.io/node-id": self.node_id, **self.join.labels}

    def place(self, lease_id: bytes, need: Units, now: float) -> None:
        """A request will come to the node."""
        self.placed[lease_id] = (need, now)
        self._take(need)

    def told(self, load: nodes.NodeLoad, now: float) -> None:
        """Takes its own account."""
        self.load = load
        self.told_count += 1
        before, self.available = self.available, to_units(load.available)
        for lease_id in load.arrived:
            self.placed.pop(lease_id, None)
        for lease_id, (need, placed_s) in list(self.placed.items()):
            if now - placed_s > ARRIVAL_S:
                del self.placed[lease_id]  # its owner died, or needs it no more
            else:
                self._take(need)
        for name, units in self.available.items():
            if units > before.get(name, 0):
                self.has_news = True

    def _take(self, need: Units) -> None:
        for name, units in need.items():
            self.available[name] = self.available.get(name, 0) - units

    def refresh(self) -> None:
        """Takes the account of a node in this process, which sends no load."""
        local = self.local
        if local is not None:
            self.available = dict(local.resources.available)
            self.bundles = {
                (group, index): dict(bundle.resources.available)
                for group, bundles in local.groups.items()
                for index, bundle in bundles.items()
            }


class NodeDirectory:
    """Runs the membership machine and keeps what nodes tell of themselves.

    Args:
        server: The process of the control service.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        timeout_s = float(server.config.settings.get("node_timeout_s", ms.TIMEOUT_S))
        self.machine = ms.Membership(timeout_s)
        #: Node id -> node, in order of arrival; of the dead those that the machine
        #: remembers.
        self.known: dict[str, KnownNode] = {}
        #: First 8 digits, as in addresses of its processes -> id of each of them.
        self._places: dict[str, str] = {}
        #: Called with a node that joined (for the first time or again).
        self.on_joined: list[Callable[[KnownNode], None]] = []
        #: Called with a node's first load after it joined.
        self.on_settled: list[Callable[[KnownNode], None]] = []
        #: Called with a node and why it died.
        self.on_died: list[Callable[[KnownNode, str], None]] = []
        #: Called with a node and each load that it tells.
        self.on_told: list[Callable[[KnownNode, nodes.NodeLoad], None]] = []
        #: Called with a node that may get work, or may not, from now on.
        self.on_status: list[Callable[[KnownNode], None]] = []
        #: Called when some node may have more room than before.
        self.on_room: list[Callable[[], None]] = []
        #: Changes of room so far that no load told of.
        self.changes = 0
        #: Ids of nodes of which something was given away, or back, since somebody took
        #: note of that.
        self.given: set[str] = set()
        self._count = 0
        self._dead: dict[str, nodes.NodeInfo] = {}
        self._announced_s = -ANNOUNCE_S
        #: Somebody joined of whom nobody was told.
        self._is_unannounced = False

    # What is known.

    def usable(self) -> Iterator[KnownNode]:
        """The nodes that may get work, in order of arrival.

        One that has not told its load since it joined may be full.
        """
        for node_id, node in self.known.items():
            has_told = node.load is not None or node.local is not None
            if has_told and self.machine.is_usable(node_id):
                node.refresh()
                yield node

    def alive(self) -> Iterator[KnownNode]:
        """The nodes that are not dead, in order of arrival; not those of drivers."""
        return (node for node in self.everyone() if not node.is_client)

    def everyone(self) -> Iterator[KnownNode]:
        """The nodes that are not dead, those that are stores of drivers, too."""
        for node_id, node in self.known.items():
            if not self.machine.is_dead(node_id):
                yield node

    def find(self, node_id: str) -> KnownNode | None:
        """A node that is not dead."""
        node = self.known.get(node_id)
        return None if node is None or self.machine.is_dead(node_id) else node

    def at(self, place: str) -> KnownNode | None:
        """A node that is not dead, by the first 8 digits of its id."""
        return self.find(self._places.get(place, ""))

    def info(self, node: KnownNode) -> nodes.NodeInfo:
        """What everybody is told of a node."""
        return self._dead.get(node.node_id, node.join.info)

    def table(self) -> nodes.NodeTable:
        """All nodes."""
        return nodes.NodeTable([self.info(node) for node in self.known.values()])

    def send(self, node_id: str, message: Message) -> bool:
        """Sends to a node; False if it is dead or unknown."""
        node = self.find(node_id)
        if node is None:
            return False
        node.link.send(message)
        return True

    def broadcast(self, message: Message) -> None:
        """Sends to every node that is not dead."""
        for node in list(self.everyone()):
            node.link.send(message)

    # What happens.

    @property
    def is_cluster(self) -> bool:
        """Whether there may be nodes in other processes."""
        return bool(self._server.config.listen_ip)

    def add_local(
        self, join: nodes.JoinNode, link: NodeLink, raylet: Raylet
    ) -> KnownNode:
        """The node in this process, which dies with it."""
        node = self._admit(join, link)
        node.local = raylet
        self.machine.handle(ms.Joined(node.node_id, 0), self._server.now())
        return node

    def expect(self, join: nodes.JoinNode) -> None:
        """A node that an earlier life of the head knew may join again."""
        self._admit(join, _Nobody())
        self.machine.handle(ms.Expected(join.info.node_id), self._server.now())

    def mourned(self, join: nodes.JoinNode) -> None:
        """A node that an earlier life of the head declared dead stays dead."""
        info = join.info
        self._admit(join, _Nobody())
        self._dead[info.node_id] = info
        self.machine.handle(ms.Mourned(info.node_id, info.death), self._server.now())

    def is_expecting(self) -> bool:
        """Whether a node may still join again, or tell its load for the first time."""
        return any(
            isinstance(node.link, _Nobody) or node.load is None
            for node in self.everyone()
        )

    def joined(self, peer: Peer, message: nodes.JoinNode) -> None:
        """A node said who it is."""
        node_id = message.info.node_id
        peer.node_id = node_id
        event = ms.Joined(node_id, peer.number)
        for command in self.machine.handle(event, self._server.now()):
            if isinstance(command, ms.DismissNode):
                self._dismiss(peer.connection, command)
                continue
            node = self._admit(message, peer.connection)
            if node.is_client:
                # From now on it is none that may get work.
                self._feed(ms.Leaving(node_id, "its driver ended"))
            self._announce_soon()
            for told in self.on_joined:
                told(node)
            self.changed()

    def loaded(self, peer: Peer, message: nodes.NodeLoad) -> None:
        """A node told what it has free."""
        node_id = peer.node_id
        commands = self.machine.handle(ms.Spoke(node_id), self._server.now())
        for command in commands:
            if isinstance(command, ms.DismissNode):
                self._dismiss(peer.connection, command)
                return
        node = self.known.get(node_id)
        if node is None:
            return
        is_first = node.load is None
        node.told(message, self._server.now())
        node.bundles = {
            (one.group, one.index): to_units(one.resources) for one in message.bundles
        }
        for heard in self.on_told:
            heard(node, message)
        if is_first:
            for told in self.on_settled:
                told(node)
        if commands:
            self._status_changed(node)
        self._look_for_room()

    def leaving(self, peer: Peer, message: nodes.LeaveCluster) -> None:
        """A node will go, or is asked to go."""
        self._feed(ms.Leaving(peer.node_id, message.reason))
        node = self.find(peer.node_id)
        if node is not None and message.graceful:
            # Owners have values there, which they take elsewhere now.
            node.join.info.draining = True
            self._announce()

    def peer_left(self, peer: Peer) -> None:
        """The channel of a raylet is at its end."""
        if peer.node_id:
            self._feed(ms.ChannelEnded(peer.node_id, peer.number))

    def look(self, local_id: str = "") -> None:
        """Looks at limits of time; ``local_id`` is the node in this process."""
        if local_id:
            self._feed(ms.Spoke(local_id))
        self._feed(ms.TimePassed())

    def _admit(self, join: nodes.JoinNode, link: NodeLink) -> KnownNode:
        node_id = join.info.node_id
        known = self.known.get(node_id)
        if known is None:
            self._count += 1
        number = known.number if known else self._count
        node = self.known[node_id] = KnownNode(join, link, number)
        self._places[node_id[:8]] = node_id
        if known is not None:
            node.placed = known.placed
            node.told_count = known.told_count
        return node

    def _status_changed(self, node: KnownNode) -> None:
        for told in self.on_status:
            told(node)

    def _feed(self, event: ms.Event) -> None:
        for command in self.machine.handle(event, self._server.now()):
            if isinstance(command, ms.MournNode):
                self._mourn(command)
            elif isinstance(command, ms.AnnounceNode):
                node = self.known.get(command.node_id)
                if node is not None:
                    self._status_changed(node)
                self.changed()

    def _mourn(self, command: ms.MournNode) -> None:
        node = self.known.get(command.node_id)
        for node_id in list(self._dead):
            if not self.machine.is_dead(node_id):
                del self._dead[node_id]
                self.known.pop(node_id, None)
                self._places.pop(node_id[:8], None)
        if node is None:
            return
        info = node.join.info
        logger.warning("node %s is dead: %s", info.node_id[:8], command.death)
        self._dead[info.node_id] = nodes.NodeInfo(
            info.node_id,
            info.address,
            info.flight_address,
            info.node_ip,
            False,
            time.time(),
            command.death,
        )
        self._announce()
        self._server.close_node(info)
        for told in self.on_died:
            told(node, command.death)
        self.changed()

    def _announce_soon(self) -> None:
        """Tells at once, but together of many that join together."""
        wait_s = self._announced_s + ANNOUNCE_S - self._server.now()
        if wait_s <= 0:
            self._announce()
        elif not self._is_unannounced:
            self._is_unannounced = True
            self._server.loop.call_later(wait_s, self._announce_late)

    def _announce_late(self) -> None:
        if self._is_unannounced:
            self._announce()

    def _announce(self) -> None:
        """Tells nodes and peers who is there."""
        self._announced_s = self._server.now()
        self._is_unannounced = False
        table = self.table()
        data = ENCODER.encode(table)
        for peer in list(self._server.peers.values()):
            if peer.role != "raylet" or peer.node_id:
                peer.connection.send_encoded(data)
        for node in self.everyone():
            if node.node_id == self._server.config.node_id:
                node.link.send(table)

    def give(self, node: KnownNode, units: Units) -> None:
        """Reckons with what a node will have, less where ``units`` are below zero."""
        have = node.available
        for name, amount in units.items():
            have[name] = have.get(name, 0) + amount
        self.given.add(node.node_id)

    def changed(self) -> None:
        """Some node may have more room, or a group got its bundles."""
        self.changes += 1
        self._look_for_room()

    def _look_for_room(self) -> None:
        for told in self.on_room:
            told()

    def _dismiss(self, link: Any, command: ms.DismissNode) -> None:
        reason = f"the head declared this node dead: {command.reason}"
        link.send(nodes.LeaveCluster(reason, False))
