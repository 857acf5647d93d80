"""The head of a simulated cluster: its real control service, and a clock of its own.

The clock jumps from event to event. The head is one thread: a message costs it the CPU
time that its code needs for decoding, deciding and encoding, measured while it runs (or
a constant, so that runs repeat exactly), and waits until the messages before it are
done. What connections and the event loop cost beside that is not in it.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rayshim.adapters.raylet.control import ControlService
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.codec import DECODER, ENCODER, Message


@dataclass(frozen=True, slots=True)
class Network:
    """How long things take that are not the head's work, in seconds."""

    local_s: float = 0.0001
    remote_s: float = 0.0003
    fork_s: float = 0.005


class Clock:
    """Runs what is due, in order of time, and of equal times in order of asking."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, delay_s: float, run: Callable[..., Any], *args: Any) -> None:
        """Have ``run(*args)`` called in ``delay_s`` seconds."""
        self._count += 1
        heapq.heappush(self._due, (self.now_s + delay_s, self._count, run, args))

    def run_until(self, end_s: float) -> None:
        """Let the time pass."""
        due = self._due
        while due and due[0][0] <= end_s:
            self.now_s, _, run, args = heapq.heappop(due)
            run(*args)
        self.now_s = end_s


class _Timer:
    """What `asyncio.AbstractEventLoop.call_later` gives."""

    def __init__(self, run: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.run: Callable[..., Any] | None = run
        self.args = args

    def cancel(self) -> None:
        self.run = None


class HeadModel:
    """The control service as a queue of messages with one thread.

    Args:
        clock: of the world.
        network: how long messages take.
        cost_s: CPU time that each message costs; None: what its handling takes.
    """

    def __init__(self, clock: Clock, network: Network, cost_s: float | None) -> None:
        self._clock = clock
        self._network = network
        self._cost_s = cost_s
        self._free_at_s = 0.0
        #: Encoded messages that the running handler sends: (take, name, bytes).
        self._out: list[tuple[Callable[[Message], None], str, bytes]] = []
        #: CPU seconds, messages and bytes, by the name of the message that came.
        self.cpu_s: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.received_bytes: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        #: Longest time that a message waited for the thread.
        self.longest_wait_s = 0.0
        self.config: Any = SimpleNamespace(
            settings={},
            listen_ip="127.0.0.1",
            with_raylet=False,
            node_id="",
            job_id="",
        )
        # What tools would ask is not simulated.
        self.metrics_door = SimpleNamespace(watch=lambda nodes: None)
        self.event_files = SimpleNamespace(add_cluster_events=lambda events: None)
        self.loop = self
        self.peers: dict[str, Any] = {}
        self.drivers: dict[bytes, Any] = {}
        self.control = ControlService(self)  # type: ignore[arg-type]  # what it uses
        self._handlers = self.control.handlers()
        self.control.start()

    # What the control service uses of its process.

    def now(self) -> float:
        """The time, in seconds."""
        return self._clock.now_s

    def time(self) -> float:
        """The same, of the loop."""
        return self._clock.now_s

    def call_later(self, delay_s: float, run: Callable[..., Any], *args: Any) -> Any:
        """As of an event loop: ``run`` is work of the head."""
        timer = _Timer(run, args)
        self._clock.after(delay_s, self._run_timer, timer)
        return timer

    def call_soon(self, run: Callable[..., Any], *args: Any) -> Any:
        """The same, at once."""
        return self.call_later(0.0, run, *args)

    def close_node(self, info: nodes.NodeInfo) -> None:
        """Nodes do not die here."""

    # The thread.

    def connect(self, node_id: str, take: Callable[[Message], None]) -> Any:
        """A channel to the head; ``take`` gets what the head sends over it."""
        connection = SimpleNamespace(
            send=lambda message: self._send(take, message),
            send_encoded=lambda data: self._send_encoded(take, data),
            unsent_bytes=0,
        )
        peer = SimpleNamespace(
            role="raylet",
            address=f"tcp:127.0.0.1:1/{node_id[:8]}/node",
            node_id="",
            number=len(self.peers) + 1,
            job_id=b"",
            connection=connection,
        )
        self.peers[peer.address] = peer
        return peer

    async def start_dask(self) -> Any:
        """Have leases that the head places be tasks of Dask's scheduler from now on.

        Returns:
            The scheduler, to be closed.
        """
        # Late: simulations without it do not pay for its import.
        from rayshim.adapters.dask.lease_scheduler import LeaseScheduler
        from rayshim.adapters.dask.lease_tasks import LeaseTasks

        logging.getLogger("distributed").setLevel(logging.WARNING)
        scheduler = await LeaseScheduler(
            protocol="inproc", port=0, dashboard=False, dashboard_address=None
        )
        self.control.engine.on_tasks(LeaseTasks(scheduler))
        return scheduler

    def deliver(self, peer: Any, data: bytes) -> None:
        """An encoded message arrives."""
        self._work(self._take, peer, data)

    def reset(self) -> None:
        """Count from now on."""
        for counter in (self.cpu_s, self.received, self.received_bytes):
            counter.clear()
        self.sent.clear()
        self.sent_bytes.clear()
        self.longest_wait_s = 0.0

    def _run_timer(self, timer: _Timer) -> None:
        if timer.run is not None:
            self._work(self._call, timer)

    def _call(self, timer: _Timer) -> str:
        if timer.run is not None:
            timer.run(*timer.args)
        return "timer"

    def _take(self, peer: Any, data: bytes) -> str:
        message = DECODER.decode(data)
        self._handlers[type(message)](self, peer, message)
        name = type(message).__name__
        self.received[name] += 1
        self.received_bytes[name] += len(data)
        return name

    def _work(self, run: Callable[..., str], *args: Any) -> None:
        now_s = self._clock.now_s
        wait_s = max(0.0, self._free_at_s - now_s)
        self.longest_wait_s = max(self.longest_wait_s, wait_s)
        started = time.thread_time()
        name = run(*args)
        cost_s = time.thread_time() - started
        if self._cost_s is not None:
            cost_s = self._cost_s
        self.cpu_s[name] += cost_s
        self._free_at_s = now_s + wait_s + cost_s
        out, self._out = self._out, []
        delay_s = wait_s + cost_s + self._network.remote_s
        for take, kind, data in out:
            self.sent[kind] += 1
            self.sent_bytes[kind] += len(data)
            if kind != "NodeTable":  # which nothing here reads
                self._clock.after(delay_s, _decoded, take, data)

    def _send(self, take: Callable[[Message], None], message: Message) -> None:
        self._out.append((take, type(message).__name__, ENCODER.encode(message)))

    def _send_encoded(self, take: Callable[[Message], None], data: bytes) -> None:
        self._out.append((take, "NodeTable", data))  # the only one that goes to many


def _decoded(take: Callable[[Message], None], data: bytes) -> None:
    take(DECODER.decode(data))
