"""Who holds which object: the counts that decide when a value may go.

One :class:`ReferenceTable` lives in each process. It has an :class:`ObjectEntry`
for every object that the process owns or borrows, and obeys three rules:

1. An owned object is freed only when nothing in the owner's process uses it
   (``local == 0``) and no lend is open (``lends`` is empty).
2. A borrowed object is given back to its owner only when nothing in this process
   uses it, nothing was lent on, and the registration with the owner is complete.
3. Each hand-over has a number. A release names the last lend that it covers, so a
   release that was on its way while the object was lent again frees nothing.

4. A value that nothing uses goes even while the object is an argument of a call
   that may have to run again (``lineage > 0``): only the way to make it again stays.

Rule 3 is what a plain set of borrowers gets wrong: lend to A, lend to A again, A
drops the first and says so, the second arrives at A, the owner hears the release and
frees an object that A uses. The scheme follows the distributed reference counts of
Ownership (Wang et al., NSDI 2021, section 4.2), with numbered lends in the place of
its borrower lists.

A borrower keeps what it owes in ``held``: lender -> last lend received. The
lend of the owner is paid back when the object is dropped; that of any other
lender once the owner has acknowledged the borrower (:meth:`acknowledge`), since until
then the lender's own hold is what keeps the object alive.

What has to be done in the world is left in outboxes (``freed``, ``faded``,
``unread_copies``, ``releases`` and ``borrows``), for the shell to drain.

Channels are in order and give each message once (a broken one counts as a death). A
copy of a release that comes late would not do: a call that ended meanwhile may have
confirmed an older lend, which the copy would close. Registrations may come twice and
late: each has a number of its own that the acknowledgement repeats, so one that comes
twice cannot complete a later registration, and the lend that it names is given back
if nothing here stands on it. A registration that comes twice is lent twice, and so
acknowledged twice. The explorer tries all of this (``tests/explore``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rayshim.lineage.directory import Copies


class ObjectEntry:
    """One object as one process knows it."""

    __slots__ = (
        "call_site",
        "contains",
        "copies",
        "held",
        "lends",
        "lineage",
        "local",
        "lost",
        "next_lend",
        "object_id",
        "owner",
        "registered",
        "task",
        "value",
        "waiters",
    )

    def __init__(self, object_id: bytes, owner: str, local: int) -> None:
        self.object_id = object_id
        #: Address of the owner; empty when this process owns the object.
        self.owner = owner
        #: Uses inside this process: references, live views, containing
        #: objects, pending calls. Never negative.
        self.local = local
        #: Peer address -> number of the last lend to it that is still open.
        self.lends: dict[str, int] | None = None
        #: Number of the last lend ever made of this object.
        self.next_lend = 0
        #: Calls that may run again and had it as an argument (owned objects).
        self.lineage = 0
        #: The value was here and is not any more; whoever needs it says so.
        self.lost = False
        #: Further copies on other nodes, or None.
        self.copies: Copies | None = None
        #: Lender address -> last lend received from it and not paid back.
        self.held: dict[str, int] | None = None
        #: True when the owner knows this process as a borrower (or is it).
        self.registered = not owner
        #: The serialized value, or None while it is unknown.
        self.value: Any = None
        #: Callbacks for the moment when the value is known.
        self.waiters: list[Callable[[ObjectEntry], None]] | None = None
        #: Ids of the objects inside the value; each counts one ``local`` there.
        self.contains: tuple[bytes, ...] = ()
        #: What makes the value: the task record, for an owned return value.
        self.task: Any = None
        #: "file.py:12" of the code that made the reference, or empty.
        self.call_site = ""

    @property
    def near(self) -> Any:
        """The copy of a foreign value that this process may read, or None."""
        return self.copies.near if self.copies is not None else None

    def __repr__(self) -> str:
        whose = self.owner or "own"
        return (
            f"ObjectEntry({self.object_id.hex()[:16]}, {whose}, local={self.local}, "
            f"lends={self.lends or {}}, held={self.held or {}}, "
            f"lineage={self.lineage})"
        )


def _any_value(value: Any) -> bool:
    return True


class ReferenceTable:
    """The entries of one process and the outboxes of its rules."""

    def __init__(
        self, address: str, may_fade: Callable[[Any], bool] = _any_value
    ) -> None:
        """Starts empty.

        Args:
            address: of this process.
            may_fade: tells whether a value is worth dropping under rule 4.
        """
        self._may_fade = may_fade
        #: Address of this process, as owners and lenders know it.
        self.address = address
        #: Object id -> entry, exactly the objects owned or borrowed here.
        self.entries: dict[bytes, ObjectEntry] = {}
        #: Owned entries that are gone from the table; their values may go.
        self.freed: list[ObjectEntry] = []
        #: (entry, its value, its copies): values that went under rule 4.
        self.faded: list[tuple[ObjectEntry, Any, Copies | None]] = []
        #: Borrowed objects that are gone from the table and had a pinned copy here.
        self.unread_copies: list[bytes] = []
        #: Peer -> (object id, lend) to give back.
        self.releases: dict[str, list[tuple[bytes, int]]] = {}
        #: Owner -> ids to register for; see :meth:`registration`.
        self.borrows: dict[str, list[bytes]] = {}
        #: Peer -> ids with an open lend to it; mirrors ``ObjectEntry.lends``.
        self._lent: dict[str, set[bytes]] = {}
        self._last_registration = 0
        #: Uses that freed objects had of others and that are not taken off yet.
        self._doomed: list[bytes] = []
        self._dooming = False

    # -- this process ----------------------------------------------------------

    def own(self, object_id: bytes, local: int = 1) -> ObjectEntry:
        """Enter a new object of this process, used ``local`` times."""
        entry = ObjectEntry(object_id, "", local)
        self.entries[object_id] = entry
        return entry

    def hold(self, object_id: bytes) -> None:
        """Count one more use of an object that is in the table."""
        self.entries[object_id].local += 1

    def drop(self, object_id: bytes) -> None:
        """Count one use less; unknown ids (of an ended session) are ignored."""
        entry = self.entries.get(object_id)
        if entry is not None:
            entry.local -= 1
            if entry.local <= 0:
                self._settle(entry)

    def unpin(self, object_id: bytes) -> None:
        """Take the count of a call that ends away; :meth:`keep` decides the rest."""
        entry = self.entries.get(object_id)
        if entry is not None:
            entry.local -= 1
            if not entry.owner:
                self._settle(entry)

    def contain(self, entry: ObjectEntry, inner: Iterable[bytes]) -> None:
        """Let a value keep the objects inside it alive."""
        ids = tuple(inner)
        for object_id in ids:
            self.entries[object_id].local += 1
        entry.contains = ids

    # -- lineage ---------------------------------------------------------------

    def pin_lineage(self, object_id: bytes) -> None:
        """A call that may run again needs this owned object as an argument."""
        self.entries[object_id].lineage += 1

    def unpin_lineage(self, object_id: bytes) -> None:
        """One such call is forgotten."""
        entry = self.entries.get(object_id)
        if entry is not None:
            entry.lineage -= 1
            if not entry.lineage:
                self._settle(entry)

    def lose(self, entry: ObjectEntry) -> None:
        """The value that was known cannot be read any more."""
        if entry.copies is not None and entry.copies.near is not None:
            self.unread_copies.append(entry.object_id)
        entry.value = entry.copies = None
        entry.lost = True
        self._drop_contained(entry)

    def arrived(self, entry: ObjectEntry) -> None:
        """An owned value was made once more: it goes if nothing uses it (rule 4)."""
        if entry.lineage and not entry.local:
            self._settle(entry)

    # -- lending -----------------------------------------------------------------

    def lend(self, object_id: bytes, peer: str) -> int:
        """Open a lend to ``peer`` and return its number."""
        entry = self.entries[object_id]
        entry.next_lend += 1
        if entry.lends is None:
            entry.lends = {}
        entry.lends[peer] = entry.next_lend
        self._lent.setdefault(peer, set()).add(object_id)
        return entry.next_lend

    def lend_home(self, object_id: bytes) -> int:
        """Number the hand-over to the owner itself, inside a value.

        None is needed, and 0 returned, if the owner counts this process as a borrower:
        a release would follow the value on the same channel. Else what keeps the
        object is the hold of whoever lent it, and that may end, on another channel,
        before the value is there.
        """
        entry = self.entries[object_id]
        if not entry.owner or self._is_borrower(entry):
            return 0
        return self.lend(object_id, entry.owner)

    def promise(self, object_id: bytes) -> int:
        """Number a hand-over to a call that pins the object itself until it ends.

        Nothing is opened: :meth:`confirm` does, if the call's reply says that the
        object was kept, and :meth:`release` closes what is open if it was not. A call
        that is given back unstarted needs neither. Were the lend opened here, the
        reply of a call that ends early would close it under one that has not begun.
        """
        entry = self.entries[object_id]
        entry.next_lend += 1
        return entry.next_lend

    def confirm(self, object_id: bytes, peer: str, lend: int) -> None:
        """A call ended and ``peer`` keeps what it got under that number."""
        entry = self.entries.get(object_id)
        if entry is None:
            return
        if entry.lends is None:
            entry.lends = {}
        if entry.lends.get(peer, 0) < lend:
            entry.lends[peer] = lend
            self._lent.setdefault(peer, set()).add(object_id)

    def release(self, object_id: bytes, peer: str, lend: int) -> None:
        """``peer`` holds the object no more, up to the lend of that number."""
        entry = self.entries.get(object_id)
        if entry is None or entry.lends is None:
            return
        if entry.lends.get(peer, lend + 1) <= lend:
            self._close_lend(entry, peer)
            self._settle(entry)

    def peer_died(self, peer: str) -> list[ObjectEntry]:
        """Close every lend to a dead process.

        Returns:
            The entries that the dead process owned: their values, where unknown, are
            lost. They stay in the table for those who hold references.
        """
        for object_id in self._lent.pop(peer, set()):
            entry = self.entries.get(object_id)
            if entry is not None and entry.lends is not None:
                entry.lends.pop(peer, None)
                self._settle(entry)
        orphans = []
        for entry in list(self.entries.values()):
            if entry.held is not None:
                entry.held.pop(peer, None)
            if entry.owner == peer:
                # The owner cannot keep it alive any more, so other lenders need not.
                for lender, number in (entry.held or {}).items():
                    self._owe(lender, entry.object_id, number)
                entry.registered = True
                entry.held = None
                orphans.append(entry)
                self._settle(entry)
        self.releases.pop(peer, None)
        self.borrows.pop(peer, None)
        return [entry for entry in orphans if entry.object_id in self.entries]

    # -- borrowing ---------------------------------------------------------------

    def receive(
        self,
        object_id: bytes,
        owner: str,
        lender: str,
        lend: int,
        *,
        register: bool = True,
    ) -> ObjectEntry:
        """A reference arrived from ``lender``; the caller counts its use.

        Args:
            object_id: the object.
            owner: its owner's address.
            lender: who sent the reference; empty for one pickled out of band.
            lend: the number of the lend; 0 where the lender keeps no account.
            register: False while a call whose reply will report what is kept
                still pins the object; :meth:`keep` follows.
        """
        entry = self.entries.get(object_id)
        if owner == self.address:
            if entry is None:
                # It was freed here, which rule 1 allows out of band, and when the
                # process died that lent it: nobody waits for it in vain.
                entry = ObjectEntry(object_id, "", 0)
                entry.lost = True
                self.entries[object_id] = entry
            if lend and register:
                self._owe(lender, object_id, lend)
            return entry
        if entry is None:
            entry = ObjectEntry(object_id, owner, 0)
            self.entries[object_id] = entry
        if lender == owner and lend:
            self._note(entry, owner, lend)
            entry.registered = True
        elif register and self._is_borrower(entry):
            # The owner knows this process: the lender need not hold on. Two borrowers
            # that lent to each other would otherwise wait for each other for ever.
            self._owe(lender, object_id, lend)
        else:
            if lend:
                self._note(entry, lender, lend)
            if register:
                self._register(entry)
        return entry

    def keep(self, object_id: bytes, lender: str, lend: int) -> bool:
        """The call that brought a reference ended: is the object still used?

        Returns:
            True if it must be reported as kept: the lend stays open, and a
            registration with the owner is on its way unless the lender is the owner.
            False also for an object in use that the owner knows this process for.
        """
        entry = self.entries.get(object_id)
        if entry is None or not entry.owner:
            return False
        is_owner = lender == entry.owner
        if entry.local > 0 or entry.lends:
            if not is_owner and self._is_borrower(entry):
                self._forget(entry, lender, lend)
                return False
            self._note(entry, lender, lend)
            if is_owner:
                entry.registered = True
            self._register(entry)
            return True
        if self._forget(entry, lender, lend) and is_owner:
            entry.registered = False
        if not entry.held:
            # Nobody else waits for word of it: the reply says it all.
            self._forget_borrowed(entry)
        else:
            self._settle(entry)
        return False

    @staticmethod
    def _note(entry: ObjectEntry, lender: str, lend: int) -> None:
        if entry.held is None:
            entry.held = {}
        entry.held[lender] = max(lend, entry.held.get(lender, 0))

    @staticmethod
    def _forget(entry: ObjectEntry, lender: str, lend: int) -> bool:
        """Drop what is held of a lender up to ``lend``; False if there is more."""
        if entry.held is None:
            return True
        if entry.held.get(lender, 0) > lend:
            return False
        entry.held.pop(lender, None)
        return True

    def registration(self, object_id: bytes) -> int:
        """Number of the registration that is on its way; 0 if there is none."""
        entry = self.entries.get(object_id)
        return (entry.held or {}).get("", 0) if entry is not None else 0

    def acknowledge(
        self, object_id: bytes, lend: int, number: int = 0, owner: str = ""
    ) -> None:
        """The owner counts this process as a borrower, under lend ``lend``.

        Args:
            object_id: the object.
            lend: number of the lend; 0 if the owner knows no such object.
            number: of the registration; 0 for the one that is on its way.
            owner: who says so; empty for the owner that is known here.
        """
        entry = self.entries.get(object_id)
        if entry is None:
            self._owe(owner, object_id, lend)  # it was given up meanwhile
            return
        if not entry.owner:
            return
        held = entry.held or {}
        if number and held.get("") != number:
            # Not the registration that is on its way: this one came twice or late.
            if entry.owner in held:
                held[entry.owner] = max(lend, held[entry.owner])
            else:
                self._owe(entry.owner, object_id, lend)
            return
        entry.registered = True
        held.pop("", None)
        for lender, number in list(held.items()):
            if lender != entry.owner:
                del held[lender]
                self._owe(lender, object_id, number)
        held[entry.owner] = max(lend, held.get(entry.owner, 0))
        entry.held = held
        self._settle(entry)

    def register_borrower(self, object_id: bytes, peer: str) -> int:
        """Owner side of a registration; 0 if the object is gone."""
        if object_id not in self.entries:
            return 0
        return self.lend(object_id, peer)

    # -- rules 1 and 2 -------------------------------------------------------------

    def _register(self, entry: ObjectEntry) -> None:
        if not entry.registered and not self._is_registering(entry):
            entry.held = entry.held or {}
            self._last_registration += 1
            entry.held[""] = self._last_registration  # it is on its way
            self.borrows.setdefault(entry.owner, []).append(entry.object_id)

    def _is_borrower(self, entry: ObjectEntry) -> bool:
        return entry.registered and not self._is_registering(entry)

    @staticmethod
    def _is_registering(entry: ObjectEntry) -> bool:
        return entry.held is not None and "" in entry.held

    def _settle(self, entry: ObjectEntry) -> None:
        if entry.local > 0 or entry.lends:
            return
        object_id = entry.object_id
        if not entry.owner:
            if self.entries.get(object_id) is not entry:
                return
            if entry.lineage:
                self._fade(entry)
                return
            del self.entries[object_id]
            self.freed.append(entry)
            if entry.contains:
                self._drop_contained(entry)
            return
        if not entry.registered or self._is_registering(entry):
            return  # acknowledge() comes back here
        if self.entries.get(object_id) is entry:
            for lender, number in (entry.held or {}).items():
                if lender:
                    self._owe(lender, object_id, number)
            entry.held = None
            self._forget_borrowed(entry)

    def _forget_borrowed(self, entry: ObjectEntry) -> None:
        del self.entries[entry.object_id]
        if entry.copies is not None and entry.copies.near is not None:
            self.unread_copies.append(entry.object_id)
        self._drop_contained(entry)

    def _fade(self, entry: ObjectEntry) -> None:
        if entry.value is None or not self._may_fade(entry.value):
            return
        self.faded.append((entry, entry.value, entry.copies))
        entry.value = entry.copies = None
        entry.lost = True
        self._drop_contained(entry)

    def _drop_contained(self, entry: ObjectEntry) -> None:
        inner, entry.contains = entry.contains, ()
        if not inner:
            return
        self._doomed.extend(inner)
        if self._dooming:
            return  # the loop below, further up the stack, goes on with them
        # A loop, since linked lists of references may be longer than the stack.
        self._dooming = True
        try:
            while self._doomed:
                self.drop(self._doomed.pop())
        finally:
            self._dooming = False

    def _owe(self, peer: str, object_id: bytes, lend: int) -> None:
        if peer and lend:
            self.releases.setdefault(peer, []).append((object_id, lend))

    def _close_lend(self, entry: ObjectEntry, peer: str) -> None:
        assert entry.lends is not None
        entry.lends.pop(peer, None)
        ids = self._lent.get(peer)
        if ids is not None:
            ids.discard(entry.object_id)

    def validate(self) -> None:
        """Check the invariants; used by tests after every step."""
        counted: dict[bytes, int] = {}
        for entry in self.entries.values():
            for object_id in entry.contains:
                counted[object_id] = counted.get(object_id, 0) + 1
        for object_id, entry in self.entries.items():
            assert object_id == entry.object_id
            assert entry.local >= counted.get(object_id, 0), entry
            assert entry.lineage >= 0, entry
            assert not entry.lineage or not entry.owner, entry
            for peer in entry.lends or ():
                assert object_id in self._lent[peer], entry
        for peer, ids in self._lent.items():
            for object_id in ids:
                assert peer in (self.entries[object_id].lends or {}), (peer, object_id)
