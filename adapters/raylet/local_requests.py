"""What the raylet of a node process answers itself: questions about this node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.wire import messages as wire
from rayshim.lineage import explain

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import Peer
    from rayshim.adapters.raylet.server import NodeServer


class LocalRequests:
    """Answers ``explain`` of leases, ``state`` of leases and executors, and who it is.

    Args:
        server: The node.
    """

    def __init__(self, server: NodeServer) -> None:
        self._server = server

    def take(self, server: Any, peer: Peer, message: wire.Request) -> None:
        """Answers one request."""
        error, value = "", None
        try:
            value = self._answer(message.method, message.payload)
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as failure:
            error, value = "ValueError", str(failure)
        payload = msgspec.msgpack.encode(value)
        peer.connection.send(wire.Response(message.request_id, error, payload))

    def _answer(self, method: str, payload: bytes) -> Any:
        server = self._server
        raylet, now = server.raylet, server.now()
        if method == "explain":
            args = msgspec.msgpack.decode(payload)
            return [
                line
                for lease_id in args.get("lease_ids") or ()
                for line in explain.lease(raylet, lease_id, now)
            ]
        if method == "state":
            kind = msgspec.msgpack.decode(payload)["kind"]
            if kind == "leases":
                return explain.lease_rows(raylet, now, server.backlogs)
            if kind in ("executors", "workers"):
                return explain.executor_rows(raylet, now)
        if method == "cluster_info":
            config = server.config
            return {
                "session": config.session,
                "node_ip": config.node_ip,
                "node_id": config.node_id,
                "address": config.address,
                "control_address": config.head_address,
                "pid": os.getpid(),
            }
        raise ValueError(
            f"this node does not answer {method!r}: ask the control service at "
            f"{self._server.config.head_address}"
        )
