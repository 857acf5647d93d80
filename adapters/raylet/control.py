"""The control service: requests of peers about the cluster as a whole."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.raylet.engine_service import EngineService
from rayshim.adapters.raylet.groups import Deferred, GroupService
from rayshim.adapters.raylet.kv import KeyValues
from rayshim.adapters.wire import messages as wire
from rayshim.lineage import explain
from rayshim.lineage.resources import to_amounts

if TYPE_CHECKING:
    from rayshim.adapters.raylet.server import NodeServer, Peer

logger = logging.getLogger(__name__)


class Explain(msgspec.Struct):
    """Payload of ``explain``."""

    lease_ids: list[bytes] = []
    actor_ids: list[bytes] = []


class Named(msgspec.Struct):
    """Payload of ``get_actor`` and ``list_named_actors``."""

    name: str = ""
    namespace: str | None = None
    all_namespaces: bool = False


class State(msgspec.Struct):
    """Payload of ``state``."""

    kind: str


class ControlService:
    """Answers requests; one instance on the head."""

    def __init__(self, server: NodeServer) -> None:
        self._server = server
        self.values = KeyValues()
        self.groups = GroupService(server, self.respond)
        #: Lease id -> calls that its owner has queued.
        self.backlogs: dict[bytes, int] = {}
        self.engine = EngineService(server, self.respond)
        self._shutdown: tuple[Peer, int] | None = None

    def request(self, peer: Peer, message: wire.Request) -> None:
        """Answers one request."""
        method = _METHODS.get(message.method)
        if method is None:
            error = f"the control service knows no method {message.method!r}"
            self.respond(peer, message.request_id, error=("ValueError", error))
            return
        try:
            value = method(self, peer, message)
        except Deferred:
            return
        except (ValueError, msgspec.MsgspecError) as failure:
            kind = "ValueError"
            if isinstance(failure, msgspec.MsgspecError):
                kind = "TypeError"
            self.respond(peer, message.request_id, error=(kind, str(failure)))
        except Exception as failure:
            logger.exception("%s failed", message.method)
            text = f"{message.method} failed: {type(failure).__name__}: {failure}"
            self.respond(peer, message.request_id, error=("RuntimeError", text))
        else:
            self.respond(peer, message.request_id, value=value)

    def respond(
        self,
        peer: Peer,
        request_id: int,
        *,
        value: Any = None,
        error: tuple[str, str] | None = None,
    ) -> None:
        """Sends the answer: a value, or an error's name and text."""
        name, content = ("", value) if error is None else error
        payload = msgspec.msgpack.encode(content)
        peer.connection.send(wire.Response(request_id, name, payload))

    def job_ended(self, job_id: bytes) -> None:
        """A driver is gone, and its placement groups with it."""
        self.groups.job_ended(job_id)

    def answer_shutdown(self) -> None:
        """Tells the driver that everything is gone."""
        if self._shutdown is not None:
            peer, request_id = self._shutdown
            self.respond(peer, request_id)
            peer.connection.flush()

    # Methods.

    def _nodes(self, peer: Peer, message: wire.Request) -> list[dict[str, Any]]:
        config = self._server.config
        return [
            {
                "NodeID": config.node_id,
                "Alive": True,
                "NodeManagerAddress": config.node_ip,
                "NodeManagerHostname": socket.gethostname(),
                "NodeManagerPort": 0,
                "ObjectManagerPort": 0,
                "ObjectStoreSocketName": config.store_dir,
                "RayletSocketName": config.socket_path,
                "MetricsExportPort": 0,
                "MetricsAgentPort": 0,
                "DashboardAgentListenPort": -1,
                "NodeName": config.node_ip,
                "RuntimeEnvAgentPort": 0,
                "DeathReason": 0,
                "DeathReasonMessage": "",
                "alive": True,
                "Resources": to_amounts(self._server.raylet.resources.total),
                "Labels": {"ray.io/node-id": config.node_id, **config.labels},
            }
        ]

    def _total(self, peer: Peer, message: wire.Request) -> dict[str, float]:
        return to_amounts(self._server.raylet.resources.total)

    def _available(self, peer: Peer, message: wire.Request) -> dict[str, float]:
        available = self._server.raylet.resources.available
        return {
            name: amount for name, amount in to_amounts(available).items() if amount > 0
        }

    def _get_actor(self, peer: Peer, message: wire.Request) -> dict[str, Any]:
        args = msgspec.msgpack.decode(message.payload, type=Named)
        return self._server.actors.find(args.name, args.namespace or "")

    def _named_actors(self, peer: Peer, message: wire.Request) -> list[dict[str, str]]:
        args = msgspec.msgpack.decode(message.payload, type=Named)
        namespace = None if args.all_namespaces else args.namespace or ""
        return self._server.actors.names(namespace)

    def _explain(self, peer: Peer, message: wire.Request) -> list[str]:
        args = msgspec.msgpack.decode(message.payload, type=Explain)
        raylet, now = self._server.raylet, self._server.now()
        lines = []
        for lease_id in args.lease_ids:
            lines += explain.lease(raylet, lease_id, now)
        for actor_id in args.actor_ids:
            lines += self._server.actors.explain(actor_id, now)
        return lines

    def _cluster_info(self, peer: Peer, message: wire.Request) -> dict[str, Any]:
        config = self._server.config
        return {
            "session": config.session,
            "dask_address": self.engine.address,
            "node_ip": config.node_ip,
            "node_id": config.node_id,
            "address": config.address,
            "pid": os.getpid(),
            "namespace": config.namespace,
        }

    def _state(self, peer: Peer, message: wire.Request) -> list[dict[str, Any]]:
        kind = msgspec.msgpack.decode(message.payload, type=State).kind
        server = self._server
        if kind == "actors":
            return server.actors.rows()
        if kind == "leases":
            return explain.lease_rows(server.raylet, server.now(), self.backlogs)
        if kind in ("executors", "workers"):
            return explain.executor_rows(server.raylet, server.now())
        if kind == "nodes":
            return self._nodes(peer, message)
        if kind == "placement_groups":
            return self.groups.rows()
        raise ValueError(f"there is no state of kind {kind!r}")

    def _end(self, peer: Peer, message: wire.Request) -> None:
        self._shutdown = (peer, message.request_id)
        self._server.end("the driver asked for it")
        raise Deferred


_C = ControlService
_METHODS: dict[str, Callable[[ControlService, Peer, wire.Request], Any]] = {
    "nodes": _C._nodes,
    "cluster_resources": _C._total,
    "available_resources": _C._available,
    "get_actor": _C._get_actor,
    "list_named_actors": _C._named_actors,
    "explain": _C._explain,
    "cluster_info": _C._cluster_info,
    "state": _C._state,
    "dask_address": lambda self, peer, message: self.engine.wait(peer, message),
    "shutdown": _C._end,
    "kv_put": lambda self, peer, message: self.values.put(message.payload),
    "kv_get": lambda self, peer, message: self.values.get(message.payload),
    "kv_del": lambda self, peer, message: self.values.delete(message.payload),
    "kv_list": lambda self, peer, message: self.values.list(message.payload),
    "kv_exists": lambda self, peer, message: self.values.exists(message.payload),
    "create_placement_group": lambda self, peer, message: self.groups.create(
        peer, message
    ),
    "wait_placement_group": lambda self, peer, message: self.groups.wait(peer, message),
    "remove_placement_group": lambda self, peer, message: self.groups.remove(message),
    "placement_group_table": lambda self, peer, message: self.groups.table(message),
}
