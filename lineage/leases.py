"""The things that the lease machine of a node keeps, and their states."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING

from rayshim.lineage import lease_events as ev
from rayshim.lineage.lease_events import BundlesRequested, EnvKey, LeaseRequested
from rayshim.lineage.resources import Allocation, ResourceSet, Units

if TYPE_CHECKING:
    from rayshim.lineage.shares import ClassShare

#: Resource need, placement group, bundle: what decides whether a request fits.
Shape = tuple[tuple[tuple[str, int], ...], bytes, int]

#: Finished lease ids and removed groups that are remembered against late messages.
REMEMBERED = 4096
#: More hops than a request may have.
NEVER_AGAIN = 1 << 62
#: Hops with which the next life of the control service asks for what it did not hear
#: of any more; a life sends a request to fewer nodes than that.
LIFE_HOPS = 1 << 20


class LeaseState(Enum):
    """States of a lease."""

    UNKNOWN = 0
    WAITING = 1
    STARTING = 2
    GRANTED = 3
    FINISHED = 4
    FORWARDED = 5


class ExecutorState(Enum):
    """States of an executor."""

    ABSENT = 0
    STARTING = 1
    IDLE = 2
    LEASED = 3
    LEAVING = 4


class Asked(Enum):
    """How the holder of a lease was asked to give it back."""

    NOT = 0
    IF_IDLE = 1
    IN_FULL = 2


class Lease:
    """A lease that is not finished."""

    __slots__ = (
        "allocation",
        "asked_back",
        "began_s",
        "executor",
        "is_asked_elsewhere",
        "is_lent",
        "note",
        "number",
        "request",
        "shape",
        "share",
        "since_s",
        "source",
        "state",
    )

    def __init__(self, request: LeaseRequested, number: int, now: float) -> None:
        self.request = request
        self.state = LeaseState.WAITING
        #: Arrival number, unique on this node.
        self.number = number
        self.shape: Shape = (
            tuple(sorted(request.need.items())),
            request.group,
            request.bundle,
        )
        #: Time of the last change of state.
        self.since_s = now
        #: The control service looks for another node meanwhile.
        self.is_asked_elsewhere = False
        #: What it holds and of which set; None exactly in WAITING and FORWARDED.
        self.allocation: Allocation | None = None
        self.source: ResourceSet | None = None
        #: Set exactly in GRANTED.
        self.executor: Executor | None = None
        #: Its class; None exactly in FORWARDED.
        self.share: ClassShare | None = None
        #: When it got its resources, and whether its CPUs are lent now.
        self.began_s = 0.0
        self.is_lent = False
        self.asked_back = Asked.NOT
        #: In GRANTED, what the shell does before it tells the holder; for people.
        self.note = ""


class Reservation:
    """A placement group that waits for its bundles."""

    __slots__ = (
        "attempt",
        "bundles",
        "group",
        "indexes",
        "need",
        "number",
        "shape",
        "since_s",
    )

    def __init__(self, event: BundlesRequested, number: int, now: float) -> None:
        self.group = event.group
        self.attempt = event.attempt
        self.bundles = event.bundles
        self.indexes = event.indexes or tuple(range(len(event.bundles)))
        self.number = number
        self.since_s = now
        self.need: Units = {}
        for bundle in event.bundles:
            for name, units in bundle.items():
                self.need[name] = self.need.get(name, 0) + units
        self.shape: Shape = (tuple(sorted(self.need.items())), event.group, -2)


class Bundle:
    """A reserved bundle."""

    __slots__ = ("allocation", "resources")

    def __init__(self, allocation: Allocation) -> None:
        #: What the bundle holds of the node.
        self.allocation = allocation
        #: The same, for the leases inside.
        self.resources = ResourceSet(allocation.units, allocation.gpus)


class Executor:
    """An executor process."""

    __slots__ = (
        "address",
        "env",
        "is_blocked",
        "job_id",
        "lease",
        "pid",
        "since_s",
        "state",
        "worker_id",
    )

    def __init__(self, worker_id: bytes, now: float) -> None:
        self.worker_id = worker_id
        self.state = ExecutorState.STARTING
        self.address = ""
        self.pid = 0
        #: Empty until the first lease, then fixed together with ``env``.
        self.job_id = b""
        self.env: EnvKey = ()
        #: Set exactly in LEASED.
        self.lease: Lease | None = None
        self.is_blocked = False
        self.since_s = now


def grant(lease: Lease) -> ev.GrantLease:
    """Tells the holder of a lease in GRANTED what it got."""
    executor, allocation = lease.executor, lease.allocation
    assert executor is not None and allocation is not None
    return ev.GrantLease(
        lease.request.lease_id,
        lease.request.holder,
        executor.worker_id,
        executor.address,
        executor.pid,
        allocation.units,
        allocation.gpu_ids,
    )


def removed(request: LeaseRequested) -> ev.RejectLease:
    """Tells a holder that the placement group is gone."""
    reason = f"the placement group of {request.label} was removed"
    return ev.RejectLease(request.lease_id, request.holder, reason, "removed")


def remember(
    ids: OrderedDict[bytes, int], new_id: bytes, hops: int = NEVER_AGAIN
) -> None:
    """Notes an id that is over, and forgets the oldest."""
    ids[new_id] = hops
    if len(ids) > REMEMBERED:
        ids.popitem(last=False)
