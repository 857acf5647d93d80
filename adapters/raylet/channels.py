"""The channels of a node or head process: who is connected, and who takes what."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayshim.adapters.raylet.config import NodeConfig
from rayshim.adapters.raylet.metrics_door import MetricsDoor
from rayshim.adapters.wire import aio
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.address import node_of
from rayshim.adapters.wire.ask_messages import Told
from rayshim.adapters.wire.codec import Message
from rayshim.adapters.wire.metric_messages import ReportMetrics

if TYPE_CHECKING:
    from rayshim.adapters.raylet.control import ControlService
    from rayshim.adapters.raylet.event_service import EventService
    from rayshim.adapters.raylet.metric_service import MetricService
    from rayshim.adapters.raylet.questions import Questions
    from rayshim.adapters.raylet.wait_service import WaitService

logger = logging.getLogger(__name__)


class Peer:
    """What is known about who is on the other end of a channel."""

    __slots__ = (
        "address",
        "connection",
        "job_id",
        "node_id",
        "number",
        "pid",
        "role",
        "worker_id",
    )

    def __init__(
        self, hello: wire.Hello, connection: aio.Connection, number: int
    ) -> None:
        self.role = hello.role
        self.worker_id = hello.worker_id
        self.address = hello.address
        self.pid = hello.pid
        self.job_id = hello.job_id
        self.connection = connection
        #: Counts the channels of this process, from 1.
        self.number = number
        #: Hex id of the node, once a raylet has joined.
        self.node_id = ""


Handler = Callable[[Any, Peer, Any], None]


class ChannelServer:
    """Accepts channels, and gives each message to whoever takes its type.

    Subclasses are the node and the head process.

    Args:
        config: What the starting process said.
        on_end: Called with a reason when the process has to leave.
    """

    def __init__(self, config: NodeConfig, on_end: Callable[[str], None]) -> None:
        self.config = config
        self.end = on_end
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.token = config.token()
        self._servers: list[asyncio.Server] = []
        self._peer_count = 0
        #: Address -> peer that said hello and is connected.
        self.peers: dict[str, Peer] = {}
        #: Job id -> its driver.
        self.drivers: dict[bytes, Peer] = {}
        self._handlers: dict[type, Handler] = {}
        #: Looks for deadlocks, from the first wait on that lasts; where the control
        #: service is.
        self.waits: WaitService | None = None
        #: What is counted and measured, from the first report or scrape on.
        self.metrics: MetricService | None = None
        self.metrics_door = MetricsDoor(self)
        self._handlers[ReportMetrics] = _report_metrics
        self._questions: Questions | None = None
        self._event_files: EventService | None = None
        self._handlers[Told] = lambda server, peer, told: self.questions.told(told)

    @property
    def questions(self) -> Questions:
        """Asks nodes and processes; made at the first question."""
        if self._questions is None:
            from rayshim.adapters.raylet.questions import Questions

            self._questions = Questions(self)
        return self._questions

    @property
    def event_files(self) -> EventService:
        """Keeps what happened; made at the first event."""
        if self._event_files is None:
            from rayshim.adapters.raylet.event_service import EventService

            self._event_files = EventService(self.config)
        return self._event_files

    def end_events(self, control: ControlService | None) -> None:
        """Writes what happened last; nothing is written after that.

        Args:
            control: the control service, where it is in this process.
        """
        if control is not None:
            for peer in list(self.drivers.values()):
                control.event_log.driver_left(peer)
            control.event_log.write()
        if self._event_files is not None:
            self._event_files.close()

    def keep_history(self) -> None:
        """Moves what outlives the session out of its folder."""
        if self._event_files is not None:
            self._event_files.keep()

    async def listen(self, *listeners: socket.socket | None) -> None:
        """Serves bound sockets."""
        for listener in listeners:
            if listener is not None:
                server = await aio.serve(
                    listener,
                    self.token,
                    self._message,
                    self._closed,
                    self.config.credentials(),
                )
                self._servers.append(server)

    def stop_listening(self) -> None:
        """Accepts nobody any more; channels stay."""
        self.metrics_door.close()
        for server in self._servers:
            server.close()
        for peer in self.peers.values():
            peer.connection.flush()

    def send(self, address: str, message: Message) -> bool:
        """Sends to a connected peer; False if there is none."""
        peer = self.peers.get(address)
        if peer is None:
            return False
        peer.connection.send(message)
        return True

    def add_handlers(self, handlers: dict[type, Handler]) -> None:
        """Lets a service take more messages, as ``handler(server, peer, message)``."""
        self._handlers.update(handlers)

    def peer_came(self, peer: Peer) -> None:
        """A peer said hello."""

    def peer_left(self, peer: Peer) -> None:
        """A peer's channel is at its end."""

    def _message(self, connection: aio.Connection, message: Message) -> None:
        peer: Peer | None = connection.peer
        if isinstance(message, wire.Hello):
            if peer is None:
                self._hello(connection, message)
            return
        method = self._handlers.get(type(message))
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
            # One wrong message must not end the process for everybody.
            logger.exception("%s from %s failed", type(message).__name__, peer.address)

    def _hello(self, connection: aio.Connection, hello: wire.Hello) -> None:
        self._peer_count += 1
        peer = connection.peer = Peer(hello, connection, self._peer_count)
        self.peers[hello.address] = peer
        if peer.role == "driver":
            self.drivers[peer.job_id] = peer
        self.peer_came(peer)

    def _closed(self, connection: aio.Connection) -> None:
        peer: Peer | None = connection.peer
        if peer is None or self.peers.get(peer.address) is not peer:
            return
        del self.peers[peer.address]
        if self.drivers.get(peer.job_id) is peer:
            del self.drivers[peer.job_id]
        self.peer_left(peer)

    def close_node(self, info: nodes.NodeInfo) -> None:
        """Takes all channels to processes of a dead node for ended."""
        place = node_of(info.address)
        for peer in list(self.peers.values()):
            if place and node_of(peer.address) == place:
                connection = peer.connection
                self._closed(connection)
                connection.peer = None
                connection.close()


def _report_metrics(server: ChannelServer, peer: Peer, message: ReportMetrics) -> None:
    from rayshim.adapters.raylet import metric_service

    metric_service.take(server, peer, message)
