"""The nodes of the cluster in the words of requests."""

from __future__ import annotations

from typing import Any

from rayshim.adapters.raylet.head_nodes import KnownNode, NodeDirectory
from rayshim.adapters.wire.node_messages import NodeInfo
from rayshim.lineage import membership
from rayshim.lineage.resources import Units, to_amounts


def public_rows(directory: NodeDirectory) -> list[dict[str, Any]]:
    """One row for each node, dead ones too, with the keys of ``ray.nodes()``."""
    return [
        _public_row(directory, node)
        for node in directory.known.values()
        if not node.is_client
    ]


def _public_row(directory: NodeDirectory, node: KnownNode) -> dict[str, Any]:
    join, info = node.join, directory.info(node)
    return {
        "NodeID": info.node_id,
        "Alive": info.alive,
        "NodeManagerAddress": info.node_ip,
        "NodeManagerHostname": join.hostname,
        "NodeManagerPort": 0,
        "ObjectManagerPort": 0,
        "ObjectStoreSocketName": join.store_dir,
        "RayletSocketName": join.socket_path,
        "MetricsExportPort": join.metrics_port,
        "MetricsAgentPort": 0,
        "DashboardAgentListenPort": -1,
        "NodeName": info.node_ip,
        "RuntimeEnvAgentPort": 0,
        "DeathReason": _death_reason(info),
        "DeathReasonMessage": info.death,
        "alive": info.alive,
        "Resources": join.resources if info.alive else {},
        "Labels": {"ray.io/node-id": info.node_id, **join.labels},
    }


def full_rows(directory: NodeDirectory) -> list[dict[str, Any]]:
    """One row for each node with all that a driver or tool needs to reach it."""
    rows = []
    for node in directory.known.values():
        node.refresh()
        join, info = node.join, directory.info(node)
        rows.append(
            {
                "node_id": info.node_id,
                "address": info.address,
                "flight_address": info.flight_address,
                "node_ip": info.node_ip,
                "listen_ip": info.node_ip if info.address[:4] == "tcp:" else "",
                "hostname": join.hostname,
                "pid": join.pid,
                "alive": info.alive,
                "usable": directory.machine.is_usable(node.node_id),
                "died_s": info.died_s,
                "death": info.death,
                "is_head_node": join.is_head_node,
                "is_client": node.is_client,
                "session_dir": join.session_dir,
                "store_dir": join.store_dir,
                "socket_path": join.socket_path,
                "resources": join.resources,
                "available": to_amounts(node.available),
                "object_store_limit_bytes": int(
                    join.resources.get("object_store_memory", 0)
                ),
                "labels": join.labels,
                "draining": info.draining,
                "drain_note": node.load.drain_note if node.load else "",
            }
        )
    return rows


def total(directory: NodeDirectory) -> dict[str, float]:
    """What all live nodes have together."""
    summed: Units = {}
    for node in directory.alive():
        _add(summed, node.total)
    return to_amounts(summed)


def available(directory: NodeDirectory) -> dict[str, float]:
    """What nobody holds, of all live nodes."""
    summed: Units = {}
    for node in directory.alive():
        _add(summed, node.free)
    return {name: amount for name, amount in to_amounts(summed).items() if amount > 0}


def _add(summed: Units, units: Units) -> None:
    for name, count in units.items():
        summed[name] = summed.get(name, 0) + count


def _death_reason(info: NodeInfo) -> int:
    """Ray's number: 0 alive (or not told), 1 left as asked, 2 died unexpectedly."""
    if info.alive:
        return 0
    return 1 if info.death.startswith(membership.LEFT) else 2
