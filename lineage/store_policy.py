"""Which files leave a full node store, and in which order.

A store holds three kinds of files. A *copy* was pulled from another node and may go
at once when nobody uses it: its value lives elsewhere. A *restored* file has a twin
in the spill folder and may go at once as well. A *primary* is the only copy of a value
and has to be written to the spill folder first.

Two rules:

1. What is viewed by a process, or pinned, stays: dropping it would free no memory.
2. The cheap goes first: unused copies, the least recently used first; then restored
   files in the same order; then primaries, the one written longest ago first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum


class Kind(Enum):
    """What a file of the store is to its node."""

    #: Pulled from another node.
    COPY = "copy"
    #: Read back from the spill folder, where its twin still is.
    RESTORED = "restored"
    #: The only copy.
    PRIMARY = "primary"


_ORDER = {Kind.COPY: 0, Kind.RESTORED: 1, Kind.PRIMARY: 2}


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One value in memory."""

    name: str
    size_bytes: int
    kind: Kind
    #: When it was written (primaries) or last asked for (others), any clock.
    used_s: float
    #: A process views it, a peer has it pinned, or it is being sent.
    is_used: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to be done to free memory."""

    #: Names to remove, in order.
    drop: list[str]
    #: Names to write to the spill folder and remove, in order.
    spill: list[str]
    #: What both free, bytes.
    freed_bytes: int
    #: What ``spill`` writes, bytes.
    spilled_bytes: int
    #: What was left alone since it would not fit into the spill folder, bytes.
    refused_bytes: int


def plan(
    files: Iterable[StoredFile], wanted_bytes: int, spill_room_bytes: int | None
) -> Plan:
    """Choose files whose removal frees ``wanted_bytes``, or as much as there is.

    Args:
        files: all values in memory.
        wanted_bytes: memory to free, > 0.
        spill_room_bytes: what the spill folder can take; None: without limit.
    """
    drop: list[str] = []
    spill: list[str] = []
    freed = spilled = refused = 0
    unused = (held for held in files if not held.is_used)
    for held in sorted(unused, key=lambda one: (_ORDER[one.kind], one.used_s)):
        if freed >= wanted_bytes:
            break
        if held.kind is not Kind.PRIMARY:
            drop.append(held.name)
        elif (
            spill_room_bytes is not None
            and spilled + held.size_bytes > spill_room_bytes
        ):
            refused += held.size_bytes
            continue
        else:
            spill.append(held.name)
            spilled += held.size_bytes
        freed += held.size_bytes
    return Plan(drop, spill, freed, spilled, refused)


@dataclass(slots=True)
class Copies:
    """Pulled copies of a node and who has them pinned.

    ``pins`` holds exactly the copies that somebody reads; a pin is a set member, so
    that pinning or unpinning twice equals doing it once.
    """

    #: Object id -> file name.
    names: dict[bytes, str] = field(default_factory=dict)
    #: File name -> size, bytes.
    sizes: dict[str, int] = field(default_factory=dict)
    #: File name -> when it was last asked for.
    used_s: dict[str, float] = field(default_factory=dict)
    #: Object id -> addresses of the peers that read it.
    pins: dict[bytes, set[str]] = field(default_factory=dict)
    #: Freed by their owner while somebody still reads them: they go at the last unpin.
    doomed: set[bytes] = field(default_factory=set)

    def add(
        self, object_id: bytes, name: str, size_bytes: int, peer: str, now: float
    ) -> None:
        """A copy is complete, and pinned for ``peer`` if that is not empty."""
        self.names[object_id] = name
        self.sizes[name] = size_bytes
        self.doomed.discard(object_id)
        self.used_s[name] = now
        if peer:
            self.pins.setdefault(object_id, set()).add(peer)

    def pin(self, object_id: bytes, peer: str, now: float) -> str | None:
        """Pin a copy that is here; its name, or None if it is not."""
        name = self.names.get(object_id)
        if name is None or object_id in self.doomed:
            return None
        self.used_s[name] = now
        self.pins.setdefault(object_id, set()).add(peer)
        return name

    def unpin(self, object_ids: Iterable[bytes], peer: str) -> list[str]:
        """``peer`` reads these no more. Returns files that are to be removed."""
        gone = []
        for object_id in object_ids:
            holders = self.pins.get(object_id)
            if holders is None:
                continue
            holders.discard(peer)
            if not holders:
                del self.pins[object_id]
                if object_id in self.doomed:
                    gone += self._remove(object_id)
        return gone

    def peer_gone(self, peer: str) -> list[str]:
        """A process ended, and its pins with it. Returns files to be removed."""
        held = [one for one, holders in self.pins.items() if peer in holders]
        return self.unpin(held, peer)

    def free(self, object_ids: Iterable[bytes]) -> list[str]:
        """The owner freed these. Returns files to be removed now."""
        gone = []
        for object_id in object_ids:
            if object_id in self.pins:
                self.doomed.add(object_id)
            else:
                gone += self._remove(object_id)
        return gone

    def forget(self, name: str) -> None:
        """A file was evicted."""
        for object_id, held in list(self.names.items()):
            if held == name:
                self._remove(object_id)

    def is_pinned(self, name: str) -> bool:
        """Whether somebody reads the copy of that name."""
        return any(self.names.get(object_id) == name for object_id in self.pins)

    def pinned_names(self) -> set[str]:
        """The files that somebody reads."""
        return {self.names[one] for one in self.pins if one in self.names}

    def _remove(self, object_id: bytes) -> list[str]:
        name = self.names.pop(object_id, None)
        self.doomed.discard(object_id)
        self.pins.pop(object_id, None)
        if name is None:
            return []
        self.sizes.pop(name, None)
        self.used_s.pop(name, None)
        return [name]

    def validate(self) -> None:
        """Check the invariants.

        Raises:
            AssertionError: one does not hold.
        """
        assert set(self.names.values()) == set(self.sizes) == set(self.used_s)
        assert all(self.pins.values()), "an empty set of pins"
        assert set(self.pins) <= set(self.names)
        assert self.doomed <= set(self.pins)


@dataclass(frozen=True, slots=True)
class Holder:
    """A large object, for the report of a full store."""

    name: str
    size_bytes: int
    call_site: str
    #: Who owns it ("driver 4711").
    owner: str


def shown(size_bytes: int) -> str:
    """A size for people."""
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.1f} GiB"
    return f"{size_bytes / (1 << 20):.1f} MiB"


def report(
    *,
    wanted_bytes: int,
    limit_bytes: int,
    used_bytes: int,
    viewed_bytes: int,
    spilled_bytes: int,
    spill_limit_bytes: int,
    spill_target: str,
    holders: Collection[Holder],
    error: str,
) -> str:
    """Numbers, the largest holders and what to do, for the error of a writer."""
    parts = [
        f"{shown(wanted_bytes)} wanted, {shown(used_bytes)} of {shown(limit_bytes)} "
        f"in use ({shown(viewed_bytes)} of it viewed by processes or pinned), "
        f"{shown(spilled_bytes)} of at most {shown(spill_limit_bytes)} spilled to "
        f"{spill_target}."
    ]
    if wanted_bytes > limit_bytes:
        parts.append("The value is larger than the whole store.")
    by_site: dict[tuple[str, str], list[int]] = {}
    for one in holders:
        by_site.setdefault((one.call_site, one.owner), []).append(one.size_bytes)
    ranked = sorted(by_site.items(), key=lambda item: -sum(item[1]))[:5]
    if ranked:
        lines = [
            f"  {shown(sum(sizes))} in {len(sizes)} objects from "
            f"{site or 'an unknown place'} ({owner})"
            for (site, owner), sizes in ranked
        ]
        parts.append("Largest holders:\n" + "\n".join(lines) + "\n")
    if error == "disk":
        parts.append(
            "Drop references, free disk space, or raise the setting spill_limit_bytes."
        )
    else:
        parts.append(
            "Drop references or the arrays that ray.get returned (they are views of "
            "the store), or raise init(object_store_memory=...)."
        )
    return " ".join(parts)


def spill_limit(asked_bytes: int, disk_total: int, disk_free: int, spilled: int) -> int:
    """What may be spilled in all: as asked, or all but 5 % of the disk.

    Args:
        asked_bytes: the setting; 0: as much as leaves 5 % of the disk free.
        disk_total: size of the disk, bytes.
        disk_free: what is left of it, bytes.
        spilled: what is spilled now, bytes.
    """
    if asked_bytes:
        return asked_bytes
    return max(0, spilled + disk_free - disk_total // 20)
