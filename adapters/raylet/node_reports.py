"""What a node tells the head about itself: when it joins, and when that changes."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from rayshim.adapters.wire import node_messages as nodes
from rayshim.lineage.resources import to_amounts

if TYPE_CHECKING:
    from rayshim.adapters.raylet.server import NodeServer

#: Leases of actors are held by ``actor:HEX`` on behalf of the control service.
ACTOR_HOLDER = "actor:"


def join_message(server: NodeServer) -> nodes.JoinNode:
    """Who this node is, and what it runs for the control service."""
    config, raylet = server.config, server.raylet
    actors = []
    for lease_id, lease in raylet.leases.items():
        executor = lease.executor
        if executor is None or not lease.request.holder.startswith(ACTOR_HOLDER):
            continue
        environments = server._environments
        if environments is not None and environments.keeps(lease_id):
            continue  # The head gets to know when its environment is there.
        actors.append(
            nodes.RunningActor(
                lease_id[9:],
                int.from_bytes(lease_id[5:9], "big"),
                executor.worker_id,
                executor.address,
                executor.pid,
                server._created.get(executor.worker_id, ""),
                executor.worker_id in server._created,
                lease.allocation.gpu_ids if lease.allocation else [],
            )
        )
    return nodes.JoinNode(
        nodes.NodeInfo(
            config.node_id,
            config.address,
            server._flight_address,
            config.node_ip,
            True,
            draining=server.drain is not None,
        ),
        to_amounts(raylet.resources.total),
        config.labels,
        socket.gethostname(),
        server.pid,
        config.is_head_node,
        config.session_dir,
        config.store_dir,
        config.socket_path,
        actors,
        [
            nodes.HeldBundle(group, index, to_amounts(bundle.allocation.units))
            for group, bundles in raylet.groups.items()
            for index, bundle in bundles.items()
        ],
        server.metrics_door.port,
    )


def load_message(server: NodeServer) -> nodes.NodeLoad:
    """What the node has free now."""
    raylet, store = server.raylet, server.store
    return nodes.NodeLoad(
        to_amounts(raylet.resources.available),
        [(label, to_amounts(need), count) for label, need, count in raylet.demand()],
        store_used_bytes=store.used_bytes,
        store_limit_bytes=store.limit_bytes,
        spilled_bytes=sum(store.spilled.values()),
        primary_bytes=store.primary_bytes,
        drain_note=server.drain_note,
        bundles=[
            nodes.HeldBundle(group, index, to_amounts(bundle.resources.available))
            for group, bundles in raylet.groups.items()
            for index, bundle in bundles.items()
        ],
    )
