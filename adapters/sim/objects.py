"""The objects of a simulated peer: values, references, and what is made again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rayshim.adapters.sim.values import (
    Large,
    Nested,
    Payload,
    Ref,
    Segment,
    SimError,
    decode,
    encode,
)
from rayshim.lineage import recovery as rec
from rayshim.lineage.references import ObjectEntry, ReferenceTable

if TYPE_CHECKING:
    from rayshim.adapters.sim.peer import Peer
    from rayshim.adapters.sim.tasks import Record

Heard = Callable[[Any], None]


def shown(object_id: bytes) -> str:
    """An id for people, and for names of segments."""
    return object_id[:24].rstrip(b".").decode()


class KeptCall:
    """A call that may run again, and the arguments that it needs then."""

    def __init__(self, record: Record) -> None:
        self.record = record
        #: (id, reference or None where lineage is enough) in order.
        self.dependencies: list[tuple[bytes, Ref | None]] = []
        self.nested: list[tuple[bytes, Ref | None]] = []
        self.pinned: list[bytes] = []


class Objects:
    """The table of one peer, and its shell."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.table = ReferenceTable(
            peer.address, lambda payload: payload.segment is not None
        )
        self.entries = self.table.entries
        self.dropped: deque[bytes] = deque()
        self.recovery = rec.RecoveryManager(1 << 40)
        self.kept: dict[bytes, KeptCall] = {}
        #: Owner -> segments that this process made for it.
        self.made: dict[str, list[str]] = {}
        self._fetching: set[bytes] = set()
        #: Number of a read -> (entry's segment, what to do).
        self._reads: dict[int, tuple[str, Callable[[bool, Any], None]]] = {}
        self._numbers = 0
        #: Object -> processes that gave it to this one.
        self.lenders: dict[bytes, set[str]] = {}
        #: Object -> references in user code here.
        self.handles: dict[bytes, int] = {}

    # -- references --------------------------------------------------------------

    def ref_dropped(self, object_id: bytes) -> None:
        """Python forgot a reference."""
        if self.peer.alive:
            self.dropped.append(object_id)
            self.peer.cluster.with_drops[self.peer.address] = self.peer

    def collect(self) -> None:
        """Take dropped references off the counts."""
        while self.dropped:
            object_id = self.dropped.popleft()
            self.handles[object_id] -= 1
            if not self.handles[object_id]:
                del self.handles[object_id]
            self.table.drop(object_id)
        self.settle()

    def counted_ref(self, object_id: bytes, owner: str) -> Ref:
        """A reference whose use is counted already."""
        self.handles[object_id] = self.handles.get(object_id, 0) + 1
        return Ref(object_id, owner, self)

    def adopt(self, object_id: bytes, owner: str) -> Ref:
        """A reference that user code unpacks; its bringer counts one use for now."""
        entry = self.entries.get(object_id)
        if entry is None:
            self.peer.kernel.fail(
                f"{self.peer.address} unpacks {object_id!r}, which it does not know"
            )
            entry = self.table.receive(object_id, owner, "", 0)
        entry.local += 1
        return self.counted_ref(object_id, owner)

    def settle(self) -> None:
        """Carry out what the table decided."""
        table, peer = self.table, self.peer
        while table.freed or table.faded or table.releases or table.borrows:
            freed, table.freed = table.freed, []
            faded, table.faded = table.faded, []
            releases, table.releases = table.releases, {}
            borrows, table.borrows = table.borrows, {}
            for entry in freed:
                peer.cluster.judge_free(peer, entry.object_id)
                self._free(entry)
            for entry, payload, _ in faded:
                self._free_payload(payload)
                self._tell(rec.Lost(entry.object_id))
            for address, items in releases.items():
                peer.send(address, "release", tuple(items))
            for owner, ids in borrows.items():
                numbered = tuple((one, table.registration(one)) for one in ids)
                if not peer.send(owner, "borrow", numbered):
                    self.owner_died(owner)

    def _free(self, entry: ObjectEntry) -> None:
        payload, entry.value = entry.value, None
        if payload is not None:
            self._free_payload(payload)
        task, entry.task = entry.task, None
        if task == "handle":
            self.peer.actors.handle_dropped(entry.object_id)
        elif task == "kept":
            self._tell(rec.Dropped(entry.object_id))

    def _free_payload(self, payload: Payload) -> None:
        if payload.segment is not None:
            segment = payload.segment
            self.peer.send(segment.raylet, "free_segments", (segment.name,))

    # -- values in and out -------------------------------------------------------

    def pack(self, value: Any, borrower: str, name: str) -> Payload:
        """A payload that goes to ``borrower``; its references are lent."""
        refs: list[Ref] = []
        data = encode(value, refs)
        nested = tuple(self._lend(ref.object_id, ref.owner, borrower) for ref in refs)
        return self._store(data, nested, name, borrower)

    def _store(
        self, data: Any, nested: tuple[Nested, ...], name: str, owner: str
    ) -> Payload:
        if not isinstance(data, Large):
            return Payload("value", data, nested)
        node = self.peer.node
        name = f"{name}#{self.peer.cluster.new_number()}"
        node.store[name] = (data, owner)
        if owner != self.peer.address:
            self.made.setdefault(owner, []).append(name)
        return Payload("segment", None, nested, Segment(name, node.address))

    def _lend(
        self, object_id: bytes, owner: str, borrower: str, *, promised: bool = False
    ) -> Nested:
        if not borrower or object_id not in self.entries:
            return Nested(object_id, owner, 0)
        if borrower == owner:
            lend = 0 if promised else self.table.lend_home(object_id)
            return Nested(object_id, owner, lend)
        make = self.table.promise if promised else self.table.lend
        return Nested(
            object_id, owner, make(object_id, *(() if promised else (borrower,)))
        )

    def relend(
        self, payload: Payload, borrower: str, *, promised: bool = False
    ) -> Payload:
        """The payload as it goes to ``borrower``."""
        nested = tuple(
            self._lend(one.object_id, one.owner, borrower, promised=promised)
            for one in payload.nested
        )
        return payload._replace(nested=nested)

    def promise(self, object_id: bytes, owner: str, borrower: str) -> Nested:
        """A nested reference in the arguments of a call."""
        return self._lend(object_id, owner, borrower, promised=True)

    def put(self, value: Any) -> Ref:
        """Store a value."""
        object_id = self.peer.new_id("p") + b"\x01\x00\x00\x80"
        refs: list[Ref] = []
        data = encode(value, refs)
        nested = tuple(Nested(ref.object_id, ref.owner, 0) for ref in refs)
        entry = self.table.own(object_id)
        self.table.contain(entry, [one.object_id for one in nested])
        entry.value = self._store(data, nested, shown(object_id), self.peer.address)
        return self.counted_ref(object_id, self.peer.address)

    def store_value(self, object_id: bytes, payload: Payload, sender: str) -> None:
        """A value that this process owns has arrived."""
        entry = self.entries.get(object_id)
        inner = self._receive_nested(payload, sender)
        if entry is None or entry.value is not None:
            self._free_payload(payload)
            for one in inner:
                self.table.drop(one)
            return
        entry.contains = inner
        self.complete(entry, payload)
        self.table.arrived(entry)

    def _receive_nested(self, payload: Payload, sender: str) -> tuple[bytes, ...]:
        for one in payload.nested:
            self.receive(one, sender).local += 1
        return tuple(one.object_id for one in payload.nested)

    def receive(
        self, one: Nested, sender: str, *, register: bool = True
    ) -> ObjectEntry:
        """A reference arrived."""
        if one.owner != self.peer.address:
            self.lenders.setdefault(one.object_id, set()).add(sender)
        entry = self.table.receive(
            one.object_id, one.owner, sender, one.lend, register=register
        )
        if not entry.owner and entry.value is None and entry.task is None:
            if not entry.lost and not entry.local:
                # The owner had freed it, as its lender died.
                entry.value = Payload("error", SimError("ReferenceLost"))
        return entry

    def complete(self, entry: ObjectEntry, payload: Payload) -> None:
        """The value of an entry is known."""
        entry.value = payload
        entry.lost = False
        waiters, entry.waiters = entry.waiters, None
        for waiter in waiters or ():
            waiter(entry)

    def when_known(
        self, object_id: bytes, heard: Callable[[ObjectEntry], None]
    ) -> None:
        """Call back once the value is known."""
        entry = self.entries[object_id]
        if entry.value is not None:
            heard(entry)
            return
        entry.waiters = [*(entry.waiters or []), heard]
        self._ask_for(entry)

    def _ask_for(self, entry: ObjectEntry) -> None:
        if not entry.owner:
            if entry.lost:
                self._tell(rec.Needed(entry.object_id))
        elif entry.object_id not in self._fetching:
            self._fetching.add(entry.object_id)
            if not self.peer.send(entry.owner, "fetch", entry.object_id):
                self.owner_died(entry.owner)

    def when_here(self, object_id: bytes, heard: Heard) -> None:
        """Call back with the value (with marks) or a SimError."""
        entry = self.entries[object_id]
        # The waiting itself is a use, as the reference of the waiter may go.
        entry.local += 1

        def over(value: Any) -> None:
            heard(value)
            self.table.drop(object_id)
            self.settle()

        def known(entry: ObjectEntry) -> None:
            payload: Payload = entry.value
            if payload.kind != "segment":
                over(payload.data)
                return
            segment = payload.segment
            assert segment is not None

            def read(is_there: bool, data: Any) -> None:
                if is_there:
                    over(data)
                else:
                    self.unreadable(entry, segment)
                    self.when_known(object_id, known)

            self.read(segment, read)

        self.when_known(object_id, known)

    def read(self, segment: Segment, done: Callable[[bool, Any], None]) -> None:
        """Read a segment, perhaps from another node."""
        node = self.peer.node
        if segment.raylet == node.address:
            found = node.store.get(segment.name)
            done(found is not None, found[0] if found else None)
            return
        self._numbers += 1
        number = self._numbers
        self._reads[number] = (segment.raylet, done)
        if not self.peer.send(segment.raylet, "read", segment.name, number):
            del self._reads[number]
            done(False, None)

    def read_answered(self, number: int, is_there: bool, data: Any) -> None:
        """Another node answers."""
        found = self._reads.pop(number, None)
        if found is not None:
            found[1](is_there, data)

    def unreadable(self, entry: ObjectEntry, segment: Segment) -> None:
        """A copy could not be read: the owner is to find or make another."""
        if entry.value is None or entry.value.segment != segment:
            return
        if not entry.owner:
            self.lose(entry)
            return
        self.table.lose(entry)
        entry.lost = False
        self.settle()
        if not self.peer.send(entry.owner, "objects_lost", entry.object_id, segment):
            self.owner_died(entry.owner)

    # -- recovery ----------------------------------------------------------------

    def lose(self, entry: ObjectEntry) -> None:
        """The only copy of an owned value is gone."""
        self.table.lose(entry)
        self.settle()
        self._tell(rec.Lost(entry.object_id))
        if entry.waiters:
            self._ask_for(entry)

    def keep(self, record: Record) -> None:
        """A call ended well, and its value lies in a store."""
        entry = self.entries.get(record.return_id)
        returns: tuple[bytes, ...] = ()
        if entry is not None:
            entry.task = "kept"
            returns = (record.return_id,)
        call = record.kept
        if call is None:
            call = record.kept = KeptCall(record)
            for ref in record.dependencies:
                call.dependencies.append((ref.object_id, self._keep_ref(call, ref)))
            for ref in record.nested:
                call.nested.append((ref.object_id, self._keep_ref(call, ref)))
        record.dependencies, record.nested = [], []
        self.kept[record.task_id] = call
        arguments = tuple(dict.fromkeys(call.pinned))
        self._tell(
            rec.Kept(
                record.task_id,
                returns,
                arguments,
                1000,
                record.retries_left,
                record.attempt,
            )
        )

    def _keep_ref(self, call: KeptCall, ref: Ref) -> Ref | None:
        entry = self.entries.get(ref.object_id)
        if entry is None or entry.owner or entry.task != "kept":
            return ref
        state = self.recovery.state_of(ref.object_id[:24])
        if state in (rec.RecoveryState.UNKNOWN, rec.RecoveryState.FAILED):
            return ref
        self.table.pin_lineage(ref.object_id)
        call.pinned.append(ref.object_id)
        return None

    def broke(self, record: Record, payload: Payload) -> None:
        """A call that ran again failed."""
        entry = self.entries.get(record.return_id)
        if entry is not None:
            entry.task = "kept"
            if entry.value is None:
                self.complete(entry, payload)
        self._tell(rec.Broke(record.task_id))

    def _tell(self, event: rec.Event) -> None:
        for command in self.recovery.handle(event, self.peer.kernel.now_s):
            if isinstance(command, rec.Rerun):
                self._rerun(self.kept[command.task_id])
            elif isinstance(command, rec.Refuse):
                self._refuse(command.object_id, command.reason)
            else:
                self._forget(command.task_id)

    def _rerun(self, call: KeptCall) -> None:
        record = call.record
        self.peer.kernel.note(f"{self.peer.address} runs {record.task_id!r} again")
        record.rebuild()
        record.slot = None
        record.missing = 0

        def hold(object_id: bytes) -> Ref:
            self.table.hold(object_id)
            return self.counted_ref(object_id, self.peer.address)

        record.dependencies = [ref or hold(one) for one, ref in call.dependencies]
        record.nested = [ref or hold(one) for one, ref in call.nested]
        entry = self.entries.get(record.return_id)
        if entry is not None:
            entry.task = record
        self.peer.tasks.resubmit(record)

    def _refuse(self, object_id: bytes, reason: rec.Reason) -> None:
        entry = self.entries.get(object_id)
        if entry is not None and entry.value is None:
            self.complete(entry, Payload("error", SimError("ObjectLost", reason.name)))

    def _forget(self, task_id: bytes) -> None:
        call = self.kept.pop(task_id, None)
        if call is None:
            return
        call.record.kept = None
        call.dependencies, call.nested = [], []
        for object_id in call.pinned:
            self.table.unpin_lineage(object_id)
        self.settle()

    def node_died(self, raylet: str) -> None:
        """Every copy on a node is gone."""
        for entry in list(self.entries.values()):
            payload = entry.value
            if payload is None or payload.segment is None:
                continue
            if payload.segment.raylet == raylet:
                self.unreadable(entry, payload.segment)

    # -- other processes ---------------------------------------------------------

    def on_fetch(self, source: str, object_id: bytes) -> None:
        """A borrower asks for a value."""
        if object_id not in self.entries:
            lost = Payload("error", SimError("ReferenceLost"))
            self.peer.send(source, "objects", object_id, lost)
            return

        def known(entry: ObjectEntry) -> None:
            payload = self.relend(entry.value, source)
            self.peer.send(source, "objects", object_id, payload)

        self.when_known(object_id, known)

    def on_objects(self, source: str, object_id: bytes, payload: Payload) -> None:
        """A value that was asked for."""
        self._fetching.discard(object_id)
        inner = self._receive_nested(payload, source)
        entry = self.entries.get(object_id)
        if entry is None or entry.value is not None or not entry.owner:
            for one in inner:
                self.table.drop(one)
        else:
            entry.contains = inner
            if payload.kind == "error" and payload.data.kind == "ReferenceLost":
                self.peer.cluster.judge_lost(self.peer, object_id)
            self.complete(entry, payload)
        self.settle()

    def on_objects_lost(self, source: str, object_id: bytes, segment: Segment) -> None:
        """A borrower could not read a copy."""
        entry = self.entries.get(object_id)
        if entry is not None and entry.value is not None:
            if entry.value.segment == segment:
                self.lose(entry)

    def on_borrow(self, source: str, ids: Iterable[tuple[bytes, int]]) -> None:
        """A process registers as a borrower."""
        known = []
        for object_id, number in ids:
            lend = self.table.register_borrower(object_id, source)
            known.append((object_id, lend, number))
        self.peer.send(source, "borrow_ack", tuple(known))

    def on_borrow_ack(
        self, source: str, known: Iterable[tuple[bytes, int, int]]
    ) -> None:
        """The owner knows this process as a borrower, or nothing of the object."""
        for object_id, lend, number in known:
            entry = self.entries.get(object_id)
            if not lend and entry is not None and entry.value is None:
                self.peer.cluster.judge_lost(self.peer, object_id)
                self.complete(entry, Payload("error", SimError("ReferenceLost")))
            self.table.acknowledge(object_id, lend, number, source)
        self.settle()

    def on_release(self, source: str, items: Iterable[tuple[bytes, int]]) -> None:
        """A borrower gives objects back."""
        for object_id, lend in items:
            self.table.release(object_id, source, lend)
        self.settle()

    def owner_died(self, address: str) -> None:
        """A process is gone, with all that it owned."""
        for entry in self.table.peer_died(address):
            self._fetching.discard(entry.object_id)
            if entry.value is None:
                self.complete(entry, Payload("error", SimError("OwnerDied", address)))
        names = self.made.pop(address, None)
        if names is not None:
            # Nobody else can say that these are needed no more.
            self.peer.send(self.peer.node.address, "free_segments", tuple(names))
        for number, (raylet, done) in list(self._reads.items()):
            if raylet == address:
                del self._reads[number]
                done(False, None)
        self.settle()

    def decode(self, value: Any) -> Any:
        """Unpack a value for user code."""
        return decode(value, self)
