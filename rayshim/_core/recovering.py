"""Lost values at their owner: another copy, or one more run of the call that made it.

The machine (:mod:`rayshim.lineage.recovery`) decides; this part keeps the calls
that may run again and tells the machine what happens. It is made when the first call
returns a value in the store. Everything here happens under the peer's lock.

An argument of a kept call stays needed. One that can be made again itself counts as
lineage only, so its value may go; of any other the reference stays, as in Ray.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rayshim import exceptions
from rayshim._core import failures
from rayshim._core.arguments import NOTHING
from rayshim._core.calls import CallRecord
from rayshim._core.refs import ObjectRef
from rayshim.adapters.wire import messages as m
from rayshim.lineage import recovery as rec
from rayshim.lineage.references import ObjectEntry
from rayshim.lineage.tasks import TaskEvent

if TYPE_CHECKING:
    from rayshim._core.objects import ObjectPlane
    from rayshim._core.peer import Peer

#: What the description of a call takes beside its arguments, and each dependency.
RECORD_BYTES = 1200
DEPENDENCY_BYTES = 200
#: Notes on lost values whose loss nobody asked about yet.
MOST_NOTES = 10_000


class KeptCall:
    """A call that may run again, and what it needs then."""

    __slots__ = ("dependencies", "nested", "pinned", "record", "recovering")

    def __init__(self, record: CallRecord, recovering: Recovering) -> None:
        self.record = record
        self.recovering = recovering
        #: (position, keyword, id, reference or None where lineage is enough).
        self.dependencies: list[tuple[int, str, bytes, ObjectRef | None]] = []
        self.nested: list[tuple[bytes, ObjectRef | None]] = []
        #: Ids that this call counts as lineage, once for each time here.
        self.pinned: list[bytes] = []


class Recovering:
    """The owner's side of lost values."""

    #: As the maker of a value has it; see ``CallRecord``.
    actor_id = b""

    def __init__(self, peer: Peer, objects: ObjectPlane) -> None:
        self._peer = peer
        self._objects = objects
        self.machine = rec.RecoveryManager(peer.settings.lineage_bytes)
        #: Task id -> call that may run again, or does.
        self.calls: dict[bytes, KeptCall] = {}
        #: Object id -> when and why its last copy went.
        self._notes: dict[bytes, str] = {}

    # -- what hangs on the entries ---------------------------------------------------

    def return_dropped(self, object_id: bytes) -> None:
        """Nobody holds a value any more (see ``ObjectEntry.task``)."""
        self._notes.pop(object_id, None)
        self._tell(rec.Dropped(object_id))

    def describe(self) -> str:
        """For explanations."""
        return "its value was lost and waits to be made again"

    def lease_ids(self) -> list[bytes]:
        """Nothing waits for a lease here."""
        return []

    # -- calls that ended ------------------------------------------------------------

    def kept(self, record: CallRecord) -> None:
        """A call ended well, and a value of it lies in a store."""
        entries = self._objects.entries
        returns = tuple(i for i in self._ids_of(record) if i in entries)
        for object_id in returns:
            entry = entries[object_id]
            entry.task = self
            if entry.value is None and record.kept is not None and entry.local:
                self._refuse(object_id, rec.Reason.REF_NOT_FOUND)  # it made fewer
        call: KeptCall | None = record.kept
        if call is None:
            call = record.kept = KeptCall(record, self)
            if record.encoded is not NOTHING:
                self._keep_arguments(call)
        else:
            self._drop_arguments(call)
        record.handle_ref = None
        self.calls[record.task_id] = call
        encoded = record.encoded
        size_bytes = RECORD_BYTES + len(encoded.data)
        size_bytes += sum(map(len, encoded.buffers))
        size_bytes += DEPENDENCY_BYTES * (len(call.dependencies) + len(call.nested))
        self._tell(
            rec.Kept(
                record.task_id,
                returns,
                tuple(dict.fromkeys(call.pinned)),
                size_bytes,
                record.retries_left,
                record.attempt,
            )
        )

    def _ids_of(self, record: CallRecord) -> list[bytes]:
        ids = list(record.return_ids)
        if record.stream is not None:
            streams = self._peer.streams
            ids += [
                streams.item_id(record.task_id, index)
                for index in range(record.stream.received)
            ]
        return ids

    def _keep_arguments(self, call: KeptCall) -> None:
        encoded = call.record.encoded
        for position, keyword, ref in encoded.dependencies:
            kept = self._keep_reference(call, ref)
            call.dependencies.append((position, keyword, ref._bytes, kept))
        for ref in encoded.nested:
            call.nested.append((ref._bytes, self._keep_reference(call, ref)))
        encoded.dependencies, encoded.nested = [], []
        call.record.spec.dependencies, call.record.spec.nested = (), ()

    def _keep_reference(self, call: KeptCall, ref: ObjectRef) -> ObjectRef | None:
        object_id = ref._bytes
        entry = self._objects.entries.get(object_id)
        if entry is None or entry.owner or entry.task is not self:
            return ref
        state = self.machine.state_of(object_id[:24])
        if state in (rec.RecoveryState.UNKNOWN, rec.RecoveryState.FAILED):
            return ref
        self._objects.table.pin_lineage(object_id)
        call.pinned.append(object_id)
        return None

    def _drop_arguments(self, call: KeptCall) -> None:
        """The references of another run; those that stay are in the call itself."""
        encoded, spec = call.record.encoded, call.record.spec
        if encoded is not NOTHING:
            encoded.dependencies, encoded.nested = [], []
        spec.dependencies, spec.nested = (), ()

    def broke(self, record: CallRecord, payload: m.Payload) -> None:
        """A call that ran again failed; its lost values are the error now."""
        for object_id in self._ids_of(record):
            entry = self._objects.entries.get(object_id)
            if entry is None:
                continue
            entry.task = self
            if entry.value is None:
                self._objects.complete(entry, payload)
        self._tell(rec.Broke(record.task_id))

    # -- losses ----------------------------------------------------------------------

    def lose(self, entry: ObjectEntry, segment: m.Segment, why: str) -> None:
        """A copy of an owned value is gone: name another one, or none."""
        value = entry.value
        if value is None or value.segment is None or value.segment.name != segment.name:
            return  # it is known already
        objects = self._objects
        node = entry.copies.promote((segment.node,)) if entry.copies else ""
        if node:
            self._promote(entry, node)
            return
        object_id = entry.object_id
        if len(self._notes) < MOST_NOTES:
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            self._notes[object_id] = f"lost at {when}: {why}"
        copies = entry.copies
        objects.table.lose(entry)
        objects.free_value(object_id, value, copies)
        self._tell(rec.Lost(object_id))

    def _promote(self, entry: ObjectEntry, node: str) -> None:
        old: m.Segment = entry.value.segment
        name = f"o-{entry.object_id.hex()}"
        segment = m.Segment(name, old.capacity, node, "", old.layout)
        value = entry.value
        entry.value = m.Payload(value.kind, value.data, value.buffers, value.nested)
        entry.value.segment = segment

        def pinned(found: m.Segment | None, error: str) -> None:
            if found is None and entry.value is not None:
                self.lose(entry, segment, f"its copy on node {node[:8]}: {error}")

        self._objects.pulling.pin_at(node, entry.object_id, old, pinned)

    def faded(self, object_id: bytes) -> None:
        """A value went since only lineage needs it."""
        self._tell(rec.Lost(object_id))

    def need(self, entry: ObjectEntry) -> None:
        """Somebody waits for an owned value that is lost."""
        self._tell(rec.Needed(entry.object_id))

    def node_died(self, node_id: str, why: str) -> None:
        """Every copy on a node is gone."""
        for entry in list(self._objects.entries.values()):
            if entry.owner:
                continue
            if entry.copies is not None:
                entry.copies.nodes.pop(node_id, None)
            value = entry.value
            segment = value.segment if value is not None else None
            if segment is not None and segment.node == node_id:
                self.lose(entry, segment, why)

    # -- calls whose arguments are lost ----------------------------------------------

    def arguments_lost(
        self, record: CallRecord, lost: Iterable[bytes], sender: str
    ) -> None:
        """An executor could not read arguments: the call waits for them again."""
        objects = self._objects
        used = {d.object_id: d.value.segment for d in record.spec.dependencies}
        for object_id in lost:
            entry, segment = objects.entries.get(object_id), used.get(object_id)
            if entry is not None and segment is not None:
                objects.locating.lose(entry, segment, f"{sender} could not read it")
        record.on(TaskEvent.ARGUMENTS_LOST)
        record.slot = None
        record.missing = 0
        ready = self._peer.tasks.await_arguments(record)
        if record.actor is not None:
            if ready or record.missing:
                record.actor.take_back(record)
        elif ready:
            self._peer.tasks._enqueue(record)

    # -- commands --------------------------------------------------------------------

    def _tell(self, event: rec.Event) -> None:
        for command in self.machine.handle(event, time.monotonic()):
            if isinstance(command, rec.Rerun):
                self._rerun(self.calls[command.task_id])
            elif isinstance(command, rec.Refuse):
                self._refuse(command.object_id, command.reason)
            else:
                self._forget(command.task_id)

    def _rerun(self, call: KeptCall) -> None:
        record, tasks, entries = call.record, self._peer.tasks, self._objects.entries
        record.rebuild()
        record.spec.attempt = record.attempt
        record.slot = None
        record.missing = 0
        encoded = record.encoded
        if encoded is not NOTHING:
            encoded.dependencies = [
                (position, keyword, ref or self._hold(object_id))
                for position, keyword, object_id, ref in call.dependencies
            ]
            encoded.nested = [ref or self._hold(i) for i, ref in call.nested]
        tasks.records[record.task_id] = record
        for object_id in self._ids_of(record):
            entry = entries.get(object_id)
            if entry is not None and entry.value is None:
                entry.task = record
        if record.stream is not None:
            self._peer.streams.begin_again(record)
        ready = tasks.await_arguments(record)
        if record.actor is not None:
            if ready or record.missing:
                record.actor.submit_again(record)
        elif ready:
            tasks._enqueue(record)

    def _hold(self, object_id: bytes) -> ObjectRef:
        self._objects.table.hold(object_id)
        return ObjectRef(object_id)

    def _forget(self, task_id: bytes) -> None:
        call = self.calls.pop(task_id, None)
        if call is None:
            return
        call.record.kept = None
        self._drop_arguments(call)
        call.dependencies, call.nested = [], []
        for object_id in call.pinned:
            self._objects.table.unpin_lineage(object_id)

    def _refuse(self, object_id: bytes, reason: rec.Reason) -> None:
        entry = self._objects.entries.get(object_id)
        if entry is None or entry.value is not None:
            return
        entry.lost = False
        text = exceptions.ObjectReconstructionFailedError.REASON_MESSAGES[reason.value]
        error = exceptions.ObjectReconstructionFailedError(
            object_id.hex(),
            reason.value,
            f"The object cannot be reconstructed because {text} "
            f"{self._account(object_id)}",
            self._peer.address,
            entry.call_site,
        )
        self._objects.complete(entry, failures.error_payload(error))

    def _account(self, object_id: bytes) -> str:
        """Who owns a value and what became of it, for errors."""
        peer = self._peer
        note = self._notes.pop(object_id, "its value is gone")
        return (
            f"It is owned by {peer.role} {peer.pid} ({peer.address}) on node "
            f"{peer.node_id[:8]}; it was {note}."
            if note.startswith("lost")
            else f"It is owned by {peer.role} {peer.pid} ({peer.address}); {note}."
        )
