"""Large values on their way out of the store: mapped, where they are at hand."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core.refs import dropped
from rayshim._core.serialization import deserialize
from rayshim.adapters.wire import messages as m

if TYPE_CHECKING:
    from rayshim._core.objects import ObjectPlane
    from rayshim._core.peer import Peer


class SegmentReader:
    """Reads values from segments."""

    def __init__(self, peer: Peer, objects: ObjectPlane) -> None:
        self._peer = peer
        self._objects = objects

    def read(self, object_id: bytes, payload: m.Payload) -> Any:
        """Map a large value; it stays in use while a view of it lives.

        Raises:
            ObjectLostError: the file is gone.
        """
        segment = payload.segment
        assert segment is not None
        if dropped:
            # Segments that go back now are written again while they are in the cache.
            self._objects.collect()
        with self._peer.lock:
            self._objects.table.hold(object_id)
        release = functools.partial(dropped.append, object_id)
        try:
            stream, buffers = self._peer.store.read(segment, release)
        except FileNotFoundError:
            release()
            raise exceptions.ObjectLostError(
                object_id.hex(), segment.creator, self._objects.call_site(object_id)
            ) from None
        try:
            return deserialize(stream, buffers)
        finally:
            del stream, buffers
