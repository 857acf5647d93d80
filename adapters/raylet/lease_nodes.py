"""The nodes among which the placer of leases chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayshim.lineage.node_index import NodeIndex
from rayshim.lineage.placement import Policy, View, fits

if TYPE_CHECKING:
    from rayshim.adapters.raylet.groups import GroupService
    from rayshim.adapters.raylet.head_nodes import KnownNode, NodeDirectory
    from rayshim.adapters.raylet.lease_engine import Engine
    from rayshim.adapters.raylet.lease_entry import LeaseEntry


class PlacerNodes:
    """What nodes have, noted when they say it.

    A node in this process says nothing, and is looked at each time.

    Args:
        directory: The nodes of the control service.
        engine: Which must know a node, too, if there is one.
        policy: How work without a wish is spread.
        is_told: Whether nodes say what they have.
    """

    def __init__(
        self, directory: NodeDirectory, engine: Engine, policy: Policy, is_told: bool
    ) -> None:
        self._directory = directory
        self._engine = engine
        self._is_told = is_told
        self.index = NodeIndex(policy)
        #: There may be more room than at the last pass over what waits.
        self.has_news = True
        self._changes = 0

    def note(self, node: KnownNode) -> None:
        """Takes note of what a node has, and whether it may get work."""
        if not self._is_told:
            return
        node_id, tasks = node.node_id, self._engine.tasks
        if node.has_news:
            node.has_news, self.has_news = False, True
        if (
            node.load is not None
            and self._directory.machine.is_usable(node_id)
            and (tasks is None or tasks.has_node(node_id))
        ):
            if node_id not in self.index:
                self.has_news = True
            self.index.put(View(node_id, node.total, node.available, node.labels))
        else:
            self.index.pause(node_id)

    def note_all(self) -> None:
        """Takes note of every node."""
        for node in self._directory.alive():
            self.note(node)

    def drop(self, node_id: str) -> None:
        """A node is dead."""
        self.index.drop(node_id)
        self.has_news = True  # Of what waits for it alone.

    def take_news(self) -> bool:
        """Whether there may be more room than when this was asked last."""
        directory = self._directory
        for node_id in directory.given:
            node = directory.find(node_id)
            if node is not None:
                self.note(node)
        directory.given.clear()
        if self._changes != directory.changes:
            self._changes = directory.changes
            self.has_news = True
        found, self.has_news = self.has_news, not self._is_told
        return found

    def views(self) -> list[View]:
        """The nodes that may get work, in order of joining."""
        if self._is_told:
            return self.index.views()
        return [
            View(node.node_id, node.total, node.available, node.labels)
            for node in self._directory.usable()
        ]


def bundle_node(entry: LeaseEntry, groups: GroupService, nodes: NodeDirectory) -> str:
    """The node of a bundle that a request in a placement group may use; or empty."""
    request = entry.request
    group, index = request.placement_group, request.bundle_index
    places = groups.places(group)
    if index >= 0:
        node_id = places.get(index, "")
        if node_id == entry.node or nodes.find(node_id) is None:
            return ""
        return node_id
    best = ""
    for at, node_id in places.items():
        node = nodes.find(node_id)
        if node is None or node_id == entry.node:
            continue
        if node_id == entry.asker and not entry.is_away:
            continue
        best = best or node_id
        node.refresh()
        if fits(entry.need, node.bundles.get((group, at), {})):
            entry.bundle = (group, at)
            return node_id
    if (entry.asker and not entry.is_away) or entry.node:
        return ""
    return best
