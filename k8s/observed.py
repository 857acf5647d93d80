"""What the autoscaler sees in Kubernetes, and what its planner decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from rayshim.lineage.node_groups import Launching, Unmet


class PodState(Enum):
    """Of a worker's pod, as far as it matters here."""

    #: There is none (yet).
    MISSING = "missing"
    #: Waits for quota (a scheduling gate of Kueue).
    GATED = "gated"
    #: Waits for a machine, or its image.
    PENDING = "pending"
    RUNNING = "running"
    #: Passes its readiness probe.
    READY = "ready"
    #: Its container crashes again and again, or its image cannot be pulled.
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Worker:
    """A Deployment of one pod that the operator made."""

    #: Of the Deployment, the Dask worker, and in the label ``rayshim.io/worker``.
    name: str
    group: str
    #: Name of its DaskWorkerGroup.
    worker_group: str
    created_s: float
    pod: PodState = PodState.MISSING
    #: Why it waits or fails, in Kubernetes' words.
    note: str = ""
    #: Id of its gang; empty: none.
    gang: str = ""
    #: Has been in the cluster, as annotated.
    has_joined: bool = False
    #: Since when it drains, as annotated; None: it does not.
    draining_since_s: float | None = None
    drain_reason: str = ""
    #: Hex id of the node that was asked to leave.
    draining_node: str = ""
    is_deleting: bool = False
    uid: str = ""


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """A DaskWorkerGroup."""

    name: str
    group: str
    replicas: int
    resource_version: str
    gang: str = ""
    created_s: float = 0.0
    is_deleting: bool = False
    #: The ``replicas`` that the operator has last finished with, as it notes itself;
    #: None: it has not, or does not say.
    handled: int | None = None
    #: The ``replicas`` that the autoscaler wrote last; None: never yet.
    written: int | None = None
    uid: str = ""
    #: Of a gang: hex id of its placement group, and the number of its workers.
    subject: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """All of it at one moment."""

    time_s: float
    groups: tuple[ObservedGroup, ...] = ()
    workers: tuple[Worker, ...] = ()
    #: Name of a queue (ClusterQueue) -> what it is of -> (used, quota), where known.
    quotas: Mapping[str, Mapping[str, tuple[float, float]]] = field(
        default_factory=dict
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """What only somebody who has watched for a while knows.

    An autoscaler that has just begun knows nothing of it, and then waits longer.
    """

    #: Worker -> until when it is not drained, since it refused.
    held: Mapping[str, float] = field(default_factory=dict)
    #: Worker that had joined -> since when no node has its name.
    absent: Mapping[str, float] = field(default_factory=dict)
    #: Worker group -> since when ``replicas`` is larger than what is there.
    owed: Mapping[str, float] = field(default_factory=dict)
    #: Gang -> since when its placement group does not wait.
    unwanted: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrainWorker:
    """Ask the head to let a node go; the Deployment is annotated first."""

    worker: str
    node_id: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class KeepWorker:
    """Take the annotations of a drain back: it was refused, or is needed again."""

    worker: str
    group: str
    reason: str
    #: Its node said no: it is left alone for a while.
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class DeleteWorker:
    """Delete the Deployment of a worker that left, never came, or is not wanted."""

    worker: str
    worker_group: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class StartGang:
    """Create a worker group for one placement group."""

    gang: str
    group: str
    size: int
    #: Hex id of the placement group.
    subject: str


@dataclass(frozen=True, slots=True)
class EndGang:
    """Delete the worker group of a gang whose placement group has ended."""

    gang: str
    worker_group: str
    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class SetReplicas:
    """Write ``replicas`` of a worker group: after all deletions of this turn."""

    worker_group: str
    group: str
    replicas: int
    #: Of what was seen; the write fails if somebody else wrote meanwhile.
    resource_version: str
    reason: str
    #: Somebody had lowered it below what is there (an Event tells).
    is_repair: bool = False


@dataclass(frozen=True, slots=True)
class Decisions:
    """One turn's, in the order in which they are carried out."""

    #: Workers that are seen in the cluster for the first time, to be annotated.
    joined: tuple[str, ...] = ()
    keep: tuple[KeepWorker, ...] = ()
    delete: tuple[DeleteWorker, ...] = ()
    end_gangs: tuple[EndGang, ...] = ()
    drain: tuple[DrainWorker, ...] = ()
    replicas: tuple[SetReplicas, ...] = ()
    start_gangs: tuple[StartGang, ...] = ()
    #: Group -> workers that are to be started now (already in ``replicas``).
    launch: Mapping[str, int] = field(default_factory=dict)
    infeasible: tuple[Unmet, ...] = ()
    waiting: tuple[Unmet, ...] = ()
    late: tuple[Launching, ...] = ()
    #: For people: what holds the turn back ("demand is 45 s old: nothing is stopped").
    notes: tuple[str, ...] = ()
