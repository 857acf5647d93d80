"""ObjectRef: the handle of a value that may not exist yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from operator import attrgetter
from types import GenericAlias
from typing import Any, NoReturn

from rayshim._core import current
from rayshim._core.serialization import collector
from rayshim.lineage.ids import ObjectID

#: Ids whose last use in this process ended somewhere; ``__del__`` may run at any
#: point of any thread, so it does nothing but append here.
dropped: deque[bytes] = deque()
#: The bytes of a reference's id; in C, since lists of references may be long.
bytes_of = attrgetter("_bytes")


class ObjectRef(ObjectID):
    """A reference to a value, made by ``.remote()`` and :func:`rayshim.put`.

    Compares and hashes by id. ``await ref`` and :meth:`future` give its value; while
    any reference exists, the value is kept.

    Example:
        >>> import rayshim as ray
        >>> ref = ray.put(3)  # doctest: +SKIP
        >>> ray.get(ref)  # doctest: +SKIP
        3
    """

    __slots__ = ("_owner",)

    __class_getitem__: Any = classmethod(GenericAlias)

    def __init__(self, id_bytes: bytes, owner: str = "") -> None:
        # The hot path makes references by the thousand: super() only to complain.
        if type(id_bytes) is not bytes or len(id_bytes) != 28:
            self._bytes = b""
            super().__init__(id_bytes)
        self._bytes = id_bytes
        #: Address of the owner; empty when it is this process.
        self._owner = owner

    def __del__(self, _append: Callable[[bytes], None] = dropped.append) -> None:
        _append(self._bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        refs = collector.refs
        peer = current.peer
        if refs is not None:
            refs.append(self)
        elif peer is not None:
            peer.objects.pin_out_of_band(self._bytes)
        owner = self._owner or (peer.address if peer is not None else "")
        return rebuild, (self._bytes, owner)

    def __repr__(self) -> str:
        return f"ObjectRef({self._bytes.hex()})"

    def __iter__(self) -> NoReturn:
        raise TypeError("'ObjectRef' object is not iterable: call get() on it first")

    def __await__(self) -> Generator[Any, None, Any]:
        return self.as_future().__await__()

    def future(self) -> Future[Any]:
        """A ``concurrent.futures.Future`` of the value, errors included."""
        return current.require_peer().reader.future(self)

    def as_future(self, _internal: bool = False) -> asyncio.Future[Any]:
        """An ``asyncio.Future`` of the value in the running event loop."""
        return current.require_peer().reader.asyncio_future(self)

    def _on_completed(self, callback: Callable[[Any], None]) -> None:
        def ended(future: Future[Any]) -> None:
            error = future.exception()
            callback(error if error is not None else future.result())

        self.future().add_done_callback(ended)

    def call_site(self) -> str:
        """``file.py:12`` of the code that made the reference, where recorded."""
        return current.require_peer().objects.call_site(self._bytes)

    def owner_address(self) -> str:
        """Address of the process that owns the object."""
        peer = current.peer
        return self._owner or (peer.address if peer is not None else "")


def rebuild(id_bytes: bytes, owner: str) -> ObjectRef:
    """Unpickle a reference: the process becomes a borrower if it is not one."""
    peer = current.peer
    if peer is None:
        return ObjectRef(id_bytes, owner)
    return peer.objects.adopt(id_bytes, owner)
