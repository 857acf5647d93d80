"""The order in which leases that need a node get one."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterator

from rayshim.adapters.raylet.lease_entry import LeaseEntry

#: Priority, then lease id.
_Due = tuple[tuple[int, int], bytes]


class _Kind:
    """The entries of one kind."""

    __slots__ = ("heads", "key", "shapes")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        #: Shape -> itself, so that entries share it, and its entries, sorted; none is
        #: empty.
        self.shapes: dict[Hashable, tuple[Hashable, list[_Due]]] = {}
        #: The first one of each shape, sorted.
        self.heads: list[_Due] = []

    def add(self, shape: Hashable, due: _Due) -> Hashable:
        """Sorts an entry in; its shape."""
        shape, queue = self.shapes.setdefault(shape, (shape, []))
        if not queue or due < queue[0]:
            if queue:
                del self.heads[bisect_left(self.heads, queue[0])]
            insort(self.heads, due)
        insort(queue, due)
        return shape

    def remove(self, shape: Hashable, due: _Due) -> None:
        """Takes an entry out."""
        queue = self.shapes[shape][1]
        at = bisect_left(queue, due)
        del queue[at]
        if at == 0:
            del self.heads[bisect_left(self.heads, due)]
            if queue:
                insort(self.heads, queue[0])
            else:
                del self.shapes[shape]

    def after(self, due: _Due) -> _Due | None:
        """The next one whose turn is later."""
        at = bisect_right(self.heads, due)
        return self.heads[at] if at < len(self.heads) else None


class LeaseQueue:
    """The entries that need a node, by priority; each shape is tried once in a pass.

    When one of a kind finds no room, it is asked first whether there is some for the
    next shape of that kind: so a pass over a full cluster costs the kinds, however
    many nodes ask.
    """

    def __init__(self) -> None:
        #: Key -> kind; none is empty.
        self._kinds: dict[Hashable, _Kind] = {}
        #: Lease id -> its place.
        self._places: dict[bytes, tuple[_Kind, Hashable, _Due]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def __contains__(self, lease_id: object) -> bool:
        return lease_id in self._places

    def add(self, entry: LeaseEntry) -> None:
        """An entry needs a node."""
        lease_id = entry.request.lease_id
        self.remove(lease_id)
        entry.sort_in()
        kind = self._kinds.get(entry.kind)
        if kind is None:
            kind = self._kinds[entry.kind] = _Kind(entry.kind)
        entry.kind = kind.key  # so that they share it
        due = (entry.priority, lease_id)
        entry.shape = kind.add(entry.shape, due)
        self._places[lease_id] = (kind, entry.shape, due)

    def remove(self, lease_id: bytes) -> None:
        """An entry needs none any more."""
        place = self._places.pop(lease_id, None)
        if place is None:
            return
        kind, shape, due = place
        kind.remove(shape, due)
        if not kind.shapes:
            del self._kinds[kind.key]

    def counts(self) -> Iterator[tuple[bytes, int]]:
        """The first entry of each shape, and how many there are."""
        for kind in self._kinds.values():
            for _, queue in kind.shapes.values():
                yield queue[0][1], len(queue)

    def try_all(
        self, try_one: Callable[[bytes], bool], may_fit: Callable[[bytes], bool]
    ) -> None:
        """Offers the first of each shape, and the next one if something came of it.

        Args:
            try_one: False if there was no room; else it has removed the entry.
            may_fit: False if there is room for none of the entry's kind.
        """
        turns = [
            (kind.heads[0], place, kind)
            for place, kind in enumerate(self._kinds.values())
        ]
        heapq.heapify(turns)
        checked: set[_Kind] = set()
        while turns:
            due, place, kind = turns[0]
            lease_id = due[1]
            if lease_id in self._places:
                if kind not in checked and not may_fit(lease_id):
                    heapq.heappop(turns)
                    continue
                checked.add(kind)
                if not try_one(lease_id):
                    checked.discard(kind)
            following = kind.after(due)
            if following is None:
                heapq.heappop(turns)
            else:
                heapq.heapreplace(turns, (following, place, kind))
