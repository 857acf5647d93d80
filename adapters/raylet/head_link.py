"""The ways between a node and the control service, in both directions.

Where both are one process messages are handed over as they are; else they travel
over the one connection that the node opens, again and again while the head is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from rayshim.adapters.raylet.idle_clock import IdleClock
from rayshim.adapters.wire import aio
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.codec import Message
from rayshim.lineage.leases import LeaseState
from rayshim.lineage.membership import TIMEOUT_S

if TYPE_CHECKING:
    from rayshim.adapters.raylet.control import ControlService
    from rayshim.adapters.raylet.server import NodeServer

logger = logging.getLogger(__name__)

#: Seconds between attempts to reach the head, doubled up to the limit.
RETRY_S, MAX_RETRY_S = 0.05, 1.0
#: Seconds between two loads at least, and at most.
LOAD_S, BEAT_S = 0.05, 1.0
#: Batches of log lines that are kept for a head that is away; later ones are dropped.
MAX_KEPT_LINES = 1000
#: What the head learns anew when the node joins it again.
_PASSING = (nodes.NodeLoad, nodes.PlaceLease, nodes.CancelPlacement)


class Head(Protocol):
    """The control service as a node sees it."""

    def send(self, message: Message) -> None:
        """Gives it a message, now or when it is back."""

    def load_changed(self) -> None:
        """What the node has free is not what it told last."""

    def arrived(self, lease_id: bytes) -> None:
        """A request came that the head has placed here."""


class LocalHead:
    """The control service in this process."""

    def __init__(self, control: ControlService, node_id: str) -> None:
        self._control = control
        self._node_id = node_id
        self._loop = asyncio.get_running_loop()
        self._is_soon = False

    def send(self, message: Message) -> None:
        """Has it act on the message."""
        self._control.from_node(self._node_id, message)

    def load_changed(self) -> None:
        """Has it look at the machine soon, if other nodes might need that."""
        if not self._is_soon and self._control.nodes.is_cluster:
            self._is_soon = True
            self._loop.call_later(LOAD_S, self._look)

    def arrived(self, lease_id: bytes) -> None:
        """It looks at the machine itself."""

    def _look(self) -> None:
        self._is_soon = False
        self._control.nodes.changed()


class LocalNode:
    """The node in this process, as the control service sees it."""

    def __init__(self, server: NodeServer) -> None:
        self._server = server

    def send(self, message: Message) -> None:
        """Has it act on the message."""
        self._server.from_head(message)


class HeadLink:
    """The head of the cluster, in another process.

    Args:
        server: The node.
        address: The head's.
    """

    def __init__(self, server: NodeServer, address: str) -> None:
        self._server = server
        self._address = address
        self._connection: aio.Connection | None = None
        self._closed: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: What was not said while the head was away.
        self._kept: deque[Any] = deque()
        self._kept_lines = 0
        #: What came since the last load.
        self._arrived: list[bytes] = []
        #: Leases that the head has placed here -> what it was told of them last.
        self._followed: dict[bytes, LeaseState] = {}
        self._idle = IdleClock(server.raylet, server.now())
        timeout_s = float(server.config.settings.get("node_timeout_s", TIMEOUT_S))
        self._beat_s = min(BEAT_S, timeout_s / 5)
        self._told_s = -LOAD_S
        self._timer: asyncio.TimerHandle | None = None
        self._is_soon = False

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the head has not taken yet."""
        return self._connection.unsent_bytes if self._connection else 0

    def start(self) -> None:
        """Joins, and joins again whenever the head comes back."""
        self._task = self._server.loop.create_task(self._run())

    def stop(self) -> None:
        """Leaves the head for good."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    def send(self, message: Message) -> None:
        """Tells the head, now or when it is back."""
        if self._connection is not None:
            self._connection.send(message)
        elif isinstance(message, wire.LogLines):
            if self._kept_lines < MAX_KEPT_LINES:
                self._kept_lines += 1
                self._kept.append(message)
        elif not isinstance(message, _PASSING):
            self._kept.append(message)

    def load_changed(self) -> None:
        """Tells the load soon."""
        if self._is_soon or self._connection is None:
            return
        self._is_soon = True
        wait_s = max(0.0, self._told_s + LOAD_S - self._server.now())
        self._arm(wait_s)

    def arrived(self, lease_id: bytes) -> None:
        """The next load says so: it reckons with the request."""
        if self._connection is not None:
            self._arrived.append(lease_id)
            self._followed[lease_id] = LeaseState.UNKNOWN

    def announce(self) -> None:
        """Tells the head again who this node is."""
        if self._connection is not None:
            self._connection.send(self._server.join_message())
            self._tell()

    async def _run(self) -> None:
        wait_s, server = RETRY_S, self._server
        config = server.config
        while True:
            try:
                connection = await aio.connect(
                    self._address,
                    server.token,
                    self._message,
                    self._lost,
                    credentials=config.credentials(),
                )
            except OSError as error:
                if wait_s == RETRY_S:
                    logger.warning(
                        "the head at %s does not answer (%s); trying again",
                        self._address,
                        error,
                    )
                await asyncio.sleep(wait_s)
                wait_s = min(MAX_RETRY_S, 2 * wait_s)
                continue
            wait_s = RETRY_S
            self._closed.clear()
            self._connection = connection
            identity = bytes.fromhex(config.node_id)
            hello = wire.Hello("raylet", identity, config.address, server.pid, b"")
            connection.send(hello)
            connection.send(server.join_message())
            while self._kept:
                connection.send(self._kept.popleft())
            self._kept_lines = 0
            self._follow_all()
            self._tell()
            server.ask_head_again()
            await self._closed.wait()

    def _message(self, connection: aio.Connection, message: Message) -> None:
        try:
            self._server.from_head(message)
        except Exception:
            logger.exception("%s from the head failed", type(message).__name__)

    def _lost(self, connection: aio.Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self._closed.set()

    def _arm(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.loop.call_later(wait_s, self._tell)

    def _tell(self) -> None:
        self._is_soon = False
        if self._connection is None:
            return
        self._told_s = self._server.now()
        load = self._server.load_message()
        load.idle_s = self._idle.idle_s(self._told_s)
        load.arrived, self._arrived = self._arrived, []
        self._tell_followed(load)
        self._connection.send(load)
        self._arm(self._beat_s)

    def _follow_all(self) -> None:
        """The head may be a new one, which knows nothing of what it placed here."""
        self._arrived.clear()
        self._followed = {
            lease_id: LeaseState.UNKNOWN
            for lease_id, lease in self._server.raylet.leases.items()
            if lease.request.hops or lease.request.fixed
        }

    def _tell_followed(self, load: nodes.NodeLoad) -> None:
        """Adds what became of the leases that the head has placed here."""
        leases = self._server.raylet.leases
        for lease_id, told in list(self._followed.items()):
            lease = leases.get(lease_id)
            if lease is None:
                del self._followed[lease_id]
                load.ended.append(lease_id)
                continue
            state = lease.state
            if state is told:
                continue
            self._followed[lease_id] = state
            if state is LeaseState.GRANTED:
                load.granted.append(lease_id)
            elif state is LeaseState.WAITING and lease.request.fixed:
                load.waiting.append(lease_id)
