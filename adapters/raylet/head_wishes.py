"""What a request that came to the head wishes, over the nodes that the head knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rayshim.lineage import affinity
from rayshim.lineage.placement import Policy, View, Wish

if TYPE_CHECKING:
    from rayshim.adapters.raylet.head_nodes import NodeDirectory
    from rayshim.adapters.raylet.lease_entry import LeaseEntry


#: Used share of the own node from which less used ones are preferred. Ray's value.
SPREAD_THRESHOLD = 0.5


def policy_of(settings: Mapping[str, Any]) -> Policy:
    """How work without a wish is spread.

    The best node is always taken: the head counts what it places, so that it need not
    draw among good ones as Ray's nodes do, which know each other from hearsay.
    """
    name = "scheduler_spread_threshold"
    return Policy(float(settings.get(name, SPREAD_THRESHOLD)))


def wish_of(entry: LeaseEntry) -> Wish:
    """Where it would like to go."""
    request = entry.request
    return Wish(
        entry.home,
        request.nodes,
        request.soft,
        request.strategy == "SPREAD",
        request.strategy == affinity.WAIT,
        request.labels,
    )


def refusal_of(entry: LeaseEntry, nodes: NodeDirectory) -> str:
    """Why the nodes that it must run on never will, or an empty string."""
    request = entry.request
    if request.soft or not request.nodes:
        return ""
    return affinity.refusal(
        request.label,
        entry.need,
        {node_id: _view(nodes, node_id) for node_id in request.nodes},
        request.labels,
        request.strategy,
    )


def is_awaited(entry: LeaseEntry, nodes: NodeDirectory) -> bool:
    """Whether it is at the node that it would rather wait for than run elsewhere."""
    request = entry.request
    at = entry.node or ("" if entry.is_away else entry.asker)
    if request.strategy != affinity.WAIT or at not in request.nodes:
        return False
    view = _view(nodes, at)
    return view is not None and affinity.is_able(entry.need, view, request.labels)


def _view(nodes: NodeDirectory, node_id: str) -> View | None:
    node = nodes.find(node_id)
    if node is None:
        return None
    node.refresh()
    return View(node_id, node.total, node.available, node.labels)
