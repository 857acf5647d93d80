"""Actors at their callers: creation, calls in order, restarts and deaths."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core import failures
from rayshim._core.arguments import Encoded, fill, has_lost
from rayshim._core.calls import CallRecord
from rayshim._core.refs import ObjectRef
from rayshim._core.serialization import PICKLED_NONE
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.actor_calls import ActorQueue, ActorState
from rayshim.lineage.dispatch import BATCH
from rayshim.lineage.tasks import TaskEvent, TaskState

if TYPE_CHECKING:
    from rayshim._core.peer import MessageHandler, Peer

#: A call that follows others under way is sent after this long at most.
FLUSH_S = 0.001
#: After this long without word of its end an actor may be alive, and is connected to
#: anew if it is.
REPAIR_S = 1.0


class ActorClient:
    """One actor as this process calls it."""

    def __init__(self, peer: Peer, actor_id: bytes, class_name: str) -> None:
        self._peer = peer
        self.actor_id = actor_id
        self.class_name = class_name
        self.queue = ActorQueue(actor_id)
        self.channel: Channel | None = None
        self.update: m.ActorUpdate | None = None
        self._sequence = 0
        #: This process killed the life it knows: nothing more is sent to it.
        self.killed = False
        #: What it said then, while the life is not known to be over.
        self.kill: m.KillActor | None = None
        #: The control service was restarted since and may not have heard it.
        self.is_kill_unsure = False
        self._is_repairing = False

    # -- calls -------------------------------------------------------------------

    def submit(self, record: CallRecord, max_pending: int) -> list[ObjectRef]:
        """Queue a method call.

        Raises:
            PendingCallsLimitExceeded: too many calls wait already.
        """
        peer = self._peer
        with peer.lock:
            if 0 < max_pending <= len(self.queue):
                raise exceptions.PendingCallsLimitExceeded(
                    f"actor {self.class_name} ({self.actor_id.hex()}) has "
                    f"{len(self.queue)} calls pending from this process, its "
                    f"max_pending_calls is {max_pending}; wait for some of them"
                )
            record.actor = self
            record.spec.sequence = self._sequence
            self._sequence += 1
            refs = peer.tasks.enter(record)
            if peer.tasks.await_arguments(record) or record.missing:
                self._enqueue(record)
        if peer.reactor.deferred:
            peer.reactor.run_deferred()
        return refs

    def _enqueue(self, record: CallRecord) -> None:
        queue = self.queue
        if queue.state is ActorState.DEAD:
            self._peer.tasks.fail(record, self.death_payload())
            return
        if record.state is TaskState.WAITING:
            # Its place in the order is taken while its arguments are waited for.
            record.on(TaskEvent.ARGUMENTS_KNOWN)
        queue.pending.append(record)
        self.flush(force=False)

    def submit_again(self, record: CallRecord) -> None:
        """Queue a call for another run after its method raised."""
        self._enqueue(record)

    def take_back(self, record: CallRecord) -> None:
        """Queue a call again, before all others, whose arguments were lost."""
        if self.queue.state is ActorState.DEAD:
            self._peer.tasks.fail(record, self.death_payload())
            return
        record.on(TaskEvent.ARGUMENTS_KNOWN)
        self.queue.pending.appendleft(record)
        self.flush(force=False)

    def flush(self, *, force: bool) -> None:
        """Send queued calls; unless forced, only to an idle actor or a full batch."""
        queue = self.queue
        if not queue.pending or queue.state is not ActorState.ALIVE:
            return
        if not force and queue.inflight and len(queue.pending) < BATCH:
            self._peer.actors.flush_soon()
            return
        channel = self.channel
        if channel is None or channel.closed or self.killed:
            return
        records: list[CallRecord] = queue.sendable(4 * BATCH)
        while records:
            specs = []
            for position, record in enumerate(records):
                encoded = record.encoded
                if encoded.dependencies and has_lost(self._peer, encoded):
                    self._hold_back(records[position:])
                    break
                if encoded.dependencies or encoded.nested:
                    record.lends = fill(
                        self._peer, record.spec, encoded, channel.address
                    )
                specs.append(record.spec)
            if not specs:
                return
            channel.send(m.PushTasks(specs))
            records = queue.sendable(4 * BATCH)

    def _hold_back(self, records: list[CallRecord]) -> None:
        """The first of these calls waits for a lost argument, the others for it."""
        for record in records:
            self.queue.answered(record.task_id)
        for record in reversed(records[1:]):
            record.on(TaskEvent.GIVEN_BACK)
            self.queue.pending.appendleft(record)
        self._peer.objects.recovering.arguments_lost(records[0], [], "")

    def on_result(self, record: CallRecord, result: m.Result, channel: Channel) -> None:
        """The actor answered (under the lock)."""
        if self.queue.answered(result.task_id) is None:
            return
        self._peer.tasks.finish(record, result, channel.address)
        if self.queue.pending:
            self.flush(force=not self.queue.inflight)

    def channel_of(self, record: CallRecord) -> Channel | None:
        """Where a call was sent, or None if it was not."""
        return self.channel if record.task_id in self.queue.inflight else None

    def withdraw(self, record: CallRecord) -> None:
        """Take an unsent call out of the queue; later ones need not wait for it."""
        self.queue.withdraw(record.task_id)
        self.flush(force=False)

    # -- lives -------------------------------------------------------------------

    def on_update(self, update: m.ActorUpdate) -> None:
        """The control service tells the actor's state (under the lock)."""
        self.update = update
        queue = self.queue
        if update.state != "ALIVE" or update.incarnation > queue.incarnation:
            self.killed = False
            self.kill = None
        if update.state == "ALIVE":
            if self.is_kill_unsure and self.kill is not None:
                self._peer.control.send(self.kill)
            self.is_kill_unsure = False
            if self.channel is not None and not self.channel.closed:
                if update.incarnation <= queue.incarnation:
                    return
                # The end of the old life was not seen yet; it is now.
                self._end_of_life(dead=False)
            if not queue.alive(update.incarnation):
                if queue.state is not ActorState.DEAD:
                    self._repair_later()
                return
            if not self._reach(update):
                # Dead already: the next update says so. Or it is tried again.
                queue.state = ActorState.RESTARTING
                self._repair_later()
        elif update.state in ("RESTARTING", "DEAD"):
            dead = update.state == "DEAD"
            if self.channel is None or self.channel.closed:
                self._end_of_life(dead=dead)
            else:
                queue.verdict = update

    def _reach(self, update: m.ActorUpdate) -> bool:
        """Connect to the present life and send what waits; False if it is gone."""
        try:
            self.channel = self._peer.connect(update.address)
        except ConnectionError:
            self.channel = None
            return False
        self._peer.actors.bind(self.channel, self)
        self.flush(force=True)
        return True

    def channel_closed(self, channel: Channel) -> None:
        """A channel to the actor is at its end: that of the present life, or older."""
        if channel is not self.channel:
            return
        verdict = self.queue.verdict
        if verdict is not None:
            self._end_of_life(dead=verdict.state == "DEAD")
        else:
            self._repair_later()

    def _repair_later(self) -> None:
        if not self._is_repairing:
            self._is_repairing = True
            self._peer.reactor.call_later(REPAIR_S, self._repair)

    def _repair(self) -> None:
        """Connect anew if only the channel broke; no word would ever come of that."""
        self._is_repairing = False
        update, queue = self.update, self.queue
        if self._peer.ended or update is None or update.state != "ALIVE":
            return
        if update.incarnation != queue.incarnation:
            return
        if self.channel is not None and not self.channel.closed:
            return
        try:
            self._peer.connect(update.address)
        except ConnectionError:
            self._repair_later()  # it is dead, and the word of that is on its way
            return
        if queue.state is ActorState.ALIVE:
            self._end_of_life(dead=False, cause="the connection to it broke")
        queue.resume()
        self._reach(update)

    def _end_of_life(self, *, dead: bool, cause: str = "") -> None:
        self.channel = None
        tasks = self._peer.tasks
        for record in self.queue.life_ended(dead=dead):
            record.lends = []
            if record.cancelled:
                payload = failures.error_payload(exceptions.TaskCancelledError())
            elif dead:
                payload = self.death_payload()
            else:
                payload = failures.error_payload(self._unavailable(cause))
            tasks.fail(record, payload)

    def _unavailable(self, broken: str) -> Exception:
        update = self.update
        end = f"went down: {update.cause if update is not None else ''}. It restarts"
        if broken:
            end = f"could not be reached: {broken}. It may have run all the same"
        return exceptions.ActorUnavailableError(
            f"the call was under way when actor {self.class_name} "
            f"({self.actor_id.hex()}) {end}; set max_task_retries if the call may be "
            "repeated",
            self.actor_id,
        )

    def death_payload(self) -> m.Payload:
        """Why the actor is dead, as every further call gets it."""
        update = self.update
        if update is not None and update.error is not None:
            error = failures.load_error(update.error)
            if isinstance(error, exceptions.RayTaskError):
                return failures.error_payload(
                    exceptions.ActorDiedError.from_task_error(error)
                )
            return update.error
        if update is not None and update.kind == "oom":
            return failures.error_payload(exceptions.OutOfMemoryError(update.cause))
        if update is not None and update.kind == "removed":
            text = (
                f"Could not create actor {self.class_name} ({self.actor_id.hex()}), as "
                "its placement group was removed before there was room for it"
            )
            return failures.error_payload(exceptions.ActorUnschedulableError(text))
        if update is not None and update.kind == "infeasible":
            text = f"The actor is not schedulable: {update.cause}"
            return failures.error_payload(exceptions.ActorUnschedulableError(text))
        if update is not None and update.kind == "setup":
            return failures.error_payload(exceptions.RuntimeEnvSetupError(update.cause))
        death = exceptions.ActorDeath(
            reason=update.cause if update is not None else "unknown cause",
            class_name=self.class_name,
            actor_id=self.actor_id.hex(),
            pid=update.pid if update is not None else 0,
        )
        return failures.error_payload(exceptions.ActorDiedError(death))

    def describe_call(self, record: CallRecord) -> str:
        """Where a call is, for people."""
        who = f"actor {self.class_name}({self.actor_id.hex()[:16]}...)"
        state = self.queue.state.value
        if record.task_id in self.queue.inflight:
            ahead = list(self.queue.inflight).index(record.task_id)
            pid = self.update.pid if self.update is not None else 0
            return f"is at {who} (pid {pid}), with {ahead} calls of this process ahead"
        pending = list(self.queue.pending)
        ahead = pending.index(record) if record in pending else 0
        return f"waits for {who}, which is {state}, with {ahead} calls ahead"


class ActorCaller:
    """The actors that this process creates and calls."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        #: Actor id -> client.
        self.clients: dict[bytes, ActorClient] = {}
        #: Channel -> clients that are called through it.
        self._bound: dict[Channel, ActorClient] = {}
        #: Actor id -> what its creation waits for and keeps alive.
        self._creations: dict[bytes, Creation] = {}
        #: Actors of this process that no handle is counted for any more.
        self._unused: set[bytes] = set()
        #: Actors that were told to end and are not known to be dead.
        self._out_of_scope: set[bytes] = set()
        self._armed_flush = False

    def handlers(self) -> dict[type, MessageHandler]:
        """The messages that this part handles."""
        return {m.ActorUpdate: self._on_update}

    def control_restored(self) -> None:
        """The control service is back: say again what it may not know (locked)."""
        control = self._peer.control
        for actor_id, creation in self._creations.items():
            client = self.clients[actor_id]
            if client.update is None or client.update.state == "PENDING":
                control.send(creation.register)
                if creation.failure is not None:
                    control.send(creation.failure)
                elif creation.sent:
                    control.send(creation.start)
        for actor_id, client in self.clients.items():
            client.is_kill_unsure = client.kill is not None
            control.send(m.SubscribeActor(actor_id))
        for actor_id in self._out_of_scope:
            control.send(m.ActorOutOfScope(actor_id))

    def client(self, actor_id: bytes, class_name: str) -> ActorClient:
        """The client of an actor, subscribed to its state (under the lock)."""
        client = self.clients.get(actor_id)
        if client is None:
            client = ActorClient(self._peer, actor_id, class_name)
            self.clients[actor_id] = client
            self._peer.control.send(m.SubscribeActor(actor_id))
        return client

    def bind(self, channel: Channel, client: ActorClient) -> None:
        """Tell ``client`` of the end of ``channel``."""
        self._bound[channel] = client

    def create(
        self,
        register: m.RegisterActor,
        start: m.StartActor,
        encoded: Encoded,
        *,
        counted: bool,
        captured: list[Any],
        reject: str = "",
    ) -> ObjectRef | None:
        """Create an actor; its constructor runs once its arguments are known.

        Args:
            register: what the control service knows of it from now on.
            start: its constructor call.
            encoded: the arguments of that.
            counted: it ends when the last handle is gone.
            captured: references in its class, which live as long as the actor.
            reject: why it cannot be placed; empty if it can.

        Returns:
            The reference that counts handles, or None for a detached actor.

        Raises:
            ActorAlreadyExistsError: the name is taken.
        """
        peer = self._peer
        if peer.raylet.closed:
            raise exceptions.LocalRayletDiedError(
                "the node process of this session is gone, so no actor can be created. "
                "Call shutdown() and init() to start again."
            )
        peer.check_control()
        if register.name:
            register.request_id = peer.next_request_id()
        with peer.lock:
            peer.control.send(register)
        if register.name:
            peer.response(register.request_id, "register_actor")
        creation = Creation(register, start, encoded, captured)
        handle: ObjectRef | None = None
        with peer.lock:
            client = self.client(register.actor_id, register.class_name)
            self._creations[register.actor_id] = creation
            peer.watch_pending()
            if counted:
                object_id = handle_object_id(register.actor_id)
                entry = peer.objects.table.own(object_id)
                peer.objects.complete(entry, _NONE)
                entry.task = HandleCount(self, register.actor_id)
                handle = ObjectRef(object_id)
                peer.arm_sweep()
            if reject:
                error = exceptions.ActorUnschedulableError(reject)
                self._fail(creation, failures.error_payload(error))
            else:
                self._await_arguments(client, creation)
        peer.reactor.run_deferred()
        return handle

    def _await_arguments(self, client: ActorClient, creation: Creation) -> None:
        objects = self._peer.objects
        refs = [ref for _, _, ref in creation.encoded.dependencies]
        missing = [e for e in objects.lookup(refs) if e.value is None]
        creation.missing = len(missing)
        if not missing:
            self._start(client, creation)
            return

        def known(_: Any) -> None:
            creation.missing -= 1
            if not creation.missing:
                self._start(client, creation)

        for entry in missing:
            objects.when_known(entry.object_id, known)

    def _start(self, client: ActorClient, creation: Creation) -> None:
        peer = self._peer
        start, encoded = creation.start, creation.encoded
        if has_lost(peer, encoded):
            self._await_arguments(client, creation)  # one went while others came
            return
        for _, _, ref in encoded.dependencies:
            value = peer.objects.entries[ref._bytes].value
            if value.kind == m.ERROR:
                payload = failures.for_consumer(peer, value, start.spec.name)
                self._fail(creation, payload)
                return
        # The creation's references live as long as the actor may restart; whichever
        # process runs it registers as a borrower by itself.
        fill(peer, start.spec, encoded, "")
        peer.control.send(start)
        creation.sent = True

    def _fail(self, creation: Creation, payload: m.Payload) -> None:
        creation.failure = m.FailActor(creation.register.actor_id, payload)
        self._peer.control.send(creation.failure)

    # -- notices -----------------------------------------------------------------

    def _on_update(self, channel: Channel, update: m.ActorUpdate) -> None:
        client = self.clients.get(update.actor_id)
        if client is not None:
            client.on_update(update)
        if update.state == "DEAD":
            self._creations.pop(update.actor_id, None)
            self._out_of_scope.discard(update.actor_id)
            self._forget(update.actor_id)
        self._peer.objects.settle()

    def peer_died(self, channel: Channel) -> None:
        """A channel ended: perhaps an actor's life did."""
        client = self._bound.pop(channel, None)
        if client is not None:
            client.channel_closed(channel)
            self._forget(client.actor_id)

    def raylet_died(self, error: Exception) -> None:
        """The node is gone, and the control service with it."""
        payload = failures.error_payload(error)
        for client in self.clients.values():
            for record in client.queue.life_ended(dead=True):
                self._peer.tasks.fail(record, payload)

    def handle_dropped(self, actor_id: bytes) -> None:
        """No handle is counted any more: the actor ends after its calls."""
        client = self.clients.get(actor_id)
        if client is not None:
            client.flush(force=True)
            if len(client.queue):
                # Calls of this process that wait go first; look again later.
                self._peer.reactor.call_later(
                    0.02, lambda: self.handle_dropped(actor_id)
                )
                return
        self._unused.add(actor_id)
        if client is not None and client.queue.state is ActorState.DEAD:
            self._forget(actor_id)
        elif not self._peer.ended:
            self._peer.control.send(m.ActorOutOfScope(actor_id))
            self._out_of_scope.add(actor_id)

    def _forget(self, actor_id: bytes) -> None:
        """Drop what is known of a dead actor that no handle leads to."""
        client = self.clients.get(actor_id)
        if (
            actor_id in self._unused
            and client is not None
            and client.queue.state is ActorState.DEAD
            and not len(client.queue)
        ):
            self._unused.discard(actor_id)
            del self.clients[actor_id]

    # -- flushing ------------------------------------------------------------------

    def flush_all(self) -> None:
        """Send every call that may be sent: somebody waits now."""
        for client in list(self.clients.values()):  # a dead one may be dropped
            if client.queue.pending:
                client.flush(force=True)

    def flush_soon(self) -> None:
        """As :meth:`flush_all`, a moment later."""
        if not self._armed_flush:
            self._armed_flush = True
            self._peer.reactor.call_later(FLUSH_S, self._flush_due)

    def _flush_due(self) -> None:
        self._armed_flush = False
        self.flush_all()


class Creation:
    """The constructor call of an actor created here."""

    __slots__ = (
        "captured",
        "encoded",
        "failure",
        "missing",
        "register",
        "sent",
        "since_s",
        "start",
    )

    def __init__(
        self,
        register: m.RegisterActor,
        start: m.StartActor,
        encoded: Encoded,
        captured: list[Any],
    ) -> None:
        self.register = register
        self.start = start
        #: When the actor was asked for.
        self.since_s = time.monotonic()
        #: The constructor's arguments were known, and the control service told.
        self.sent = False
        #: Or it cannot start, and the control service was told why.
        self.failure: m.FailActor | None = None
        #: Holds the argument references until the actor is dead.
        self.encoded = encoded
        #: Does the same for the references in its class.
        self.captured = captured
        self.missing = 0


class HandleCount:
    """What an actor's counted handle hangs on its object entry."""

    __slots__ = ("_caller", "actor_id")

    def __init__(self, caller: ActorCaller, actor_id: bytes) -> None:
        self._caller = caller
        self.actor_id = actor_id

    def return_dropped(self, object_id: bytes) -> None:
        """Called when the last handle anywhere is gone."""
        self._caller.handle_dropped(self.actor_id)

    def describe(self) -> str:
        """For explanations."""
        return f"handle of actor {self.actor_id.hex()}"

    def lease_ids(self) -> list[bytes]:
        """A handle waits for no lease."""
        return []


def handle_object_id(actor_id: bytes) -> bytes:
    """Id of the object whose references count an actor's handles."""
    return b"\xff" * 8 + actor_id + (1).to_bytes(4, "little")


_NONE = m.Payload(m.PICKLE, PICKLED_NONE)
