"""Leases that nobody could grant yet: the head's queue, and where each one goes.

Two kinds of requests are here. A raylet asks for one of its peers (``PlaceLease``) and
is answered with the node to ask; the control service asks for an actor, and the
request itself is sent to the node. The choice is :mod:`rayshim.lineage.placement`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.lineage import placement
from rayshim.lineage.labels import rank
from rayshim.lineage.leases import LIFE_HOPS
from rayshim.lineage.resources import Units, describe, to_units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import ChannelServer
    from rayshim.adapters.raylet.groups import GroupService
    from rayshim.adapters.raylet.head_nodes import KnownNode, NodeDirectory

#: Nodes that one explanation names.
SHOWN_NODES = 8


class _Entry:
    """A request that is not granted."""

    __slots__ = (
        "asker",
        "home",
        "is_away",
        "is_moving",
        "need",
        "request",
        "sent_to",
        "shape",
        "since_s",
    )

    def __init__(
        self, request: wire.RequestLease, asker: str, home: str, since_s: float
    ) -> None:
        self.request = request
        self.need: Units = to_units(request.resources)
        #: Node whose raylet asks; empty for an actor.
        self.asker = asker
        #: Node that is preferred.
        self.home = home
        #: The asking raylet may be the answer.
        self.is_away = False
        self.since_s = since_s
        #: For an actor: where its request waits; empty while it is only here.
        self.sent_to = ""
        #: It was taken back there, to go elsewhere.
        self.is_moving = False
        self.shape = (
            tuple(sorted(self.need.items())),
            request.placement_group,
            request.bundle_index,
            tuple(request.nodes),
            request.soft,
            request.strategy,
            tuple(tuple(one.items()) for one in request.labels),
            asker,
            home,
        )


class LeasePlacer:
    """The unplaced demand of the cluster.

    Args:
        server: The process of the control service.
        directory: Its nodes.
    """

    groups: GroupService

    def __init__(self, server: ChannelServer, directory: NodeDirectory) -> None:
        self._server = server
        self._nodes = directory
        #: Lease id -> request, in order of arrival.
        self._entries: dict[bytes, _Entry] = {}
        #: Restarts of the control service so far.
        self.lives = 0
        #: ``on_refused(lease_id, reason, kind)``: an actor will never be placed.
        self.on_refused: Callable[[bytes, str, str], None]
        self._is_trying = False
        directory.on_room.append(self.retry)
        directory.on_died.append(self._node_died)

    # From raylets.

    def ask(self, node_id: str, request: wire.RequestLease, is_away: bool) -> None:
        """A raylet cannot grant a request now."""
        lease_id = request.lease_id
        known = self._entries.get(lease_id)
        if known is not None and known.request.hops > request.hops:
            return
        entry = _Entry(request, node_id, node_id, self._server.now())
        entry.is_away = is_away
        if known is not None:
            entry.since_s = known.since_s
        self._entries[lease_id] = entry
        self._try(entry)

    def cancel(self, node_id: str, lease_id: bytes) -> None:
        """A raylet needs no answer any more."""
        entry = self._entries.get(lease_id)
        if entry is not None and entry.asker == node_id:
            del self._entries[lease_id]

    # From the actor service.

    def place(self, request: wire.RequestLease, home: str) -> None:
        """An actor needs an executor somewhere, best on the node ``home``."""
        # Else nodes may take it for a late copy of an earlier life's request.
        request.hops = self.lives * LIFE_HOPS
        entry = _Entry(request, "", home, self._server.now())
        self._entries[request.lease_id] = entry
        self._try(entry)

    def unplace(self, lease_id: bytes) -> None:
        """An actor needs none any more."""
        entry = self._entries.pop(lease_id, None)
        if entry is not None and entry.sent_to:
            self._nodes.send(entry.sent_to, wire.CancelLease(lease_id))

    def knows(self, lease_id: bytes) -> bool:
        """Whether a request is under way."""
        return lease_id in self._entries

    def granted(self, node_id: str, lease_id: bytes) -> None:
        """An actor has its executor on a node."""
        entry = self._entries.pop(lease_id, None)
        if entry is not None and entry.sent_to not in ("", node_id):
            # The grant was made for an earlier life of the control service.
            self._nodes.send(entry.sent_to, wire.CancelLease(lease_id))

    def rejected(self, node_id: str, lease_id: bytes, kind: str) -> bool:
        """Whether a request that a node rejected goes on elsewhere."""
        entry = self._entries.get(lease_id)
        if entry is None or entry.sent_to != node_id:
            return True  # It was taken back, or was of an earlier life.
        if kind not in ("cancelled", "drained"):
            del self._entries[lease_id]
            return False
        entry.sent_to = ""
        entry.is_moving = False
        self._try(entry)
        return True

    # What changes.

    def retry(self) -> None:
        """Some node may have room now."""
        if self._is_trying or not self._entries:
            return
        self._is_trying = True
        failed = set()
        try:
            for lease_id, entry in list(self._entries.items()):
                if entry.shape in failed or lease_id not in self._entries:
                    continue
                if not self._try(entry):
                    failed.add(entry.shape)
        finally:
            self._is_trying = False

    def _node_died(self, node: KnownNode, death: str) -> None:
        for lease_id, entry in list(self._entries.items()):
            if entry.asker == node.node_id:
                del self._entries[lease_id]
            elif entry.sent_to == node.node_id:
                entry.sent_to = ""
                entry.is_moving = False

    # Choosing.

    def _try(self, entry: _Entry) -> bool:
        """Whether something came of looking for a node."""
        if entry.request.placement_group:
            return self._try_group(entry)
        request = entry.request
        known = list(self._nodes.usable())
        views = [
            placement.View(node.node_id, node.total, node.available, node.labels)
            for node in known
        ]
        if entry.asker and not entry.is_away:
            # It said that it has none, whatever was heard of it before.
            views = [one for one in views if one.node_id != entry.asker]
        wish = placement.Wish(
            entry.home,
            request.nodes,
            request.soft,
            request.strategy == "SPREAD",
            request.strategy == "AFFINITY",
            request.labels,
        )
        choice = placement.choose(entry.need, views, wish)
        if choice is None:
            if self._is_hopeless(request):
                self._refuse(entry, self._hopeless_text(request), "infeasible")
                return True
            if entry.asker or self._nodes.is_cluster or not known:
                return False
            # The only node there can be: it waits there, as all else does.
            choice = placement.Choice(known[0].node_id, False)
        if not choice.has_room and self._can_wait(entry):
            return False
        return self._send(entry, choice.node_id, entry.need)

    def _can_wait(self, entry: _Entry) -> bool:
        """Whether a request waits at a node already, if there is room nowhere."""
        if not entry.asker:
            return bool(entry.sent_to)
        asker = self._nodes.find(entry.asker)
        if entry.is_away or asker is None:
            return False
        is_here = rank(entry.request.labels, asker.labels) >= 0
        return is_here and placement.fits(entry.need, asker.total)

    def _try_group(self, entry: _Entry) -> bool:
        request = entry.request
        group, index = request.placement_group, request.bundle_index
        if self.groups.is_removed(group):
            reason = f"the placement group of {request.label} was removed"
            self._refuse(entry, reason, "removed")
            return True
        places = self.groups.places(group)
        if index >= 0:
            node_id = places.get(index)
            if node_id is None or self._nodes.find(node_id) is None:
                return False
            return self._send(entry, node_id, {})
        best = ""
        for at, node_id in places.items():
            node = self._nodes.find(node_id)
            if node is None or (node_id == entry.asker and not entry.is_away):
                continue
            best = best or node_id
            node.refresh()
            have = node.bundles.get((group, at), {})
            if placement.fits(entry.need, have):
                for name, units in entry.need.items():
                    have[name] -= units
                return self._send(entry, node_id, {})
        if not best or (entry.asker and not entry.is_away) or entry.sent_to:
            return False
        return self._send(entry, best, {})

    def _send(self, entry: _Entry, node_id: str, need: Units) -> bool:
        request = entry.request
        if entry.sent_to:
            if entry.sent_to == node_id or entry.is_moving:
                return False
            entry.is_moving = True
            cancel = wire.CancelLease(request.lease_id)
            return self._nodes.send(entry.sent_to, cancel)
        node = self._nodes.find(node_id)
        assert node is not None
        if need:
            node.place(request.lease_id, need, self._server.now())
        if entry.asker:
            del self._entries[request.lease_id]
            placed = nodes.LeasePlaced(request.lease_id, node.join.info.address)
            self._nodes.send(entry.asker, placed)
        else:
            entry.sent_to = node_id
            # Else it would be taken for a late copy where it was before.
            request.hops += 1
            node.link.send(request)
        return True

    def _refuse(self, entry: _Entry, reason: str, kind: str) -> None:
        lease_id = entry.request.lease_id
        del self._entries[lease_id]
        if entry.asker:
            refused = nodes.LeasePlaced(lease_id, "", reason, kind)
            self._nodes.send(entry.asker, refused)
        else:
            self.on_refused(lease_id, reason, kind)

    def _is_hopeless(self, request: wire.RequestLease) -> bool:
        """A hard wish for nodes of which none is left (ids are never used again)."""
        return (
            bool(request.nodes)
            and not request.soft
            and all(self._nodes.find(one) is None for one in request.nodes)
        )

    def _hopeless_text(self, request: wire.RequestLease) -> str:
        names = ", ".join(one[:8] for one in request.nodes)
        return (
            f"{request.label} must run on node {names}, which is dead or was never "
            "part of this cluster; use soft=True to let it run elsewhere then"
        )

    # For people.

    def explain(self, lease_id: bytes) -> list[str]:
        """Why a request waits; empty if it is not here."""
        entry = self._entries.get(lease_id)
        if entry is None:
            return []
        request = entry.request
        age = f"{self._server.now() - entry.since_s:.1f} s"
        text = f"{request.label} waits for {age}: needs {describe(entry.need)}"
        if request.placement_group:
            return [f"{text} of {self.groups.describe(request.placement_group)}"]
        if request.nodes and not request.soft:
            text += f" on node {', '.join(one[:8] for one in request.nodes)}"
        if request.labels:
            wanted = " or ".join(str(one) for one in request.labels)
            text += f" on a node with labels {wanted}"
        return [f"{text}; {self.describe_nodes(entry.need)}"]

    def describe_nodes(self, need: Units) -> str:
        """What each node has of what is needed."""
        parts, able = [], False
        for node in self._nodes.alive():
            able = able or placement.fits(need, node.total)
            free = {name: node.free.get(name, 0) for name in need}
            total = {name: node.total.get(name, 0) for name in need}
            info = node.join.info
            parts.append(
                f"node {info.node_id[:8]} ({info.node_ip}) has free {describe(free)} "
                f"of {describe(total)}"
            )
        more = len(parts) - SHOWN_NODES
        shown = "; ".join(parts[:SHOWN_NODES]) or "the cluster has no node"
        if more > 0:
            shown += f"; and {more} more nodes"
        if able:
            return shown
        return (
            "no node of the cluster has that, so that it cannot start until one with "
            f"enough joins: {shown}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """One row for each request, by arrival."""
        now = self._server.now()
        return [
            {
                "lease_id": lease_id.hex(),
                "label": entry.request.label,
                "resources": entry.request.resources,
                "asker": entry.asker,
                "sent_to": entry.sent_to,
                "seconds": now - entry.since_s,
            }
            for lease_id, entry in self._entries.items()
        ]
