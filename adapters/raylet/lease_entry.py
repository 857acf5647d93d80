"""A lease that the head was asked for."""

from __future__ import annotations

from collections.abc import Hashable

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
        "is_patient",
        "is_stuck",
        "kind",
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
        #: It waits where it is while there is room nowhere.
        self.is_patient = False
        self.kind: Hashable = ()
        self.shape: Hashable = ()

    def sort_in(self) -> None:
        """Computes kind and shape.

        Of two entries of one kind none finds room if there is none for the other one
        anywhere; of two that have the shape in common, too, none or both find room.
        """
        request = self.request
        self.kind = (
            tuple(sorted(self.need.items())),
            request.placement_group,
            request.bundle_index,
            tuple(request.nodes),
            request.soft,
            request.strategy,
            tuple(tuple(one.items()) for one in request.labels),
            self.is_patient,
        )
        self.shape = (
            self.asker,
            self.is_away,
            self.home,
            self.node,
            tuple(self.left.items()),
            request.label,
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
