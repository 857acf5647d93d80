"""Which node a lease that came to the head goes to, and which one it moves to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rayshim.adapters.raylet.head_wishes import is_awaited, refusal_of, wish_of
from rayshim.adapters.raylet.lease_nodes import PlacerNodes, bundle_node
from rayshim.lineage import placement, stealing
from rayshim.lineage.labels import rank
from rayshim.lineage.spillback import pause_s

if TYPE_CHECKING:
    from rayshim.adapters.raylet.groups import GroupService
    from rayshim.adapters.raylet.head_nodes import NodeDirectory
    from rayshim.adapters.raylet.lease_entry import LeaseEntry


class NodeChooser:
    """Chooses over what nodes said, less what was placed since.

    Many nodes are looked at through the index of :class:`PlacerNodes`. Only what left
    a node that is the best one again, and has told nothing since, is compared with
    each node.

    Args:
        directory: The nodes of the control service.
        known: What they have.
        is_followed: Whether nodes tell what becomes of what is placed.
        now: Gives the time.
    """

    groups: GroupService

    def __init__(
        self,
        directory: NodeDirectory,
        known: PlacerNodes,
        is_followed: bool,
        now: Callable[[], float],
    ) -> None:
        self._nodes = directory
        self._known = known
        self._is_followed = is_followed
        self._now = now
        #: Choices so far for work that is to be spread.
        self._spread = 0
        #: The nodes that may get work, during one pass, once they were looked at.
        self._views: list[placement.View] | None = None
        self._is_pass = False

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Nodes neither come nor go meanwhile, nor say anything."""
        self._is_pass = True
        try:
            yield
        finally:
            self._is_pass = False
            self._views = None

    def refusal(self, entry: LeaseEntry) -> tuple[str, str]:
        """Why no node will ever take a lease, and of which kind that is; or empty."""
        request = entry.request
        if request.placement_group:
            if self.groups.is_removed(request.placement_group):
                reason = f"the placement group of {request.label} was removed"
                return reason, "removed"
            return "", ""
        reason = refusal_of(entry, self._nodes)
        return reason, "infeasible" if reason else ""

    def may_fit(self, entry: LeaseEntry) -> bool:
        """False if there is room for no entry of its kind, wherever they are."""
        if entry.request.placement_group or not self._is_followed:
            return True
        if refusal_of(entry, self._nodes):
            return True  # That has to be said.
        wish = wish_of(entry)._replace(home="", is_spread=False)
        choice = self._known.index.choose(entry.need, wish)
        return choice is not None and (choice.has_room or not entry.is_patient)

    def is_patient(self, entry: LeaseEntry) -> bool:
        """Whether it waits at a node already, if there is room nowhere."""
        if entry.node:
            return True
        asker = self._nodes.find(entry.asker)
        if entry.is_away or asker is None:
            return False
        is_here = rank(entry.request.labels, asker.labels) >= 0
        return is_here and placement.fits(entry.need, asker.total)

    def node_for(self, entry: LeaseEntry) -> str:
        """The node for a request that is at none; empty if it has to wait here."""
        entry.bundle, entry.takes_room = None, False
        if entry.request.placement_group:
            return bundle_node(entry, self.groups, self._nodes)
        if is_awaited(entry, self._nodes):
            return ""
        choice = self._choose(entry, wish_of(entry))
        if choice is None or (not choice.has_room and self.is_patient(entry)):
            return ""
        entry.takes_room = True
        return choice.node_id

    def next_node_for(self, entry: LeaseEntry) -> str:
        """The node for a request that waits at one that cannot grant it; or empty."""
        entry.bundle, entry.takes_room = None, False
        if entry.request.placement_group:
            return bundle_node(entry, self.groups, self._nodes)
        if is_awaited(entry, self._nodes):
            return ""
        hops = entry.moves if entry.asker else 0
        rested_s = self._now() - entry.sent_s
        if rested_s < pause_s(hops):
            return ""
        entry.takes_room = True
        wish, need = wish_of(entry), entry.need
        if self._is_followed:
            choice = self._known.index.choose(need, wish, without=entry.node)
            if choice is None or not choice.has_room:
                return ""
            if self._is_open(entry, choice.node_id):
                return choice.node_id
        views = self._open_views(entry)
        return stealing.thief(need, entry.node, hops, views, wish, rested_s=rested_s)

    def told_count(self, node_id: str) -> int:
        """How often a node has told its load."""
        node = self._nodes.find(node_id)
        return node.told_count if node is not None else 0

    def _choose(
        self, entry: LeaseEntry, wish: placement.Wish
    ) -> placement.Choice | None:
        need = entry.need
        if self._is_followed:
            skipped = "" if entry.is_away else entry.asker
            choice = self._known.index.choose(need, wish, without=skipped)
            if choice is None or self._is_open(entry, choice.node_id):
                return choice
        views = self._open_views(entry)
        self._spread += wish.is_spread
        choice = placement.choose(need, views, wish, draw=self._spread)
        if choice is None and views and not self._nodes.is_cluster:
            # The only node there can be: it waits there, as all else does.
            return placement.Choice(views[0].node_id, False)
        return choice

    def _is_open(self, entry: LeaseEntry, node_id: str) -> bool:
        """Whether a lease may go to a node (rule 3 of :mod:`..lineage.stealing`)."""
        left = entry.left.get(node_id)
        return left is None or self.told_count(node_id) > left

    def _open_views(self, entry: LeaseEntry) -> list[placement.View]:
        views = self._views
        if views is None:
            views = self._known.views()
            if self._is_pass:
                self._views = views
        if not entry.left:
            return views
        if entry.asker and not entry.node and not entry.is_away:
            views = [one for one in views if one.node_id != entry.asker]
        told = {one: self.told_count(one) for one in entry.left}
        return stealing.open_to(views, entry.left, told)
