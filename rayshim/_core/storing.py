"""Large values on their way into the store of this node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayshim import exceptions
from rayshim._core.serialization import Serialized
from rayshim.adapters.wire import messages as m

if TYPE_CHECKING:
    from rayshim._core.objects import ObjectPlane
    from rayshim._core.peer import Peer

#: Other writers may take the room that was made; then it is asked for again.
ATTEMPTS = 20


class SegmentWriter:
    """Writes values into segments, and has room made for them."""

    def __init__(self, peer: Peer, objects: ObjectPlane) -> None:
        self._peer = peer
        self._objects = objects

    def write_if_large(self, serialized: Serialized, owner: str) -> m.Segment | None:
        """Store a value that is too large for messages; not under the lock."""
        if serialized.total_bytes <= self._peer.settings.inline_limit_bytes:
            return None
        return self.write(serialized, owner)

    def write(self, serialized: Serialized, owner: str = "") -> m.Segment:
        """Store a large value; on disk if everything in memory is in use.

        Not under the lock: the raylet may have to be waited for.

        Args:
            serialized: the value.
            owner: address of its owner; empty: this process.

        Raises:
            ObjectStoreFullError: everything is in use and nothing may be spilled.
            OutOfDiskError: the disk takes no more either.
        """
        store = self._peer.store
        try:
            return store.write(serialized.stream, serialized.buffers, owner)
        except exceptions.ObjectStoreFullError:
            # Dropped references are noticed by sweeps: look now, then ask.
            self._objects.collect()
        # No error is kept in a variable: its traceback would keep the caller's frames.
        for attempt in range(ATTEMPTS):
            try:
                return store.write(serialized.stream, serialized.buffers, owner)
            except exceptions.ObjectStoreFullError:
                if attempt == ATTEMPTS - 1:
                    raise
            outside = self._peer.store_client.make_room(serialized.total_bytes)
            if outside:
                return self._write_outside(outside, serialized, owner)
        raise AssertionError("the last attempt returns or raises")

    def _write_outside(
        self, folder: str, serialized: Serialized, owner: str
    ) -> m.Segment:
        try:
            return self._peer.store.write_outside(
                folder, serialized.stream, serialized.buffers, owner
            )
        except OSError as error:
            raise exceptions.OutOfDiskError(
                f"cannot store a value of {serialized.total_bytes:,} bytes: the object "
                f"store of this node is full, and writing to {folder} failed: {error}. "
                "Drop references or free disk space."
            ) from error
