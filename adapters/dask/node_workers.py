"""Nodes as workers of Dask's scheduler, without a worker process.

Each node is registered through a comm that ends in this process. What the scheduler
sends to it is handed over at once; what the node tells the head changes the worker's
state directly.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from time import time
from typing import Any

from distributed.comm import registry
from distributed.comm.core import Comm, CommClosedError
from distributed.core import Status
from distributed.scheduler import WorkerState
from distributed.versions import get_versions

from rayshim.adapters.dask.lease_scheduler import NODE, NODE_RESOURCE, LeaseScheduler

logger = logging.getLogger(__name__)

#: What Dask reckons with in the first report of a worker.
_METRICS: dict[str, Any] = {
    "bandwidth": {"total": 0, "workers": {}, "types": {}},
    "digests_total_since_heartbeat": {},
    "memory": 0,
    "spilled_bytes": {"memory": 0, "disk": 0},
    "managed_bytes": 0,
    "transfer": {"incoming_bytes": 0, "outgoing_bytes": 0},
    "event_loop_interval": 0,
    "cpu": 0,
    "num_fds": 0,
    "task_counts": {},
    "time": 0.0,
}


def address_of(node_id: str) -> str:
    """The address of a node's worker."""
    return NODE + node_id


class _Backend(registry.Backend):
    """Addresses of nodes; nobody connects to them."""

    def get_connector(self) -> Any:
        raise OSError("nodes are workers without a process: they run no Dask tasks")

    def get_listener(
        self, loc: str, handle_comm: Any, deserialize: bool, **connection_args: Any
    ) -> Any:
        raise OSError("nodes listen for no Dask peers")

    def get_address_host(self, loc: str) -> str:
        return loc

    def resolve_address(self, loc: str) -> str:
        return loc

    def get_local_address_for(self, loc: str) -> str:
        return loc


class NodeComm(Comm):
    """Both the comm of a node's worker and the scheduler's way to send on it.

    Args:
        scheduler: The scheduler at the other end.
        address: The worker's address.
        on_message: Takes each message of the scheduler.
        on_lost: Called when the scheduler gave the worker up by itself.
    """

    def __init__(
        self,
        scheduler: LeaseScheduler,
        address: str,
        on_message: Callable[[str, dict[str, Any]], None],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._address = address
        self._on_message = on_message
        self._on_lost = on_lost
        self._end = asyncio.Event()
        #: The scheduler has registered the worker, or will not.
        self.answered = asyncio.Event()
        #: The scheduler has registered the worker, and sends directly.
        self.is_ready = False
        #: The node left: what Dask does about it is no news.
        self.is_left = False

    # As a comm.

    async def read(self, deserializers: Any = None) -> Any:
        """Waits for the end: nodes say nothing on this way."""
        await self._end.wait()
        raise CommClosedError("the node has left")

    async def write(
        self, msg: Any, serializers: Any = None, on_error: Any = None
    ) -> int:
        """The scheduler says that the worker is registered, or why it is not."""
        if self._address in self._scheduler.stream_comms:
            streams: dict[str, Any] = self._scheduler.stream_comms
            streams[self._address] = self
            self.is_ready = True
        self.answered.set()
        return 0

    async def close(self) -> None:
        """Ends it."""
        self.abort()

    def abort(self) -> None:
        """Ends it."""
        if not self._end.is_set():
            self._end.set()
            self.answered.set()
            self.is_ready = False
            if not self.is_left:
                self._on_lost()

    def closed(self) -> bool:
        """Whether it has ended."""
        return self._end.is_set()

    @property
    def local_address(self) -> str:
        """The worker's."""
        return self._address

    @property
    def peer_address(self) -> str:
        """The worker's."""
        return self._address

    # As the scheduler's way to send.

    def start(self, comm: Comm) -> None:
        """It needs no start."""

    def send(self, *messages: dict[str, Any]) -> None:
        """Hands messages over."""
        for message in messages:
            if message.get("op") == "close":
                self.abort()
            else:
                self._on_message(self._address, message)


class NodeWorkers:
    """The nodes that Dask's scheduler knows.

    Args:
        scheduler: The scheduler.
        on_message: ``on_message(address, message)`` takes what it sends to a node.
        on_ready: ``on_ready(node_id)``: a node may get tasks.
        on_lost: Called when the scheduler dropped nodes that have not left.
    """

    def __init__(
        self,
        scheduler: LeaseScheduler,
        on_message: Callable[[str, dict[str, Any]], None],
        on_ready: Callable[[str], None],
        on_lost: Callable[[], None],
    ) -> None:
        registry.backends.setdefault(NODE.removesuffix("://"), _Backend())
        self._scheduler = scheduler
        self._on_message = on_message
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._comms: dict[str, NodeComm] = {}
        #: What runs for each node; kept so that it is not collected.
        self._running: set[asyncio.Task[Any]] = set()

    def find(self, node_id: str) -> WorkerState | None:
        """A node's worker."""
        return self._scheduler.workers.get(address_of(node_id))

    def is_ready(self, node_id: str) -> bool:
        """Whether a node's worker is registered and hears what is sent to it."""
        address = address_of(node_id)
        comm = self._comms.get(address)
        return comm is not None and comm.is_ready

    def join(self, node_id: str, total: Mapping[str, int], is_usable: bool) -> None:
        """Registers a node, if it is not known."""
        address = address_of(node_id)
        known = self._comms.get(address)
        if known is not None and not known.closed():
            return
        if self._scheduler.status is not Status.running:
            return  # It closes, and drops its workers first.
        comm = self._comms[address] = NodeComm(
            self._scheduler, address, self._on_message, self._on_lost
        )
        self._run(self._register(comm, node_id, total, is_usable))

    async def _register(
        self, comm: NodeComm, node_id: str, total: Mapping[str, int], is_usable: bool
    ) -> None:
        address = comm.local_address
        serving = asyncio.ensure_future(
            self._scheduler.add_worker(
                comm,
                address=address,
                status="running" if is_usable else "paused",
                server_id=f"node-{node_id}",
                nthreads=0,  # Dask's own tasks find none here.
                name=address,
                resolve_address=False,
                now=time(),
                resources={NODE_RESOURCE: 1, **total},
                memory_limit=None,
                metrics=_METRICS,
                pid=os.getpid(),
                services={},
                local_directory="",
                versions=get_versions(),
                nanny="",
                extra={},
                stimulus_id=f"node-joined-{node_id}",
            )
        )
        self._running.add(serving)
        serving.add_done_callback(self._ended)
        serving.add_done_callback(lambda task: comm.answered.set())
        await comm.answered.wait()
        ws = self._scheduler.workers.get(address)
        if ws is not None:
            ws.used_resources = defaultdict(int, ws.used_resources)
            self._on_ready(node_id)

    def told(
        self, node_id: str, total: Mapping[str, int], free: Mapping[str, int]
    ) -> None:
        """A node said what it has free."""
        ws = self.find(node_id)
        if ws is None:
            return
        ws.last_seen = time()
        used = ws.used_resources
        for name, units in total.items():
            used[name] = units - free.get(name, 0)

    def set_usable(self, node_id: str, is_usable: bool) -> None:
        """A node may get work, or may not for now."""
        status = "running" if is_usable else "paused"
        self._scheduler.handle_worker_status_change(
            status, address_of(node_id), f"node-{status}-{node_id}"
        )

    def left(self, node_id: str) -> None:
        """A node is dead; its tasks were taken off it before."""
        address = address_of(node_id)
        comm = self._comms.pop(address, None)
        if comm is None:
            return
        comm.is_left = True
        self._run(
            self._scheduler.remove_worker(
                address, stimulus_id=f"node-died-{node_id}", expected=True, close=False
            )
        )
        comm.abort()

    def _run(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("Dask failed about a node", exc_info=task.exception())
