"""Segments of this process that hold nothing and wait for reuse."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from rayshim.adapters.shm.layout import capacity_for


@dataclass(slots=True)
class Owned:
    """A segment file made by this process."""

    name: str
    #: Length of the file, bytes.
    capacity: int
    #: Bytes from the start whose pages are allocated; the rest is a hole.
    filled_bytes: int
    #: How often it was written anew.
    reuses: int = 0
    #: Address of its value's owner.
    owner: str = ""


class FreeList:
    """Free segments by capacity, the most recently used first.

    Not thread-safe: the store's lock guards it.
    """

    def __init__(self) -> None:
        """Starts empty."""
        #: capacity -> free segments of it by name, in order of their release.
        self._classes: dict[int, OrderedDict[str, Owned]] = {}
        #: All names with their capacity, in order of release: the oldest first.
        self._order: OrderedDict[str, int] = OrderedDict()
        #: Memory taken by all of them.
        self.filled_bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    def push(self, owned: Owned) -> None:
        """Adds a segment."""
        same = self._classes.setdefault(owned.capacity, OrderedDict())
        same[owned.name] = owned
        self._order[owned.name] = owned.capacity
        self.filled_bytes += owned.filled_bytes

    def take(self, size_bytes: int) -> Owned | None:
        """Removes the best segment for a value, at most 25 % above its class."""
        wanted = capacity_for(size_bytes)
        limit = wanted + wanted // 4
        fits = [held for held in self._classes if wanted <= held <= limit]
        if not fits:
            return None
        same = self._classes[min(fits)]
        return self._remove(next(reversed(same)), min(fits))

    def evict(self) -> Owned | None:
        """Removes the one that is free for the longest time."""
        if not self._order:
            return None
        name, capacity = next(iter(self._order.items()))
        return self._remove(name, capacity)

    def _remove(self, name: str, capacity: int) -> Owned:
        same = self._classes[capacity]
        owned = same.pop(name)
        if not same:
            del self._classes[capacity]
        del self._order[name]
        self.filled_bytes -= owned.filled_bytes
        return owned
