"""Runs the actor machine: messages of owners and executors in, commands out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.raylet.channels import ChannelServer, Peer
from rayshim.adapters.wire import messages as wire
from rayshim.adapters.wire import node_messages as nodes
from rayshim.adapters.wire.address import node_of
from rayshim.adapters.wire.codec import Message
from rayshim.lineage import actor_events as acts
from rayshim.lineage import actors as act
from rayshim.lineage.resources import describe, to_amounts, to_units

if TYPE_CHECKING:
    from rayshim.adapters.raylet.control import ControlService
    from rayshim.adapters.raylet.head_nodes import KnownNode
    from rayshim.adapters.raylet.head_state import ActorLife

logger = logging.getLogger(__name__)

#: Seconds in which the registration of an actor that somebody asks for has to come.
REGISTRATION_LIMIT_S = 2.0
#: Seconds that an actor whose constructor failed may take to leave.
DISMISS_LIMIT_S = 5.0
_HOLDER = "actor:"


class Cargo:
    """What the machine does not look at."""

    __slots__ = ("error", "gpu_ids", "node_id", "registration", "start")

    def __init__(self, registration: wire.RegisterActor) -> None:
        self.registration = registration
        #: None until the constructor's arguments are known, and after death.
        self.start: wire.StartActor | None = None
        self.error: wire.Payload | None = None
        self.gpu_ids: list[int] = []
        #: The node that this incarnation runs on; empty while it has none.
        self.node_id = ""


class ActorService:
    """The control service's part for actors.

    Args:
        server: The process of the control service.
        control: The control service.
    """

    def __init__(self, server: ChannelServer, control: ControlService) -> None:
        self._server = server
        self._control = control
        self._nodes = control.nodes
        self._nodes.on_settled.append(self._node_settled)
        self._nodes.on_died.append(self._node_died)
        self.machine = act.ActorManager()
        #: Called with ids of actors that changed, before anybody hears of it.
        self.on_change: Callable[[Iterable[bytes]], None] | None = None
        #: Called with ids of actors that may have changed, for those who look on.
        self.on_news: Callable[[Iterable[bytes]], None] | None = None
        #: Called with an actor that is remembered no more.
        self.on_forget: Callable[[bytes], None] | None = None
        #: Actor id -> what else is known of it.
        self.cargo: dict[bytes, Cargo] = {}
        #: Actor id -> peers that want its updates, in order.
        self._subscribers: dict[bytes, dict[str, None]] = {}
        #: The inverse.
        self._subscriptions: dict[str, set[bytes]] = {}

    # From the server.

    @staticmethod
    def kinds() -> Collection[type]:
        """The messages that :meth:`message` takes."""
        return _MESSAGES.keys()

    def message(self, peer: Peer, message: Any) -> None:
        """Takes one message about an actor."""
        _MESSAGES[type(message)](self, peer, message)

    def peer_gone(self, address: str) -> None:
        """A peer closed its channel."""
        for actor_id in self._subscriptions.pop(address, ()):
            subscribers = self._subscribers[actor_id]
            subscribers.pop(address, None)
            if not subscribers:
                del self._subscribers[actor_id]
        self._feed(acts.OwnerGone(address))

    # From nodes.

    def granted(self, node_id: str, message: wire.LeaseGranted) -> None:
        """A node found an executor."""
        actor_id, incarnation = _actor_of(message.lease_id)
        actor = self.machine.actors.get(actor_id)
        if (
            actor is None
            or actor.incarnation != incarnation
            or actor.state is not act.ActorState.PLACING
        ):
            # It was given up meanwhile, or runs elsewhere: two nodes may have been
            # asked by two lives of the head. (Said twice, it changes nothing.)
            if (
                actor is None
                or actor.incarnation != incarnation
                or actor.worker_id != message.worker_id
            ):
                kill = wire.KillExecutor(message.lease_id)
                self._nodes.send(node_id, kill)
            return
        self._control.placer.granted(node_id, message.lease_id)
        cargo = self.cargo[actor_id]
        cargo.gpu_ids = message.gpu_ids
        cargo.node_id = node_id
        self._feed(
            acts.Placed(
                actor_id, incarnation, message.worker_id, message.address, message.pid
            )
        )

    def rejected(self, node_id: str, message: wire.LeaseRejected) -> None:
        """A node will not find an executor."""
        placer = self._control.placer
        if not placer.rejected(node_id, message.lease_id, message.kind):
            self.refused(message.lease_id, message.reason, message.kind)

    def refused(self, lease_id: bytes, reason: str, kind: str) -> None:
        """No node will find an executor."""
        actor_id, incarnation = _actor_of(lease_id)
        self._feed(acts.PlacementFailed(actor_id, incarnation, reason, kind))

    def lost(self, node_id: str, message: wire.LeaseLost) -> None:
        """An actor's process is gone."""
        actor_id, incarnation = _actor_of(message.lease_id)
        cargo = self.cargo.get(actor_id)
        if cargo is None or cargo.node_id != node_id:
            return  # That process was one too many.
        kind = "oom" if message.out_of_memory else message.kind
        self._feed(acts.ExecutorLost(actor_id, incarnation, message.reason, kind))

    def created(self, message: wire.ActorCreated) -> None:
        """A constructor returned."""
        self._feed(
            acts.Created(message.actor_id, message.incarnation, message.repr_name)
        )

    def failed(self, message: wire.ActorFailed) -> None:
        """A constructor raised."""
        cargo = self.cargo.get(message.actor_id)
        if cargo is not None:
            cargo.error = message.error
            self._feed(acts.ConstructorFailed(message.actor_id, message.incarnation))

    def exiting(self, message: wire.ActorExiting) -> None:
        """An actor leaves by its own will."""
        self._feed(acts.Exiting(message.actor_id, message.reason))

    def _on_node(self, node_id: str) -> list[act.Actor]:
        """The actors that have a process there."""
        return [
            actor
            for actor_id, actor in self.machine.actors.items()
            if actor.state in _RUNNING and self.cargo[actor_id].node_id == node_id
        ]

    def _node_settled(self, node: KnownNode) -> None:
        """A node joined and has said all that happened while it was away."""
        node_id = node.node_id
        listed = {(one.actor_id, one.incarnation) for one in node.join.actors}
        for actor in self._on_node(node_id):
            actor_id, incarnation = actor.spec.actor_id, actor.incarnation
            if (actor_id, incarnation) not in listed:
                reason = f"its process was gone when node {node_id} joined again"
                self._feed(acts.ExecutorLost(actor_id, incarnation, reason))
        for one in node.join.actors:
            known = self.machine.actors.get(one.actor_id)
            if (
                known is None
                or known.incarnation != one.incarnation
                or known.state not in (*_RUNNING, act.ActorState.PLACING)
                # Or it runs elsewhere, as another life of the head placed it, too.
                or known.worker_id not in (b"", one.worker_id)
            ):
                logger.warning(
                    "node %s runs actor %s, which this head does not know: it is ended",
                    node_id[:8],
                    one.actor_id.hex(),
                )
                lease_id = _lease_of(one.actor_id, one.incarnation)
                self._nodes.send(node_id, wire.KillExecutor(lease_id))
            else:
                self._take_up(node_id, one)

    def _node_died(self, node: KnownNode, death: str) -> None:
        info = node.join.info
        reason = f"its node {info.node_id} ({info.node_ip}) died: {death}"
        for actor in self._on_node(info.node_id):
            actor_id, incarnation = actor.spec.actor_id, actor.incarnation
            self._feed(acts.ExecutorLost(actor_id, incarnation, reason, "node"))

    # For the control service.

    def find(self, name: str, namespace: str) -> dict[str, Any]:
        """The actor of a name.

        Raises:
            ValueError: there is none.
        """
        actor_id = self.machine.names.get((namespace, name))
        if actor_id is None:
            raise ValueError(
                f"Failed to look up actor with name {name!r} in namespace "
                f"{namespace!r}: nobody created it, it died, or it lives in another "
                "namespace."
            )
        registration = self.cargo[actor_id].registration
        return {
            "actor_id": actor_id,
            "handle_blob": registration.handle_blob,
            "owner": registration.owner,
            "class_name": registration.class_name,
        }

    def names(self, namespace: str | None) -> list[dict[str, str]]:
        """Names in a namespace, or in all for None."""
        return [
            {"name": name, "namespace": space}
            for space, name in self.machine.names
            if namespace is None or space == namespace
        ]

    def explain(self, actor_id: bytes, now: float) -> list[str]:
        """Why an actor is not doing more than it does."""
        actor = self.machine.actors.get(actor_id)
        if actor is None:
            return [f"actor {actor_id.hex()} is not known to this cluster"]
        what = f"actor {actor.spec.class_name} ({actor_id.hex()[:12]})"
        age = f"{now - actor.since_s:.1f} s"
        if actor.state is act.ActorState.REGISTERED:
            return [f"{what} waits {age} for the arguments of its constructor"]
        if actor.state is act.ActorState.PLACING:
            lease_id = _lease_of(actor_id, actor.incarnation)
            reasons = self._control.explain_lease(lease_id)
            return [f"{what} is not placed: {reason}" for reason in reasons]
        if actor.state is act.ActorState.CREATING:
            return [f"{what} runs its constructor for {age} (pid {actor.pid})"]
        if actor.state is act.ActorState.DEAD:
            return [f"{what} is dead: {actor.cause}"]
        text = f"{what} is {actor.shown_state} for {age} (pid {actor.pid})"
        need = actor.spec.need
        return [f"{text} on {describe(need)}" if need else text]

    def rows(self) -> list[dict[str, Any]]:
        """One row for each known actor."""
        return [
            {
                "actor_id": actor_id.hex(),
                "class_name": actor.spec.class_name,
                "state": actor.shown_state,
                "name": actor.spec.name,
                "ray_namespace": actor.spec.namespace,
                "job_id": actor.spec.job_id.hex(),
                "pid": actor.pid,
                "node_id": self.cargo[actor_id].node_id,
                "is_detached": actor.spec.is_detached,
                "num_restarts": actor.incarnation,
                "death_cause": actor.cause,
                "repr_name": actor.repr_name,
                "required_resources": to_amounts(actor.spec.need),
                "placement_group_id": actor.spec.group.hex(),
            }
            for actor_id, actor in self.machine.actors.items()
        ]

    # After a restart of the head.

    def restore(
        self,
        registration: wire.RegisterActor,
        start: wire.StartActor | None,
        life: ActorLife,
    ) -> act.Actor:
        """Takes up an actor that an earlier life of the head had."""
        actor = act.Actor(_spec_of(registration), self._server.now())
        actor.state = act.ActorState(life.state)
        actor.incarnation = life.incarnation
        actor.restarts_left = life.restarts_left
        actor.worker_id = life.worker_id
        actor.address = life.address
        actor.pid = life.pid
        actor.is_created = life.is_created
        actor.repr_name = life.repr_name
        actor.cause = life.cause
        actor.kind = life.kind
        actor.ending = life.ending
        actor.is_out_of_scope = life.is_out_of_scope
        cargo = self.cargo[registration.actor_id] = Cargo(registration)
        cargo.start = start
        cargo.error = life.error
        cargo.gpu_ids = life.gpu_ids
        cargo.node_id = life.node_id
        self.machine.restore(actor)
        return actor

    def recovered(self) -> None:
        """Nodes had their time to report: place what none of them has."""
        for actor_id, actor in list(self.machine.actors.items()):
            if actor.state is act.ActorState.PLACING:
                lease_id = _lease_of(actor_id, actor.incarnation)
                if not self._control.placer.knows(lease_id):
                    self._place(acts.Place(actor_id, actor.incarnation))
            elif actor.state in _RUNNING:
                node_id = self.cargo[actor_id].node_id
                if self._nodes.find(node_id) is None:
                    reason = f"its node {node_id} was gone when the head came back"
                    lost = acts.ExecutorLost(
                        actor_id, actor.incarnation, reason, "node"
                    )
                    self._feed(lost)

    def _take_up(self, node_id: str, one: nodes.RunningActor) -> None:
        """A node reports an actor that it runs, as the head knows it."""
        actor = self.machine.actors[one.actor_id]
        cargo = self.cargo[one.actor_id]
        if actor.state is act.ActorState.PLACING:
            # The grant was not heard of any more.
            lease_id = _lease_of(one.actor_id, one.incarnation)
            self._control.placer.granted(node_id, lease_id)
            cargo.node_id, cargo.gpu_ids = node_id, one.gpu_ids
            self._feed(
                acts.Placed(
                    one.actor_id, one.incarnation, one.worker_id, one.address, one.pid
                )
            )
        elif one.is_created:
            self._feed(acts.Created(one.actor_id, one.incarnation, one.repr_name))
        elif actor.state is act.ActorState.CREATING:
            # It may not have got the order; the executor takes it once.
            self._construct(acts.Construct(one.actor_id, one.incarnation))
        if actor.ending is not None:
            self._kill(acts.Kill(one.actor_id, one.incarnation))

    # Messages.

    def _register(self, peer: Peer, message: wire.RegisterActor) -> None:
        known = message.actor_id in self.cargo
        if not known:
            self.cargo[message.actor_id] = Cargo(message)
        spec = _spec_of(message)
        respond = self._control.respond
        event = acts.Registered(message.actor_id, spec)
        commands = self.machine.handle(event, self._server.now())
        if self.on_change is not None and not known:
            self.on_change([message.actor_id])
        if self.on_news is not None:
            self.on_news([message.actor_id])
        for command in commands:
            if isinstance(command, acts.Refuse):
                if not known:
                    del self.cargo[message.actor_id]
                text = (
                    f"The actor name {command.name!r} is already taken in namespace "
                    f"{command.namespace!r}: choose another name, or get the actor "
                    "that exists with get_if_exists=True or ray.get_actor."
                )
                error = ("ActorAlreadyExistsError", text)
                respond(peer, message.request_id, error=error)
            else:
                respond(peer, message.request_id)

    def _start(self, peer: Peer, message: wire.StartActor) -> None:
        cargo = self.cargo.get(message.actor_id)
        if cargo is not None:
            cargo.start = message
            self._feed(acts.Started(message.actor_id))

    def _fail(self, peer: Peer, message: wire.FailActor) -> None:
        cargo = self.cargo.get(message.actor_id)
        if cargo is not None:
            cargo.error = message.error
            self._feed(acts.Unstartable(message.actor_id))

    def _subscribe(self, peer: Peer, message: wire.SubscribeActor) -> None:
        actor_id = message.actor_id
        self._subscribers.setdefault(actor_id, {})[peer.address] = None
        self._subscriptions.setdefault(peer.address, set()).add(actor_id)
        if actor_id in self.machine.actors:
            peer.connection.send(self._update(actor_id))
        else:
            # A task may use a handle before this process has read what the owner
            # said on its own channel.
            self._server.loop.call_later(
                REGISTRATION_LIMIT_S, self._answer_late, actor_id, peer.address
            )

    def _answer_late(self, actor_id: bytes, address: str) -> None:
        if actor_id not in self.machine.actors:
            self._server.send(address, self._update(actor_id))

    def _kill_asked(self, peer: Peer, message: wire.KillActor) -> None:
        self._feed(acts.Killed(message.actor_id, message.no_restart))

    def _out_of_scope(self, peer: Peer, message: wire.ActorOutOfScope) -> None:
        self._feed(acts.OutOfScope(message.actor_id))

    # Commands.

    def _feed(self, event: Any) -> None:
        commands = self.machine.handle(event, self._server.now())
        if self.on_change is not None:
            named = [getattr(event, "actor_id", b"")]
            self.on_change([*named, *(command.actor_id for command in commands)])
        for command in commands:
            _COMMANDS[type(command)](self, command)
        if self.on_news is not None:
            named = [getattr(event, "actor_id", b"")]
            self.on_news([*named, *(command.actor_id for command in commands)])

    def _place(self, command: acts.Place) -> None:
        spec = self.machine.actors[command.actor_id].spec
        cargo = self.cargo[command.actor_id]
        registration = cargo.registration
        cargo.node_id = ""
        request = wire.RequestLease(
            _lease_of(command.actor_id, command.incarnation),
            spec.job_id,
            f"actor {spec.class_name}",
            registration.placement_resources,
            registration.env_vars,
            0,
            registration.placement_group,
            registration.bundle_index,
            nodes=registration.nodes,
            soft=registration.soft,
            strategy=registration.strategy,
            labels=registration.labels,
            fixed=True,
            holder=_HOLDER + command.actor_id.hex(),
            retriable=spec.max_restarts != 0,
            runtime_env=registration.runtime_env,
        )
        self._control.place_actor(request, self._home_of(spec.owner))

    def _home_of(self, owner: str) -> str:
        """The node of an actor's owner."""
        node = self._nodes.at(node_of(owner))
        return node.node_id if node is not None else ""

    def _unplace(self, command: acts.Unplace) -> None:
        lease_id = _lease_of(command.actor_id, command.incarnation)
        self._control.placer.unplace(lease_id)

    def _construct(self, command: acts.Construct) -> None:
        actor = self.machine.actors[command.actor_id]
        cargo = self.cargo[command.actor_id]
        start, registration = cargo.start, cargo.registration
        assert start is not None
        lease = wire.BindLease(
            _lease_of(command.actor_id, command.incarnation),
            registration.job_id,
            registration.job_namespace or registration.namespace,
            registration.resources,
            cargo.gpu_ids,
            registration.env_vars,
            start.job_blob,
            registration.placement_group,
            registration.capture_group,
        )
        create = wire.CreateActor(
            command.actor_id,
            command.incarnation,
            lease,
            start.class_blob,
            registration.class_name,
            start.spec,
            registration.name,
            registration.max_concurrency,
            registration.concurrency_groups,
            registration.owner,
            registration.handle_blob,
        )
        relay = nodes.RelayToExecutor(actor.worker_id, create)
        self._nodes.send(cargo.node_id, relay)

    def _settle(self, command: acts.Settle) -> None:
        spec = self.machine.actors[command.actor_id].spec
        if spec.need != spec.placement:
            lease_id = _lease_of(command.actor_id, command.incarnation)
            shrink = nodes.ShrinkLease(lease_id, to_amounts(spec.need))
            self._tell_node(command.actor_id, shrink)

    def _dismiss(self, command: acts.Dismiss) -> None:
        worker_id = self.machine.actors[command.actor_id].worker_id
        patience_s = 0.0 if command.is_patient else DISMISS_LIMIT_S
        self._tell_node(
            command.actor_id,
            nodes.RelayToExecutor(worker_id, None, command.reason, patience_s),
        )

    def _kill(self, command: acts.Kill) -> None:
        lease_id = _lease_of(command.actor_id, command.incarnation)
        self._tell_node(command.actor_id, wire.KillExecutor(lease_id))

    def _tell_node(self, actor_id: bytes, message: Message) -> None:
        self._nodes.send(self.cargo[actor_id].node_id, message)

    def _publish(self, command: acts.Publish) -> None:
        actor_id = command.actor_id
        subscribers = self._subscribers.get(actor_id)
        if subscribers:
            update = self._update(actor_id)
            for address in subscribers:
                self._server.send(address, update)
        actor = self.machine.actors[actor_id]
        self._control.groups.actor_changed(actor)
        if actor.state is act.ActorState.DEAD:
            cargo = self.cargo[actor_id]
            cargo.start = None
            # Nobody finds it any more; what is shown of it is in the machine.
            cargo.registration = msgspec.structs.replace(
                cargo.registration, handle_blob=b"", env_vars={}, runtime_env=""
            )

    def _forget(self, command: acts.Forget) -> None:
        if self.on_forget is not None:
            self.on_forget(command.actor_id)
        del self.cargo[command.actor_id]

    def _update(self, actor_id: bytes) -> wire.ActorUpdate:
        actor = self.machine.actors.get(actor_id)
        if actor is None:
            cause = "this cluster does not know it (any more)"
            return wire.ActorUpdate(actor_id, "DEAD", 0, "", cause, None, 0, "node")
        return wire.ActorUpdate(
            actor_id,
            actor.shown_state,
            actor.incarnation,
            actor.address if actor.shown_state == "ALIVE" else "",
            actor.cause,
            self.cargo[actor_id].error,
            actor.pid,
            actor.kind,
            actor.restarts_left,
        )


def _spec_of(message: wire.RegisterActor) -> acts.ActorSpec:
    return acts.ActorSpec(
        message.actor_id,
        message.job_id,
        message.owner,
        message.class_name,
        message.name,
        message.namespace,
        message.detached,
        message.max_restarts,
        to_units(message.placement_resources),
        to_units(message.resources),
        wire.env_key(message.env_vars, message.runtime_env),
        message.placement_group,
        message.bundle_index,
    )


def _lease_of(actor_id: bytes, incarnation: int) -> bytes:
    return b"actor" + incarnation.to_bytes(4, "big") + actor_id


def _actor_of(lease_id: bytes) -> tuple[bytes, int]:
    return lease_id[9:], int.from_bytes(lease_id[5:9], "big")


_RUNNING = (act.ActorState.CREATING, act.ActorState.ALIVE, act.ActorState.ENDING)
_A = ActorService
_MESSAGES: dict[type, Callable[[ActorService, Peer, Any], None]] = {
    wire.RegisterActor: _A._register,
    wire.StartActor: _A._start,
    wire.FailActor: _A._fail,
    wire.SubscribeActor: _A._subscribe,
    wire.KillActor: _A._kill_asked,
    wire.ActorOutOfScope: _A._out_of_scope,
}
_COMMANDS: dict[type, Callable[[ActorService, Any], None]] = {
    acts.Place: _A._place,
    acts.Unplace: _A._unplace,
    acts.Construct: _A._construct,
    acts.Settle: _A._settle,
    acts.Dismiss: _A._dismiss,
    acts.Kill: _A._kill,
    acts.Publish: _A._publish,
    acts.Forget: _A._forget,
}
