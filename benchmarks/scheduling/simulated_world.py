"""Many nodes in one process: real lease machines, a real head, and a clock of its own.

What decides is the code that runs in clusters: the lease machine of each node
(`rayshim.lineage.raylet`), the owners' scheduling classes (`simulated_owners.py`) and
the head's control service (`simulated_head.py`). Only what moves is a model: a message
takes `Network.local_s` between processes of a node and `Network.remote_s` between
nodes, a fork takes `Network.fork_s`. Nothing here opens a socket or starts a process.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.codec import ENCODER, Message
from rayshim.lineage import lease_events as ev
from rayshim.lineage.leases import LeaseState
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import UNITS, ResourceSet, to_amounts, to_units
from simulated_head import Clock, HeadModel, Network
from simulated_owners import ClassLife

#: As in `rayshim.adapters.raylet.head_link`: seconds between two loads of a node.
LOAD_S, BEAT_S = 0.05, 1.0


class SimulatedNode:
    """A lease machine and what its process does around it."""

    def __init__(self, world: World, number: int, cpus: int) -> None:
        self.world = world
        self.node_id = f"{number:08x}" * 7
        self.address = f"tcp:127.0.0.1:1/{self.node_id[:8]}/node"
        self.raylet = Raylet(
            ResourceSet(to_units({"CPU": cpus})),
            world.new_id,
            prestart=cpus,
            is_clustered=True,
        )
        #: Holder -> the class that asks under that name.
        self.holders: dict[str, ClassLife] = {}
        self._arrived: list[bytes] = []
        self._placed_here: set[bytes] = set()
        self._granted: list[bytes] = []
        self._ended: list[bytes] = []
        self._told_s = -LOAD_S
        self._told_count = 0
        self._is_soon = False
        self._peer = world.head.connect(self.node_id, self.from_head)

    def join(self) -> None:
        """Say hello and the load, then beat."""
        info = nodes.NodeInfo(self.node_id, self.address, "", "127.0.0.1", True)
        total = to_amounts(self.raylet.resources.total)
        self.to_head(nodes.JoinNode(info, total, {}, "host", 1, False, "", "", ""))
        self.feed(ev.TimePassed())

    def to_head(self, message: Message) -> None:
        """Send a message to the head."""
        world = self.world
        data = ENCODER.encode(message)
        world.clock.after(world.network.remote_s, world.head.deliver, self._peer, data)

    def from_head(self, message: Message) -> None:
        """Take a message of the head."""
        if not isinstance(message, nodes.LeasePlaced):
            return
        if message.error:
            self.feed(ev.LeaseRefused(message.lease_id, message.error, message.kind))
        elif message.address == self.address:
            self.feed(ev.LeaseAdmitted(message.lease_id))
        else:
            self.feed(ev.LeaseSpilled(message.lease_id, message.address))

    def request(self, holder: ClassLife, message: wire.RequestLease) -> None:
        """A request of an owner arrives."""
        self.holders[holder.name] = holder
        if message.hops:
            self._arrived.append(message.lease_id)
            self._placed_here.add(message.lease_id)
        self.feed(
            ev.LeaseRequested(
                message.lease_id,
                holder.name,
                message.job_id,
                message.label,
                to_units(message.resources),
                is_away=message.strategy == "SPREAD" and not message.hops,
                hops=message.hops,
                cargo=message,
            )
        )

    def feed(self, event: Any) -> None:
        """Give the machine an event and carry its commands out."""
        clock, network = self.world.clock, self.world.network
        for command in self.raylet.handle(event, clock.now_s):
            match command:
                case ev.GrantLease():
                    if command.lease_id in self._placed_here:
                        self._granted.append(command.lease_id)
                    life = self.holders[command.holder]
                    clock.after(self.way_s(life), life.granted, self, command)
                case ev.RejectLease():
                    self._forget(command.lease_id)
                    life = self.holders[command.holder]
                    clock.after(self.way_s(life), life.rejected, self, command)
                case ev.AskBack():
                    life = self.holders[command.holder]
                    clock.after(self.way_s(life), life.reclaimed, command)
                case ev.AskElsewhere():
                    lease = self.raylet.leases[command.lease_id]
                    is_away = lease.state is LeaseState.FORWARDED
                    self.world.asked_elsewhere += 1
                    self.to_head(nodes.PlaceLease(command.cargo, is_away))
                case ev.AskNoMore():
                    self.to_head(nodes.CancelPlacement(command.lease_id))
                case ev.StartExecutor():
                    ready = ev.ExecutorReady(command.worker_id, "executor", 1)
                    clock.after(network.fork_s, self.feed, ready)
                case _:
                    raise AssertionError(f"nothing here does {command}")
        if isinstance(event, ev.LeaseReturned):
            if event.lease_id in self._placed_here:
                self._ended.append(event.lease_id)
            self._forget(event.lease_id)
        self._load_changed()

    def way_s(self, life: ClassLife) -> float:
        """How long a message to or from an owner takes."""
        network = self.world.network
        return network.local_s if life.home is self else network.remote_s

    def _forget(self, lease_id: bytes) -> None:
        self._placed_here.discard(lease_id)

    def _load_changed(self) -> None:
        if not self._is_soon:
            self._is_soon = True
            clock = self.world.clock
            wait_s = max(0.0, self._told_s + LOAD_S - clock.now_s)
            clock.after(wait_s, self._tell)

    def _beat(self, told: int) -> None:
        if told == self._told_count:
            self._tell()

    def _tell(self) -> None:
        self._is_soon = False
        self._told_s = self.world.clock.now_s
        self._told_count += 1
        self.world.clock.after(BEAT_S, self._beat, self._told_count)
        load = nodes.NodeLoad(
            to_amounts(self.raylet.resources.available),
            [(label, to_amounts(n), count) for label, n, count in self.raylet.demand()],
            store_limit_bytes=1 << 30,
            arrived=self._arrived,
            granted=self._granted,
            ended=self._ended,
        )
        self._arrived, self._granted, self._ended = [], [], []
        self.to_head(load)


@dataclass(frozen=True)
class Work:
    """What owners submit, on average and at every node alike."""

    #: Share of all CPUs that calls would use.
    load: float = 0.7
    #: Seconds that a class lives; a lease of it lives as long.
    class_life_s: float = 10.0
    call_s: float = 1.0
    #: Sizes of classes, each as likely.
    widths: tuple[int, ...] = (1, 2, 4, 8, 16)
    strategy: str = ""

    def classes_per_s(self, cpus: int) -> float:
        """Classes that start at a node in a second."""
        width = sum(self.widths) / len(self.widths)
        return self.load * cpus / (width * self.class_life_s)


@dataclass(slots=True)
class World:
    """Nodes, their owners, and the head.

    Args:
        node_count: nodes, all alike.
        cpus: executors of each.
        work: what owners do.
        seed: of the draws.
        network: how long messages take.
        cost_s: see `HeadModel`.
    """

    node_count: int
    cpus: int = 32
    work: Work = field(default_factory=Work)
    seed: int = 1
    network: Network = field(default_factory=Network)
    cost_s: float | None = None
    clock: Clock = field(init=False, default_factory=Clock)
    head: HeadModel = field(init=False)
    nodes: list[SimulatedNode] = field(init=False, default_factory=list)
    class_count: int = field(init=False, default=0)
    calls_done: int = field(init=False, default=0)
    asked_elsewhere: int = field(init=False, default=0)
    #: Seconds from request to grant, of leases on the owner's node and elsewhere.
    local_s: list[float] = field(init=False, default_factory=list)
    spilled_s: list[float] = field(init=False, default_factory=list)
    _ids: int = field(init=False, default=0)
    _random: random.Random = field(init=False)
    _by_address: dict[str, SimulatedNode] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.head = HeadModel(self.clock, self.network, self.cost_s)

    @property
    def call_s(self) -> float:
        """Seconds of one call."""
        return self.work.call_s

    def new_id(self) -> bytes:
        """An id that was never given before."""
        self._ids += 1
        return self._ids.to_bytes(16, "big")

    def node_at(self, address: str) -> SimulatedNode:
        """The node with the address."""
        return self._by_address[address]

    def start(self, join_s: float = 0.5) -> None:
        """Let all nodes join within ``join_s``, and their executors start."""
        for number in range(1, self.node_count + 1):
            node = SimulatedNode(self, number, self.cpus)
            self.nodes.append(node)
            self._by_address[node.address] = node
            self.clock.after(self._random.uniform(0, join_s), node.join)
        self.clock.run_until(self.clock.now_s + join_s + 1.0)

    async def wait_registered(self) -> None:
        """Let Dask's scheduler, if there is one, register the nodes that joined."""
        tasks = self.head.control.placer.engine.tasks
        while tasks is not None and not all(
            tasks.has_node(node.node_id) for node in self.nodes
        ):
            await asyncio.sleep(0)

    def join_alone(self, number: int) -> None:
        """Let a node join of which there is nothing but its channel."""
        node_id = f"{number:08x}" * 7
        address = f"tcp:127.0.0.1:1/{node_id[:8]}/node"
        peer = self.head.connect(node_id, lambda message: None)
        info = nodes.NodeInfo(node_id, address, "", "127.0.0.1", True)
        total = {"CPU": float(self.cpus)}
        for message in (
            nodes.JoinNode(info, total, {}, "host", 1, False, "", "", ""),
            nodes.NodeLoad({"CPU": 0.0}),
        ):
            self.head.deliver(peer, ENCODER.encode(message))

    def ask_head(self, number: int, request: wire.RequestLease) -> None:
        """Let a node that joined alone ask where a request can go."""
        peer = list(self.head.peers.values())[number]
        self.head.deliver(peer, ENCODER.encode(nodes.PlaceLease(request)))

    def begin_work(self) -> None:
        """As many classes as there are on average, then new ones at random times."""
        work = self.work
        rate = work.classes_per_s(self.cpus)
        for node in self.nodes:
            expected = rate * work.class_life_s
            started_s = self._random.expovariate(1.0)
            while started_s < expected:
                started_s += self._random.expovariate(1.0)
                self._begin(node, self._random.uniform(0, work.class_life_s))
            self._later(node, rate)

    def run(self, seconds: float) -> None:
        """Let the time pass."""
        self.clock.run_until(self.clock.now_s + seconds)

    def reset(self) -> None:
        """Count from now on."""
        self.head.reset()
        self.local_s.clear()
        self.spilled_s.clear()
        self.calls_done = self.asked_elsewhere = 0

    def count_grant(self, seconds: float, *, is_local: bool) -> None:
        """A lease came to its owner."""
        (self.local_s if is_local else self.spilled_s).append(seconds)

    def free_cpus(self) -> float:
        """CPUs that nobody holds."""
        free = (node.raylet.resources.available.get("CPU", 0) for node in self.nodes)
        return sum(free) / UNITS

    def _later(self, node: SimulatedNode, rate: float) -> None:
        delay_s = self._random.expovariate(rate)
        self.clock.after(delay_s, self._next, node, rate)

    def _next(self, node: SimulatedNode, rate: float) -> None:
        self._begin(node, self.work.class_life_s)
        self._later(node, rate)

    def _begin(self, node: SimulatedNode, life_s: float) -> None:
        # From the clock, so that no owner calls a node while that calls others.
        width = self._random.choice(self.work.widths)
        ClassLife(node, width, life_s, self.work.strategy)
