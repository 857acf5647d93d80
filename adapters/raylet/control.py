"""The control service: requests of peers about the cluster as a whole."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.raylet import node_rows, package_store, reachability
from rayshim.adapters.raylet.actor_service import ActorService
from rayshim.adapters.raylet.channels import ChannelServer, Handler, Peer
from rayshim.adapters.raylet.engine_service import EngineService
from rayshim.adapters.raylet.event_log import EventLog
from rayshim.adapters.raylet.groups import Deferred, GroupService
from rayshim.adapters.raylet.head_leases import LeasePlacer
from rayshim.adapters.raylet.head_nodes import NodeDirectory
from rayshim.adapters.raylet.infeasible import Infeasible
from rayshim.adapters.raylet.kv import KeyValues
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire import versions
from rayshim.adapters.wire.ask_messages import Told
from rayshim.adapters.wire.codec import Message
from rayshim.adapters.wire.why_messages import WhyTold
from rayshim.lineage import explain

if TYPE_CHECKING:
    from rayshim.adapters.raylet.autoscaler_notes import AutoscalerNotes
    from rayshim.adapters.raylet.demand_service import DemandService
    from rayshim.adapters.raylet.head_state import HeadState
    from rayshim.adapters.raylet.server import NodeServer
    from rayshim.adapters.raylet.why_service import WhyService

logger = logging.getLogger(__name__)

#: Bytes that may wait for a driver before lines of other nodes are dropped.
MAX_UNSENT_LOG_BYTES = 64 << 20
#: Looks at limits of time in one time limit of a node.
LOOKS = 10


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


class Attach(msgspec.Struct):
    """Payload of ``attach``."""

    hostname: str = ""
    #: Whether the driver can work without a node on its host.
    is_remote_ok: bool = False


class Drain(msgspec.Struct):
    """Payload of ``drain_node``."""

    node_id: str
    graceful: bool = True
    reason: str = "it was asked to leave"
    #: The rest as in :class:`~rayshim.adapters.wire.node_messages.LeaveCluster`.
    limit_s: float = -1.0
    is_refusable: bool = False
    waits_work: bool = True


class ControlService:
    """Answers requests and keeps what concerns the whole cluster; one on the head.

    Its state is in few places: :attr:`values`, :attr:`nodes`, :attr:`actors`,
    :attr:`groups`, :attr:`job_count`; what :attr:`placer` holds is asked anew by the
    nodes.

    Args:
        server: The process that it is in: a head, or the node that is the head too.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self.now = server.now
        #: The journal, where the control service may outlive its process.
        self.state: HeadState | None = None
        #: The node in this process, if there is one.
        self.local: NodeServer | None = None
        self.values = KeyValues()
        self.nodes = NodeDirectory(server)
        self.placer = LeasePlacer(server, self.nodes)
        self.groups = GroupService(server, self.nodes, self.respond)
        self.actors = ActorService(server, self)
        self.placer.groups = self.groups
        self.groups.actors = self.actors
        self.placer.on_refused = self.actors.refused
        self.nodes.on_settled.append(self.groups.settled)
        #: Takes note of what happens to nodes, jobs, actors and groups.
        self.event_log = EventLog(self, server)
        self._why: WhyService | None = None
        self.infeasible = Infeasible(self, server)
        self._autoscaler_notes: AutoscalerNotes | None = None
        self._demand: DemandService | None = None
        #: ``HOST:PORT`` of the HTTP endpoint; empty without one.
        self.http_address = ""
        #: Files of runtime_envs; None until the first.
        self.packages: package_store.PackageStore | None = None
        self.engine = EngineService(server, self.respond)
        self.engine.on_tasks = self.placer.attach
        #: Jobs so far; a session of ``init()`` begins with that of its driver.
        self.job_count = 1 if server.config.job_id else 0
        self._shutdown: tuple[Peer, int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look_s = self.nodes.machine.timeout_s / LOOKS

    def handlers(self) -> dict[type, Handler]:
        """The messages of peers and nodes that it takes."""

        def request(server: Any, peer: Peer, message: wire.Request) -> None:
            self.request(peer, message)

        def lease(server: Any, peer: Peer, message: wire.RequestLease) -> None:
            server._request_lease(peer, message)
            self.infeasible.look(message)

        def actor(server: Any, peer: Peer, message: Any) -> None:
            self.actors.message(peer, message)

        def wait(server: Any, peer: Peer, message: nodes.WaitReport) -> None:
            from rayshim.adapters.raylet import wait_service

            wait_service.report(server, peer, message)

        def why_told(server: Any, peer: Peer, message: WhyTold) -> None:
            self.why.told(message)

        def joined(server: Any, peer: Peer, message: nodes.JoinNode) -> None:
            self.nodes.joined(peer, message)

        def loaded(server: Any, peer: Peer, message: nodes.NodeLoad) -> None:
            self.nodes.loaded(peer, message)

        def left(server: Any, peer: Peer, message: nodes.LeaveCluster) -> None:
            self.nodes.leaving(peer, message)

        def node(server: Any, peer: Peer, message: Any) -> None:
            if self.nodes.find(peer.node_id) is not None:
                self.from_node(peer.node_id, message)

        return {
            wire.Request: request,
            **dict.fromkeys(self.actors.kinds(), actor),
            nodes.WaitReport: wait,
            # In a session on one node requests come to the node in this process.
            **({wire.RequestLease: lease} if self._server.config.with_raylet else {}),
            WhyTold: why_told,
            nodes.JoinNode: joined,
            nodes.NodeLoad: loaded,
            nodes.LeaveCluster: left,
            **{
                kind: node
                for kind in _FROM_NODE
                # In the process of a node executors say these to the node.
                if self._server.config.with_raylet is False or kind not in _OF_EXECUTORS
            },
            # Of processes as well as of nodes.
            Told: lambda server, peer, message: server.questions.told(message),
        }

    def keep_journal(self, state: HeadState) -> None:
        """Writes every change before it counts, from now on."""
        self.state = state
        self.values.on_change = state.value_changed
        self.groups.on_change = state.group_changed
        self.actors.on_change = state.actors_changed
        self.actors.on_forget = state.actor_forgotten
        self.nodes.on_joined.append(lambda node: state.node_joined(node.join))
        self.nodes.on_died.append(lambda node, death: state.node_died(node))

    def start(self) -> None:
        """Looks at limits of time from now on, if other nodes may join."""
        self._server.metrics_door.watch(self.nodes)
        if self._server.config.listen_ip:
            self._look()

    def stop(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        local = self.local.config.node_id if self.local is not None else ""
        self.nodes.look(local)
        self._timer = self._server.loop.call_later(self._look_s, self._look)

    def from_node(self, node_id: str, message: Message) -> None:
        """Takes what a node says, whichever way it came."""
        _FROM_NODE[type(message)](self, node_id, message)

    def peer_came(self, peer: Peer) -> None:
        """A peer said hello."""
        if peer.role == "driver":
            self.event_log.driver_came(peer)
        if self.state is not None:
            self.state.owner_came(peer.address)
            if peer.role == "driver":
                self.state.driver_came(peer.job_id, peer.address)
        is_shared = bool(self._server.config.listen_ip) and self.local is None
        if is_shared and peer.role in ("driver", "executor"):
            peer.connection.send(self.nodes.table())

    def peer_left(self, peer: Peer) -> None:
        """A peer's channel is at its end."""
        if peer.role == "raylet":
            self.nodes.peer_left(peer)
            return
        if peer.role == "remote":
            return
        self.actors.peer_gone(peer.address)
        self.groups.peer_left(peer)
        if peer.role == "driver":
            self.event_log.driver_left(peer)
            self.job_gone(peer.job_id)

    def job_gone(self, job_id: bytes) -> None:
        """A driver is gone, and all that it had in the cluster goes with it."""
        self.groups.job_ended(job_id)
        self.nodes.broadcast(nodes.JobEnded(job_id))
        if self.state is not None:
            self.state.driver_left(job_id)

    def _log_lines(self, node_id: str, message: wire.LogLines) -> None:
        driver = self._server.drivers.get(message.job_id)
        if driver is None:
            return
        if driver.connection.unsent_bytes > MAX_UNSENT_LOG_BYTES:
            logger.warning(
                "dropped %d lines of pid %d: the driver does not read",
                len(message.lines),
                message.pid,
            )
            return
        driver.connection.send(message)

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
        """Sends the answer, a value or an error's name and text, if one is awaited."""
        if not request_id:
            return
        name, content = ("", value) if error is None else error
        payload = msgspec.msgpack.encode(content)
        peer.connection.send(wire.Response(request_id, name, payload))

    def answer_shutdown(self) -> None:
        """Tells the driver that everything is gone."""
        if self._shutdown is not None:
            peer, request_id = self._shutdown
            self.respond(peer, request_id)
            peer.connection.flush()

    # Methods.

    def _nodes(self, peer: Peer, message: wire.Request) -> list[dict[str, Any]]:
        return node_rows.public_rows(self.nodes)

    def _node_table(self, peer: Peer, message: wire.Request) -> list[dict[str, Any]]:
        return node_rows.full_rows(self.nodes)

    def _total(self, peer: Peer, message: wire.Request) -> dict[str, float]:
        return node_rows.total(self.nodes)

    def _available(self, peer: Peer, message: wire.Request) -> dict[str, float]:
        return node_rows.available(self.nodes)

    def _register_job(self, peer: Peer, message: wire.Request) -> int:
        self.job_count += 1
        if self.state is not None:
            self.state.jobs_counted(self.job_count)
        return self.job_count

    def _attach(self, peer: Peer, message: wire.Request) -> dict[str, Any]:
        """A node of the asking host, and a number for its job."""
        args = msgspec.msgpack.decode(message.payload, type=Attach)
        hostname = args.hostname
        rows = [row for row in node_rows.full_rows(self.nodes) if row["usable"]]
        here = [row for row in rows if row["hostname"] == hostname]
        if not here and self.nodes.is_expecting():
            return {"node": None, "nodes": []}  # after a restart: nodes are coming back
        if not here and not args.is_remote_ok:
            names = ", ".join(sorted({row["hostname"] for row in rows})) or "none"
            raise ValueError(
                f"no live node of the cluster runs on host {hostname!r}, where this "
                f"driver is (hosts with nodes: {names}); start one there, or run the "
                "driver on one of them"
            )
        here.sort(key=lambda row: not row["is_head_node"])
        return {
            "node": here[0] if here else {},
            "nodes": here,
            "head_address": self._server.config.address,
            "job_id": self._register_job(peer, message),
        }

    def _drain(self, peer: Peer, message: wire.Request) -> bool:
        args = msgspec.msgpack.decode(message.payload, type=Drain)
        order = nodes.LeaveCluster(
            args.reason,
            args.graceful,
            args.limit_s,
            args.is_refusable,
            args.waits_work,
        )
        return self.nodes.send(args.node_id, order)

    def _get_actor(self, peer: Peer, message: wire.Request) -> dict[str, Any]:
        args = msgspec.msgpack.decode(message.payload, type=Named)
        return self.actors.find(args.name, args.namespace or "")

    def _named_actors(self, peer: Peer, message: wire.Request) -> list[dict[str, str]]:
        args = msgspec.msgpack.decode(message.payload, type=Named)
        namespace = None if args.all_namespaces else args.namespace or ""
        return self.actors.names(namespace)

    def _explain(self, peer: Peer, message: wire.Request) -> list[str]:
        args = msgspec.msgpack.decode(message.payload, type=Explain)
        now = self._server.now()
        lines = []
        for lease_id in args.lease_ids:
            lines += self.explain_lease(lease_id)
        for actor_id in args.actor_ids:
            lines += self.actors.explain(actor_id, now)
        return lines

    def _place_lease(self, node_id: str, message: nodes.PlaceLease) -> None:
        self.placer.ask(node_id, message.request, message.is_away)
        self.infeasible.look(message.request)

    def place_actor(self, request: wire.RequestLease, home: str) -> None:
        """An actor needs an executor somewhere, best on the node ``home``."""
        self.placer.place(request, home)
        self.infeasible.look(request)

    @property
    def why(self) -> WhyService:
        """Puts explanations together; made at the first question."""
        if self._why is None:
            from rayshim.adapters.raylet.why_service import WhyService

            self._why = WhyService(self, self._server)
        return self._why

    @property
    def autoscaler_notes(self) -> AutoscalerNotes:
        """What the autoscaler said last; made at the first use."""
        if self._autoscaler_notes is None:
            from rayshim.adapters.raylet.autoscaler_notes import AutoscalerNotes

            self._autoscaler_notes = AutoscalerNotes(self._server)
        return self._autoscaler_notes

    @property
    def demand(self) -> DemandService:
        """What the cluster lacks; made at the first question."""
        if self._demand is None:
            from rayshim.adapters.raylet.demand_service import DemandService

            self._demand = DemandService(self, self._server)
        return self._demand

    def explain_lease(self, lease_id: bytes) -> list[str]:
        """Why a request for a lease waits."""
        lines: list[str] = []
        if self.local is not None and not self.nodes.is_cluster:
            now = self._server.now()
            lines = explain.lease(self.local.raylet, lease_id, now)
        return lines or self.placer.explain(lease_id)

    def _cluster_info(self, peer: Peer, message: wire.Request) -> dict[str, Any]:
        config = self._server.config
        return {
            "session": config.session,
            "dask_address": self.engine.address,
            "dask_dashboard": self.engine.dashboard_url,
            "node_ip": config.node_ip,
            "node_id": config.node_id,
            "address": config.address,
            "pid": os.getpid(),
            "namespace": config.namespace,
            "http_address": self.http_address,
            "dashboard_url": config.dashboard_url,
            "client_port": config.client_port,
            "versions": versions.own(),
        }

    def _raylet(self, kind: str) -> NodeServer:
        if self.local is None:
            raise ValueError(
                f"the head runs no {kind}: ask the nodes (their raylets answer 'state')"
            )
        return self.local

    def _state(self, peer: Peer, message: wire.Request) -> list[dict[str, Any]]:
        kind = msgspec.msgpack.decode(message.payload, type=State).kind
        now = self._server.now()
        if kind == "actors":
            return self.infeasible.actor_rows(self.actors.rows())
        if kind == "leases":
            local = self._raylet(kind)
            return explain.lease_rows(local.raylet, now, local.backlogs)
        if kind in ("executors", "workers"):
            return explain.executor_rows(self._raylet(kind).raylet, now)
        if kind == "demand":
            return self.infeasible.demand_rows(self.placer.rows())
        if kind == "lease_tasks":
            return self.placer.task_rows()
        if kind == "autoscaler":
            return self.autoscaler_notes.rows()
        if kind == "nodes":
            return self._nodes(peer, message)
        if kind == "placement_groups":
            return self.infeasible.group_rows(self.groups.rows())
        raise ValueError(f"there is no state of kind {kind!r}")

    def _state_rows(self, peer: Peer, message: wire.Request) -> list[dict[str, Any]]:
        from rayshim.adapters.raylet import state_rows

        return state_rows.answer(self, message.payload)

    def _end(self, peer: Peer, message: wire.Request) -> None:
        self._shutdown = (peer, message.request_id)
        self._server.end("the driver asked for it")
        raise Deferred


def _head_metrics(control: ControlService, peer: Peer, message: wire.Request) -> Any:
    from rayshim.adapters.raylet import metric_service

    return metric_service.request_head(control, control._server, peer, message)


_C = ControlService
_METHODS: dict[str, Callable[[ControlService, Peer, wire.Request], Any]] = {
    "nodes": _C._nodes,
    "node_table": _C._node_table,
    "register_job": _C._register_job,
    "attach": _C._attach,
    "can_reach": lambda self, peer, message: reachability.ask(self, peer, message),
    "drain_node": _C._drain,
    "autoscaler_report": lambda self, peer, message: self.autoscaler_notes.take(
        message.payload
    ),
    "autoscaler_status": lambda self, peer, message: self.autoscaler_notes.lines(),
    "demand": lambda self, peer, message: self.demand.answer(),
    "request_resources": lambda self, peer, message: self.demand.request_resources(
        message.payload
    ),
    "cluster_resources": _C._total,
    "available_resources": _C._available,
    "get_actor": _C._get_actor,
    "list_named_actors": _C._named_actors,
    "explain": _C._explain,
    "ask": lambda self, peer, message: self._server.questions.request(
        self, peer, message
    ),
    "why": lambda self, peer, message: self.why.request(peer, message),
    "cluster_info": _C._cluster_info,
    "state": _C._state,
    "state_rows": _C._state_rows,
    "head_metrics": _head_metrics,
    "metrics_targets": lambda self, peer, message: self._server.metrics_door.targets(),
    "dask_address": lambda self, peer, message: self.engine.wait(peer, message),
    "shutdown": _C._end,
    "kv_put": lambda self, peer, message: self.values.put(message.payload),
    "kv_get": lambda self, peer, message: self.values.get(message.payload),
    "kv_del": lambda self, peer, message: self.values.delete(message.payload),
    "kv_list": lambda self, peer, message: self.values.list(message.payload),
    "kv_exists": lambda self, peer, message: self.values.exists(message.payload),
    "package_size": lambda self, peer, message: package_store.of(self).size(
        message.payload
    ),
    "package_put": lambda self, peer, message: package_store.of(self).put(
        message.payload
    ),
    "package_get": lambda self, peer, message: package_store.of(self).get(
        message.payload
    ),
    "create_placement_group": lambda self, peer, message: self.groups.create(
        peer, message
    ),
    "wait_placement_group": lambda self, peer, message: self.groups.wait(peer, message),
    "get_placement_group": lambda self, peer, message: self.groups.find(message),
    "remove_placement_group": lambda self, peer, message: self.groups.remove(message),
    "placement_group_table": lambda self, peer, message: self.groups.table(message),
}
_OF_EXECUTORS = (wire.ActorCreated, wire.ActorFailed, wire.ActorExiting)
_FROM_NODE: dict[type, Callable[[ControlService, str, Any], None]] = {
    wire.LeaseGranted: lambda self, node_id, message: self.actors.granted(
        node_id, message
    ),
    wire.LeaseRejected: lambda self, node_id, message: self.actors.rejected(
        node_id, message
    ),
    wire.LeaseLost: lambda self, node_id, message: self.actors.lost(node_id, message),
    wire.ActorCreated: lambda self, node_id, message: self.actors.created(message),
    wire.ActorFailed: lambda self, node_id, message: self.actors.failed(message),
    wire.ActorExiting: lambda self, node_id, message: self.actors.exiting(message),
    wire.LogLines: _C._log_lines,
    Told: lambda self, node_id, message: self._server.questions.told(message),
    nodes.OwnersDied: lambda self, node_id, message: self.nodes.broadcast(message),
    nodes.PlaceLease: _C._place_lease,
    nodes.CancelPlacement: lambda self, node_id, message: self.placer.cancel(
        node_id, message.lease_id
    ),
    nodes.BundlesReserved: lambda self, node_id, message: self.groups.answered(
        node_id, message
    ),
}
