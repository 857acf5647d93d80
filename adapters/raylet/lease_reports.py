"""What the head says of the leases that go through it, to people and tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayshim.lineage import placement
from rayshim.lineage.resources import Units, describe

if TYPE_CHECKING:
    from rayshim.adapters.raylet.head_leases import LeasePlacer

#: Nodes that one explanation names.
SHOWN_NODES = 8


def explain(placer: LeasePlacer, lease_id: bytes) -> list[str]:
    """Why a request waits; empty if it is not here."""
    entry = placer._entries.get(lease_id)
    if entry is None:
        return []
    request = entry.request
    age = f"{placer.now() - entry.since_s:.1f} s"
    text = f"{request.label} waits for {age}: needs {describe(entry.need)}"
    if request.placement_group:
        return [f"{text} of {placer.groups.describe(request.placement_group)}"]
    if request.nodes and not request.soft:
        text += f" on node {', '.join(one[:8] for one in request.nodes)}"
    if request.labels:
        wanted = " or ".join(str(one) for one in request.labels)
        text += f" on a node with labels {wanted}"
    return [f"{text}; {describe_nodes(placer, entry.need)}"]


def describe_nodes(placer: LeasePlacer, need: Units) -> str:
    """What each node has of what is needed."""
    parts, able = [], False
    for node in placer.nodes.alive():
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


def rows(placer: LeasePlacer) -> list[dict[str, Any]]:
    """One row for each request, by arrival."""
    now = placer.now()
    return [
        {
            "lease_id": lease_id.hex(),
            "label": entry.request.label,
            "resources": entry.request.resources,
            "asker": entry.asker,
            "sent_to": entry.node,
            "seconds": now - entry.since_s,
        }
        for lease_id, entry in placer._entries.items()
    ]


def task_rows(placer: LeasePlacer) -> list[dict[str, Any]]:
    """One row for each lease task, by arrival."""
    rows = [
        {
            "key": f"lease-{lease_id.hex()}",
            "state": entry.state,
            "node": entry.node,
            "hops": entry.moves,
            "label": entry.request.label,
            "is_stuck": entry.is_stuck,
            "engine": "",
        }
        for lease_id, entry in sorted(
            [*placer._entries.items(), *placer._placed.items()],
            key=lambda item: item[1].priority,
        )
    ]
    if placer.engine.tasks is not None:
        known = {
            f"lease-{lease_id.hex()}": (state, node_id)
            for lease_id, state, node_id in placer.engine.tasks.states()
        }
        for row in rows:
            if row["key"] in known:
                row["state"], row["node"] = known[str(row["key"])]
                row["engine"] = "dask"
    return rows
