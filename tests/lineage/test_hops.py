"""Requests that go from node to node: they arrive, and do not wander."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from typing import Any, NamedTuple

import pytest

from rayshim.lineage import lease_events as ev
from rayshim.lineage.leases import LeaseState
from rayshim.lineage.node_index import NodeIndex
from rayshim.lineage.placement import Policy, View, Wish, fits
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import ResourceSet, Units, to_units
from rayshim.lineage.shares import GUARD_S
from rayshim.lineage.spillback import HOP_PAUSE_S, MAX_HOPS

#: As the control service keeps an amount that it gave away and did not hear of.
ARRIVAL_S = 1.0


class Request(NamedTuple):
    """What an owner asks for."""

    lease_id: bytes
    home: str
    need: Units
    hops: int = 0
    is_away: bool = False


class Load(NamedTuple):
    """What a node tells of itself."""

    available: Units
    arrived: tuple[bytes, ...]


class Head:
    """The control service's part: requests that wait, nodes, and the choice."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.index = NodeIndex(Policy(0.5))
        #: Node -> what it told last.
        self.told: dict[str, Units] = {}
        #: Lease id -> node that asks, and what for.
        self.waiting: dict[bytes, tuple[str, Request]] = {}
        #: Node -> lease id -> need and time of what was sent there.
        self.placed: dict[str, dict[bytes, tuple[Units, float]]] = {}

    def hear(self, node_id: str, message: Any) -> None:
        if isinstance(message, ev.AskElsewhere):
            request = message.cargo
            assert isinstance(request, Request)
            known = self.waiting.get(request.lease_id)
            if known is None or known[1].hops <= request.hops:
                self.waiting[request.lease_id] = (node_id, request)
        elif isinstance(message, ev.AskNoMore):
            if self.waiting.get(message.lease_id, ("",))[0] == node_id:
                del self.waiting[message.lease_id]
        else:
            self.told[node_id] = dict(message.available)
            placed = self.placed.setdefault(node_id, {})
            for lease_id in message.arrived:
                placed.pop(lease_id, None)
            self.count(node_id)
        self.place()

    def count(self, node_id: str) -> None:
        """Reckons what was told less what was sent there since."""
        free = dict(self.told[node_id])
        placed = self.placed[node_id]
        for lease_id, (need, since) in list(placed.items()):
            if self.world.now - since > ARRIVAL_S:
                del placed[lease_id]
                continue
            for name, units in need.items():
                free[name] = free.get(name, 0) - units
        total = self.world.nodes[node_id].resources.total
        self.index.put(View(node_id, total, free))

    def place(self) -> None:
        for lease_id, (asker, request) in list(self.waiting.items()):
            without = "" if request.is_away else asker
            choice = self.index.choose(request.need, Wish(asker), without=without)
            if choice is None or not choice.has_room:
                continue
            del self.waiting[lease_id]
            node_id = choice.node_id
            self.placed[node_id][lease_id] = (request.need, self.world.now)
            self.count(node_id)
            answer: Any = ev.LeaseSpilled(lease_id, node_id)
            if node_id == asker:
                answer = ev.LeaseAdmitted(lease_id)
            self.world.send("head", asker, answer)


class World:
    """Nodes, owners and the head, with messages under way between them."""

    def __init__(self, draw: random.Random, cpus: list[int]) -> None:
        self.draw = draw
        self.now = 0.0
        #: How often the head hears nothing when it could.
        self.lateness = 0.0
        numbers = itertools.count()
        self.nodes = {
            f"n{at}": Raylet(
                ResourceSet(to_units({"CPU": cpu})),
                lambda: b"w%d" % next(numbers),
                is_clustered=True,
            )
            for at, cpu in enumerate(cpus)
        }
        #: Sender and receiver -> messages in order.
        self.under_way: dict[tuple[str, str], deque[Any]] = {}
        self.requests: dict[bytes, Request] = {}
        #: Lease id -> nodes that it was at.
        self.path: dict[bytes, list[str]] = {}
        self.made_s: dict[bytes, float] = {}
        self.granted: dict[bytes, str] = {}
        self.refused: set[bytes] = set()
        self.returned: set[bytes] = set()
        self.arrived: dict[str, list[bytes]] = {one: [] for one in self.nodes}
        self.head = Head(self)
        for node_id in self.nodes:
            self.tell(node_id)

    # What the world does.

    def send(self, sender: str, receiver: str, message: Any) -> None:
        self.under_way.setdefault((sender, receiver), deque()).append(message)

    def deliver(self) -> bool:
        """One message, of any channel."""
        full = [ends for ends, queue in self.under_way.items() if queue]
        if not full:
            return False
        if self.draw.random() < self.lateness:
            full = [ends for ends in full if ends[1] != "head"] or full
        sender, receiver = self.draw.choice(full)
        message = self.under_way[sender, receiver].popleft()
        if receiver == "head":
            self.head.hear(sender, message)
        elif receiver == "owner":
            self.owner_hears(sender, message)
        else:
            if isinstance(message, ev.LeaseRequested):
                self.arrived[receiver].append(message.lease_id)
            self.feed(receiver, message)
        return True

    def feed(self, node_id: str, event: Any) -> None:
        machine = self.nodes[node_id]
        for command in machine.handle(event, self.now):
            if isinstance(command, ev.StartExecutor):
                ready = ev.ExecutorReady(command.worker_id, "w", 1)
                self.send("forks", node_id, ready)
            elif isinstance(command, ev.AskElsewhere | ev.AskNoMore):
                self.send(node_id, "head", command)
            elif isinstance(command, ev.GrantLease | ev.RejectLease):
                self.send(node_id, "owner", command)
        machine.validate()
        self.tell(node_id)

    def tell(self, node_id: str) -> None:
        arrived, self.arrived[node_id] = self.arrived[node_id], []
        available = dict(self.nodes[node_id].resources.available)
        self.send(node_id, "head", Load(available, tuple(arrived)))

    def ask(
        self, home: str, cpus: int, *, is_away: bool = False, hops: int = 0
    ) -> None:
        """A request, which may have been passed on before."""
        lease_id = b"l%d" % len(self.requests)
        need = to_units({"CPU": cpus})
        request = Request(lease_id, home, need, hops, is_away)
        self.requests[lease_id] = request
        self.path[lease_id] = [home]
        self.made_s[lease_id] = self.now
        self.put(home, request)

    def put(self, node_id: str, request: Request) -> None:
        event = ev.LeaseRequested(
            request.lease_id,
            "owner",
            b"job",
            "f",
            request.need,
            is_away=request.is_away,
            hops=request.hops,
            cargo=request,
        )
        for _ in range(self.draw.choice((1, 1, 1, 2))):  # It may come twice.
            self.send("owner", node_id, event)

    def owner_hears(self, node_id: str, message: Any) -> None:
        lease_id = message.lease_id
        if isinstance(message, ev.GrantLease):
            assert self.granted.setdefault(lease_id, node_id) == node_id
            assert lease_id not in self.refused
        elif message.kind != "spillback":
            self.refused.add(lease_id)
        elif message.hops == self.requests[lease_id].hops:
            request = self.requests[lease_id]
            request = request._replace(hops=message.hops + 1, is_away=False)
            self.requests[lease_id] = request
            self.path[lease_id].append(message.spill_to)
            self.check_path(lease_id)
            self.put(message.spill_to, request)

    def give_back(self) -> None:
        held = [one for one in self.granted if one not in self.returned]
        if held:
            lease_id = self.draw.choice(held)
            self.returned.add(lease_id)
            node_id = self.granted[lease_id]
            self.send("owner", node_id, ev.LeaseReturned(lease_id))

    def restart_head(self) -> None:
        """All that is under way from and to the head is lost, and what it knew."""
        for (sender, receiver), queue in self.under_way.items():
            if "head" in (sender, receiver):
                queue.clear()
        self.head = Head(self)
        from rayshim.lineage.spillback import asked_again

        for node_id, machine in self.nodes.items():
            self.tell(node_id)
            for command in asked_again(machine):
                self.send(node_id, "head", command)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for node_id in self.nodes:
            self.feed(node_id, ev.TimePassed())

    # Rules.

    def check_path(self, lease_id: bytes) -> None:
        path = self.path[lease_id]
        assert all(one != other for one, other in itertools.pairwise(path)), path
        waited_s = self.now - self.made_s[lease_id]
        # Beyond the bound each hop takes twice the time of the one before.
        extra = math.floor(math.log2(1 + waited_s / HOP_PAUSE_S))
        hops = self.requests[lease_id].hops
        assert hops <= MAX_HOPS + extra, (path, hops, waited_s)

    def unfinished(self) -> list[bytes]:
        return [
            one
            for one in self.requests
            if one not in self.granted and one not in self.refused
        ]

    def settle(self) -> None:
        while self.deliver():
            pass


def wander(seed: int) -> World:
    """Random loads on nodes of which the head hears more or less late."""
    draw = random.Random(seed)
    cpus = [draw.choice((1, 1, 2, 3)) for _ in range(draw.randint(2, 6))]
    world = World(draw, cpus)
    homes = list(world.nodes)[: draw.randint(1, len(cpus))]
    world.lateness = draw.choice((0.0, 0.5, 0.9))
    busy = draw.choice((0.2, 0.4))
    for _ in range(draw.randint(50, 300)):
        step = draw.random()
        if step < busy / 2:
            need = draw.choice((1, 1, 1, max(cpus)))
            hops = draw.choice((0, 0, 0, 1, 2, 3))
            is_away = hops == 0 and draw.random() < 0.1
            world.ask(draw.choice(homes), need, is_away=is_away, hops=hops)
        elif step < busy:
            world.give_back()
        elif step < busy + 0.01:
            world.restart_head()
        elif step < busy + 0.03:
            world.pass_time(draw.choice((0.05, 0.3, 1.0)))
        else:
            world.deliver()
    world.lateness = 0.0
    return world


@pytest.mark.parametrize("seed", range(40))
def test_every_request_is_granted_and_none_wanders(seed: int) -> None:
    world = wander(seed)
    for _ in range(200):
        world.settle()
        if not world.unfinished():
            break
        world.give_back()
        world.pass_time(1.0)
    assert world.unfinished() == []
    for lease_id in world.requests:
        world.check_path(lease_id)


@pytest.mark.parametrize("seed", range(25))
def test_no_request_waits_at_a_full_node_while_another_has_room(seed: int) -> None:
    world = wander(seed)
    # Nobody gives anything back any more. The pauses double, so wait for the longest.
    for _ in range(40):
        world.settle()
        world.pass_time(1.0)
    # A request that waits for long keeps room for itself, but only now and then.
    world.settle()
    left = stuck(world)
    for _ in range(int(2 * GUARD_S)):
        world.pass_time(1.0)
        world.settle()
        left &= stuck(world)
    assert left == set()


def stuck(world: World) -> set[bytes]:
    """Requests that wait although some node has room."""
    free = [node.resources.available for node in world.nodes.values()]
    return {
        lease.request.lease_id
        for node in world.nodes.values()
        for lease in node.leases.values()
        if lease.state in (LeaseState.WAITING, LeaseState.FORWARDED)
        and any(fits(lease.request.need, one) for one in free)
    }


def test_most_requests_go_to_one_other_node_at_most() -> None:
    hops = []
    for seed in range(20):
        world = wander(seed)
        hops += [len(path) - 1 for path in world.path.values()]
    assert sum(hops) / len(hops) < 1
