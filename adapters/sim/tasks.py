"""Tasks at their owner, in the simulation: leases, pushes, results, deaths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rayshim.adapters.sim.network import REPEAT_S
from rayshim.adapters.sim.values import Hole, Nested, Payload, Ref, SimError, encode
from rayshim.lineage import lease_events as lev
from rayshim.lineage.dispatch import (
    IDLE_S,
    LATE_S,
    MAX_DEPTH,
    STEAL_AFTER_S,
    LeaseSlot,
    SchedulingClass,
)
from rayshim.lineage.resources import CPU, UNITS
from rayshim.lineage.tasks import TaskEvent, TaskLife, TaskState, Verdict

if TYPE_CHECKING:
    from rayshim.adapters.sim.actors import ActorClient
    from rayshim.adapters.sim.objects import KeptCall
    from rayshim.adapters.sim.peer import Peer

#: An executor whose channel broke and of which its raylet says nothing for this long
#: is killed: else its calls would never be accounted for.
OBITUARY_S = 1.0


#: What makes the id of a value of a call's id.
RETURN = b"\x01\x00\x00\x00"


class Spec(NamedTuple):
    """One call as it travels."""

    task_id: bytes
    function: str
    data: Any
    nested: tuple[Nested, ...] = ()
    #: (what it is, its value) for each top-level reference.
    dependencies: tuple[tuple[Nested, Payload], ...] = ()
    method: str = ""
    limit: int = 1 << 30


class Result(NamedTuple):
    """The end of one call."""

    task_id: bytes
    payload: Payload
    kept: tuple[bytes, ...] = ()
    #: Arguments that could not be read: the call did not start.
    lost: tuple[tuple[bytes, Any], ...] = ()


class Record(TaskLife):
    """A call without a result."""

    __slots__ = (
        "actor",
        "data",
        "dependencies",
        "function",
        "kept",
        "lends",
        "limit",
        "method",
        "missing",
        "nested",
        "return_id",
        "scheduling",
        "slot",
    )

    def __init__(
        self, task_id: bytes, return_id: bytes, function: str, retries: int
    ) -> None:
        super().__init__(task_id, retries)
        self.return_id = return_id
        self.function = function
        self.method = ""
        self.data: Any = ()
        self.dependencies: list[Ref] = []
        self.nested: list[Ref] = []
        self.lends: list[tuple[bytes, int]] = []
        self.slot: LeaseSlot | None = None
        self.scheduling: SchedulingClass | None = None
        self.actor: ActorClient | None = None
        self.missing = 0
        self.kept: KeptCall | None = None
        #: Runs that it may have at most.
        self.limit = 1 + retries if retries == 0 else 1 << 30

    @property
    def ready(self) -> bool:
        """Its arguments are known."""
        return not self.missing


class Tasks:
    """The owner's side."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.records: dict[bytes, Record] = {}
        self.classes: dict[Any, SchedulingClass] = {}
        #: Lease asked for -> (class, raylet asked, request).
        self._requests: dict[
            bytes, tuple[SchedulingClass, str, lev.LeaseRequested]
        ] = {}
        #: Executor -> (class, lease, raylet).
        self._slots: dict[str, tuple[SchedulingClass, LeaseSlot, str]] = {}
        self._leases: dict[bytes, str] = {}
        self._obituaries: dict[bytes, str] = {}
        self._orphans: dict[bytes, tuple[SchedulingClass, LeaseSlot, str]] = {}
        self._count = 0
        peer.later(REPEAT_S, self._tick)

    # -- submission --------------------------------------------------------------

    def submit(self, function: str, args: tuple[Any, ...], retries: int) -> Ref:
        """Queue a call and give the reference of its value."""
        record, ref = self.enter(function, args, retries)
        if self.await_arguments(record):
            self._enqueue(record)
        return ref

    def enter(
        self, function: str, args: tuple[Any, ...], retries: int
    ) -> tuple[Record, Ref]:
        """Make a call and own its value."""
        objects = self.peer.objects
        task_id = self.peer.new_id("task")
        record = Record(task_id, task_id + RETURN, function, retries)
        holes: list[Any] = []
        for one in args:
            if isinstance(one, Ref):
                holes.append(Hole(len(record.dependencies)))
                record.dependencies.append(one)
            else:
                holes.append(encode(one, record.nested))
        record.data = tuple(holes)
        self.records[task_id] = record
        self.peer.cluster.limits[task_id] = record.limit
        entry = objects.table.own(record.return_id)
        entry.task = record
        return record, objects.counted_ref(record.return_id, self.peer.address)

    def await_arguments(self, record: Record) -> bool:
        """True if all arguments are known; else it goes on when they are."""
        objects = self.peer.objects
        record.missing = 0
        unknown = [
            ref.object_id
            for ref in record.dependencies
            if objects.entries[ref.object_id].value is None
        ]
        record.missing = len(unknown)
        if not unknown:
            return self._check(record)
        for object_id in unknown:
            objects.when_known(object_id, lambda _: self._known(record))
        return False

    def _known(self, record: Record) -> None:
        record.missing -= 1
        if record.missing or record.task_id not in self.records:
            return
        if not self._check(record):
            if record.actor is not None:
                record.actor.withdraw(record)
        elif record.actor is not None:
            record.actor.flush()
        else:
            self._enqueue(record)

    def _check(self, record: Record) -> bool:
        for ref in record.dependencies:
            payload = self.peer.objects.entries[ref.object_id].value
            if payload is not None and payload.kind == "error":
                self.fail(record, payload)
                return False
        return True

    def resubmit(self, record: Record) -> None:
        """A call that ended runs again, for its value."""
        self.records[record.task_id] = record
        ready = self.await_arguments(record)
        if record.actor is not None:
            if ready or record.missing:
                record.actor.submit_again(record)
        elif ready:
            self._enqueue(record)

    def _class_of(self, record: Record) -> SchedulingClass:
        is_single = record.limit == 1
        key = (record.function, is_single)
        found = self.classes.get(key)
        if found is None:
            depth = 1 if is_single else MAX_DEPTH
            found = SchedulingClass(key, record.function, None, depth)
            self.classes[key] = found
        record.scheduling = found
        return found

    def _enqueue(self, record: Record) -> None:
        record.on(TaskEvent.ARGUMENTS_KNOWN)
        scheduling = self._class_of(record)
        scheduling.queue.append(record)
        self._advance(scheduling, flush=False)

    def _advance(self, scheduling: SchedulingClass, *, flush: bool) -> None:
        now = self.peer.kernel.now_s
        for slot, records in scheduling.assign(flush=flush, now_s=now):
            self._push(slot, records)
        for _ in range(scheduling.leases_wanted(now)):
            self._ask(scheduling)

    def _push(self, slot: LeaseSlot, records: list[Record]) -> None:
        specs = []
        for record in records:
            if self._has_lost(record):
                record.on(TaskEvent.ARGUMENTS_LOST)
                if self.await_arguments(record):
                    self._enqueue(record)
                continue
            record.on(TaskEvent.PUSHED)
            record.slot = slot
            slot.inflight[record.task_id] = record
            specs.append(self.fill(record, slot.address))
        if specs:
            self.peer.send(slot.address, "push", tuple(specs))

    def _has_lost(self, record: Record) -> bool:
        entries = self.peer.objects.entries
        return any(entries[r.object_id].value is None for r in record.dependencies)

    def fill(self, record: Record, address: str) -> Spec:
        """The call as it goes to ``address``."""
        objects = self.peer.objects
        record.lends = []
        dependencies = []
        for ref in record.dependencies:
            payload = objects.entries[ref.object_id].value
            payload = objects.relend(payload, address, promised=True)
            nested = Nested(ref.object_id, ref.owner, 0)
            if payload.segment is not None:
                nested = objects.promise(ref.object_id, ref.owner, address)
            record.lends += [(n.object_id, n.lend) for n in payload.nested if n.lend]
            dependencies.append((nested, payload))
        inner = tuple(
            objects.promise(ref.object_id, ref.owner, address) for ref in record.nested
        )
        record.lends += [
            (n.object_id, n.lend)
            for n in (*(one for one, _ in dependencies), *inner)
            if n.lend
        ]
        return Spec(
            record.task_id,
            record.function,
            record.data,
            inner,
            tuple(dependencies),
            record.method,
            record.limit,
        )

    # -- leases ------------------------------------------------------------------

    def _ask(self, scheduling: SchedulingClass) -> None:
        self._count += 1
        lease_id = f"{self.peer.address}.lease{self._count}".encode()
        request = lev.LeaseRequested(
            lease_id, self.peer.address, b"job", scheduling.label, {CPU: UNITS}
        )
        request = request._replace(cargo=request)
        scheduling.requested[lease_id] = self.peer.kernel.now_s
        self._request(scheduling, self.peer.node.address, request)

    def _request(
        self, scheduling: SchedulingClass, raylet: str, request: lev.LeaseRequested
    ) -> None:
        request = request._replace(cargo=None)
        request = request._replace(cargo=request)
        self._requests[request.lease_id] = (scheduling, raylet, request)
        if not self.peer.note(raylet, "request", request):
            self._ask_anew(request.lease_id)

    def _ask_anew(self, lease_id: bytes) -> None:
        """The node that was asked is dead."""
        scheduling, raylet, _ = self._requests.pop(lease_id)
        scheduling.requested.pop(lease_id, None)
        if raylet != self.peer.node.address:
            self._advance(scheduling, flush=True)

    def _tick(self) -> None:
        for _, raylet, request in list(self._requests.values()):
            self.peer.note(raylet, "request", request)
        self._review_all()
        self.peer.later(REPEAT_S, self._tick)

    def _review_all(self) -> None:
        for scheduling in list(self.classes.values()):
            self._advance(scheduling, flush=True)
            self.review(scheduling)

    def on_granted(
        self, source: str, lease_id: bytes, address: str, worker_id: bytes
    ) -> None:
        """A lease, perhaps for the second time."""
        if lease_id in self._leases:
            return
        found = self._requests.pop(lease_id, None)
        if found is None:
            if lease_id not in self._orphans:
                self.peer.send(source, "return", lease_id, False)
            return
        scheduling = found[0]
        scheduling.requested.pop(lease_id, None)
        if not scheduling.queue and scheduling.slots:
            self.peer.send(source, "return", lease_id, False)
            return
        if not self.peer.send(address, "bind", lease_id):
            self.peer.send(source, "return", lease_id, True)
            self._advance(scheduling, flush=True)
            return
        self.classes.setdefault(scheduling.key, scheduling)
        slot = LeaseSlot(lease_id, None, self.peer.kernel.now_s)
        slot.address = address
        scheduling.slots.append(slot)
        self._slots[address] = (scheduling, slot, source)
        self._leases[lease_id] = address
        self._advance(scheduling, flush=True)
        self.review(scheduling)

    def on_rejected(
        self, source: str, lease_id: bytes, kind: str, spill_to: str, hops: int
    ) -> None:
        """No lease from there."""
        found = self._requests.get(lease_id)
        if found is None or found[1] != source:
            return
        scheduling, _, request = found
        if kind == "spillback":
            request = request._replace(hops=hops + 1)
            self._request(scheduling, spill_to, request)
            return
        del self._requests[lease_id]
        scheduling.requested.pop(lease_id, None)
        if kind != "cancelled":
            self._advance(scheduling, flush=True)

    def review(self, scheduling: SchedulingClass) -> None:
        """Give leases back, and look for calls to take back."""
        now = self.peer.kernel.now_s
        for slot in scheduling.returnable(now):
            scheduling.slots.remove(slot)
            _, _, raylet = self._slots.pop(slot.address)
            del self._leases[slot.lease_id]
            dispose = slot.draining and not slot.reclaimed
            self.peer.send(raylet, "return", slot.lease_id, dispose)
        if not scheduling.queue:
            for lease_id in list(scheduling.requested):
                _, raylet, _ = self._requests.pop(lease_id)
                self.peer.send(raylet, "return", lease_id, False)
            scheduling.requested.clear()
        found = scheduling.steal(now)
        late = scheduling.late(now)
        for slot, count in [found, *late] if found else late:
            if not slot.stealing:
                slot.stealing = True
                self.peer.send(slot.address, "steal", count)
        if scheduling.has_pipelines():
            self.peer.later(
                max(STEAL_AFTER_S, LATE_S), self._review_if_there, scheduling
            )
        elif scheduling.slots:
            self.peer.later(IDLE_S / 2, self._review_if_there, scheduling)
        if not scheduling.slots and not scheduling.queue:
            self.classes.pop(scheduling.key, None)

    def _review_if_there(self, scheduling: SchedulingClass) -> None:
        if self.classes.get(scheduling.key) is scheduling:
            now = self.peer.kernel.now_s
            if scheduling.returnable(now) or scheduling.late(now):
                self.review(scheduling)

    def on_reclaim(self, source: str, lease_id: bytes) -> None:
        """Somebody waits for a lease."""
        address = self._leases.get(lease_id)
        if address is None:
            return
        scheduling, slot, _ = self._slots[address]
        slot.reclaimed = True
        if len(slot.inflight) > 1 and not slot.stealing:
            slot.stealing = True
            self.peer.send(address, "steal", MAX_DEPTH)
        self.review(scheduling)

    # -- ends --------------------------------------------------------------------

    def on_stolen(self, source: str, task_ids: tuple[bytes, ...]) -> None:
        """Calls come back unstarted."""
        found = self._slots.get(source)
        touched: dict[int, SchedulingClass] = {}
        for task_id in reversed(task_ids):
            record = self.records.get(task_id)
            if record is None or record.slot is None:
                continue
            record.slot.inflight.pop(task_id, None)
            record.on(TaskEvent.GIVEN_BACK)
            record.slot = None
            record.lends = []
            scheduling = self._class_of(record)
            scheduling.queue.appendleft(record)
            touched[id(scheduling)] = scheduling
        if found is not None:
            found[1].stealing = False
        for scheduling in touched.values():
            busy = found[1] if found is not None else None
            if busy is not None and busy.inflight and not busy.draining:
                busy.draining = True
                self._advance(scheduling, flush=True)
                busy.draining = False
            else:
                self._advance(scheduling, flush=True)

    def on_results(self, source: str, results: tuple[Result, ...], cost: float) -> None:
        """Calls ended."""
        for result in results:
            record = self.records.get(result.task_id)
            if record is None:
                continue
            if record.actor is not None:
                record.actor.on_result(record, result, source)
                continue
            if record.slot is not None:
                record.slot.inflight.pop(result.task_id, None)
            self.finish(record, result, source)
        found = self._slots.get(source)
        if found is not None:
            scheduling, slot, _ = found
            now = self.peer.kernel.now_s
            slot.progress_s = now
            if not slot.inflight:
                slot.idle_since_s = now
            scheduling.record_cost(cost)
            self._advance(scheduling, flush=True)
            self.review(scheduling)
        self.peer.objects.settle()

    def finish(self, record: Record, result: Result, sender: str) -> None:
        """Take in a result."""
        objects = self.peer.objects
        if result.lost:
            self._end_lends(record, result.kept, sender)
            for object_id, segment in result.lost:
                entry = objects.entries.get(object_id)
                if entry is not None:
                    objects.unreadable(entry, segment)
            record.on(TaskEvent.ARGUMENTS_LOST)
            record.slot = None
            ready = self.await_arguments(record)
            if record.actor is not None:
                if ready or record.missing:
                    record.actor.take_back(record)
            elif ready:
                self._enqueue(record)
            return
        if result.payload.kind == "error":
            self._end_lends(record, result.kept, sender)
            self.fail(record, result.payload)
            return
        del self.records[record.task_id]
        record.on(TaskEvent.RESULT)
        entry = objects.entries.get(record.return_id)
        if entry is not None:
            entry.task = None
        objects.store_value(record.return_id, result.payload, sender)
        if record.kept is not None or result.payload.segment is not None:
            objects.keep(record)
        self._end_lends(record, result.kept, sender)
        record.dependencies, record.nested = [], []

    def _end_lends(self, record: Record, kept: tuple[bytes, ...], peer: str) -> None:
        table = self.peer.objects.table
        for object_id, lend in record.lends:
            if object_id in kept:
                table.confirm(object_id, peer, lend)
            else:
                table.release(object_id, peer, lend)
        record.lends = []

    def fail(self, record: Record, payload: Payload) -> None:
        """The value of a call is an error."""
        if self.records.pop(record.task_id, None) is None:
            return
        record.fail()
        objects = self.peer.objects
        if record.kept is not None:
            objects.broke(record, payload)
        else:
            entry = objects.entries.get(record.return_id)
            if entry is not None and entry.value is None:
                entry.task = None
                objects.complete(entry, payload)
        record.dependencies, record.nested = [], []

    # -- deaths ------------------------------------------------------------------

    def on_lease_lost(self, source: str, lease_id: bytes, reason: str) -> None:
        """The raylet says why an executor died."""
        orphan = self._orphans.pop(lease_id, None)
        if orphan is not None:
            self._bury(orphan[0], orphan[1])
        elif lease_id in self._leases:
            self._obituaries[lease_id] = reason

    def peer_ended(self, address: str) -> None:
        """The end of an executor or of a raylet."""
        found = self._slots.pop(address, None)
        if found is not None:
            scheduling, slot, raylet = found
            scheduling.slots.remove(slot)
            del self._leases[slot.lease_id]
            known = self._obituaries.pop(slot.lease_id, None)
            if known is not None or raylet in self.peer.buried:
                self._bury(scheduling, slot)
            else:
                self._orphans[slot.lease_id] = found
                self.peer.later(OBITUARY_S, self._insist, slot.lease_id)
        for lease_id, orphan in list(self._orphans.items()):
            if orphan[2] == address:
                del self._orphans[lease_id]
                self._bury(orphan[0], orphan[1])
        for other, (_, _, raylet) in list(self._slots.items()):
            if raylet == address:
                # Its executors die with it.
                self.peer.bury(other)
        for lease_id, (_, raylet, _) in list(self._requests.items()):
            if raylet == address:
                self._ask_anew(lease_id)

    def _insist(self, lease_id: bytes) -> None:
        orphan = self._orphans.get(lease_id)
        if orphan is not None:
            self.peer.send(orphan[2], "kill_lease", lease_id)
            self.peer.later(OBITUARY_S, self._insist, lease_id)

    def _bury(self, scheduling: SchedulingClass, slot: LeaseSlot) -> None:
        records: list[Record] = list(slot.inflight.values())
        slot.inflight.clear()
        again: list[Record] = []
        for position, record in enumerate(records):
            record.slot = None
            record.lends = []
            verdict = record.crashed(started=position == 0)
            if verdict is Verdict.AGAIN:
                again.append(record)
            else:
                error = SimError("WorkerCrashed", record.function)
                self.fail(record, Payload("error", error))
        scheduling = self.classes.setdefault(scheduling.key, scheduling)
        for record in reversed(again):
            scheduling.queue.appendleft(record)
        self._advance(scheduling, flush=True)
        self.review(scheduling)
        self.peer.objects.settle()

    def describe(self) -> list[str]:
        """Where every call is, for people."""
        return [
            f"{record.task_id.decode()} {record.function}{record.method} "
            f"{record.state.name} missing={record.missing}"
            for record in self.records.values()
            if record.state is not TaskState.DONE
        ]
