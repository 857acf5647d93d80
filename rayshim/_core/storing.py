"""Large values on their way into the store of this node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rayshim import exceptions
from rayshim._core.serialization import Serialized
from rayshim.adapters.wire import messages as m

if TYPE_CHECKING:
    from rayshim._core.objects import ObjectPlane
    from rayshim._core.peer import Peer

#: A value that finds the store full waits this long for dropped references.
ROOM_WAIT_S = 2.0
ROOM_POLL_S = 0.05


class SegmentWriter:
    """Writes values into segments, and waits for room."""

    def __init__(self, peer: Peer, objects: ObjectPlane) -> None:
        self._peer = peer
        self._objects = objects

    def write(self, serialized: Serialized) -> m.Segment:
        """Store a large value, waiting a little for room.

        Dropped references are noticed by sweeps, here and in other processes, so a
        store that looks full may not be.

        Raises:
            ObjectStoreFullError: there was no room in time.
        """
        store = self._peer.store
        deadline = time.monotonic() + ROOM_WAIT_S
        while True:
            try:
                return store.write(serialized.stream, serialized.buffers)
            except exceptions.ObjectStoreFullError:
                if time.monotonic() >= deadline:
                    raise
            self._objects.collect()
            time.sleep(ROOM_POLL_S)
