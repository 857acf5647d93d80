"""Actors at their callers, in the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayshim.adapters.sim.network import REPEAT_S
from rayshim.adapters.sim.tasks import Record, Result
from rayshim.adapters.sim.values import Payload, Ref, SimError
from rayshim.lineage.actor_calls import ActorQueue, ActorState
from rayshim.lineage.tasks import TaskEvent, TaskState

if TYPE_CHECKING:
    from rayshim.adapters.sim.peer import Peer

#: What makes the id of the object that counts an actor's handles.
HANDLE = b"\x01\x00\x00\x00"
#: A channel to an actor that is said to live is opened anew after this long.
REPAIR_S = 0.5


class ActorClient:
    """One actor as one process calls it."""

    def __init__(self, peer: Peer, actor_id: bytes) -> None:
        self.peer = peer
        self.actor_id = actor_id
        self.queue = ActorQueue(actor_id)
        #: Process of the present life; empty when there is no channel.
        self.address = ""
        #: What the control service told last: state, incarnation, address.
        self.last = ("", -1, "")

    def submit(self, record: Record) -> None:
        """Queue a call."""
        record.actor = self
        tasks = self.peer.tasks
        if tasks.await_arguments(record) or record.missing:
            self._enqueue(record)

    def submit_again(self, record: Record) -> None:
        """Queue a call for another run."""
        self._enqueue(record)

    def _enqueue(self, record: Record) -> None:
        if self.queue.state is ActorState.DEAD:
            self.peer.tasks.fail(record, Payload("error", SimError("ActorDied")))
            return
        if record.state is TaskState.WAITING:
            record.on(TaskEvent.ARGUMENTS_KNOWN)
        self.queue.pending.append(record)
        self.flush()

    def take_back(self, record: Record) -> None:
        """The call did not start, as an argument was lost: it goes first again."""
        if record.state is TaskState.WAITING:
            record.on(TaskEvent.ARGUMENTS_KNOWN)
        if self.queue.state is ActorState.DEAD:
            self.peer.tasks.fail(record, Payload("error", SimError("ActorDied")))
            return
        self.queue.pending.appendleft(record)
        self.flush()

    def flush(self) -> None:
        """Send what may be sent."""
        if not self.address:
            return
        tasks = self.peer.tasks
        specs = []
        for record in self.queue.sendable(64):
            if tasks._has_lost(record):
                del self.queue.inflight[record.task_id]
                record.on(TaskEvent.ARGUMENTS_LOST)
                tasks.await_arguments(record)
                record.on(TaskEvent.ARGUMENTS_KNOWN)
                self.queue.pending.appendleft(record)
                break
            specs.append(tasks.fill(record, self.address))
        if specs:
            self.peer.send(self.address, "push", tuple(specs))

    def withdraw(self, record: Record) -> None:
        """An argument of an unsent call failed."""
        self.queue.withdraw(record.task_id)
        self.flush()

    def on_result(self, record: Record, result: Result, source: str) -> None:
        """The actor answered."""
        if self.queue.answered(result.task_id) is not None:
            self.peer.tasks.finish(record, result, source)
            self.flush()

    def on_update(self, state: str, incarnation: int, address: str) -> None:
        """The control service tells how the actor is."""
        queue = self.queue
        self.last = (state, incarnation, address)
        if state == "ALIVE":
            if self.address:
                if incarnation <= queue.incarnation:
                    return
                self._end_of_life(dead=False)
            if not queue.alive(incarnation):
                return
            if not self._reach(address):
                queue.state = ActorState.RESTARTING
                self.peer.later(REPAIR_S, self._repair)
        elif state in ("RESTARTING", "DEAD"):
            if queue.state is ActorState.DEAD:
                return
            if incarnation < queue.incarnation and state == "RESTARTING":
                return
            if state == "RESTARTING" and queue.incarnation >= incarnation:
                return
            if not self.address:
                self._end_of_life(dead=state == "DEAD")
            else:
                queue.verdict = state

    def describe(self) -> str:
        """For reports."""
        queue = self.queue
        return (
            f"{self.actor_id.decode().rstrip('.')} is {queue.state.name} life "
            f"{queue.incarnation} at {self.address or 'nowhere'}, verdict "
            f"{queue.verdict}: {len(queue.pending)} unsent, {len(queue.inflight)} sent"
        )

    def channel_ended(self) -> None:
        """The present life's channel is at its end."""
        self.address = ""
        if self.queue.verdict is not None:
            self._end_of_life(dead=self.queue.verdict == "DEAD")
        else:
            self.peer.later(REPAIR_S, self._repair)

    def _repair(self) -> None:
        """Connect anew if only the channel broke; no word would ever come of that."""
        state, incarnation, address = self.last
        queue = self.queue
        if state != "ALIVE" or incarnation != queue.incarnation or self.address:
            return
        peer = self.peer
        if not peer.network.reconnect(peer, address, peer.dead_hosts):
            self.peer.later(REPAIR_S, self._repair)
            return
        if queue.state is ActorState.ALIVE:
            self._end_of_life(dead=False)
        queue.resume()
        self._reach(address)

    def _reach(self, address: str) -> bool:
        if not self.peer.send(address, "bind", self.actor_id):
            return False
        self.address = address
        self.flush()
        return True

    def _end_of_life(self, *, dead: bool) -> None:
        self.address = ""
        kind = "ActorDied" if dead else "ActorUnavailable"
        for record in self.queue.life_ended(dead=dead):
            record.lends = []
            self.peer.tasks.fail(record, Payload("error", SimError(kind)))


class Actors:
    """The actors that a process makes and calls."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.clients: dict[bytes, ActorClient] = {}
        #: Actor -> what the head needs, until it is heard of.
        self._registering: dict[bytes, tuple[Any, int]] = {}
        #: Actors whose handles are gone; told until they are dead.
        self._dropped: set[bytes] = set()
        peer.later(REPEAT_S, self._tick)

    def create(self, kind: str, args: tuple[Any, ...], restarts: int) -> Ref:
        """Make an actor; the reference counts its handles."""
        actor_id = self.peer.new_id("a")
        self._registering[actor_id] = ((kind, args), restarts)
        self.client(actor_id)
        object_id = actor_id + HANDLE
        entry = self.peer.objects.table.own(object_id)
        entry.value = Payload("value", actor_id)
        entry.task = "handle"
        self._register(actor_id)
        return self.peer.objects.counted_ref(object_id, self.peer.address)

    def client(self, actor_id: bytes) -> ActorClient:
        """The client of an actor."""
        client = self.clients.get(actor_id)
        if client is None:
            client = self.clients[actor_id] = ActorClient(self.peer, actor_id)
            self.peer.note("head", "subscribe", actor_id)
        return client

    def call(
        self, handle: Ref, method: str, args: tuple[Any, ...], retries: int
    ) -> Ref:
        """Call a method."""
        record, ref = self.peer.tasks.enter("", args, retries)
        record.method = method
        # A call keeps its actor: the handle is one of its references.
        record.nested.append(handle)
        self.client(handle.object_id[:24]).submit(record)
        return ref

    def _register(self, actor_id: bytes) -> None:
        spec, restarts = self._registering[actor_id]
        self.peer.note("head", "register", actor_id, spec, restarts)

    def _tick(self) -> None:
        for actor_id in list(self._registering):
            self._register(actor_id)
        for actor_id, client in self.clients.items():
            if client.queue.state is not ActorState.DEAD:
                self.peer.note("head", "subscribe", actor_id)
        for actor_id in self._dropped:
            self._let_go(actor_id)
        self.peer.later(REPEAT_S, self._tick)

    def handle_dropped(self, object_id: bytes) -> None:
        """No handle is counted any more."""
        self._dropped.add(object_id[:24])
        self._let_go(object_id[:24])

    def _let_go(self, actor_id: bytes) -> None:
        if not len(self.clients[actor_id].queue):
            self.peer.note("head", "out_of_scope", actor_id)

    def on_update(
        self, actor_id: bytes, state: str, incarnation: int, address: str
    ) -> None:
        """The head tells how an actor is."""
        self._registering.pop(actor_id, None)
        client = self.clients.get(actor_id)
        if client is not None:
            client.on_update(state, incarnation, address)
        if state == "DEAD":
            self._dropped.discard(actor_id)
        self.peer.objects.settle()

    def peer_ended(self, address: str) -> None:
        """A process is gone: perhaps a life of an actor."""
        for client in self.clients.values():
            if client.address == address:
                client.channel_ended()
