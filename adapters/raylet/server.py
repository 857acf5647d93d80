"""The raylet's shell: messages and process events in, commands of the machines out."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayshim.adapters.raylet.actor_service import ActorService
from rayshim.adapters.raylet.config import NodeConfig
from rayshim.adapters.raylet.control import ControlService
from rayshim.adapters.raylet.logs import LogRelay
from rayshim.adapters.raylet.pool import ExecutorPool
from rayshim.adapters.raylet.store_service import StoreService
from rayshim.adapters.wire import aio
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.codec import Message
from rayshim.lineage import lease_events as ev
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import ResourceSet, to_amounts, to_units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.wait_service import WaitService

logger = logging.getLogger(__name__)

#: Seconds between looks at limits of time.
TICK_S = 5.0
#: Bytes that may wait for a driver before executors have to wait with their lines.
MAX_UNSENT_LOG_BYTES = 4 << 20
#: Seconds that an executor may live on after it closed its channel.
EXIT_GRACE_S = 1.0


class Peer:
    """What the raylet knows about who is on the other end of a channel."""

    __slots__ = ("address", "connection", "job_id", "pid", "role", "worker_id")

    def __init__(self, hello: wire.Hello, connection: aio.Connection) -> None:
        self.role = hello.role
        self.worker_id = hello.worker_id
        self.address = hello.address
        self.pid = hello.pid
        self.job_id = hello.job_id
        self.connection = connection


class NodeServer:
    """Everything of a node but Dask.

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
        self.config = config
        self.end = on_end
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self._token = config.token()
        self._server: asyncio.Server | None = None
        self._tick: asyncio.TimerHandle | None = None
        #: Address -> peer that said hello and is connected.
        self.peers: dict[str, Peer] = {}
        #: Worker id -> connected executor.
        self._executors: dict[bytes, Peer] = {}
        #: Job id -> its driver.
        self._drivers: dict[bytes, Peer] = {}
        self.raylet = Raylet(
            ResourceSet(to_units(config.resources)),
            lambda: os.urandom(28),
            prestart=config.prestart,
        )
        self.pool = ExecutorPool(
            forkserver[1],
            forkserver[0],
            on_forked=self._forked,
            on_exited=self._exited,
            on_gone=lambda: self.end("the fork server is gone"),
        )
        self._handlers: dict[type, _Method] = dict(_MESSAGES)
        self._pending: deque[Any] = deque()
        self._is_feeding = False
        self._logs = LogRelay(config.logs_dir, self._lines, self._is_congested)
        self.store = StoreService(self)
        self.actors = ActorService(self)
        self.control = ControlService(self)
        #: Looks for deadlocks, from the first wait on that lasts.
        self.waits: WaitService | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serves a bound socket, and forks the first executors."""
        self._server = await aio.serve(
            listener, self._token, self._message, self._closed
        )
        self._look()

    async def stop(self, timeout_s: float) -> None:
        """Kills all executors and listens no more; channels to drivers stay."""
        if self._tick is not None:
            self._tick.cancel()
        await self.pool.end(timeout_s)
        self._logs.close()
        if self._server is not None:
            self._server.close()
        for peer in self.peers.values():
            peer.connection.flush()

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

    def send(self, address: str, message: Message) -> bool:
        """Sends to a connected peer; False if there is none."""
        peer = self.peers.get(address)
        if peer is None:
            return False
        peer.connection.send(message)
        return True

    def send_executor(self, worker_id: bytes, message: Message) -> bool:
        """Sends to a connected executor; False if there is none."""
        peer = self._executors.get(worker_id)
        if peer is None:
            return False
        peer.connection.send(message)
        return True

    def add_handlers(
        self, handlers: dict[type, Callable[[NodeServer, Peer, Any], None]]
    ) -> None:
        """Lets a service take more messages."""
        self._handlers.update(handlers)

    # Messages.

    def _message(self, connection: aio.Connection, message: Message) -> None:
        method = self._handlers.get(type(message))
        peer: Peer | None = connection.peer
        if isinstance(message, wire.Hello):
            if peer is None:
                self._hello(connection, message)
            return
        if method is None or peer is None:
            logger.warning(
                "dropped a peer that sent %s %s",
                type(message).__name__,
                "here" if peer else "before its hello",
            )
            connection.close()
            return
        try:
            method(self, peer, message)
        except Exception:
            # One wrong message must not end the node for everybody.
            logger.exception("%s from %s failed", type(message).__name__, peer.address)

    def _hello(self, connection: aio.Connection, hello: wire.Hello) -> None:
        peer = connection.peer = Peer(hello, connection)
        self.peers[hello.address] = peer
        if hello.role == "driver":
            self._drivers[hello.job_id] = peer
        elif hello.role == "executor":
            self._executors[hello.worker_id] = peer
            self.feed(ev.ExecutorReady(hello.worker_id, hello.address, hello.pid))

    def _closed(self, connection: aio.Connection) -> None:
        peer: Peer | None = connection.peer
        if peer is None or self.peers.get(peer.address) is not peer:
            return
        del self.peers[peer.address]
        self.actors.peer_gone(peer.address)
        self.feed(ev.HolderGone(peer.address))
        if peer.role == "executor":
            del self._executors[peer.worker_id]
            self.loop.call_later(EXIT_GRACE_S, self.pool.kill, peer.worker_id)
        elif peer.role == "driver":
            del self._drivers[peer.job_id]
            self.control.job_ended(peer.job_id)
            self.feed(ev.JobEnded(peer.job_id))
            if peer.job_id.hex() == self.config.job_id:
                self.end("the driver closed its channel")

    def _request_lease(self, peer: Peer, message: wire.RequestLease) -> None:
        need = to_units(message.resources)
        if any(units < 0 for units in need.values()):
            reason = f"negative resources: {message.resources}"
            rejected = wire.LeaseRejected(message.lease_id, reason, "infeasible")
            peer.connection.send(rejected)
            return
        self.feed(
            ev.LeaseRequested(
                message.lease_id,
                peer.address,
                message.job_id,
                message.label,
                need,
                tuple(sorted(message.env_vars.items())),
                message.placement_group,
                message.bundle_index,
            )
        )

    def _cancel_lease(self, peer: Peer, message: wire.CancelLease) -> None:
        self.feed(ev.LeaseCancelled(message.lease_id))

    def _return_lease(self, peer: Peer, message: wire.ReturnLease) -> None:
        self.feed(ev.LeaseReturned(message.lease_id, message.dispose))

    def _kill_executor(self, peer: Peer, message: wire.KillExecutor) -> None:
        self.feed(ev.LeaseKilled(message.lease_id))

    def _blocked(self, peer: Peer, message: wire.Blocked) -> None:
        self.feed(ev.ExecutorBlocked(peer.worker_id, message.blocked))

    def _backlog(self, peer: Peer, message: wire.UpdateBacklog) -> None:
        self.control.backlogs[message.lease_id] = message.backlog

    # Commands of the lease machine.

    def _grant(self, command: ev.GrantLease) -> None:
        if self.actors.is_own(command.holder):
            self.actors.granted(command)
            return
        self.send(
            command.holder,
            wire.LeaseGranted(
                command.lease_id,
                command.address,
                command.worker_id,
                command.pid,
                to_amounts(command.units),
                command.gpu_ids,
            ),
        )

    def _reject(self, command: ev.RejectLease) -> None:
        if self.actors.is_own(command.holder):
            self.actors.rejected(command)
            return
        self.send(
            command.holder,
            wire.LeaseRejected(command.lease_id, command.reason, command.kind),
        )

    def _ask_back(self, command: ev.AskBack) -> None:
        self.send(command.holder, wire.ReclaimLease(command.lease_id))

    def _lost(self, command: ev.ReportLost) -> None:
        if self.actors.is_own(command.holder):
            self.actors.lost(command)
            return
        self.send(
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
        self.pool.kill(command.worker_id)

    def _bundles(self, command: ev.ReportBundles) -> None:
        self.control.groups.bundles_reserved(command.group)

    # Processes.

    def _forked(self, worker_id: bytes, pid: int, out: int, err: int) -> None:
        self._logs.add(worker_id, pid, out, err)

    def _exited(self, worker_id: bytes, pid: int, reason: str, code: int) -> None:
        # Its last words go out before the news of its death.
        self._logs.drain(worker_id)
        self.feed(ev.ExecutorExited(worker_id, reason, code))

    def _lines(
        self, worker_id: bytes, pid: int, name: str, stream: str, lines: list[str]
    ) -> None:
        executor = self.raylet.executors.by_id.get(worker_id)
        driver = self._drivers.get(executor.job_id) if executor else None
        if driver is not None:
            driver.connection.send(
                wire.LogLines(pid, name, stream, lines, self.config.node_ip)
            )

    def _is_congested(self, worker_id: bytes) -> bool:
        executor = self.raylet.executors.by_id.get(worker_id)
        driver = self._drivers.get(executor.job_id) if executor else None
        return (
            driver is not None and driver.connection.unsent_bytes > MAX_UNSENT_LOG_BYTES
        )

    def _look(self) -> None:
        self.feed(ev.TimePassed())
        self._tick = self.loop.call_later(TICK_S, self._look)


def _wait_report(server: NodeServer, peer: Peer, message: nodes.WaitReport) -> None:
    from rayshim.adapters.raylet import wait_service

    wait_service.report(server, peer, message)


_Method = Callable[[NodeServer, Peer, Any], None]
_S = NodeServer
_MESSAGES: dict[type, _Method] = {
    wire.Hello: _S._hello,  # type: ignore[dict-item]  # Never called through here.
    wire.RequestLease: _S._request_lease,
    wire.CancelLease: _S._cancel_lease,
    wire.ReturnLease: _S._return_lease,
    wire.KillExecutor: _S._kill_executor,
    wire.Blocked: _S._blocked,
    wire.UpdateBacklog: _S._backlog,
    nodes.WaitReport: _wait_report,
    wire.Request: lambda server, peer, message: server.control.request(peer, message),
    **{
        kind: lambda server, peer, message: server.actors.message(peer, message)
        for kind in (
            wire.RegisterActor,
            wire.StartActor,
            wire.FailActor,
            wire.SubscribeActor,
            wire.KillActor,
            wire.ActorOutOfScope,
            wire.ActorCreated,
            wire.ActorFailed,
            wire.ActorExiting,
        )
    },
}
_COMMANDS: dict[type, Callable[[NodeServer, Any], None]] = {
    ev.GrantLease: _S._grant,
    ev.RejectLease: _S._reject,
    ev.AskBack: _S._ask_back,
    ev.ReportLost: _S._lost,
    ev.StartExecutor: _S._start_executor,
    ev.InterruptExecutor: _S._interrupt,
    ev.EndExecutor: _S._end_executor,
    ev.ReportBundles: _S._bundles,
}
