"""The objects of a process: put, get, wait, and the talk with owners and borrowers."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pickle import loads
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core import failures
from rayshim._core.group_waits import GroupWait
from rayshim._core.lending import Lending
from rayshim._core.locating import SegmentReader
from rayshim._core.refs import ObjectRef, bytes_of, dropped
from rayshim._core.serialization import Serialized, deserialize, serialize
from rayshim._core.storing import SegmentWriter
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.directory import Copies
from rayshim.lineage.references import ObjectEntry, ReferenceTable

if TYPE_CHECKING:
    from rayshim._core.peer import MessageHandler, Peer
    from rayshim._core.pulling import Puller
    from rayshim._core.recovering import Recovering
    from rayshim.adapters.wire.node_messages import NodeInfo

logger = logging.getLogger(__name__)

#: Index that marks the id of a put object (return values count from 1).
_PUT_INDEX = (0x80000001).to_bytes(4, "little")


def _is_in_store(value: m.Payload) -> bool:
    return value.segment is not None


class ObjectPlane:
    """Values by id, for the objects that this process owns or borrows."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.table = ReferenceTable(peer.address, _is_in_store)
        self.entries = self.table.entries
        self.id_tail = b"\xff" * 12 + peer.job_id
        self._inline_limit = peer.settings.inline_limit_bytes
        #: Ids of failed calls whose error nobody has looked at (driver only).
        self.unread: set[bytes] = set()
        self.storing = SegmentWriter(peer, self)
        self.locating = SegmentReader(peer, self)
        self.lending = Lending(peer, self)
        #: It was said that references are pickled out of band.
        self._has_warned = False
        self._recovering: Recovering | None = None
        self._pulling: Puller | None = None

    def handlers(self) -> dict[type, MessageHandler]:
        """The messages that this part handles."""
        return self.lending.handlers()

    @property
    def recovering(self) -> Recovering:
        """What makes lost values again; made when it is first needed."""
        if self._recovering is None:
            from rayshim._core.recovering import Recovering

            self._recovering = Recovering(self._peer, self)
        return self._recovering

    @property
    def pulling(self) -> Puller:
        """What brings values of other nodes here; made when it is first needed."""
        if self._pulling is None:
            from rayshim._core.pulling import Puller

            self._pulling = Puller(self._peer, self)
            self._peer.add_handlers(self._pulling.handlers())
        return self._pulling

    # -- references ----------------------------------------------------------------

    def adopt(self, object_id: bytes, owner: str) -> ObjectRef:
        """A reference that was unpickled in this process."""
        with self._peer.lock:
            entry = self.entries.get(object_id)
            if entry is None:
                entry = self.table.receive(object_id, owner, "", 0)
                # Counted before the owner is spoken to: it may turn out to be dead.
                entry.local += 1
                if not entry.owner:
                    entry.value = failures.lost(object_id, self._peer.address)
                    entry.lost = False
                self.settle()
                self._peer.arm_sweep()
            else:
                entry.local += 1
            return ObjectRef(object_id, entry.owner)

    def pin_out_of_band(self, object_id: bytes) -> None:
        """A reference was pickled where no count follows it: keep it for the job.

        Raises:
            OufOfBandObjectRefSerializationException: the environment forbids it.
        """
        allowed = os.environ.get("RAY_allow_out_of_band_object_ref_serialization", "1")
        where = failures.call_site()
        if allowed.lower() in ("0", "false"):
            raise exceptions.OufOfBandObjectRefSerializationException(
                f"ObjectRef({object_id.hex()}) is pickled at {where} by other means "
                "than remote(), put() or a return value, so its value would be kept "
                "until the job ends. Pass the reference itself, or set "
                "RAY_allow_out_of_band_object_ref_serialization=1."
            )
        with self._peer.lock:
            if object_id in self.entries:
                self.table.hold(object_id)
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "ObjectRef(%s) is pickled at %s by other means than remote(), put() or "
                "a return value. Nothing counts such a reference, so its value is kept "
                "until the job ends. This is said once.",
                object_id.hex(),
                where,
            )

    def collect(self) -> None:
        """Take the references that were dropped since the last look off the counts."""
        if not dropped:
            return
        with self._peer.lock:
            drop = self.table.drop
            pop = dropped.popleft
            for _ in range(len(dropped)):
                drop(pop())
            self.settle()

    def has_lends(self) -> bool:
        """True while another process holds an object that this one owns."""
        return any(entry.lends for entry in self.entries.values() if not entry.owner)

    def needs_sweep(self) -> bool:
        """True while a dropped reference could free something."""
        return bool(self.entries)

    def settle(self) -> None:
        """Carry out what the reference table decided (under the lock)."""
        table = self.table
        generator_dropped = self._peer.streams.generator_dropped
        while table.freed or table.faded:
            # Each may let go of others: the lineage of a value is freed with it.
            freed, table.freed = table.freed, []
            for entry in freed:
                value = entry.value
                if value is None or value.kind != m.PICKLE or entry.task is not None:
                    self._free(entry)
                else:  # small and whole: nothing lies anywhere
                    entry.value = None
                    generator_dropped(entry.object_id)
            if table.faded:
                faded, table.faded = table.faded, []
                for entry, value, copies in faded:
                    self.free_value(entry.object_id, value, copies)
                    self.recovering.faded(entry.object_id)
        if table.unread_copies:
            unread, table.unread_copies = table.unread_copies, []
            self.pulling.unpin(unread)
        if table.releases:
            releases, table.releases = table.releases, {}
            for address, items in releases.items():
                message = m.Release([i for i, _ in items], [n for _, n in items])
                self.send_if_alive(address, message)
        if table.borrows:
            borrows, table.borrows = table.borrows, {}
            for address, ids in borrows.items():
                numbers = [table.registration(object_id) for object_id in ids]
                if not self.send_if_alive(address, m.Borrow(ids, numbers)):
                    self.lending.owner_died(address)

    def send_if_alive(self, address: str, message: Any) -> bool:
        """Send to a process, unless it is dead (under the lock)."""
        try:
            self._peer.connect(address).send(message)
        except ConnectionError:
            return False
        return True

    def _free(self, entry: ObjectEntry) -> None:
        value, entry.value = entry.value, None
        if entry.object_id in self.unread:
            self.unread.discard(entry.object_id)
            self._peer.tasks.report_unread(value)
        if value is not None and value.segment is not None:
            self.free_value(entry.object_id, value, entry.copies)
        if entry.task is not None:
            task, entry.task = entry.task, None
            task.return_dropped(entry.object_id)
        self._peer.streams.generator_dropped(entry.object_id)

    def free_value(
        self, object_id: bytes, value: m.Payload, copies: Copies | None
    ) -> None:
        """Nobody needs a value in the store: its copies everywhere may go."""
        segment = value.segment
        if segment is None:
            return
        if copies is not None:
            if copies.near is not None:
                self.pulling.unpin([object_id])
            for node in copies.nodes:
                self.pulling.free_copies([object_id], node)
        if segment.creator:
            self._free_segment(segment)
        else:
            # A copy that became the primary, and was pinned there for this owner.
            self.pulling.free_copies([object_id], segment.node, is_pinned=True)

    def _free_segment(self, segment: m.Segment) -> None:
        peer = self._peer
        if segment.creator == peer.address:
            peer.store.recycle(segment.name)
            return
        channel = peer.known_channel(segment.creator)
        if channel is not None:
            channel.send(m.FreeSegments([segment.name]))
        elif segment.node == peer.node_id:
            peer.store.discard(segment)
        else:
            self._discard_at(segment)

    def _discard_at(self, segment: m.Segment) -> None:
        from rayshim.adapters.wire.node_messages import DiscardSegments

        address = self._peer.nodes.raylet_of(segment.node)
        if address:
            with contextlib.suppress(ConnectionError):
                channel = self._peer.raylet_at(address)
                channel.send(DiscardSegments([segment.name]))

    # -- values in and out ---------------------------------------------------------

    def pack(
        self, serialized: Serialized, borrower: str, segment: m.Segment | None = None
    ) -> m.Payload:
        """Make a payload; its inner references are lent to ``borrower``.

        Under the lock, if there are such references; a large value is written before
        (``segment``), since that may wait. ``borrower`` is empty for a value that
        stays here.
        """
        nested: tuple[m.Nested, ...] = ()
        if serialized.refs:
            nested = tuple(self._lend_ref(ref, borrower) for ref in serialized.refs)
        if serialized.total_bytes <= self._inline_limit:
            buffers = tuple(map(bytes, serialized.buffers))
            return m.Payload(m.PICKLE, serialized.stream, buffers, nested)
        if segment is None:
            segment = self.storing.write(serialized, borrower)
        return m.Payload(m.SEGMENT, b"", (), nested, segment)

    def _lend_ref(self, ref: ObjectRef, borrower: str) -> m.Nested:
        object_id = ref._bytes
        owner = ref._owner or self._peer.address
        if not borrower or object_id not in self.entries:
            return m.Nested(object_id, owner, 0)
        if borrower == owner:
            return m.Nested(object_id, owner, self.table.lend_home(object_id))
        return m.Nested(object_id, owner, self.table.lend(object_id, borrower))

    def relend(
        self, payload: m.Payload, borrower: str, *, promised: bool = False
    ) -> m.Payload:
        """The payload as it goes to ``borrower``: each inner reference is lent anew.

        ``promised``: to a call that pins the references until it ends.
        """
        if not payload.nested:
            return payload
        nested = []
        for item in payload.nested:
            lend = 0
            if borrower and item.object_id in self.entries:
                if borrower == item.owner:
                    if not promised:
                        lend = self.table.lend_home(item.object_id)
                elif promised:
                    lend = self.table.promise(item.object_id)
                else:
                    lend = self.table.lend(item.object_id, borrower)
            nested.append(m.Nested(item.object_id, item.owner, lend))
        return m.Payload(
            payload.kind, payload.data, payload.buffers, tuple(nested), payload.segment
        )

    def put(self, value: Any, call_site: str = "") -> ObjectRef:
        """Store a value and return its reference."""
        if isinstance(value, exceptions.RayError):
            # A system error as the whole value is a failure wherever it is read.
            return self._put_payload(failures.error_payload(value))
        return self.put_serialized(serialize(value), call_site)

    def _put_payload(self, payload: m.Payload) -> ObjectRef:
        object_id = self._peer.unique() + self.id_tail + _PUT_INDEX
        with self._peer.lock:
            self.table.own(object_id).value = payload
        return ObjectRef(object_id)

    def put_serialized(self, serialized: Serialized, call_site: str = "") -> ObjectRef:
        """Store a value that is serialized already."""
        peer = self._peer
        object_id = peer.unique() + self.id_tail + _PUT_INDEX
        if serialized.total_bytes > self._inline_limit:
            self.collect()
            # Only these can be lost, and then the error says where they came from.
            call_site = call_site or failures.call_site()
            # The copy is long: make it outside the lock.
            payload = m.Payload(
                m.SEGMENT,
                segment=self.storing.write(serialized),
            )
        else:
            payload = m.Payload(
                m.PICKLE,
                serialized.stream,
                tuple(map(bytes, serialized.buffers)),
            )
            if self._peer.tasks.records_sites:
                call_site = call_site or failures.call_site()
            if len(dropped) > 100:
                self.collect()
        with peer.lock:
            entry = self.table.own(object_id)
            entry.call_site = call_site
            if serialized.refs:
                payload.nested = tuple(
                    m.Nested(ref._bytes, ref._owner or peer.address)
                    for ref in serialized.refs
                )
                self.table.contain(entry, [n.object_id for n in payload.nested])
            entry.value = payload
            if payload.segment is not None:
                peer.arm_sweep()
        return ObjectRef(object_id)

    def put_later(self, method: str, payload: Any, value: Any) -> ObjectRef:
        """A reference to ``value`` that is ready when the control service answers.

        ``payload["id"]`` is that of the placement group that is waited for.
        """
        peer = self._peer
        object_id = peer.unique() + self.id_tail + _PUT_INDEX
        ready = self.pack(serialize(value), "")

        def answered(response: m.Response) -> None:
            entry = self.entries.get(object_id)
            if entry is None:
                return
            entry.task = None
            if response.error:
                error: Exception = exceptions.TaskPlacementGroupRemoved()
                if response.error != "TaskPlacementGroupRemoved":
                    error = exceptions.RaySystemError(
                        RuntimeError(f"{method} failed: {response.error}")
                    )
                self.complete(entry, failures.error_payload(error))
            else:
                self.complete(entry, ready)

        with peer.lock:
            self.table.own(object_id).task = GroupWait(payload["id"])
            peer.request_later(method, payload, answered)
        return ObjectRef(object_id)

    def set_job(self, job_id: bytes) -> None:
        """The process works for this job: new ids say so."""
        self.id_tail = b"\xff" * 12 + job_id

    def store_value(self, object_id: bytes, payload: m.Payload, sender: str) -> None:
        """A value that this process owns has arrived (under the lock)."""
        entry = self.entries.get(object_id)
        inner = self.receive_nested(payload, sender)
        if entry is not None and entry.value is not None and payload.segment:
            self._replace_lost(entry)
        if entry is None or entry.value is not None:
            # Nobody wants it any more, or it is the doubled result of a retry.
            if payload.segment is not None:
                self._free_segment(payload.segment)
            for inner_id in inner:
                self.table.drop(inner_id)
            return
        entry.contains = inner
        self.complete(entry, payload)
        if entry.lineage:
            self.table.arrived(entry)

    def _replace_lost(self, entry: ObjectEntry) -> None:
        """A value came once more: let go of the first if it cannot be read."""
        value, copies = entry.value, entry.copies
        segment = value.segment
        if segment is None or segment.node != self._peer.node_id or copies is not None:
            return
        if not self._peer.store.exists(segment.name):
            self.table.lose(entry)
            self.free_value(entry.object_id, value, copies)

    def receive_nested(self, payload: m.Payload, sender: str) -> tuple[bytes, ...]:
        """Borrow the references inside a payload; each is counted once."""
        if not payload.nested:
            return ()
        ids = []
        for item in payload.nested:
            entry = self.table.receive(item.object_id, item.owner, sender, item.lend)
            entry.local += 1
            ids.append(item.object_id)
        return tuple(ids)

    def complete(self, entry: ObjectEntry, payload: m.Payload) -> None:
        """The value of an entry is known: wake who waits (under the lock)."""
        entry.value = payload
        if payload.segment is not None:
            self._peer.arm_sweep()
        waiters, entry.waiters = entry.waiters, None
        for waiter in waiters or ():
            waiter(entry)

    def when_known(
        self, object_id: bytes, callback: Callable[[ObjectEntry], None]
    ) -> None:
        """Call back once the value is known, perhaps at once (under the lock)."""
        entry = self.entries[object_id]
        if entry.value is not None:
            callback(entry)
            return
        if entry.waiters is None:
            entry.waiters = []
        entry.waiters.append(callback)
        self.fetch_unknown((entry,))

    def fetch_unknown(self, entries: Iterable[ObjectEntry]) -> None:
        """Ask the owners for the values that this process does not have yet."""
        wanted: dict[str, list[bytes]] = {}
        fetching = self.lending.fetching
        for entry in entries:
            if entry.value is not None:
                continue
            if not entry.owner:
                if entry.lost:
                    self.recovering.need(entry)
            elif entry.object_id not in fetching:
                fetching.add(entry.object_id)
                wanted.setdefault(entry.owner, []).append(entry.object_id)
        for owner, ids in wanted.items():
            if not self.send_if_alive(owner, m.Fetch(ids)):
                self.lending.owner_died(owner)

    def value_of(self, entry: ObjectEntry) -> Any:
        """Deserialize a known value.

        Raises:
            Exception: the error that the payload carries.
        """
        payload: m.Payload = entry.value
        if payload.kind == m.PICKLE:
            if not payload.buffers:
                return loads(payload.data)
            return deserialize(payload.data, payload.buffers)
        if payload.kind == m.SEGMENT:
            return self.locating.read(entry.object_id, payload)
        self.unread.discard(entry.object_id)
        raise failures.to_raise(payload)

    def lookup(self, refs: Sequence[ObjectRef]) -> list[ObjectEntry]:
        """The entries of references.

        Raises:
            ValueError: a reference belongs to a session that has ended.
        """
        entries = self.entries
        try:
            return list(map(entries.__getitem__, map(bytes_of, refs)))
        except KeyError as error:
            raise ValueError(
                f"ObjectRef({error.args[0].hex()}) does not belong to the session "
                f"{self._peer.session}: it was made before the last shutdown() or in "
                "another job. Values do not outlive their session; create it again."
            ) from None

    # -- other processes -------------------------------------------------------------

    def peer_died(self, channel: Channel) -> None:
        """Close the dead process' lends; what it owned is lost."""
        if channel.address:
            self.lending.owner_died(channel.address)
            self._peer.store.owner_died(channel.address)
            self.settle()

    def node_died(self, info: NodeInfo) -> None:
        """The copies on a node are gone with it."""
        why = f"node {info.node_id} died: {info.death}"
        self.recovering.node_died(info.node_id, why)
        self.settle()

    def note_site(self, object_ids: Iterable[bytes]) -> None:
        """Record where in the program references are made (under the lock)."""
        site = failures.call_site()
        for object_id in object_ids:
            self.entries[object_id].call_site = site

    def call_site(self, object_id: bytes) -> str:
        """Where the reference was made, if recorded."""
        entry = self.entries.get(object_id)
        return entry.call_site if entry is not None else ""
