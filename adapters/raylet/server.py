"""The raylet's shell: messages and process events in, commands of the machines out."""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayshim.adapters.raylet import head_orders, node_reports
from rayshim.adapters.raylet.channels import ChannelServer, Handler, Peer
from rayshim.adapters.raylet.config import NodeConfig
from rayshim.adapters.raylet.control import ControlService
from rayshim.adapters.raylet.dead_owners import DeadOwners
from rayshim.adapters.raylet.head_link import Head, HeadLink, LocalHead, LocalNode
from rayshim.adapters.raylet.local_requests import LocalRequests
from rayshim.adapters.raylet.logs import LogRelay
from rayshim.adapters.raylet.node_reports import ACTOR_HOLDER
from rayshim.adapters.raylet.pool import ExecutorPool
from rayshim.adapters.raylet.refusals import refused_here
from rayshim.adapters.raylet.worker_lives import WorkerLives
from rayshim.adapters.wire import environment_messages as envs
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.ask_messages import Ask
from rayshim.adapters.wire.codec import Message
from rayshim.adapters.wire.event_messages import TaskEvents
from rayshim.lineage import lease_events as ev
from rayshim.lineage import spillback
from rayshim.lineage.labels import matches
from rayshim.lineage.leases import LeaseState
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import ResourceSet, to_amounts, to_units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.draining import Drain
    from rayshim.adapters.raylet.environment_service import EnvironmentService
    from rayshim.adapters.raylet.memory_monitor import MemoryMonitor
    from rayshim.adapters.raylet.pull_service import PullService
    from rayshim.adapters.raylet.store_service import StoreService

logger = logging.getLogger(__name__)

#: Seconds after the start when memory is watched.
MONITOR_DELAY_S = 0.25
#: Seconds between looks at limits of time.
TICK_S = 5.0
#: Seconds after the start when the store is looked after.
STORE_DELAY_S = 1.0
#: Bytes that may wait for a driver before executors have to wait with their lines.
MAX_UNSENT_LOG_BYTES = 4 << 20
#: Seconds that an executor may live on after it closed its channel.
EXIT_GRACE_S = 1.0
#: Seconds for which the end waits for what executors say last.
LAST_EVENTS_S = 0.1


class NodeServer(ChannelServer):
    """Everything of a node but Dask; in a session on one node also its head.

    Args:
        config: What the driver said.
        forkserver: Its pid and the socket to it.
        on_end: Called once when the node has to leave.
    """

    def __init__(
        self,
        config: NodeConfig,
        forkserver: tuple[int, socket.socket],
        on_end: Callable[[str], None],
    ) -> None:
        super().__init__(config, on_end)
        self.pid = os.getpid()
        self._tick: Any = None
        #: Worker id -> connected executor.
        self._executors: dict[bytes, Peer] = {}
        #: Whether there are, or may be, other nodes.
        self.is_clustered = bool(config.listen_ip)
        self.raylet = Raylet(
            ResourceSet(to_units(config.resources)),
            lambda: os.urandom(28),
            prestart=config.prestart,
            is_clustered=self.is_clustered,
        )
        self.pool = ExecutorPool(
            forkserver[1],
            forkserver[0],
            on_forked=self._forked,
            on_exited=self._exited,
            on_gone=lambda: self.end("the fork server is gone"),
        )
        self._handlers.update(_MESSAGES)
        #: The executors of this node, those too that ended lately.
        self.lives = WorkerLives()
        self._pending: deque[Any] = deque()
        self._is_feeding = False
        self.logs = LogRelay(config, self._lines, self._is_congested)
        #: The nodes of the cluster as last heard; None in a session on one node.
        self.table: nodes.NodeTable | None = None
        #: Called with each new table.
        self.on_table: list[Callable[[nodes.NodeTable], None]] = []
        #: What the node leaves by; None while it stays.
        self.drain: Drain | None = None
        #: What a drain waits for, or why the last one was refused.
        self.drain_note = ""
        self._flight_address = ""
        self._labels = {"ray.io/node-id": config.node_id, **config.labels}
        #: Actors whose constructor returned.
        self._created: dict[bytes, str] = {}
        #: Builds the runtime_envs of executors; None until the first.
        self._environments: EnvironmentService | None = None
        self._store: StoreService | None = None
        self.add_handlers(dict.fromkeys(_OF_STORE, _for_store))
        self.dead_owners = DeadOwners(self)
        self.on_table.append(self.dead_owners.table_came)
        #: Values of other nodes; None in a session on one node.
        self.pulls: PullService | None = None
        if self.is_clustered:
            # Not at the top: sessions on one node start without it.
            from rayshim.adapters.raylet.pull_service import PullService

            self.pulls = PullService(self, self.store)
            self.on_table.append(self.pulls.nodes_changed)
        #: Kills executors when memory runs out; None while it does not watch.
        self.memory: MemoryMonitor | None = None
        self.control: ControlService | None = None
        self.head: Head
        if config.head_address:
            self.head = HeadLink(self, config.head_address)
            self._handlers[wire.Request] = LocalRequests(self).take
        else:
            self.control = ControlService(self)
            self.control.nodes.add_local(
                self.join_message(), LocalNode(self), self.raylet
            )
            self.control.local = self
            self.control.event_log.node_joined(self.control.nodes.known[config.node_id])
            self._handlers.update(self.control.handlers())
            self.head = LocalHead(self.control, config.node_id)

    @property
    def store(self) -> StoreService:
        """The store of this node, made when it is first asked for.

        Its imports would compete with the first calls of a driver.
        """
        if self._store is None:
            from rayshim.adapters.raylet.store_service import StoreService

            self._store = StoreService(self)  # which takes its messages from now on
        return self._store

    @property
    def environments(self) -> EnvironmentService:
        """What executors run in, made when it is first asked for."""
        if self._environments is None:
            from rayshim.adapters.raylet.environment_service import EnvironmentService

            self._environments = EnvironmentService(self)
        return self._environments

    @property
    def backlogs(self) -> dict[bytes, int]:
        """Lease id -> calls that its owner has queued for the class of the lease."""
        return self.raylet.backlogs()

    async def start(self, *listeners: socket.socket | None) -> None:
        """Serves bound sockets, forks the first executors, joins the head."""
        self.loop.call_later(STORE_DELAY_S, lambda: self.store)
        await self.listen(*listeners)
        self._look()
        if self.config.settings.get("memory_monitor_refresh_ms", 0):
            # Later: the node's first calls do not wait for the import.
            self.loop.call_later(MONITOR_DELAY_S, self._watch_memory)
        if self.control is not None:
            self.control.start()
        if isinstance(self.head, HeadLink):
            self.head.start()
        if self.pulls is not None:
            config = self.config
            self.pulls.begin(config.listen_ip, config.node_ip, config.flight_port)

    async def stop(self, timeout_s: float, reason: str = "its end") -> None:
        """Kills all executors and listens no more; channels to drivers stay."""
        if self._tick is not None:
            self._tick.cancel()
        if self.memory is not None:
            self.memory.stop()
        if self.drain is not None:
            self.drain.stop()
        if isinstance(self.head, HeadLink):
            self.head.send(nodes.LeaveCluster(reason, False))
        if self._environments is not None:
            self._environments.stop()
        await self._hear_last_events()
        await self.pool.end(timeout_s)
        self.end_events(self.control)
        if self.pulls is not None:
            await self.pulls.stop()
        if self._store is not None:
            self._store.close()
        self.logs.close()
        if isinstance(self.head, HeadLink):
            self.head.stop()
        self.stop_listening()

    async def _hear_last_events(self) -> None:
        """Asks executors for what they have not told yet, where it is kept."""
        is_kept = int(self.config.settings.get("history_sessions", 0)) > 0
        if is_kept and self._executors:
            question = Ask(0, "flush_events", b"", "executors", limit_s=LAST_EVENTS_S)
            await self.questions.ask_processes(question)

    def _watch_memory(self) -> None:
        from rayshim.adapters.raylet.memory_monitor import MemoryMonitor

        self.memory = MemoryMonitor(self, self.config.settings)
        self.memory.start()

    def feed(self, event: Any) -> None:
        """Gives the lease machine an event and carries its commands out.

        Events that a command causes wait until all commands before are carried out.
        """
        self._pending.append(event)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._pending:
                now = self.now()
                for command in self.raylet.handle(self._pending.popleft(), now):
                    _COMMANDS[type(command)](self, command)
        finally:
            self._is_feeding = False
        if self.is_clustered:
            self.head.load_changed()

    def send_executor(self, worker_id: bytes, message: Message) -> bool:
        """Sends to a connected executor; False if there is none."""
        peer = self._executors.get(worker_id)
        if peer is None:
            return False
        peer.connection.send(message)
        return True

    # The head, and what it is told.

    def from_head(self, message: Message) -> None:
        """Takes a message of the control service."""
        head_orders.take(self, message)

    def take_table(self, table: nodes.NodeTable) -> None:
        """Passes the nodes of the cluster on to the peers here."""
        if not self.is_clustered:
            return
        self.table = table
        for peer in list(self.peers.values()):
            if peer.role in _LEASERS:
                peer.connection.send(table)
        if self.control is None:  # else the head's part has closed them
            for info in table.nodes:
                if not info.alive and info.node_id != self.config.node_id:
                    self.close_node(info)
        for told in self.on_table:
            told(table)

    def set_flight_address(self, address: str) -> None:
        """The node's Flight server listens: tell everybody."""
        self._flight_address = address
        if isinstance(self.head, HeadLink):
            self.head.announce()

    def join_message(self) -> nodes.JoinNode:
        """Who this node is, and what it runs for the control service."""
        return node_reports.join_message(self)

    def load_message(self) -> nodes.NodeLoad:
        """What the node has free now."""
        return node_reports.load_message(self)

    def ask_head_again(self) -> None:
        """The head may have forgotten what it was asked, and what it asked for."""
        for lease_id in self.raylet.not_granted():
            # A head that was restarted looks for places for all its actors again.
            self.feed(ev.LeaseCancelled(lease_id))
        for command in spillback.asked_again(self.raylet):
            self._ask_elsewhere(command)
        if self.drain is not None:
            self.drain.tell_head()

    def leave(self, order: nodes.LeaveCluster) -> None:
        """Ends the node, after its running work and with its values if it may."""
        if not order.graceful:
            self.end(order.reason)
            return
        if self.drain is not None:
            return
        from rayshim.adapters.raylet.draining import Drain

        self.drain = drain = Drain(self, order)
        if not drain.start():
            self.drain = None

    # Messages.

    def peer_came(self, peer: Peer) -> None:
        """A peer said hello."""
        if self.table is not None and peer.role in _LEASERS:
            peer.connection.send(self.table)
        if peer.role == "executor":
            self._executors[peer.worker_id] = peer
            environments = self._environments
            if environments is None or not environments.came_back(peer):
                self.feed(ev.ExecutorReady(peer.worker_id, peer.address, peer.pid))
        if self.control is not None:
            self.control.peer_came(peer)

    def peer_left(self, peer: Peer) -> None:
        """A peer's channel is at its end."""
        if self._store is not None:
            self._store.peer_gone(peer.address)
        if peer.role in ("driver", "executor"):
            self.dead_owners.left(peer.address)
        if self.pulls is not None:
            self.pulls.peer_gone(peer.address)
        if self.control is not None:
            self.control.peer_left(peer)
        self.feed(ev.HolderGone(peer.address))
        if peer.role == "driver":
            self.config.remove_socket(peer.address)
        if self._executors.get(peer.worker_id) is peer:
            del self._executors[peer.worker_id]
            environments = self._environments
            if environments is None or not environments.is_entering(peer.worker_id):
                self.loop.call_later(EXIT_GRACE_S, self.pool.kill, peer.worker_id)
        elif peer.role == "driver":
            self.feed(ev.JobEnded(peer.job_id))
            if peer.job_id.hex() == self.config.job_id:
                self.end("the driver closed its channel")

    def _request_lease(self, peer: Peer, message: wire.RequestLease) -> None:
        need = to_units(message.resources)
        reason = refused_here(message, need, self.config, self.raylet, self._labels)
        if reason:
            rejected = wire.LeaseRejected(message.lease_id, reason, "infeasible")
            peer.connection.send(rejected)
            return
        is_clustered = self.is_clustered
        if message.hops:
            self.head.arrived(message.lease_id)
        self.feed(
            ev.LeaseRequested(
                message.lease_id,
                peer.address,
                message.job_id,
                message.label,
                need,
                message.env_key(),
                message.placement_group,
                message.bundle_index,
                is_away=is_clustered and self._is_away(message),
                hops=message.hops,
                cargo=message if is_clustered else None,
                retriable=message.retriable,
                backlog=message.backlog,
                urgent=message.urgent,
            )
        )

    def _is_away(self, message: wire.RequestLease) -> bool:
        """Whether only the control service can say where a request goes."""
        group = message.placement_group
        if self.config.is_client:
            return True
        if group:
            return not self.raylet.has_bundle(group, message.bundle_index)
        node_id = self.config.node_id
        if message.nodes and not message.soft and node_id not in message.nodes:
            return True
        if message.hops:
            return False  # It was sent here.
        if message.labels and not matches(message.labels[0], self._labels):
            return True
        return message.strategy == "SPREAD" or (
            bool(message.nodes) and message.nodes[0] != node_id
        )

    def _cancel_lease(self, peer: Peer, message: wire.CancelLease) -> None:
        environments = self._environments
        if environments is None or not environments.cancelled(message.lease_id):
            self.feed(ev.LeaseCancelled(message.lease_id))

    def _return_lease(self, peer: Peer, message: wire.ReturnLease) -> None:
        self.feed(ev.LeaseReturned(message.lease_id, message.dispose))

    def _kill_executor(self, peer: Peer, message: wire.KillExecutor) -> None:
        self.feed(ev.LeaseKilled(message.lease_id))

    def _blocked(self, peer: Peer, message: wire.Blocked) -> None:
        self.feed(ev.ExecutorBlocked(peer.worker_id, message.blocked))

    def _move_refused(self, peer: Peer, message: nodes.MoveRefused) -> None:
        if self.drain is not None:
            self.drain.refused(message)

    def _backlog(self, peer: Peer, message: wire.UpdateBacklog) -> None:
        self.feed(ev.BacklogTold(message.lease_id, message.backlog))

    def _created_actor(self, peer: Peer, message: wire.ActorCreated) -> None:
        self._created[peer.worker_id] = message.repr_name
        self.head.send(message)

    def _pass_on(self, peer: Peer, message: Message) -> None:
        self.head.send(message)

    # Commands of the lease machine.

    def _tell(self, holder: str, message: Message) -> None:
        """Tells a holder of leases: a peer, or the control service for an actor."""
        if holder.startswith(ACTOR_HOLDER):
            self.head.send(message)
        else:
            self.send(holder, message)

    def _grant(self, command: ev.GrantLease) -> None:
        env = self.raylet.leases[command.lease_id].request.env
        if env and not env[0][0]:
            self.environments.grant(command, env)
        else:
            self.tell_grant(command)

    def tell_grant(self, command: ev.GrantLease) -> None:
        """Tells the holder of a lease which executor it has."""
        granted = wire.LeaseGranted(
            command.lease_id,
            command.address,
            command.worker_id,
            command.pid,
            to_amounts(command.units),
            command.gpu_ids,
        )
        self._tell(command.holder, granted)

    def _reject(self, command: ev.RejectLease) -> None:
        rejected = wire.LeaseRejected(
            command.lease_id,
            command.reason,
            command.kind,
            command.spill_to,
            command.hops,
        )
        self._tell(command.holder, rejected)

    def _ask_elsewhere(self, command: ev.AskElsewhere) -> None:
        assert isinstance(command.cargo, wire.RequestLease)
        lease = self.raylet.leases[command.lease_id]
        is_away = lease.state is LeaseState.FORWARDED
        self.head.send(nodes.PlaceLease(command.cargo, is_away))

    def _ask_no_more(self, command: ev.AskNoMore) -> None:
        self.head.send(nodes.CancelPlacement(command.lease_id))

    def _ask_back(self, command: ev.AskBack) -> None:
        self.send(command.holder, wire.ReclaimLease(command.lease_id, command.if_idle))

    def _lost(self, command: ev.ReportLost) -> None:
        environments = self._environments
        if environments is not None and environments.lost(command):
            return
        self._tell(
            command.holder,
            wire.LeaseLost(
                command.lease_id,
                command.reason,
                command.exit_code,
                command.out_of_memory,
                command.kind,
            ),
        )

    def _start_executor(self, command: ev.StartExecutor) -> None:
        self.pool.fork(command.worker_id)

    def _interrupt(self, command: ev.InterruptExecutor) -> None:
        self.send_executor(command.worker_id, wire.Interrupt(command.reason))

    def _end_executor(self, command: ev.EndExecutor) -> None:
        self.lives.end(self, command.worker_id)

    def _bundles(self, command: ev.ReportBundles) -> None:
        control = self.control
        if control is not None:
            node_id, attempt = self.config.node_id, command.attempt
            control.groups.reserved(command.group, node_id, attempt)
            return
        self.head.send(nodes.BundlesReserved(command.group, True, command.attempt))

    def _no_bundles(self, command: ev.RefuseBundles) -> None:
        self.head.send(nodes.BundlesReserved(command.group, False, command.attempt))

    # Processes.

    def _forked(self, worker_id: bytes, pid: int, out: int, err: int) -> None:
        self.lives.began(worker_id, pid)
        self.logs.add(worker_id, pid, out, err)

    def _exited(self, worker_id: bytes, pid: int, reason: str, code: int) -> None:
        # Its last words go out before the news of its death.
        self.logs.drain(worker_id)
        self._created.pop(worker_id, None)
        if self._environments is not None:
            self._environments.exited(worker_id)
        executor = self.raylet.executors.by_id.get(worker_id)
        if executor is not None:
            self.config.remove_socket(executor.address)
        killed = self.memory.reason(worker_id) if self.memory is not None else ""
        is_memory = bool(killed)
        self.lives.ended(worker_id, pid, killed or reason, code, is_memory=is_memory)
        self.feed(ev.ExecutorExited(worker_id, killed or reason, code, bool(killed)))

    def _lines(
        self, worker_id: bytes, pid: int, name: str, stream: str, lines: list[str]
    ) -> None:
        executor = self.raylet.executors.by_id.get(worker_id)
        if executor is None:
            return
        job_id = executor.job_id
        message = wire.LogLines(pid, name, stream, lines, self.config.node_ip, job_id)
        driver = self.drivers.get(job_id)
        if driver is not None:
            driver.connection.send(message)
        elif self.is_clustered and job_id:
            self.head.send(message)

    def _is_congested(self, worker_id: bytes) -> bool:
        executor = self.raylet.executors.by_id.get(worker_id)
        driver = self.drivers.get(executor.job_id) if executor else None
        if driver is not None:
            return driver.connection.unsent_bytes > MAX_UNSENT_LOG_BYTES
        return (
            isinstance(self.head, HeadLink)
            and self.head.unsent_bytes > MAX_UNSENT_LOG_BYTES
        )

    def _look(self) -> None:
        self.feed(ev.TimePassed())
        self._tick = self.loop.call_later(TICK_S, self._look)


#: Peers that ask for leases, and so are told of the nodes.
_LEASERS = ("driver", "executor", "remote")
_S = NodeServer


def _for_store(server: NodeServer, peer: Peer, message: Any) -> None:
    """The first message for the store."""
    assert server.store is not None
    server._handlers[type(message)](server, peer, message)


_OF_STORE = (
    nodes.MakeRoom,
    nodes.RestoreSegments,
    nodes.DiscardSegments,
    nodes.Holdings,
)
_MESSAGES: dict[type, Handler] = {
    wire.RequestLease: _S._request_lease,
    wire.CancelLease: _S._cancel_lease,
    wire.ReturnLease: _S._return_lease,
    wire.KillExecutor: _S._kill_executor,
    wire.Blocked: _S._blocked,
    wire.UpdateBacklog: _S._backlog,
    nodes.MoveRefused: _S._move_refused,
    TaskEvents: lambda server, peer, message: server.event_files.take(message),
    envs.EnvironmentEntered: lambda server, *said: server.environments.entered(*said),
    envs.PrepareEnvironment: lambda server, *said: server.environments.prepare(*said),
    wire.ActorCreated: _S._created_actor,
    wire.ActorFailed: _S._pass_on,
    wire.ActorExiting: _S._pass_on,
}
_COMMANDS: dict[type, Callable[[NodeServer, Any], None]] = {
    ev.GrantLease: _S._grant,
    ev.RejectLease: _S._reject,
    ev.AskElsewhere: _S._ask_elsewhere,
    ev.AskNoMore: _S._ask_no_more,
    ev.AskBack: _S._ask_back,
    ev.ReportLost: _S._lost,
    ev.StartExecutor: _S._start_executor,
    ev.InterruptExecutor: _S._interrupt,
    ev.EndExecutor: _S._end_executor,
    ev.ReportBundles: _S._bundles,
    ev.RefuseBundles: _S._no_bundles,
}
