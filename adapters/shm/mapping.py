"""Mappings of segment files, made through libc.

``mmap.mmap`` keeps a duplicate of the file descriptor for each mapping and does
not tell the address of a read-only one. Thousands of mapped segments would use up
the descriptors of a process, hence the direct calls.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import OrderedDict
from typing import Any

#: Copies below this keep the GIL: giving it away may cost 5 ms (the interpreter's
#: switch interval) when another thread computes, the copy itself takes 0.1 ms.
DROP_GIL_BYTES = 1024 * 1024
#: Copies from this size on use several threads: on two idle cores 100 MB go at
#: 12.7 GB/s instead of 6.8; on busy ones nothing is gained or lost.
PARALLEL_BYTES = 16 * 1024 * 1024
#: More threads than this find no more memory bandwidth.
MAX_COPY_THREADS = 4
#: Linux ``MADV_POPULATE_WRITE`` (5.14): maps all pages of a range at once.
MADV_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_mmap.restype = ctypes.c_void_p
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value

# The same C function twice: a CDLL call drops the GIL, a PyDLL call keeps it.
_move_without_gil = _libc.memmove
_move_without_gil.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_move_without_gil.restype = ctypes.c_void_p
_move_with_gil = ctypes.pythonapi.memmove
_move_with_gil.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_move_with_gil.restype = ctypes.c_void_p


class _PyBuffer(ctypes.Structure):
    """``Py_buffer`` (part of the stable ABI since 3.11)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


def _move_piece(target: int, origin: int, size_bytes: int, *_held: Any) -> None:
    _move_without_gil(target, origin, size_bytes)


class Mapping:
    """A shared mapping of the first ``size_bytes`` of a segment file.

    Unmapped when the last reference goes; views of it hold one.
    """

    __slots__ = ("address", "populated_bytes", "size_bytes", "word", "writable")

    def __init__(self, path: str, size_bytes: int, *, writable: bool) -> None:
        """Maps the file.

        Raises:
            FileNotFoundError: the file is gone.
            ValueError: the file is shorter than ``size_bytes``; touching the
                missing pages would be a fatal signal.
            OSError: the system refuses another mapping.
        """
        self.address = 0
        self.size_bytes = size_bytes
        self.writable = writable
        #: Bytes from the start whose page table entries were made at once.
        self.populated_bytes = 0
        #: Fingerprint of the segment's name, for the table of views.
        self.word = 0
        access = os.O_RDWR if writable else os.O_RDONLY
        fd = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            held = os.fstat(fd).st_size
            if held < size_bytes or size_bytes <= 0:
                raise ValueError(
                    f"segment {path} holds {held} bytes, {size_bytes} were announced"
                )
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            address = _mmap(None, size_bytes, protection, mmap.MAP_SHARED, fd, 0)
            if address is None or address == _MAP_FAILED:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
            self.address = address
        finally:
            os.close(fd)

    def populate(self, end: int) -> None:
        """Makes the page table entries of ``[0, end)`` for writing, if missing.

        One call instead of a page fault for each 4 KiB; a kernel that does not
        know it leaves the faults to the copy.
        """
        start = self.populated_bytes & -mmap.PAGESIZE
        if end > self.populated_bytes:
            _madvise(self.address + start, end - start, MADV_POPULATE_WRITE)
            self.populated_bytes = end

    def copy_in(self, offset: int, source: bytes | memoryview) -> None:
        """Copies the bytes of a C-contiguous buffer to ``offset``."""
        view = _PyBuffer()
        _get_buffer(source, ctypes.byref(view), 0)  # PyBUF_SIMPLE
        try:
            size_bytes = view.len
            if offset < 0 or offset + size_bytes > self.size_bytes:
                raise ValueError("a copy would leave the mapping")
            start = self.address + offset
            if size_bytes < DROP_GIL_BYTES:
                _move_with_gil(start, view.buf, size_bytes)
            elif size_bytes < PARALLEL_BYTES:
                _move_without_gil(start, view.buf, size_bytes)
            else:
                self._copy_in_parallel(start, view.buf, size_bytes, source)
        finally:
            _release_buffer(ctypes.byref(view))

    def _copy_in_parallel(
        self, target: int, origin: int, size_bytes: int, source: bytes | memoryview
    ) -> None:
        ways = min(len(os.sched_getaffinity(0)), MAX_COPY_THREADS)
        piece = -(-size_bytes // (ways * mmap.PAGESIZE)) * mmap.PAGESIZE
        helpers = []
        for start in range(piece, size_bytes, piece):
            length = min(piece, size_bytes - start)
            # The thread holds both sides: should an interrupt end this call early,
            # neither is unmapped or freed under the copy.
            helper = threading.Thread(
                target=_move_piece,
                args=(target + start, origin + start, length, self, source),
                daemon=True,
            )
            try:
                helper.start()
            except RuntimeError:  # no more threads here: one has to do
                _move_without_gil(target + start, origin + start, length)
            else:
                helpers.append(helper)
        _move_without_gil(target, origin, min(piece, size_bytes))
        for helper in helpers:
            helper.join()

    def __del__(self, _unmap: Any = _munmap) -> None:
        if self.address:
            _unmap(self.address, self.size_bytes)
            self.address = 0


class MappingCache:
    """Mappings by segment name, least recently used ones dropped first.

    Warm page tables are worth a factor of four in copying speed. A mapping that is
    dropped while views use it lives on until they are gone. Not thread-safe: the
    store's lock guards it.
    """

    def __init__(self, *, max_mappings: int, max_foreign_bytes: int) -> None:
        """Starts empty.

        Args:
            max_mappings: the kernel allows about 65,000 mappings for a process.
            max_foreign_bytes: bound on mappings of other processes' segments: a
                mapping keeps the memory of a file alive after its removal.
        """
        #: name -> mapping, in order of last use.
        self._mappings: OrderedDict[str, Mapping] = OrderedDict()
        self._max_mappings = max_mappings
        self._max_foreign_bytes = max_foreign_bytes
        #: Sum of the sizes of the read-only mappings.
        self.foreign_bytes = 0
        #: Sum of all sizes.
        self.mapped_bytes = 0

    def __len__(self) -> int:
        return len(self._mappings)

    def get(self, name: str) -> Mapping | None:
        """The mapping, now the most recently used one."""
        mapping = self._mappings.get(name)
        if mapping is not None:
            self._mappings.move_to_end(name)
        return mapping

    def add(self, name: str, mapping: Mapping) -> list[Mapping]:
        """Keeps a mapping.

        Returns:
            What had to go for it, to be dropped outside the lock: unmapping
            takes time.
        """
        gone = [old for old in (self.pop(name),) if old is not None]
        self._mappings[name] = mapping
        self._count(mapping, 1)
        while len(self._mappings) > self._max_mappings:
            gone.append(self._evict(next(iter(self._mappings))))
        if self.foreign_bytes > self._max_foreign_bytes:
            for other in list(self._mappings):
                if self.foreign_bytes <= self._max_foreign_bytes or other == name:
                    break
                if not self._mappings[other].writable:
                    gone.append(self._evict(other))
        return gone

    def pop(self, name: str) -> Mapping | None:
        """Forgets a mapping."""
        return self._evict(name) if name in self._mappings else None

    def foreign_names(self) -> list[str]:
        """Names of the mapped segments that other processes made."""
        return [name for name, held in self._mappings.items() if not held.writable]

    def clear(self) -> None:
        """Forgets all."""
        self._mappings.clear()
        self.foreign_bytes = self.mapped_bytes = 0

    def _evict(self, name: str) -> Mapping:
        mapping = self._mappings.pop(name)
        self._count(mapping, -1)
        return mapping

    def _count(self, mapping: Mapping, sign: int) -> None:
        self.mapped_bytes += sign * mapping.size_bytes
        if not mapping.writable:
            self.foreign_bytes += sign * mapping.size_bytes
