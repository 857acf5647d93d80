"""What each process of a node views, for the one that has to free memory.

Each process that reads has a file ``.views/<tag>`` beside the segments: an array of
64-bit words, one for each live view, holding the fingerprint of the segment's name.
Opening a view is a store into shared memory, ending it another: no system call, no
message, no descriptor for each view, and a finalizer may do it. A lock on the
file lasts as long as its process (or a forked child that inherited its views), so
that the words of a killed process count no more.

Nothing depends on a word that comes too late: memory that is viewed stays valid for
the viewer after its file was removed. Words only say which removals free memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import threading
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

from rayshim.adapters.shm.mapping import Mapping

FOLDER = ".views"
#: Views of a process beyond this are not listed; the file is sparse.
MAX_SLOTS = 65_536
_WORD_BYTES = 8
_Words = ctypes.c_uint64 * (MAX_SLOTS + 1)


@lru_cache(maxsize=4096)
def fingerprint(name: str) -> int:
    """A word that stands for a name, never 0; two names hardly ever share one."""
    digest = hashlib.blake2b(name.encode(), digest_size=_WORD_BYTES).digest()
    return int.from_bytes(digest, "little") | 1


class ViewTable:
    """The table of this process. Thread-safe; the end of a view takes no lock."""

    def __init__(self, folder: str, tag: str) -> None:
        """Makes the table, in a store folder."""
        parent = f"{folder}/{FOLDER}"
        with contextlib.suppress(FileExistsError):
            # Not the store's folder too: without its node nobody would remove it.
            os.mkdir(parent, mode=0o700)
        self._path = f"{parent}/{tag}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        size_bytes = (MAX_SLOTS + 1) * _WORD_BYTES
        os.ftruncate(self._fd, size_bytes)
        self._mapping = Mapping(self._path, size_bytes, writable=True)
        #: Word 0 is the number of words that were ever used.
        self.words = _Words.from_address(self._mapping.address)
        self._growing = threading.Lock()
        #: Words that ended views have left.
        self.spare: deque[int] = deque()

    def enter(self, word: int) -> int:
        """List a view; the slot to clear at its end, or 0 if there is none left."""
        try:
            slot = self.spare.pop()
        except IndexError:
            with self._growing:
                slot = self.words[0] + 1
                if slot > MAX_SLOTS:
                    return 0
                self.words[0] = slot
        self.words[slot] = word
        return slot

    def leave(self, slot: int) -> None:
        """A view ended. May be called in a finalizer."""
        if slot:
            self.words[slot] = 0
            self.spare.append(slot)

    def close(self) -> None:
        """Remove the table; views that live on are not listed any more."""
        if self._fd >= 0:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass  # the whole folder went first
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        # A forked child that starts over lets go of its parent's table like this.
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Viewers:
    """What the processes of a node view."""

    #: Fingerprints of names.
    words: set[int]
    #: Tags of the processes that live.
    tags: set[str]

    def has(self, name: str) -> bool:
        """Whether a process views the segment of that name."""
        return fingerprint(name) in self.words


def look(folder: str) -> Viewers:
    """The tables of a store; those of dead processes are removed."""
    words: set[int] = set()
    tags: set[str] = set()
    try:
        tables = os.listdir(f"{folder}/{FOLDER}")
    except FileNotFoundError:
        tables = []
    for tag in tables:
        path = f"{folder}/{FOLDER}/{tag}"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            if _is_locked(fd):
                tags.add(tag)
                words.update(_words(fd))
            else:
                os.unlink(path)
        except FileNotFoundError:
            continue
        finally:
            os.close(fd)
    words.discard(0)
    return Viewers(words, tags)


def _is_locked(fd: int) -> bool:
    if os.fstat(fd).st_size == 0:
        return True  # its process is about to lock it
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _words(fd: int) -> memoryview:
    used = int.from_bytes(os.pread(fd, _WORD_BYTES, 0), "little")
    return memoryview(os.pread(fd, used * _WORD_BYTES, _WORD_BYTES)).cast("Q")
