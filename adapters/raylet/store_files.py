"""The files of a node's store, as the raylet finds them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rayshim.adapters.shm import give, viewtable
from rayshim.adapters.shm.layout import MARK_BYTES, NAME
from rayshim.lineage.store_policy import Kind, StoredFile


class StoreFull(Exception):
    """No room could be made; the text says why."""


@dataclass(slots=True)
class Inventory:
    """What one look at the folder found."""

    #: Memory that all files take, bytes.
    used_bytes: int = 0
    #: Memory of segments that hold nothing, bytes.
    free_bytes: int = 0
    values: list[StoredFile] = field(default_factory=list)
    #: Names of those that the raylet has taken over.
    kept: set[str] = field(default_factory=set)
    #: Files that a process was writing when it died.
    orphans: list[str] = field(default_factory=list)

    @property
    def viewed_bytes(self) -> int:
        """Memory of values that are in use."""
        return sum(held.size_bytes for held in self.values if held.is_used)


def look(
    folder: str,
    *,
    spilled: Mapping[str, int],
    copies: Iterable[str],
    pinned: Iterable[str],
    asked_s: Mapping[str, float],
) -> Inventory:
    """Lists the store.

    Args:
        folder: the store.
        spilled: names of values with a twin in the spill folder.
        copies: names of complete copies from other nodes.
        pinned: names of what must stay although nobody views it.
        asked_s: name -> when it was last asked for, seconds of the file system's clock.
    """
    found = Inventory()
    views = viewtable.look(folder)
    known, stays = set(copies), set(pinned)
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                about = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            size = about.st_blocks * 512
            found.used_bytes += size
            name, _, state = entry.name.partition(".")
            if not NAME.fullmatch(name):
                continue
            state = f".{state}" if state else ""
            if state == give.FREE:
                found.free_bytes += size
                continue
            if state == give.WRITTEN and not name.startswith("o-"):
                if name.partition("-")[0] not in views.tags:
                    found.orphans.append(entry.name)
                continue
            if state not in ("", give.KEPT):
                continue
            if name.startswith("o-"):
                kind = Kind.COPY
                is_used = name in stays or name not in known
            else:
                kind = Kind.RESTORED if name in spilled else Kind.PRIMARY
                is_used = name in stays
            if state == give.KEPT:
                found.kept.add(name)
            used_s = asked_s.get(name, about.st_mtime)
            is_used = is_used or views.has(name)
            found.values.append(StoredFile(name, size, kind, used_s, is_used))
    return found


def take_over(folder: str, name: str) -> bool:
    """Take a value from its creator; False if it is a value no more."""
    try:
        os.rename(f"{folder}/{name}", f"{folder}/{name}{give.KEPT}")
    except FileNotFoundError:
        return False
    return True


def find(folder: str, name: str) -> str | None:
    """Path of a value in memory."""
    for state in ("", give.KEPT):
        path = f"{folder}/{name}{state}"
        if os.path.exists(path):
            return path
    return None


def remove(folder: str, name: str) -> None:
    """Remove a value from memory, whoever has it."""
    for state in ("", give.KEPT):
        Path(f"{folder}/{name}{state}").unlink(missing_ok=True)


def owners(folder: str) -> dict[str, bytes]:
    """Name -> mark of the owner, of all values in a folder; none if it is missing."""
    found: dict[str, bytes] = {}
    if not os.path.isdir(folder):
        return found
    with os.scandir(folder) as entries:
        for entry in entries:
            name, _, state = entry.name.partition(".")
            if state not in ("", give.KEPT[1:]) or not NAME.fullmatch(name):
                continue
            try:
                found[name] = mark_of(entry.path)
            except FileNotFoundError:
                continue
    return found


def mark_of(path: str) -> bytes:
    """The mark of the owner of one value."""
    with open(path, "rb", buffering=0) as file:
        return file.read(MARK_BYTES)


def usage(folder: str) -> tuple[int, int]:
    """Memory of all files of a store, and of its values that are no pulled copies."""
    used = values = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                size = entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
            used += size
            name, _, state = entry.name.partition(".")
            if state in ("", give.KEPT[1:]) and NAME.fullmatch(name):
                values += 0 if name.startswith("o-") else size
    return used, values


def folder_bytes(folder: str) -> int:
    """Disk space that the files of a folder take, bytes; 0 if it does not exist."""
    used = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    used += entry.stat(follow_symlinks=False).st_blocks * 512
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        pass
    return used
