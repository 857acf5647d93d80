"""A simulated executor: one call at a time, or one actor."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from rayshim.adapters.sim.node import Node
from rayshim.adapters.sim.peer import Peer, Thread
from rayshim.adapters.sim.tasks import Result, Spec
from rayshim.adapters.sim.values import Nested, Payload, Segment, SimError, decode

if TYPE_CHECKING:
    from rayshim.adapters.sim.cluster import Cluster


class Executor(Peer):
    """One process of a node's pool."""

    def __init__(self, cluster: Cluster, node: Node, worker_id: bytes) -> None:
        super().__init__(cluster, worker_id.decode(), node)
        self.worker_id = worker_id
        #: (caller, call) accepted and not started.
        self.accepted: deque[tuple[str, Spec]] = deque()
        self.running: tuple[str, Spec] | None = None
        self._thread: Thread | None = None
        self._held: list[Result] = []
        self._held_for = ""
        self._begun_s = 0.0
        #: Of an actor: its id and what it is.
        self.actor_id = b""
        self.instance: Any = None
        self._is_leaving = False

    def ended(self) -> None:
        """The node's fork server notices."""
        self.accepted.clear()
        self._thread = None
        self.running = None
        self.instance = None
        if self.node.alive:
            self.node.executor_ended(self.worker_id)

    def threads(self) -> list[Thread]:
        """The running call."""
        return [self._thread] if self._thread is not None else []

    # -- messages ----------------------------------------------------------------

    def on_bind(self, source: str, what: bytes) -> None:
        """Somebody has this executor, or calls this actor."""

    def on_push(self, source: str, specs: tuple[Spec, ...]) -> None:
        """Calls arrive."""
        self.accepted.extend((source, spec) for spec in specs)
        self._go_on()

    def on_steal(self, source: str, count: int) -> None:
        """Unstarted calls are wanted back."""
        self._give_back(source, count)

    def _give_back(self, source: str, count: int) -> None:
        stolen: list[bytes] = []
        kept: list[tuple[str, Spec]] = []
        while self.accepted and len(stolen) < count:
            work = self.accepted.pop()
            if work[0] == source:
                stolen.append(work[1].task_id)
            else:
                kept.append(work)
        self.accepted.extend(reversed(kept))
        self.send(source, "stolen", tuple(reversed(stolen)))

    def on_leave(self, source: str, reason: str) -> None:
        """The node wants this process to go, after what it has accepted."""
        self._is_leaving = True
        self._go_on()

    def on_create_actor(
        self, source: str, actor: bytes, incarnation: int, spec: Any
    ) -> None:
        """This executor becomes an actor."""
        self.actor_id = actor
        kind, args = spec
        self.instance = self.cluster.classes[kind](self, *args)
        self.kernel.note(f"{self.address} is {kind} life {incarnation}")
        self.send(self.node.address, "actor_created", actor, incarnation)

    def peer_ended(self, address: str) -> None:
        """Without its node an executor is nothing."""
        if address == self.node.address:
            self.die()
            return
        super().peer_ended(address)

    def blocks(self, is_blocked: bool) -> None:
        """Calls behind one that waits go to others, and its CPU."""
        if self.actor_id:
            return
        self.send(self.node.address, "blocked", self.worker_id, is_blocked)
        if is_blocked:
            self._send_answers()
            for source in dict.fromkeys(work[0] for work in self.accepted):
                self._give_back(source, len(self.accepted))

    # -- calls -------------------------------------------------------------------

    def _go_on(self) -> None:
        if self.running is not None:
            return
        if not self.accepted:
            self._send_answers()
            if self._is_leaving:
                lends = any(e.lends for e in self.objects.entries.values())
                if lends:
                    self.later(0.1, self._go_on)
                else:
                    self.later(0.0, self.die)
            return
        self.running = self.accepted.popleft()
        source, spec = self.running
        brought = self._brought(spec)
        for one in brought:
            self.objects.receive(one, source, register=False).local += 1
        self._read(source, spec, brought, [], 0)

    @staticmethod
    def _brought(spec: Spec) -> list[Nested]:
        brought = list(spec.nested)
        for nested, payload in spec.dependencies:
            brought += payload.nested
            if payload.segment is not None:
                brought.append(nested)
        return brought

    def _read(
        self,
        source: str,
        spec: Spec,
        brought: list[Nested],
        values: list[Any],
        place: int,
    ) -> None:
        """Read the arguments that are large, one after the other."""
        while place < len(spec.dependencies):
            nested, payload = spec.dependencies[place]
            if payload.segment is not None:
                segment = payload.segment

                def read(
                    is_there: bool,
                    data: Any,
                    nested: Nested = nested,
                    segment: Segment = segment,
                    place: int = place,
                ) -> None:
                    if not self.alive:
                        return
                    if is_there:
                        values.append(data)
                        self._read(source, spec, brought, values, place + 1)
                        return
                    kept = self._kept(source, brought)
                    lost = ((nested.object_id, segment),)
                    nothing = Payload("value")
                    self._done(Result(spec.task_id, nothing, kept, lost))

                self.objects.read(segment, read)
                return
            values.append(payload.data)
            place += 1
        self._start(source, spec, brought, values)

    def _start(
        self, source: str, spec: Spec, brought: list[Nested], values: list[Any]
    ) -> None:
        self.cluster.started(spec.task_id, spec.function or spec.method, self)
        self._begun_s = self.kernel.now_s
        holes = [decode(value, self.objects) for value in values]
        args = decode(spec.data, self.objects, holes)
        del holes, values
        if spec.method:
            body = getattr(self.instance, spec.method)(*args)
        else:
            body = self.cluster.functions[spec.function](self, *args)
        del args

        def done(value: Any, error: BaseException | None) -> None:
            self._thread = None
            if source in self.buried:
                payload = Payload("value")  # nobody is there to take it
            elif isinstance(error, SimError):
                failure = SimError("Task", f"{error.kind} {error.text}".strip())
                payload = Payload("error", failure)
            else:
                name = f"{spec.task_id.decode().rstrip('.')}@{self.address}"
                payload = self.objects.pack(value, source, name)
            del value
            self.objects.collect()
            self._done(Result(spec.task_id, payload, self._kept(source, brought)))

        self._thread = Thread(self, body, done)
        self._thread.step()

    def _kept(self, source: str, brought: list[Nested]) -> tuple[bytes, ...]:
        table = self.objects.table
        self.objects.collect()
        for one in brought:
            table.unpin(one.object_id)
        kept = []
        for one in dict((one.object_id, one) for one in brought).values():
            if table.keep(one.object_id, source, one.lend):
                kept.append(one.object_id)
        self.objects.settle()
        return tuple(kept)

    def _done(self, result: Result) -> None:
        assert self.running is not None
        source = self.running[0]
        self._held.append(result)
        self._held_for = source
        self.running = None
        if not self.accepted or self.accepted[0][0] != source:
            self._send_answers()
        elif len(self._held) == 1:
            self.later(0.001, self._send_answers)
        self.later(0.0, self._go_on)

    def _send_answers(self) -> None:
        if self._held:
            held, self._held = self._held, []
            cost = (self.kernel.now_s - self._begun_s) / len(held)
            self.send(self._held_for, "results", tuple(held), max(cost, 1e-5))
