"""The limits of a node's store: room for writers, spilling, restoring."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rayshim.lineage.store_policy import Copies

if TYPE_CHECKING:
    from rayshim.adapters.raylet.server import NodeServer


class StoreFull(Exception):
    """No room could be made; the text says why."""


class StoreService:
    """Keeps a store within its limit; one instance for each node.

    What other services use (on the loop unless said otherwise)::

        await store.reserve(size_bytes)         # room for a file about to be written
        ... write STORE_DIR/o-HEX.w, rename it to o-HEX ...
        store.copy_made(object_id, "o-HEX", size_bytes, pinned_by=peer_address)
        store.unreserve(size_bytes)             # in any case, after that
    """

    def __init__(self, server: NodeServer) -> None:
        self._server = server
        self._folder = server.config.store_dir
        self.copies = Copies()

    async def reserve(self, size_bytes: int) -> None:
        """Make room, and keep it for a file that is about to be written.

        Raises:
            StoreFull: there is none to be made.
        """

    def unreserve(self, size_bytes: int) -> None:
        """Give up what :meth:`reserve` kept: the file counts itself, or failed."""

    def copy_made(
        self, object_id: bytes, name: str, size_bytes: int, *, pinned_by: str = ""
    ) -> None:
        """A pulled copy is complete."""
        now = self._server.now()
        self.copies.add(object_id, name, size_bytes, pinned_by, now)

    def pin_copy(self, object_id: bytes, peer: str) -> str | None:
        """Pin a copy that is here already: its name, or None if it is not."""
        return self.copies.pin(object_id, peer, self._server.now())

    def unpin(self, object_ids: Iterable[bytes], peer: str) -> None:
        """``peer`` reads these copies no more."""
        self._remove(self.copies.unpin(object_ids, peer))

    def free_copies(self, object_ids: Iterable[bytes]) -> None:
        """The owner freed these objects; what is still pinned goes at its unpin."""
        self._remove(self.copies.free(object_ids))

    def open_for_sending(self, name: str) -> int:
        """A descriptor for the content of a value, in memory or spilled.

        From any thread; it stays readable if the value is spilled or freed meanwhile.

        Raises:
            FileNotFoundError: the node has no such value.
        """
        return os.open(f"{self._folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                os.unlink(f"{self._folder}/{name}")
            except FileNotFoundError:
                continue
