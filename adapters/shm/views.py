"""Read-only views of a mapping that tell when the last one is gone.

A view must be noticed for as long as *anything* built on it lives: memoryviews,
numpy arrays, Arrow buffers. All of them hold, through a chain of buffer exports,
the object that exports the memory. So that object is the place to listen: a ctypes
array over the mapping's address, of a class with a finalizer. (A weak reference to
a memoryview would not do: numpy takes another memoryview of the same memory and
lets go of the first.)
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from rayshim.adapters.shm.mapping import Mapping
from rayshim.adapters.shm.viewtable import ViewTable

_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
_untrack.argtypes = [ctypes.py_object]
_untrack.restype = None


def _finalize(lease: Any) -> None:
    # A forked child inherits views, but their end is the parent's to report.
    if lease.process_id == os.getpid():
        lease.table.leave(lease.slot)
        lease.on_release()


@lru_cache(maxsize=512)
def _lease_class(size_bytes: int) -> Any:
    """An array class of one length; capacities come in few classes."""
    members = {
        "_type_": ctypes.c_ubyte,
        "_length_": size_bytes,
        "__del__": _finalize,
        "process_id": 0,  # until it is complete
    }
    metaclass: Any = type(ctypes.Array)
    return metaclass("Lease", (ctypes.Array,), members)


def open_view(
    mapping: Mapping, table: ViewTable, word: int, on_release: Callable[[], None]
) -> memoryview:
    """A read-only view of the whole mapping, to be sliced.

    Args:
        mapping: stays mapped while the view or anything built on it lives.
        table: lists the view while it lives ...
        word: ... under this fingerprint.
        on_release: called once, in whichever thread drops the last view, possibly
            inside a garbage collection: it must not take locks.
    """
    lease = _lease_class(mapping.size_bytes).from_address(mapping.address)
    lease.mapping = mapping
    lease.on_release = on_release
    lease.table = table
    lease.slot = table.enter(word)
    lease.process_id = os.getpid()
    # The cycle collector runs finalizers before it knows that garbage stays
    # garbage: a __del__ elsewhere in a cycle could still read the memory after
    # on_release, when it may already hold another value. An object that the
    # collector does not track ends by its reference count alone, after all of its
    # views. It refers to no cycle itself, so nothing leaks.
    _untrack(lease)
    return memoryview(lease).cast("B").toreadonly()
