"""What the lease machine of a node takes in and gives out.

Events are facts that happened; commands are wishes that the node process carries
out. Ids are raw bytes, ``holder`` is the address of the process that asked (or, for
an actor, a name that only the node process knows).
"""

from __future__ import annotations

from dataclasses import dataclass

from rayshim.lineage.resources import Units

EnvKey = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LeaseRequested:
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


@dataclass(frozen=True, slots=True)
class LeaseCancelled:
    """The holder wants the lease no more, if it is not granted yet."""

    lease_id: bytes


@dataclass(frozen=True, slots=True)
class LeaseReturned:
    """The holder gives the executor back."""

    lease_id: bytes
    dispose: bool = False


@dataclass(frozen=True, slots=True)
class LeaseShrunk:
    """The lease needs only ``need`` from now on."""

    lease_id: bytes
    need: Units


@dataclass(frozen=True, slots=True)
class LeaseKilled:
    """The holder wants the executor of its lease dead."""

    lease_id: bytes


@dataclass(frozen=True, slots=True)
class ExecutorReady:
    """A forked executor reported."""

    worker_id: bytes
    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class ExecutorExited:
    """The process of an executor is gone."""

    worker_id: bytes
    reason: str
    exit_code: int
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class ExecutorBlocked:
    """The executor's call waits (or waits no more) for an object."""

    worker_id: bytes
    blocked: bool


@dataclass(frozen=True, slots=True)
class HolderGone:
    """A peer closed its channel: it holds and wants nothing any more."""

    holder: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job's driver is gone."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class BundlesRequested:
    """A placement group wants its bundles on this node, all or none."""

    group: bytes
    bundles: tuple[Units, ...]


@dataclass(frozen=True, slots=True)
class BundlesRemoved:
    """A placement group is gone, and with it the leases inside."""

    group: bytes


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Looks at limits of time."""


@dataclass(frozen=True, slots=True)
class GrantLease:
    """Tell the holder which executor is its own."""

    lease_id: bytes
    holder: str
    worker_id: bytes
    address: str
    pid: int
    units: Units
    gpu_ids: list[int]


@dataclass(frozen=True, slots=True)
class RejectLease:
    """Tell the holder that it gets no executor."""

    lease_id: bytes
    holder: str
    reason: str
    kind: str


@dataclass(frozen=True, slots=True)
class AskBack:
    """Tell the holder that somebody waits for what it holds."""

    lease_id: bytes
    holder: str


@dataclass(frozen=True, slots=True)
class ReportLost:
    """Tell the holder that its executor is gone."""

    lease_id: bytes
    holder: str
    reason: str
    exit_code: int
    out_of_memory: bool
    kind: str


@dataclass(frozen=True, slots=True)
class StartExecutor:
    """Fork an executor."""

    worker_id: bytes


@dataclass(frozen=True, slots=True)
class InterruptExecutor:
    """Ask an executor to leave."""

    worker_id: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class EndExecutor:
    """Kill an executor."""

    worker_id: bytes


@dataclass(frozen=True, slots=True)
class ReportBundles:
    """A placement group's bundles are reserved."""

    group: bytes


Command = (
    GrantLease
    | RejectLease
    | AskBack
    | ReportLost
    | StartExecutor
    | InterruptExecutor
    | EndExecutor
    | ReportBundles
)
