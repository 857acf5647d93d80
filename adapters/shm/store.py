"""The node store of one process: values too large for messages, in shared memory.

A segment is one file of the node's store folder and holds one value. Whoever puts
a value writes it; everybody on the node maps it and reads without copying. Page
faults decide the speed, not the copy, so segments are recycled together with their
mappings:

============================================  ==============
256 MiB                                       GB/s, median
============================================  ==============
recycled and mapped, one thread               11.3
recycled, new mapping, populated              5.8
recycled, ``pwrite``                          4.7
fresh, ``pwrite`` (in chunks of 1 MiB)        3.5 (3.1)
fresh, ``fallocate``, ``pwrite``              3.4
fresh, ``fallocate``, populate, copy          2.1
fresh, ``MADV_POPULATE_WRITE``, copy          1.9
fresh, plain mapping, copy                    1.5
fresh, ``MAP_POPULATE``, copy                 1.3
============================================  ==============

(``python tests/adapters/measure_shm.py 256 3``, two virtual cores, Linux 6.18, tmpfs
without huge pages. Two threads on idle cores copy 100 MB at 12.7 instead of 6.8;
``pwrite`` holds the file's lock, so that threads do not help a fresh one.)

Writing can never raise SIGBUS: pages are allocated by ``pwrite`` or ``fallocate``,
which report a full file system as an error, before a store instruction touches
them through a mapping. No file is ever shortened, so readers are safe as well.

Three rules keep readers right: a segment is rewritten only after :meth:`recycle`,
which the owner calls when no process views it; a name is never used for another
file with other content, so that a cached mapping is never wrong, at worst superfluous;
and a segment that the raylet has taken over (:mod:`.give`) is never rewritten.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from rayshim.adapters.shm import give
from rayshim.adapters.shm.freelist import FreeList, Owned
from rayshim.adapters.shm.layout import (
    MARK_BYTES,
    NAME,
    capacity_for,
    is_within,
    owner_mark,
    plan,
)
from rayshim.adapters.shm.mapping import Mapping, MappingCache
from rayshim.adapters.shm.usage import StoreStatistics, Usage
from rayshim.adapters.shm.views import open_view
from rayshim.adapters.shm.viewtable import ViewTable, fingerprint
from rayshim.adapters.wire.messages import Segment

#: A mapping keeps no descriptor, but the kernel allows 65,530 of them by default.
MAX_MAPPINGS = 8192
#: Mapped memory of other processes' segments; it may outlive their removal.
MAX_FOREIGN_BYTES = 4 << 30
#: Free segments that a process keeps at most ...
MAX_FREE_BYTES = 2 << 30
#: ... as long as this share of the store stays free for others.
SPARE_SHARE = 0.2
#: Smaller segments are mapped by their second reuse: the first is cheaper by
#: ``pwrite`` (150 kB: 39 us against 79; 4 MiB: equal), most have no second one.
MAP_AT_ONCE_BYTES = 4 << 20
#: Streams up to this size are written together with the mark.
JOINED_BYTES = 16 * 1024
#: Owners whose marks a process remembers.
MAX_MARKS = 1000
#: A full store, in the words of tmpfs, of quotas and of memory limits.
FULL_CODES = frozenset((errno.ENOSPC, errno.EDQUOT, errno.ENOMEM))

Part = bytes | memoryview


class SegmentStore:
    """Writes and reads segments; one instance for each process.

    Thread-safe. The lock guards the tables only: copies, system calls on files and
    unmapping run outside it. A forked child of the process starts over with empty
    tables and leaves the parent's segments alone.
    """

    def __init__(
        self, folder: str, *, node: str, address: str, limit_bytes: int = 0
    ) -> None:
        """Uses an existing folder.

        Args:
            folder: the node's store folder (mode 0700), best on tmpfs.
            node: hex id of the node, for :class:`Segment`.
            address: this process's address, for :class:`Segment`.
            limit_bytes: bound on all files of the folder together, 0 for what the
                file system holds. Checked against a count that is up to a second
                old, so that several writers may pass it a little.
        """
        self._folder = folder
        self._node = node
        self._address = address
        self._limit_bytes = limit_bytes
        self._closed = False
        #: Called with names that this process gave up and did not find: the raylet
        #: has spilled them.
        self.on_lost: Callable[[list[str]], None] | None = None
        self._start_over()

    def _start_over(self) -> None:
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        #: A fresh tag for each process: ids of processes come again, tags do not.
        self._tag = secrets.token_hex(5)
        self._numbers = itertools.count(1)
        #: name -> segment of this process that holds a value.
        self._live: dict[str, Owned] = {}
        self._live_bytes = 0
        #: Owner's address -> the first bytes of its segments.
        self._marks: dict[str, bytes] = {}
        self._free = FreeList()
        self._mappings = MappingCache(
            max_mappings=MAX_MAPPINGS, max_foreign_bytes=MAX_FOREIGN_BYTES
        )
        self._fresh_writes = 0
        self._recycled_writes = 0
        self._usage = Usage(self._folder, self._limit_bytes)
        self._table: ViewTable | None = None
        #: name -> file outside of the store, for values that did not fit.
        self._outside: dict[str, str] = {}

    # The lock of a forked child may be held by a thread that it does not have, so
    # this comes before any use of the lock.
    def _check_process(self) -> None:
        if self._process_id != os.getpid():
            self._start_over()

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    # --- writing -------------------------------------------------------------

    def write(
        self, stream: bytes, buffers: list[memoryview], owner: str = ""
    ) -> Segment:
        """Stores a value.

        Args:
            stream: the pickle stream.
            buffers: its out-of-band buffers, C-contiguous.
            owner: address of the value's owner; empty: this process.

        Returns:
            The segment, which this process keeps until :meth:`recycle`.

        Raises:
            rayshim.exceptions.ObjectStoreFullError: no room; nothing is left behind.
            ValueError: the store is closed.
        """
        self._check_process()
        if self._closed:
            raise ValueError("the object store of this process is closed")
        if self._table is None:
            self._list_views()
        sizes = [MARK_BYTES, len(stream), *[view.nbytes for view in buffers]]
        layout, end = plan(sizes)
        places = layout[::2]
        mark = self._mark_of(owner)
        parts: list[Part]
        if len(stream) <= JOINED_BYTES:
            parts = [mark.ljust(places.pop(1), b"\0") + stream, *buffers]
        else:
            parts = [mark, stream, *buffers]
        owned = self._reuse(end, places, parts)
        if owned is None:
            owned = self._write_fresh(end, places, parts)
        owned.owner = owner
        give.publish(self._path(owned.name))
        with self._lock:
            if owned.reuses:
                self._recycled_writes += 1
            else:
                self._fresh_writes += 1
            self._live[owned.name] = owned
            self._live_bytes += owned.filled_bytes
        return Segment(
            owned.name, owned.capacity, self._node, self._address, layout[2:]
        )

    def _mark_of(self, owner: str) -> bytes:
        mark = self._marks.get(owner)
        if mark is None:
            if len(self._marks) >= MAX_MARKS:
                self._marks.clear()
            mark = self._marks[owner] = owner_mark(owner or self._address)
        return mark

    def write_outside(
        self,
        folder: str,
        stream: bytes,
        buffers: list[memoryview],
        owner: str = "",
    ) -> Segment:
        """Stores a value for which the store has no room in a folder on disk.

        Raises:
            OSError: the disk is full; nothing is left behind.
        """
        self._check_process()
        parts: list[Part] = [self._mark_of(owner), stream, *buffers]
        sizes = [MARK_BYTES, len(stream), *[view.nbytes for view in buffers]]
        layout, end = plan(sizes)
        name = f"{self._tag}-{next(self._numbers):x}"
        path = f"{folder}/{name}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(path + give.WRITTEN, flags, 0o600)
        try:
            os.posix_fallocate(fd, 0, end)
            for offset, part in zip(layout[::2], parts, strict=True):
                _write_at(fd, offset, part)
            os.rename(path + give.WRITTEN, path)
        except BaseException:
            Path(path + give.WRITTEN).unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        with self._lock:
            self._outside[name] = path
            # It takes no memory of the store.
            self._live[name] = Owned(name, end, 0, owner=owner)
        return Segment(name, end, self._node, self._address, layout[2:])

    def find_outside(self, name: str, path: str) -> None:
        """The value of that name is to be read from a file on disk."""
        self._outside[name] = path

    def _list_views(self) -> ViewTable:
        with self._lock:
            if self._table is None:
                self._table = ViewTable(self._folder, self._tag)
            return self._table

    def _reuse(self, end: int, places: list[int], parts: list[Part]) -> Owned | None:
        """Writes into a free segment; None if there is none that fits."""
        gone: list[Owned] = []
        with self._lock:
            owned = self._free.take(end)
            while owned is not None and not give.unmark(self._path(owned.name)):
                gone.append(owned)
                owned = self._free.take(end)
        for lost in gone:  # another process needed the memory
            self.drop_mapping(lost.name)
        if owned is None:
            return None
        try:
            if not self._allocate(owned, end):
                self._remove(owned, give.WRITTEN)
                return None
            self._write_again(owned, end, places, parts)
        except BaseException:
            self._remove(owned, give.WRITTEN)
            raise
        return owned

    def _allocate(self, owned: Owned, end: int) -> bool:
        """Allocates the pages up to ``end``; False if the store is full."""
        missing = end - owned.filled_bytes
        if missing <= 0:
            return True
        if not self._usage.has_room(missing):
            return False
        path = self._path(owned.name) + give.WRITTEN
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, owned.filled_bytes, missing)
        except OSError as error:
            if error.errno in FULL_CODES:
                return False
            raise
        finally:
            os.close(fd)
        owned.filled_bytes = end
        return True

    def _write_fresh(self, end: int, places: list[int], parts: list[Part]) -> Owned:
        """Writes a new file, giving up free segments if there is no room."""
        while True:
            if self._usage.has_room(end):
                owned = self._try_fresh(end, places, parts)
                if owned is not None:
                    return owned
            with self._lock:
                spare = self._free.evict()
            if spare is not None:
                self._remove(spare)
            elif not give.claim(self._folder, end):
                self._raise_full(end)

    def _try_fresh(
        self, end: int, places: list[int], parts: list[Part]
    ) -> Owned | None:
        """Writes a new file; None, and no file, if the store is full."""
        owned = Owned(f"{self._tag}-{next(self._numbers):x}", capacity_for(end), end)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(self._path(owned.name) + give.WRITTEN, flags, 0o600)
        try:
            os.ftruncate(fd, owned.capacity)  # a hole: takes no memory
            for offset, part in zip(places, parts, strict=True):
                _write_at(fd, offset, part)
        except OSError as error:
            self._unlink(owned.name + give.WRITTEN)
            if error.errno in FULL_CODES:
                return None
            raise
        except BaseException:
            self._unlink(owned.name + give.WRITTEN)
            raise
        finally:
            os.close(fd)
        return owned

    def _write_again(
        self, owned: Owned, end: int, places: list[int], parts: list[Part]
    ) -> None:
        owned.reuses += 1
        with self._lock:
            is_mapped = self._mappings.get(owned.name) is not None
        if owned.reuses == 1 and end < MAP_AT_ONCE_BYTES and not is_mapped:
            path = self._path(owned.name) + give.WRITTEN
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                for offset, part in zip(places, parts, strict=True):
                    _write_at(fd, offset, part)
            finally:
                os.close(fd)
            return
        mapping = self._mapping(owned.name, owned.capacity, self._open_written)
        mapping.populate(end)
        for offset, part in zip(places, parts, strict=True):
            mapping.copy_in(offset, part)

    # --- room ----------------------------------------------------------------

    def _raise_full(self, size_bytes: int) -> NoReturn:
        # Not at the top: this package loads before the public one is needed.
        from rayshim.exceptions import ObjectStoreFullError

        total, available = self._usage.total_and_available()
        held = self.statistics()
        raise ObjectStoreFullError(
            f"cannot store a value of {_shown(size_bytes)} in the object store "
            f"{self._folder}: {_shown(available)} of {_shown(total)} are free. "
            f"This process holds {held.live_segments} values there "
            f"({_shown(held.live_bytes)}); the rest belongs to other processes of "
            f"the node. Store smaller values, or enlarge the file system if it is "
            f"what limits the store (/dev/shm in a container)."
        )

    # --- reading -------------------------------------------------------------

    def read(
        self, segment: Segment, on_release: Callable[[], None]
    ) -> tuple[memoryview, list[memoryview]]:
        """Views a value without copying it.

        Args:
            segment: of this node.
            on_release: called once, when nothing views the returned memory any
                more, from any thread and inside garbage collections as well: it
                may do no more than an atomic append.

        Returns:
            The pickle stream and the buffers, all read-only.

        Raises:
            FileNotFoundError: the segment is gone.
            ValueError: the segment's description does not fit its file.
        """
        self._check_process()
        name, capacity, layout = segment.name, segment.capacity, segment.layout
        if not NAME.fullmatch(name) or not is_within(layout, capacity):
            raise ValueError(f"not a segment of this store: {segment!r}")
        mapping = self._mapping(name, capacity, self._open_value)
        table = self._table or self._list_views()
        view = open_view(mapping, table, mapping.word, on_release)
        parts = [
            view[offset : offset + size_bytes]
            for offset, size_bytes in zip(layout[::2], layout[1::2], strict=True)
        ]
        return parts[0], parts[1:]

    def _mapping(
        self, name: str, capacity: int, opened: Callable[[str, int], Mapping]
    ) -> Mapping:
        with self._lock:
            mapping = self._mappings.get(name)
        if mapping is None:
            mapping = opened(name, capacity)
            mapping.word = fingerprint(name)
            with self._lock:
                gone = self._mappings.add(name, mapping)
            del gone  # unmapped here, outside the lock
        return mapping

    def _open_written(self, name: str, capacity: int) -> Mapping:
        return Mapping(self._path(name) + give.WRITTEN, capacity, writable=True)

    def _open_value(self, name: str, capacity: int) -> Mapping:
        """Maps a value, wherever it is; the raylet's files only for reading."""
        path = self._path(name)
        try:
            return Mapping(path, capacity, writable=name.startswith(self._tag))
        except FileNotFoundError:
            pass
        try:
            return Mapping(path + give.KEPT, capacity, writable=False)
        except FileNotFoundError:
            outside = self._outside.get(name)
            if outside is None:
                raise
        return Mapping(outside, capacity, writable=False)

    # --- the end of values ---------------------------------------------------

    def recycle(self, name: str) -> None:
        """Takes a segment of this process back that nobody views any more.

        Kept for reuse while memory is plentiful, else removed. One that the raylet
        has spilled goes to ``on_lost``. A name that holds no value of this process
        (told twice, or after a fork) is ignored.
        """
        self._check_process()
        scarce = self._is_scarce()
        surplus: list[Owned] = []
        with self._lock:
            owned = self._live.pop(name, None)
            if owned is None:
                return
            self._live_bytes -= owned.filled_bytes
            # Under the lock: the next writer may want it at once.
            is_mine = give.mark(self._path(name))
            if is_mine and (self._closed or scarce):
                surplus.append(owned)
            elif is_mine:
                self._free.push(owned)
            while self._free.filled_bytes > MAX_FREE_BYTES:
                oldest = self._free.evict()
                if oldest is not None:
                    surplus.append(oldest)
        for oldest in surplus:
            self._remove(oldest)
        if not is_mine:
            self.drop_mapping(name)
            self._lost(name)

    def _lost(self, name: str) -> None:
        if self.on_lost is not None:
            self.on_lost([name])

    def _is_scarce(self) -> bool:
        total, available = self._usage.total_and_available()
        return available < SPARE_SHARE * total

    def has_free(self) -> bool:
        """Whether segments are kept for reuse."""
        return len(self._free) > 0

    def trim(self) -> None:
        """Gives half of the free segments back, for a process that writes no more."""
        self._check_process()
        spare: list[Owned] = []
        with self._lock:
            for _ in range((len(self._free) + 1) // 2):
                oldest = self._free.evict()
                if oldest is not None:
                    spare.append(oldest)
        for oldest in spare:
            self._remove(oldest)

    def owner_died(self, owner: str) -> None:
        """Gives up what this process made for an owner that is dead.

        Others may view it, so it is not written again.
        """
        self._check_process()
        with self._lock:
            gone = [one for one in self._live.values() if one.owner == owner]
            for one in gone:
                del self._live[one.name]
                self._live_bytes -= one.filled_bytes
        for one in gone:
            self._remove(one, "")

    def discard(self, segment: Segment) -> None:
        """Removes a segment whose creator is gone; a spilled one is the raylet's."""
        self._check_process()
        if not NAME.fullmatch(segment.name):
            raise ValueError(f"not a segment of this store: {segment!r}")
        self.drop_mapping(segment.name)
        try:
            os.unlink(self._path(segment.name))
        except FileNotFoundError:
            self._lost(segment.name)

    def drop_mapping(self, name: str) -> None:
        """Forgets the mapping of a segment; views of it stay valid."""
        self._check_process()
        with self._lock:
            mapping = self._mappings.pop(name)
            self._outside.pop(name, None)
        del mapping  # unmapped here, outside the lock

    def sweep(self) -> int:
        """Drops mappings of other processes' segments whose files are gone.

        Such a mapping keeps the memory of a removed file in use. Cheap (a stat
        for each mapping); to be called now and then by processes that read.

        Returns:
            How many were dropped.
        """
        self._check_process()
        with self._lock:
            names = self._mappings.foreign_names()
        gone = [name for name in names if not self.exists(name)]
        for name in gone:
            self.drop_mapping(name)
        return len(gone)

    def exists(self, name: str) -> bool:
        """True if a segment holds a value here, or is on its way to disk."""
        path = self._path(name)
        states = (path, path + give.FREE, path + give.KEPT, path + give.WRITTEN)
        outside = self._outside.get(name, path)
        return any(map(os.path.exists, states)) or os.path.exists(outside)

    def statistics(self) -> StoreStatistics:
        """A snapshot of what this process holds."""
        self._check_process()
        with self._lock:
            return StoreStatistics(
                live_segments=len(self._live),
                live_bytes=self._live_bytes,
                free_segments=len(self._free),
                free_bytes=self._free.filled_bytes,
                mappings=len(self._mappings),
                mapped_bytes=self._mappings.mapped_bytes,
                fresh_writes=self._fresh_writes,
                recycled_writes=self._recycled_writes,
            )

    def close(self) -> None:
        """Removes what is free and takes no more values.

        Segments with values stay: their owners may live in other processes. They
        go by :meth:`discard`, or with the node's folder.
        """
        self._check_process()
        with self._lock:
            self._closed = True
            self._mappings.clear()
            if self._table is not None:
                self._table.close()
            surplus = []
            while (owned := self._free.evict()) is not None:
                surplus.append(owned)
        for owned in surplus:
            self._remove(owned)

    def _remove(self, owned: Owned, state: str = give.FREE) -> None:
        self.drop_mapping(owned.name)
        self._unlink(owned.name + state)
        self._usage.gave(owned.filled_bytes)

    def _unlink(self, name: str) -> None:
        # Missing when the node's folder went first.
        Path(self._path(name)).unlink(missing_ok=True)


def _write_at(fd: int, offset: int, part: Part) -> None:
    """Writes all of a buffer; one call moves less than 2 GiB."""
    rest = memoryview(part)
    while rest.nbytes:
        written = os.pwrite(fd, rest, offset)
        offset += written
        rest = rest[written:]


def _shown(size_bytes: int) -> str:
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.1f} GiB"
    return f"{size_bytes / (1 << 20):.1f} MiB"
