"""The simulated head: nodes, leases that nobody can grant, actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayshim.adapters.sim.network import REPEAT_S, Process
from rayshim.lineage import actor_events as aev
from rayshim.lineage import lease_events as lev
from rayshim.lineage import membership as mem
from rayshim.lineage import placement
from rayshim.lineage.actors import ActorManager, ActorState
from rayshim.lineage.resources import CPU, UNITS
from rayshim.lineage.transitions import replay

if TYPE_CHECKING:
    from rayshim.adapters.sim.cluster import Cluster

#: Silence after which a node is dead.
NODE_TIMEOUT_S = 5.0
#: A request that its raylet repeats no more is forgotten after this long.
FORGET_S = 4.0
#: Seconds in which nodes and peers report to a head that came back.
GRACE_S = 6.0


class Head(Process):
    """The control service.

    Args:
        cluster: it belongs to.
        before: its earlier life, of which the journal is left: which actors there
            are and what became of them, and which nodes.
    """

    def __init__(self, cluster: Cluster, before: Head | None = None) -> None:
        super().__init__(cluster, "head", "head")
        self.members = mem.Membership(NODE_TIMEOUT_S)
        self.actors = ActorManager()
        self.actors._story.keep_all()
        #: Node -> (raylet, total, available as far as is known).
        self.nodes: dict[str, tuple[str, dict[str, int], dict[str, int]]] = {}
        self._raylets: dict[str, str] = {}
        self.dead: dict[str, str] = {}
        self._channels = 0
        #: Lease -> (request, asking node, when it asked last) that waits for room.
        self.waiting: dict[bytes, tuple[lev.LeaseRequested, str, float]] = {}
        #: Actor -> (class name, arguments).
        self._specs: dict[bytes, Any] = {}
        #: Lease of an actor -> (actor, incarnation, raylet or "" while unplaced).
        self.leases: dict[bytes, tuple[bytes, int, str]] = {}
        #: Actor -> (lease, raylet, worker) of the present life.
        self._lives: dict[bytes, tuple[bytes, str, bytes]] = {}
        #: Lives whose constructor was not heard of.
        self._creating: set[bytes] = set()
        #: Actor -> processes that want to know how it is.
        self._subscribers: dict[bytes, dict[str, None]] = {}
        #: Peers to tell of dead nodes.
        self._peers: dict[str, None] = {}
        if before is not None:
            self._restore(before)
        self._tick()

    def _restore(self, before: Head) -> None:
        """Read the journal; nodes and peers will say what is left of the rest."""
        replay(self.actors, before.actors._story.log())
        self._specs = before._specs
        self._raylets = before._raylets
        self.dead = before.dead
        self._channels = before._channels
        for name, member in before.members.members.items():
            if member.state is not mem.NodeState.DEAD:
                self._members(mem.Expected(name))
        for actor_id, actor in self.actors.actors.items():
            if actor.state is ActorState.PLACING:
                self._want_place(actor_id, actor.incarnation)
        self.later(GRACE_S, self._bury_unclaimed)

    def _bury_unclaimed(self) -> None:
        """Nobody spoke for these since the head came back."""
        for actor_id, actor in list(self.actors.actors.items()):
            is_placed = actor.state not in (ActorState.DEAD, ActorState.PLACING)
            if is_placed and actor_id not in self._lives:
                self._lost(actor_id, actor.incarnation, "nobody runs it")
        owners = {one.spec.owner for one in self.actors.actors.values()}
        for owner in sorted(owners - self._peers.keys()):
            self._actors(aev.OwnerGone(owner))

    def _claim(
        self, source: str, lease_id: bytes, worker_id: bytes, address: str
    ) -> None:
        """A node says that a life of an actor is there."""
        actor_id, _, number = lease_id.partition(b".life")
        actor = self.actors.actors.get(actor_id)
        if actor is None or actor.state is ActorState.DEAD:
            self.send(source, "return", lease_id, True)
        elif actor.incarnation != int(number.partition(b".")[0]):
            self.send(source, "kill_lease", lease_id)
        elif lease_id in self.leases and actor.state is ActorState.PLACING:
            self.on_granted(source, lease_id, address, worker_id)
        elif actor.state is ActorState.PLACING:
            self.send(source, "return", lease_id, True)  # another one is wanted
        elif actor.worker_id != worker_id:
            self.send(source, "kill_lease", lease_id)  # it was placed elsewhere
        elif actor_id not in self._lives:
            self.leases[lease_id] = (actor_id, actor.incarnation, source)
            self._lives[actor_id] = (lease_id, source, worker_id)
            if actor.state is ActorState.CREATING:
                self._creating.add(actor_id)
            if actor.state is ActorState.ENDING:
                self.send(source, "relay", worker_id, "again")

    def _tick(self) -> None:
        self._members(mem.TimePassed())
        self._retry()
        for lease_id, (actor, incarnation, raylet) in list(self.leases.items()):
            if raylet and actor not in self._lives:
                self.note(raylet, "request", self._request(lease_id, actor))
            elif actor in self._creating and actor in self._lives:
                self._construct(actor, incarnation)
        self.later(REPEAT_S, self._tick)

    def receive(self, source: str, message: tuple[Any, ...]) -> None:
        """What a node says that was declared dead does not count."""
        if source in self.dead.values():
            self.send(source, "dismissed")
        else:
            super().receive(source, message)

    # -- nodes -------------------------------------------------------------------

    def on_join(
        self,
        source: str,
        name: str,
        address: str,
        cpus: int,
        lives: tuple[tuple[bytes, bytes, str], ...],
        created: tuple[bytes, ...],
    ) -> None:
        """A node says who it is."""
        if name in self.dead:
            self.send(source, "dismissed")
            return
        self._channels += 1
        total = {CPU: cpus * UNITS}
        self.nodes[name] = (address, total, dict(total))
        self._raylets[address] = name
        self._members(mem.Joined(name, self._channels))
        for lease_id, worker_id, executor in lives:
            self._claim(source, lease_id, worker_id, executor)
        for actor_id in created:
            actor = self.actors.actors.get(actor_id)
            if actor is not None and self._lives.get(actor_id, ("", ""))[1] == source:
                self.on_created(source, actor_id, actor.incarnation)

    def on_load(self, source: str, name: str, available: dict[str, int]) -> None:
        """A node says what it has."""
        if name in self.nodes:
            address, total, _ = self.nodes[name]
            self.nodes[name] = (address, total, dict(available))
        self._members(mem.Spoke(name))
        self._retry()

    def on_hello(self, source: str) -> None:
        """A peer wants to hear of nodes."""
        self._peers[source] = None
        if self.dead:
            self.send(source, "table", tuple(self.dead.items()))

    def _members(self, event: Any) -> None:
        for command in self.members.handle(event, self.kernel.now_s):
            if isinstance(command, mem.DismissNode):
                self.note(self._address(command.node_id), "dismissed")
            elif isinstance(command, mem.MournNode):
                self._mourn(command.node_id)

    def _address(self, name: str) -> str:
        return f"{name}.raylet"

    def _mourn(self, name: str) -> None:
        self.kernel.note(f"head declares {name} dead")
        address = self._address(name)
        self.dead[name] = address
        self.nodes.pop(name, None)
        for lease_id, (_, node, _) in list(self.waiting.items()):
            if node == name:
                del self.waiting[lease_id]
        for lease_id, (actor, incarnation, raylet) in list(self.leases.items()):
            if raylet != address:
                continue
            if actor in self._lives:
                self._lost(actor, incarnation, "its node died")
            else:
                self.leases[lease_id] = (actor, incarnation, "")
        table = tuple(self.dead.items())
        for other, _, _ in self.nodes.values():
            self.send(other, "table", table)
        for peer in self._peers:
            self.send(peer, "table", table)
        for process in list(self.network.processes.values()):
            if process.host == name and process.address != address:
                self.bury(process.address)
        self._retry()

    def peer_ended(self, address: str) -> None:
        """A channel is at its end."""
        name = self._raylets.get(address)
        if name is not None:
            member = self.members.members.get(name)
            if member is not None:
                self._members(mem.ChannelEnded(name, member.channel))
            return
        self._peers.pop(address, None)
        for subscribers in self._subscribers.values():
            subscribers.pop(address, None)
        self._actors(aev.OwnerGone(address))

    # -- leases ------------------------------------------------------------------

    def on_place(
        self, source: str, lease_id: bytes, request: lev.LeaseRequested, node: str
    ) -> None:
        """A raylet cannot grant a request now."""
        known = self.waiting.get(lease_id)
        if known is None or known[0].hops <= request.hops:
            self.waiting[lease_id] = (request, node, self.kernel.now_s)
            self._retry()

    def on_unplace(self, source: str, lease_id: bytes, node: str) -> None:
        """It can, now."""
        known = self.waiting.get(lease_id)
        if known is not None and known[1] == node:
            del self.waiting[lease_id]

    def _retry(self) -> None:
        for lease_id, (actor, incarnation, raylet) in list(self.leases.items()):
            if not raylet:
                self._place_actor(lease_id, actor, incarnation)
        if not self.waiting:
            return
        views = self._views()
        failed: set[str] = set()  # askers: all requests are for the same
        for lease_id, (request, node, asked_s) in list(self.waiting.items()):
            if self.kernel.now_s - asked_s > FORGET_S:
                del self.waiting[lease_id]  # its asker does not ask any more
            if node not in self.nodes or lease_id not in self.waiting:
                continue
            if node in failed:
                continue
            others = [one for one in views if one.node_id != node]
            choice = placement.choose(request.need, others)
            if choice is None or not choice.has_room:
                failed.add(node)
                continue
            del self.waiting[lease_id]
            self._take(choice.node_id, request.need)
            address = self._address(choice.node_id)
            self.note(self._address(node), "placed", lease_id, address, "")

    def _views(self) -> list[placement.View]:
        return [
            placement.View(name, total, available)
            for name, (_, total, available) in self.nodes.items()
            if self.members.is_usable(name)
        ]

    def _take(self, name: str, need: dict[str, int]) -> None:
        available = self.nodes[name][2]
        for key, units in need.items():
            available[key] = available.get(key, 0) - units

    # -- actors ------------------------------------------------------------------

    def on_register(self, source: str, actor: bytes, spec: Any, restarts: int) -> None:
        """A peer makes an actor; said until an update comes."""
        self._specs[actor] = spec
        need = {CPU: UNITS}
        known = aev.ActorSpec(
            actor, b"job", source, spec[0], "", "", False, restarts, need, {}
        )
        self._actors(aev.Registered(actor, known))
        self._actors(aev.Started(actor))

    def on_subscribe(self, source: str, actor: bytes) -> None:
        """A peer wants to know how an actor is; said now and again."""
        self._subscribers.setdefault(actor, {})[source] = None
        if actor in self.actors.actors:
            self._tell(source, actor)

    def on_out_of_scope(self, source: str, actor: bytes) -> None:
        """Nobody has a handle any more."""
        self._actors(aev.OutOfScope(actor))

    def on_kill_actor(self, source: str, actor: bytes, no_restart: bool) -> None:
        """Somebody wants the process dead."""
        self._actors(aev.Killed(actor, no_restart))

    def on_granted(
        self, source: str, lease_id: bytes, address: str, worker_id: bytes
    ) -> None:
        """An executor for an actor; may come twice."""
        found = self.leases.get(lease_id)
        if found is None:
            self._claim(source, lease_id, worker_id, address)
            return
        actor, incarnation, _ = found
        if actor in self._lives:
            if self._lives[actor][2] != worker_id:
                self.send(source, "return", lease_id, False)
            return
        self.leases[lease_id] = (actor, incarnation, source)
        self._lives[actor] = (lease_id, source, worker_id)
        self._creating.add(actor)
        self._actors(aev.Placed(actor, incarnation, worker_id, address, 1))

    def on_rejected(
        self, source: str, lease_id: bytes, kind: str, spill_to: str, hops: int
    ) -> None:
        """No executor there: try again elsewhere, unless it was taken back."""
        found = self.leases.get(lease_id)
        if found is not None and kind != "setup":
            self.leases[lease_id] = (found[0], found[1], "")

    def on_reclaim(self, source: str, lease_id: bytes) -> None:
        """Leases of actors are for life."""

    def on_lease_lost(self, source: str, lease_id: bytes, reason: str) -> None:
        """The executor of an actor is gone."""
        found = self.leases.get(lease_id)
        if found is None:
            return
        if found[0] not in self._lives:
            # Granted, and lost before the grant was heard of.
            del self.leases[lease_id]
            self._want_place(found[0], found[1])
        else:
            self._lost(found[0], found[1], reason)

    def on_life_lost(self, source: str, actor: bytes, incarnation: int) -> None:
        """The same from the node; what comes first counts."""

    def on_created(self, source: str, actor: bytes, incarnation: int) -> None:
        """The constructor returned."""
        self._creating.discard(actor)
        self._actors(aev.Created(actor, incarnation))

    def _want_place(self, actor: bytes, incarnation: int) -> None:
        """A lease is wanted for a life; each wish has a lease id of its own."""
        number = self.cluster.new_number()
        lease_id = actor + b".life%d.%d" % (incarnation, number)
        self.leases[lease_id] = (actor, incarnation, "")
        self._place_actor(lease_id, actor, incarnation)

    def _lost(self, actor: bytes, incarnation: int, reason: str) -> None:
        life = self._lives.pop(actor, None)
        self._creating.discard(actor)
        if life is not None:
            self.leases.pop(life[0], None)
        self._actors(aev.ExecutorLost(actor, incarnation, reason))

    def _request(self, lease_id: bytes, actor: bytes) -> lev.LeaseRequested:
        need = {CPU: UNITS}
        holder = f"head|{actor.decode()}"
        return lev.LeaseRequested(
            lease_id, holder, b"job", "actor", dict(need), fixed=True
        )

    def _place_actor(self, lease_id: bytes, actor: bytes, incarnation: int) -> None:
        choice = placement.choose({CPU: UNITS}, self._views())
        if choice is None or not choice.has_room:
            return
        self._take(choice.node_id, {CPU: UNITS})
        raylet = self._address(choice.node_id)
        self.leases[lease_id] = (actor, incarnation, raylet)
        self.note(raylet, "request", self._request(lease_id, actor))

    def _construct(self, actor: bytes, incarnation: int) -> None:
        _, raylet, worker_id = self._lives[actor]
        spec = self._specs[actor]
        self.note(raylet, "create_actor", worker_id, actor, incarnation, spec)

    def _actors(self, event: Any) -> None:
        if not isinstance(event, (aev.OwnerGone, aev.Registered)):
            if event.actor_id not in self.actors.actors:
                return
        for command in self.actors.handle(event, self.kernel.now_s):
            actor: bytes = command.actor_id
            life = self._lives.get(actor)
            if isinstance(command, aev.Place):
                self._want_place(actor, command.incarnation)
            elif isinstance(command, aev.Unplace):
                for lease_id, (one, _, raylet) in list(self.leases.items()):
                    if one == actor:
                        del self.leases[lease_id]
                        if raylet:
                            self.send(raylet, "return", lease_id, False)
            elif isinstance(command, aev.Construct):
                self._construct(actor, command.incarnation)
            elif isinstance(command, aev.Kill) and life is not None:
                self.send(life[1], "kill_lease", life[0])
            elif isinstance(command, aev.Dismiss) and life is not None:
                self.send(life[1], "relay", life[2], command.reason)
            elif isinstance(command, aev.Publish):
                for peer in self._subscribers.get(actor, ()):
                    self._tell(peer, actor)

    def _tell(self, peer: str, actor_id: bytes) -> None:
        actor = self.actors.actors[actor_id]
        self.send(
            peer,
            "actor_update",
            actor_id,
            actor.shown_state,
            actor.incarnation,
            actor.address,
            actor.kind,
        )
