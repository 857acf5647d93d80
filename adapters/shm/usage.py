"""How full a node's store folder is, as one process sees it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

#: The count of used bytes is taken anew after this time.
USAGE_AGE_S = 1.0


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What one process's store holds and did."""

    #: Segments of this process that hold a value, and the memory they take.
    live_segments: int
    live_bytes: int
    #: Segments of this process that wait for reuse.
    free_segments: int
    free_bytes: int
    #: Mappings of this process, own and foreign.
    mappings: int
    mapped_bytes: int
    #: Values written into new files, and into recycled ones.
    fresh_writes: int
    recycled_writes: int


class Usage:
    """Memory of a store folder against its limit."""

    def __init__(self, folder: str, limit_bytes: int) -> None:
        """Counts at the first question; ``limit_bytes`` 0: no limit."""
        self._folder = folder
        self.limit_bytes = limit_bytes
        self._used_bytes = 0
        self._used_until = 0.0

    def has_room(self, size_bytes: int) -> bool:
        """Whether the limit, if there is one, leaves room for new memory."""
        if not self.limit_bytes:
            return True
        now = time.monotonic()
        if now >= self._used_until or self._used_bytes + size_bytes > self.limit_bytes:
            self._used_bytes = count_used(self._folder)
            taken = time.monotonic() - now
            # A folder with very many files is not counted all the time.
            self._used_until = now + max(USAGE_AGE_S, 20 * taken)
        if self._used_bytes + size_bytes > self.limit_bytes:
            return False
        self._used_bytes += size_bytes
        return True

    def gave(self, size_bytes: int) -> None:
        """Memory was given back."""
        self._used_bytes = max(0, self._used_bytes - size_bytes)

    def total_and_available(self) -> tuple[int, int]:
        """Size of the store and what is left of it, bytes; (1, 0) once it is gone."""
        try:
            about = os.statvfs(self._folder)
        except FileNotFoundError:
            return 1, 0  # the session ended: nothing is worth keeping
        total = about.f_blocks * about.f_frsize
        available = about.f_bavail * about.f_frsize
        if self.limit_bytes:
            total = min(total, self.limit_bytes)
            available = min(available, max(0, self.limit_bytes - self._used_bytes))
        return total, available


def count_used(folder: str) -> int:
    """Memory taken by all files of a store, bytes."""
    used = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                used += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:  # removed meanwhile
                continue
    return used
