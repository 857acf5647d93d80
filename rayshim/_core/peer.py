"""A peer: the part of rayshim inside each driver and executor.

It owns the references that its process creates, asks for leases, pushes calls to
executors and, in an executor, runs the calls of others. This module is its frame:
the channels, who handles which message, and the way to the raylet and
the control service.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim import exceptions
from rayshim._core import blocking, refs
from rayshim._core.actor_calls import ActorCaller
from rayshim._core.cancellation import Canceller
from rayshim._core.control_link import ControlLink
from rayshim._core.executor_deaths import ExecutorDeaths
from rayshim._core.group_places import NO_GROUP, LeaseGroup
from rayshim._core.loops import LoopMailboxes
from rayshim._core.nodes import NodeDirectory
from rayshim._core.objects import ObjectPlane
from rayshim._core.reading import ObjectReader
from rayshim._core.store_client import StoreClient
from rayshim._core.streams import Streams
from rayshim._core.submit import TaskSubmitter
from rayshim.adapters.shm.store import SegmentStore
from rayshim.adapters.wire import address as addresses
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import node_messages as n
from rayshim.adapters.wire.channel import Channel, Stream
from rayshim.adapters.wire.reactor import MAX_FRAME_BYTES, Reactor
from rayshim.settings import Settings

if TYPE_CHECKING:
    from rayshim._core.event_log import CallLog
    from rayshim._core.executor import Executor
    from rayshim._core.pending_notices import PendingNotices
    from rayshim._core.wait_reports import WaitReports
    from rayshim.lineage.references import ObjectEntry

#: How often a process that holds shared objects looks for dropped references.
SWEEP_S = 0.1
MAX_SWEEP_S = 0.8
#: Looks without a dropped reference before free segments are given back: some 5 s.
IDLE_SWEEPS = 8

#: Of a request's payload; a frame around it is dropped, with its channel, if larger.
MAX_REQUEST_BYTES = MAX_FRAME_BYTES - 1024

#: How requests end that a dead node process cannot answer any more.
_GONE = "LocalRayletDiedError"

MessageHandler = Callable[[Channel, Any], None]


class Peer:
    """One driver or executor process of a session.

    Thread safety: every public method may be called from any thread; state changes
    happen under :attr:`lock`.
    """

    def __init__(
        self,
        *,
        role: str,
        address: str,
        worker_id: bytes,
        job_id: bytes,
        node_id: str,
        raylet_address: str,
        token: bytes,
        store_dir: str,
        namespace: str,
        settings: Settings,
        session: str = "",
        session_dir: str = "",
        node_ip: str = "127.0.0.1",
        control_address: str = "",
        listen_ip: str = "",
    ) -> None:
        self.role = role
        #: The unix socket of this process.
        self.socket_path = address.removeprefix("unix:")
        #: What processes of other nodes connect to, in a cluster.
        self._listener: socket.socket | None = None
        if listen_ip:
            ports = settings.worker_ports
            self._listener = addresses.listen_in(listen_ip, ports)
            name = os.path.basename(self.socket_path).removesuffix(".sock")
            host, port = self._listener.getsockname()[:2]
            reach = node_ip if host in ("0.0.0.0", "::") else host
            address = addresses.make(reach, port, node_id, name)
        self.address = address
        self.listen_ip = listen_ip
        self.control_address = control_address
        self.worker_id = worker_id
        self.job_id = job_id
        self.node_id = node_id
        self.node_ip = node_ip
        self.namespace = namespace
        self.settings = settings
        self.session = session
        self.session_dir = session_dir
        self.raylet_address = raylet_address
        self.pid = os.getpid()
        #: True once the session is closed.
        self.ended = False
        #: Environment of the whole job, which each call's own one is laid over.
        self.job_env: dict[str, str] = {}
        #: The rest of it, as in ``RequestLease.runtime_env``.
        self.runtime_env_text = ""
        #: What executors of a cluster need to know of the driver of the job.
        self.job_blob = b""
        #: The runtime_env of the job (driver) or lease (executor).
        self.runtime_env: dict[str, Any] = {}
        #: Labels of the node.
        self.labels: dict[str, str] = {}
        self.reactor = Reactor(token, self)
        if settings.tls_ca and (listen_ip or control_address):
            from rayshim.adapters.wire import tls

            self.reactor.credentials = tls.of_settings(asdict(settings))
        if listen_ip:
            self.reactor.home = node_id[:8]
            self.reactor.sockets_dir = os.path.dirname(self.socket_path)
        self.lock = self.reactor.lock
        self.store = SegmentStore(
            store_dir,
            node=node_id,
            address=address,
            limit_bytes=settings.object_store_limit_bytes,
        )
        #: The executor part, in an executor.
        self.executor: Executor | None = None
        #: Of the lease that an executor works on; the same object until it changes.
        self.lease_group: LeaseGroup = NO_GROUP
        #: Group id -> its bundles, of groups that this process worked in.
        self.group_specs: dict[bytes, list[dict[str, float]]] = {}
        #: Called when the node process is gone; an executor leaves then.
        self.on_raylet_gone: Callable[[], None] | None = None
        self._handlers: dict[type, MessageHandler] = {}
        #: Address -> open channel.
        self._channels: dict[str, Channel] = {}
        self._requests: dict[int, m.Response | None] = {}
        self._callbacks: dict[int, Callable[[m.Response], None]] = {}
        self._request_ids = itertools.count(1)
        #: Called with each LogLines of the job (driver only).
        self.on_log: Callable[[m.LogLines], None] | None = None
        self.on_publish: Callable[[m.Publish], None] | None = None
        self._sweeping = False
        self._sweep_s = SWEEP_S
        self._idle_sweeps = 0
        self.loops = LoopMailboxes()
        #: What is told of waits, from the first on that lasts.
        self.wait_reports: WaitReports | None = None
        #: Shows how far a long wait is; None where nobody would see it.
        self.wait_bar: Callable[[list[ObjectEntry]], Any] | None = None
        #: Scheduling classes and actors of which it was explained why they wait.
        self.explained: set[Any] = set()
        self._notices: PendingNotices | None = None
        self._call_log: CallLog | None = None
        self._looks_at_pending = role != "driver" or settings.pending_warn_s <= 0
        self._unique = itertools.count(int.from_bytes(os.urandom(7), "little") << 8)
        self.nodes = NodeDirectory(self)
        self.store_client = StoreClient(self)
        self.objects = ObjectPlane(self)
        self.reader = ObjectReader(self)
        self.tasks = TaskSubmitter(self)
        self.canceller = Canceller(self)
        self.deaths = ExecutorDeaths(self)
        self.actors = ActorCaller(self)
        self.streams = Streams(self)
        parts = (
            self.nodes,
            self.store_client,
            self.objects,
            self.tasks,
            self.canceller,
            self.deaths,
            self.actors,
            self.streams,
        )
        self._parts = parts
        for part in parts:
            self._handlers.update(part.handlers())
        self._handlers.update(
            {
                m.Hello: self._on_hello,
                m.Response: self._on_response,
                m.LogLines: self._on_log_lines,
                m.Publish: self._on_publish_note,
                **blocking.handlers(self),
            }
        )
        self.raylet: Channel
        #: The control service; the raylet's channel in a session on one node.
        self.control: Channel | ControlLink

    # -- life ------------------------------------------------------------------

    def start(self) -> None:
        """Listen, and open the channels to the raylet and the control service.

        Raises:
            ConnectionError: one of them does not answer.
        """
        self.reactor.listen(self.socket_path)
        if self._listener is not None:
            self.reactor.accept_from(self._listener)
        self.raylet = self.connect(self.raylet_address)
        self.raylet.role = "raylet"
        self.control = self.raylet
        if self.control_address:
            self.control = link = ControlLink(self, self.control_address)
            link.open()

    def close(self) -> None:
        """Leave the session: channels, mappings and the background thread go."""
        with self.lock:
            if self.ended:
                return
            self.ended = True
        self.reactor.close()
        self.store.close()
        try:
            os.unlink(self.socket_path)
        except FileNotFoundError:
            pass  # the node process removed the whole session folder

    def forget_after_fork(self) -> None:
        """Drop what a forked child inherited, without a word to anybody."""
        self.ended = True
        refs.dropped.clear()
        for channel in self._channels.values():
            channel.sock.close()
        if self._listener is not None:
            self._listener.close()

    @property
    def call_log(self) -> CallLog:
        """Notes calls that end; made when the first one fails, in a driver."""
        if self._call_log is None:
            from rayshim._core.event_log import CallLog

            self._call_log = CallLog(self)
        return self._call_log

    # -- channels ----------------------------------------------------------------

    def add_handlers(self, handlers: dict[type, MessageHandler]) -> None:
        """Let another part (the executor's) handle more messages."""
        self._handlers.update(handlers)

    def connect(
        self, address: str, role: str = "", sock: Stream | None = None
    ) -> Channel:
        """The channel to a process, opened if there is none (under the lock).

        Args:
            address: of the process.
            role: what this process is there; by default what it is.
            sock: connected to it already.

        Raises:
            ConnectionError: the process is gone.
        """
        with self.lock:
            channel = self._channels.get(address)
            if channel is not None and not channel.closed:
                return channel
            dead = self.nodes.dead_node_of(address)
            if dead is not None:
                raise ConnectionError(f"node {dead.node_id[:8]} died: {dead.death}")
            channel = self.reactor.adopt(
                sock or self.reactor.open_socket(address), address
            )
            self._channels[address] = channel
            role = role or self.role
            channel.send(
                m.Hello(role, self.worker_id, self.address, self.pid, self.job_id)
            )
            return channel

    def raylet_at(self, address: str) -> Channel:
        """The channel to the raylet of any node (under the lock).

        Raises:
            ConnectionError: the node is gone.
        """
        if address == self.raylet_address:
            return self.raylet
        channel = self.connect(address, "remote")
        channel.role = "raylet"
        return channel

    def known_channel(self, address: str) -> Channel | None:
        """The open channel to a process, or None."""
        channel = self._channels.get(address)
        return channel if channel is not None and not channel.closed else None

    def handle(self, channel: Channel, message: Any) -> None:
        """Give a message to whoever handles its type."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise exceptions.InternalError(
                f"{self.role} {self.pid} got {type(message).__name__} from {channel}, "
                "which it does not handle"
            )
        handler(channel, message)

    def closed(self, channel: Channel) -> None:
        """The end of a channel is the death of its process."""
        address = channel.address
        if self._channels.get(address) is channel:
            del self._channels[address]
        if channel is getattr(self, "raylet", None):
            self._raylet_died()
            return
        control = getattr(self, "control", None)
        if isinstance(control, ControlLink) and control.is_channel(channel):
            control.lost()
            return
        if channel.role == "raylet":
            self.tasks.raylet_closed(channel)
            return
        self.deaths.peer_died(channel)
        self.actors.peer_died(channel)
        self.streams.peer_died(channel)
        self.objects.peer_died(channel)

    def _on_hello(self, channel: Channel, hello: m.Hello) -> None:
        channel.role = hello.role
        channel.worker_id = hello.worker_id
        channel.address = hello.address
        # Two processes may connect to each other at once: both channels stay, and
        # each side sends on the one that it has listed first.
        self._channels.setdefault(hello.address, channel)

    @property
    def cluster_address(self) -> str:
        """``HOST:PORT`` of the cluster; the raylet's address without one."""
        if not self.control_address:
            return self.raylet_address
        return addresses.place_of(self.control_address)

    def node_died(self, info: n.NodeInfo) -> None:
        """A node is gone: so is every process on it (under the lock)."""
        short = info.node_id[:8]
        for address, channel in list(self._channels.items()):
            if addresses.node_of(address) == short:
                self.reactor.close_channel(channel)
        for part in self._parts:
            died = getattr(part, "node_died", None)
            if died is not None:
                died(info)

    def _raylet_died(self) -> None:
        if self.on_raylet_gone is not None:
            self.on_raylet_gone()
        error = exceptions.LocalRayletDiedError()
        self.fail_requests(_GONE, "")
        self.tasks.raylet_died(error)
        self.actors.raylet_died(error)

    def fail_requests(self, error: str, text: str) -> None:
        """The control service will not answer: end what waits for it."""
        payload = msgspec.msgpack.encode(text)
        for request_id, response in self._requests.items():
            if response is None:
                self._requests[request_id] = m.Response(request_id, error, payload)
        callbacks, self._callbacks = self._callbacks, {}
        for request_id, answered in callbacks.items():
            answered(m.Response(request_id, error, payload))

    # -- control service -----------------------------------------------------------

    def next_request_id(self) -> int:
        """A request id that :meth:`response` waits for."""
        request_id = next(self._request_ids)
        self._requests[request_id] = None
        return request_id

    def check_control(self) -> None:
        """See that the control service is there, or may soon be again.

        Raises:
            RaySystemError: it is gone for longer than it may.
        """
        if isinstance(self.control, ControlLink) and self.control.closed:
            raise _remote_error(*self.control.gone())

    def request(
        self, method: str, payload: Any = None, *, timeout_s: float | None = 60.0
    ) -> Any:
        """Call the control service and return its decoded answer.

        Args:
            method: as listed in docs/design.md.
            payload: anything that MessagePack holds.
            timeout_s: None where the answer may rightly take for ever.

        Raises:
            RayError: or a builtin error that the service names.
        """
        if self.raylet.closed:
            raise exceptions.LocalRayletDiedError()
        self.check_control()
        request_id = self.next_request_id()
        data = _encoded(method, payload)
        with self.lock:
            self.control.send(m.Request(request_id, method, data))
        return self.response(request_id, method, timeout_s=timeout_s)

    def notify(self, method: str, payload: Any) -> None:
        """Call the control service without waiting for its answer."""
        data = _encoded(method, payload)
        with self.lock:
            # A link repeats what was not answered to a head that comes back; to the
            # only node the number 0 says that nobody waits for an answer.
            is_answered = isinstance(self.control, ControlLink)
            request_id = next(self._request_ids) if is_answered else 0
            self.control.queue(m.Request(request_id, method, data))
            self.control.flush_soon()

    def request_later(
        self, method: str, payload: Any, answered: Callable[[m.Response], None]
    ) -> None:
        """Call the control service; ``answered`` runs under the lock."""
        data = _encoded(method, payload)
        with self.lock:
            request_id = next(self._request_ids)
            self._callbacks[request_id] = answered
            self.control.send(m.Request(request_id, method, data))

    def response(
        self, request_id: int, method: str, *, timeout_s: float | None = 60.0
    ) -> Any:
        """Wait for the answer of a request that was sent."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        requests = self._requests
        arrived = self.reactor.wait(
            lambda: requests[request_id] is not None or self.ended, deadline
        )
        answer = requests.pop(request_id, None)
        if answer is None:
            if arrived:
                raise exceptions.RaySystemError(
                    RuntimeError(f"the session ended while {method!r} was under way")
                )
            raise exceptions.GetTimeoutError(
                f"the control service of session {self.session} did not answer "
                f"{method!r} within {timeout_s:g} s; is the node process "
                f"({self.raylet_address}) stopped or overloaded?"
            )
        if answer.error:
            raise _remote_error(answer.error, msgspec.msgpack.decode(answer.payload))
        return msgspec.msgpack.decode(answer.payload)

    def _on_response(self, channel: Channel, response: m.Response) -> None:
        if isinstance(self.control, ControlLink):
            self.control.answered(response.request_id)
        callback = self._callbacks.pop(response.request_id, None)
        if callback is not None:
            callback(response)
        elif response.request_id in self._requests:
            self._requests[response.request_id] = response

    def _on_log_lines(self, channel: Channel, lines: m.LogLines) -> None:
        if self.on_log is not None:
            self.on_log(lines)

    def _on_publish_note(self, channel: Channel, note: m.Publish) -> None:
        if self.on_publish is not None:
            self.on_publish(note)

    # -- ids and sweeping ------------------------------------------------------------

    def unique(self) -> bytes:
        """Eight bytes that no other call of this job has."""
        return (next(self._unique) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")

    def watch_pending(self) -> None:
        """Something was asked for: explain it if nothing comes (under the lock)."""
        if self._looks_at_pending:
            return
        self._looks_at_pending = True

        def look() -> None:
            from rayshim._core.pending_notices import LOOKS, PendingNotices

            if self._notices is None:
                self._notices = PendingNotices(self)
            self._looks_at_pending = not self.ended and self._notices.look()
            if self._looks_at_pending:
                self.reactor.call_later(self.settings.pending_warn_s / LOOKS, look)

        self.reactor.call_later(self.settings.pending_warn_s, look)

    def arm_sweep(self) -> None:
        """Look for dropped references soon, as something larger hangs on them."""
        self._sweep_s = SWEEP_S
        if not self._sweeping:
            self._sweeping = True
            self.reactor.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        if self.ended:
            return
        if refs.dropped:
            self._sweep_s = SWEEP_S
            self._idle_sweeps = 0
            self.objects.collect()
        else:
            self._idle_sweeps += 1
            # An idle process should sleep: a thousand actors wake up a core.
            self._sweep_s = min(MAX_SWEEP_S, 2 * self._sweep_s)
            self.store.sweep()
            if self._idle_sweeps > IDLE_SWEEPS:
                self.store.trim()
        if self.objects.needs_sweep() or self.store.has_free():
            self._sweeping = True
            self.reactor.call_later(self._sweep_s, self._sweep)


def _encoded(method: str, payload: Any) -> bytes:
    """A request's payload, if the other side would not drop us for its size.

    Raises:
        ValueError: it is too large.
    """
    data = msgspec.msgpack.encode(payload)
    if len(data) > MAX_REQUEST_BYTES:
        raise ValueError(
            f"{method}: {len(data)} bytes are more than the {MAX_REQUEST_BYTES} that "
            "the control service takes at once; put large values into the object "
            "store with put()"
        )
    return data


def _remote_error(name: str, message: Any) -> Exception:
    kind = getattr(exceptions, name, None)
    if kind is None:
        import builtins

        kind = getattr(builtins, name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return exceptions.RaySystemError(RuntimeError(f"{name}: {message}"))
    try:
        return kind(message) if message else kind()
    except TypeError:
        return exceptions.RaySystemError(RuntimeError(f"{name}: {message}"))
