"""Results of Dask workers in the shared store.

A worker keeps what is large as an object of its session (`SharedValue`), and sends the
reference to whoever asks: other workers and clients see the same memory, or fetch it
between nodes as any object.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any

from dask.sizeof import sizeof

from rayshim._core import current
from rayshim._core.api import get, put
from rayshim._core.refs import ObjectRef, rebuild

#: From this size on a result is an object in the store, in bytes.
SHARED_BYTES = 100_000
#: Seconds that a reference which was sent is held after Dask forgot its key: until
#: then who got it has told the owner.
_HOLD_S = 10.0

#: True in the process of a worker, which stores what it receives as it is.
_keeps_references = False
#: True while values are read in order to be sent.
_sending: ContextVar[bool] = ContextVar("rayshim_dask_sending", default=False)


class SharedValue:
    """Stands for a value that is an object in the store.

    Args:
        ref: the object.
        size_bytes: size of the value as Dask counts it.
    """

    __slots__ = ("ref", "size_bytes")

    def __init__(self, ref: ObjectRef, size_bytes: int) -> None:
        self.ref = ref
        self.size_bytes = size_bytes

    def __sizeof__(self) -> int:
        return self.size_bytes

    def __reduce__(self) -> tuple[Any, ...]:
        # Not the reference itself: that would be held until the session ends. The
        # sender holds it for as long as the receiver needs to borrow it.
        peer = current.peer
        owner = self.ref._owner or (peer.address if peer is not None else "")
        return _received, (self.ref._bytes, owner, self.size_bytes)


def _received(id_bytes: bytes, owner: str, size_bytes: int) -> Any:
    """What a shared value is to who unpickles it: the value, but for workers."""
    shared = SharedValue(rebuild(id_bytes, owner), size_bytes)
    if _keeps_references or current.peer is None:
        return shared
    return get(shared.ref)


@sizeof.register(SharedValue)  # type: ignore[untyped-decorator]
def _size_of_shared(value: SharedValue) -> int:
    return value.size_bytes


def keep_references() -> None:
    """Say that this is the process of a worker."""
    global _keeps_references
    _keeps_references = True


@contextlib.contextmanager
def as_references() -> Iterator[None]:
    """Within this, `SharedData` gives references."""
    token = _sending.set(True)
    try:
        yield
    finally:
        _sending.reset(token)


class SharedData(MutableMapping[Any, Any]):
    """What a Dask worker holds, by key: values that are small, and shared ones."""

    def __init__(self) -> None:
        self._held: dict[Any, Any] = {}
        self._sent: set[Any] = set()
        #: (when, value) of what was sent and is forgotten.
        self._leaving: deque[tuple[float, SharedValue]] = deque()

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(value, (SharedValue, ObjectRef)):
            size_bytes = sizeof(value)
            if size_bytes >= SHARED_BYTES:
                value = SharedValue(put(value), size_bytes)
        self._held[key] = value
        self._let_go()

    def __getitem__(self, key: Any) -> Any:
        value = self._held[key]
        if not isinstance(value, SharedValue):
            return value
        if _sending.get():
            self._sent.add(key)
            return value
        return get(value.ref)

    def __delitem__(self, key: Any) -> None:
        value = self._held.pop(key)
        if key in self._sent:
            self._sent.discard(key)
            self._leaving.append((time.monotonic(), value))
        self._let_go()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def reference(self, key: Any) -> ObjectRef:
        """The object of a key; one is made of a small value."""
        value = self._held[key]
        if isinstance(value, SharedValue):
            return value.ref
        return value if isinstance(value, ObjectRef) else put(value)

    def _let_go(self) -> None:
        horizon = time.monotonic() - _HOLD_S
        while self._leaving and self._leaving[0][0] < horizon:
            self._leaving.popleft()
