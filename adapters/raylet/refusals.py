"""Lease requests that a raylet refuses when they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rayshim.adapters.wire import messages as wire
from rayshim.lineage.affinity import refusal
from rayshim.lineage.placement import View
from rayshim.lineage.resources import Units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.config import NodeConfig
    from rayshim.lineage.raylet import Raylet

#: Why the node of a remote driver grants nothing.
RUNS_NOTHING = (
    "the node is the store of a driver on a host without a node, and runs nothing; "
    "name one of nodes()"
)


def refused_here(
    message: wire.RequestLease,
    need: Units,
    config: NodeConfig,
    raylet: Raylet,
    labels: Mapping[str, str],
) -> str:
    """Why a request is refused, or an empty string.

    Args:
        message: the request.
        need: its resources in units.
        config: of this node.
        raylet: which knows all that the node has.
        labels: of the node.
    """
    if any(units < 0 for units in need.values()):
        return f"negative resources: {message.resources}"
    node_id, resources = config.node_id, raylet.resources
    if message.soft or message.nodes != [node_id]:
        return ""
    if config.is_client:
        return RUNS_NOTHING
    view = View(node_id, resources.total, resources.available, labels)
    wanted: dict[str, View | None] = {node_id: view}
    return refusal(message.label, need, wanted, message.labels, message.strategy)
