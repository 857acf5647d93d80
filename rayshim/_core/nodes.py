"""The nodes of the cluster, as this process was told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayshim.adapters.wire import node_messages as n
from rayshim.adapters.wire.address import node_of
from rayshim.adapters.wire.channel import Channel

if TYPE_CHECKING:
    from rayshim._core.evacuating import Evacuation
    from rayshim._core.peer import MessageHandler, Peer


class NodeDirectory:
    """Who is there, who died and why; empty in a session on one node."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        #: Hex id -> node.
        self.nodes: dict[str, n.NodeInfo] = {}
        #: First 8 hex digits of the id -> node.
        self._short: dict[str, n.NodeInfo] = {}
        #: Takes values away from nodes that leave; None before the first one does.
        self._evacuation: Evacuation | None = None

    def handlers(self) -> dict[type, MessageHandler]:
        """The messages that this part handles."""
        return {n.NodeTable: self._on_table}

    def dead_node_of(self, address: str) -> n.NodeInfo | None:
        """The dead node that a process lived on, or None."""
        info = self._short.get(node_of(address))
        return info if info is not None and not info.alive else None

    def alive_ids(self) -> list[str]:
        """Hex ids of the nodes that are not dead; empty in a session on one node."""
        return [info.node_id for info in self.nodes.values() if info.alive]

    def describe(self, address: str) -> str:
        """Where a process lives or lived, for errors."""
        info = self._short.get(node_of(address))
        if info is None:
            return "this node" if not node_of(address) else f"node {node_of(address)}"
        return f"node {info.node_id} ({info.node_ip})"

    def raylet_of(self, node_id: str) -> str:
        """Address of the raylet of a live node, or an empty string."""
        info = self.nodes.get(node_id)
        return info.address if info is not None and info.alive else ""

    def _on_table(self, channel: Channel, table: n.NodeTable) -> None:
        dead = []
        for info in table.nodes:
            before = self.nodes.get(info.node_id)
            if before is not None and not before.alive:
                continue  # the dead do not come back
            self.nodes[info.node_id] = info
            self._short[info.node_id[:8]] = info
            if not info.alive:
                dead.append(info)
        for info in dead:
            self._peer.node_died(info)
        leaving = frozenset(
            info.node_id for info in table.nodes if info.alive and info.draining
        )
        if leaving and self._evacuation is None:
            from rayshim._core.evacuating import Evacuation

            self._evacuation = Evacuation(self._peer)
        if self._evacuation is not None:
            self._evacuation.leave(leaving)
