"""Lease requests that a raylet refuses when they come."""

from __future__ import annotations

from collections.abc import Mapping

from rayshim.adapters.wire import messages as wire
from rayshim.lineage.affinity import refusal
from rayshim.lineage.placement import View
from rayshim.lineage.resources import ResourceSet, Units


def refused_here(
    message: wire.RequestLease,
    need: Units,
    node_id: str,
    resources: ResourceSet,
    labels: Mapping[str, str],
) -> str:
    """Why a request is refused, or an empty string.

    Args:
        message: the request.
        need: its resources in units.
        node_id: this node.
        resources: all that the node has.
        labels: of the node.
    """
    if any(units < 0 for units in need.values()):
        return f"negative resources: {message.resources}"
    if message.soft or message.nodes != [node_id]:
        return ""
    view = View(node_id, resources.total, resources.available, labels)
    wanted: dict[str, View | None] = {node_id: view}
    return refusal(message.label, need, wanted, message.labels, message.strategy)
