"""Requests for leases as the head keeps them, and the order in which they get nodes."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable

from rayshim.adapters.wire import messages as wire
from rayshim.lineage.leases import LIFE_HOPS
from rayshim.lineage.resources import Units, to_units


class LeaseEntry:
    """A lease that the head was asked for, until it ends.

    Its states are those of its task in Dask's scheduler (:attr:`state`).
    """

    __slots__ = (
        "asker",
        "bundle",
        "has_arrived",
        "home",
        "hops",
        "is_away",
        "is_followed",
        "is_granted",
        "is_moving",
        "is_stuck",
        "left",
        "need",
        "node",
        "priority",
        "request",
        "sent_s",
        "shape",
        "since_s",
        "takes_room",
    )

    def __init__(
        self,
        request: wire.RequestLease,
        asker: str,
        home: str,
        since_s: float,
        number: int,
    ) -> None:
        self.request = request
        self.need: Units = to_units(request.resources)
        #: Node whose raylet asks; empty for an actor.
        self.asker = asker
        #: Node that is preferred.
        self.home = home
        #: The asking raylet may be the answer.
        self.is_away = False
        self.since_s = since_s
        #: What gets a node first.
        self.priority = (0, number)
        #: Node that it was sent to; empty while it is only here.
        self.node = ""
        #: Hops that the request has at that node.
        self.hops = request.hops
        self.sent_s = since_s
        #: The node said that it came.
        self.has_arrived = False
        #: The node cannot grant it now.
        self.is_stuck = False
        self.is_granted = False
        #: It was taken back (an actor's), to go elsewhere.
        self.is_moving = False
        #: Its asker says what becomes of it there.
        self.is_followed = False
        #: Node that could not grant it -> how often it had told its load by then.
        self.left: dict[str, int] = {}
        #: Bundle that was chosen for it: (group, index).
        self.bundle: tuple[bytes, int] | None = None
        #: Room on the chosen node was taken for it.
        self.takes_room = False
        self.shape: Hashable = ()
        self.sort_in()

    def sort_in(self) -> None:
        """Computes the shape: of two entries with one shape, none or both have room."""
        request = self.request
        self.shape = (
            tuple(sorted(self.need.items())),
            request.placement_group,
            request.bundle_index,
            tuple(request.nodes),
            request.soft,
            request.strategy,
            tuple(tuple(one.items()) for one in request.labels),
            self.asker,
            self.home,
            self.node,
            tuple(self.left.items()),
        )

    @property
    def state(self) -> str:
        """``no-worker``, ``processing`` (sent to a node) or ``long-running``."""
        if not self.node:
            return "no-worker"
        return "long-running" if self.is_granted else "processing"

    @property
    def moves(self) -> int:
        """How often it went to a node."""
        return self.hops % LIFE_HOPS

    @property
    def looks(self) -> bool:
        """Whether it needs a node, or another one."""
        return not self.is_moving and (not self.node or self.is_stuck)


class LeaseQueue:
    """The entries that need a node, by priority; each shape is tried once in a pass."""

    def __init__(self) -> None:
        #: Shape -> (priority, lease id), sorted; none is empty.
        self._shapes: dict[Hashable, list[tuple[tuple[int, int], bytes]]] = {}
        #: Each shape that has entries, so that they share it.
        self._known: dict[Hashable, Hashable] = {}
        #: Lease id -> its place.
        self._places: dict[bytes, tuple[Hashable, tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, entry: LeaseEntry) -> None:
        """An entry needs a node."""
        lease_id = entry.request.lease_id
        self.remove(lease_id)
        entry.sort_in()
        entry.shape = self._known.setdefault(entry.shape, entry.shape)
        queue = self._shapes.setdefault(entry.shape, [])
        insort(queue, (entry.priority, lease_id))
        self._places[lease_id] = (entry.shape, entry.priority)

    def remove(self, lease_id: bytes) -> None:
        """An entry needs none any more."""
        place = self._places.pop(lease_id, None)
        if place is None:
            return
        shape, priority = place
        queue = self._shapes[shape]
        del queue[bisect_left(queue, (priority, lease_id))]
        if not queue:
            del self._shapes[shape]
            del self._known[shape]

    def try_all(self, try_one: Callable[[bytes], bool]) -> None:
        """Offers the first of each shape, and the next one if something came of it.

        Args:
            try_one: False if there was no room; else it has removed the entry.
        """
        heads = [
            (queue[0], place, shape)
            for place, (shape, queue) in enumerate(self._shapes.items())
        ]
        heapq.heapify(heads)
        while heads:
            (_, lease_id), place, shape = heads[0]
            found = try_one(lease_id)
            queue = self._shapes.get(shape)
            if not found or not queue or queue[0][1] == lease_id:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (queue[0], place, shape))
