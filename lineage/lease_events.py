"""What the lease machine of a node takes in and gives out.

Events are facts that happened; commands are wishes that the node process carries
out. Ids are raw bytes, ``holder`` is the address of the process that asked (or, for
an actor, a name that only the node process knows).
"""

from __future__ import annotations

from typing import NamedTuple

from rayshim.lineage.resources import Units

EnvKey = tuple[tuple[str, str], ...]


class LeaseRequested(NamedTuple):
    """A holder asks for an executor; ``fixed`` leases (actors) are never reclaimed."""

    lease_id: bytes
    holder: str
    job_id: bytes
    label: str
    need: Units
    env: EnvKey = ()
    group: bytes = b""
    bundle: int = -1
    fixed: bool = False
    #: Only the control service can say which node may grant it.
    is_away: bool = False
    #: Nodes that passed the request on before.
    hops: int = 0
    #: What the shell passes on (opaque here).
    cargo: object = None
    #: What runs on it may be run again: killed first when memory runs out.
    retriable: bool = True
    #: Calls that its holder has queued in all.
    backlog: int = 0
    #: What it rebuilds was lost, and is waited for.
    urgent: bool = False


class LeaseCancelled(NamedTuple):
    """The holder wants the lease no more, if it is not granted yet."""

    lease_id: bytes


class LeaseSpilled(NamedTuple):
    """The control service found room on another node."""

    lease_id: bytes
    address: str


class LeaseAdmitted(NamedTuple):
    """The control service chose this node."""

    lease_id: bytes


class LeaseRefused(NamedTuple):
    """No node will ever grant it."""

    lease_id: bytes
    reason: str
    kind: str = "infeasible"


class LeaseReturned(NamedTuple):
    """The holder gives the executor back."""

    lease_id: bytes
    dispose: bool = False


class LeaseShrunk(NamedTuple):
    """The lease needs only ``need`` from now on."""

    lease_id: bytes
    need: Units


class LeaseKilled(NamedTuple):
    """The holder wants the executor of its lease dead."""

    lease_id: bytes


class BacklogTold(NamedTuple):
    """The holder of a lease or request has ``backlog`` calls queued for its class."""

    lease_id: bytes
    backlog: int


class ExecutorReady(NamedTuple):
    """A forked executor reported."""

    worker_id: bytes
    address: str
    pid: int


class ExecutorExited(NamedTuple):
    """The process of an executor is gone."""

    worker_id: bytes
    reason: str
    exit_code: int
    out_of_memory: bool = False


class ExecutorBlocked(NamedTuple):
    """The executor's call waits (or waits no more) for an object."""

    worker_id: bytes
    blocked: bool


class HolderGone(NamedTuple):
    """A peer closed its channel: it holds and wants nothing any more."""

    holder: str


class JobEnded(NamedTuple):
    """A job's driver is gone."""

    job_id: bytes


class BundlesRequested(NamedTuple):
    """A placement group wants bundles on this node, all or none.

    ``indexes`` number the bundles in their group; without them they are 0, 1, ...
    """

    group: bytes
    bundles: tuple[Units, ...]
    indexes: tuple[int, ...] = ()
    #: False: answer at once, with a refusal if they do not fit now.
    is_patient: bool = True
    #: Which try of the group this is.
    attempt: int = 0


class ReservationExpired(NamedTuple):
    """A placement group waits no more for the bundles of one try."""

    group: bytes
    attempt: int = 0


class BundlesReturned(NamedTuple):
    """A placement group takes these bundles elsewhere; nothing runs in them."""

    group: bytes
    indexes: tuple[int, ...]


class BundlesRemoved(NamedTuple):
    """A placement group is gone, and with it the leases inside."""

    group: bytes


class Draining(NamedTuple):
    """The node will leave: it grants nothing any more."""


class DrainGivenUp(NamedTuple):
    """The node stays after all, and grants again."""


class TimePassed(NamedTuple):
    """Looks at limits of time."""


class GrantLease(NamedTuple):
    """Tell the holder which executor is its own."""

    lease_id: bytes
    holder: str
    worker_id: bytes
    address: str
    pid: int
    units: Units
    gpu_ids: list[int]


class RejectLease(NamedTuple):
    """Tell the holder that it gets no executor."""

    lease_id: bytes
    holder: str
    reason: str
    kind: str
    #: For "spillback": the raylet to ask instead.
    spill_to: str = ""
    hops: int = 0


class AskElsewhere(NamedTuple):
    """Ask the control service who can grant it."""

    lease_id: bytes
    cargo: object


class AskNoMore(NamedTuple):
    """The control service need not look for it any more."""

    lease_id: bytes


class AskBack(NamedTuple):
    """Tell the holder that somebody waits for what it holds."""

    lease_id: bytes
    holder: str
    #: It may keep the lease as long as it has calls for it.
    if_idle: bool = False


class ReportLost(NamedTuple):
    """Tell the holder that its executor is gone."""

    lease_id: bytes
    holder: str
    reason: str
    exit_code: int
    out_of_memory: bool
    kind: str


class StartExecutor(NamedTuple):
    """Fork an executor."""

    worker_id: bytes


class InterruptExecutor(NamedTuple):
    """Ask an executor to leave."""

    worker_id: bytes
    reason: str


class EndExecutor(NamedTuple):
    """Kill an executor."""

    worker_id: bytes


class ReportBundles(NamedTuple):
    """A placement group's bundles are reserved."""

    group: bytes
    attempt: int = 0


class RefuseBundles(NamedTuple):
    """A placement group's bundles do not fit on this node."""

    group: bytes
    attempt: int = 0


Command = (
    GrantLease
    | RejectLease
    | AskElsewhere
    | AskNoMore
    | AskBack
    | ReportLost
    | StartExecutor
    | InterruptExecutor
    | EndExecutor
    | ReportBundles
    | RefuseBundles
)
