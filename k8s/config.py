"""The types of platform.yaml. :mod:`rayshim.k8s.loading` reads one.

Amounts of memory are GiB, durations seconds, prices US dollars an hour, rates per
second, unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rayshim.lineage.demand import NODE_GROUP_LABEL
from rayshim.lineage.node_groups import NodeGroup


class ConfigError(ValueError):
    """A platform file that cannot be used.

    Args:
        path: of the faulty value in the file, as ``groups.gpu-train.max``.
        problem: what is wrong, and what to write instead.
        source: name of the file.
    """

    def __init__(self, path: str, problem: str, source: str = "platform.yaml") -> None:
        super().__init__(f"{source}: {path}: {problem}")
        self.path = path
        self.problem = problem
        self.source = source


@dataclass(frozen=True, slots=True)
class Images:
    """Container images of the head, of groups without GPUs, and of those with."""

    cpu: str
    gpu: str


@dataclass(frozen=True, slots=True)
class HeadState:
    """Where the head keeps its journal."""

    #: "valkey": a StatefulSet of one, made here; "external": a redis:// or rediss://
    #: URL in a Secret (ElastiCache); "volume": SQLite on a PersistentVolumeClaim;
    #: "none": nothing survives the head (the only one for the runtime "dask").
    kind: Literal["valkey", "external", "volume", "none"] = "valkey"
    #: For "external": name of a Secret whose key ``url`` has the URL.
    secret: str = ""
    #: For "external": the host's name, for residency checks and NetworkPolicies.
    endpoint: str = ""
    #: Region of that host, if its name does not say it.
    region: str = ""
    #: For "valkey" and "volume".
    storage_gib: float = 10.0
    storage_class: str = "gp3"
    image: str = "valkey/valkey:8"


@dataclass(frozen=True, slots=True)
class Head:
    """The one pod that is always there."""

    cpus: float = 2.0
    memory_gib: float = 8.0
    instance: str = "m7i.xlarge"
    #: Of its instance for an hour.
    price: float = 0.0
    state: HeadState = field(default_factory=HeadState)
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS between pods."""

    is_enabled: bool = False
    #: "cert-manager": a Certificate is rendered; "secret": the user brings a Secret of
    #: type kubernetes.io/tls with ``ca.crt``, ``tls.crt`` and ``tls.key``.
    source: Literal["cert-manager", "secret"] = "secret"
    #: Name of that Secret.
    secret: str = "rayshim-tls"
    #: For "cert-manager": name and kind of its issuer.
    issuer: str = ""
    issuer_kind: Literal["Issuer", "ClusterIssuer"] = "Issuer"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What each worker of a group has beside its CPUs."""

    #: As in rayshim's and Ray's labels and resources: "A100", "L4", "T4", ...
    type: str
    #: Per worker.
    count: int = 1
    #: Extended resource of Kubernetes.
    resource: str = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Group:
    """Equal workers; a worker is one pod, one Deployment, one node of rayshim."""

    name: str
    #: Of one worker, as its tasks see them.
    cpus: float
    memory_gib: float
    accelerator: Accelerator | None = None
    #: Custom logical resources of one worker.
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    min: int = 0
    max: int = 1
    #: Idle ones that are kept beside those in use.
    warm: int = 0
    idle_timeout_s: float = 60.0
    upscaling_speed: float = 1.0
    #: From asking for a worker until it takes work, on a new machine.
    cold_start_s: float = 300.0
    #: Of one worker for an hour.
    price: float = 0.0
    #: Instance types that Karpenter may start, the first is the usual one.
    instances: tuple[str, ...] = ()
    capacity: Literal["on-demand", "spot"] = "on-demand"
    #: Of /dev/shm, the store of the node; counts against ``memory_gib``.
    store_gib: float = 0.0
    #: Name of the queue (LocalQueue) that its pods go through; empty: none.
    queue: str = ""
    #: Whether placement groups that need new workers get a gang of their own, admitted
    #: by Kueue whole or not at all. Needs ``queue``.
    is_gang: bool = False
    #: Name of a WorkloadPriorityClass.
    priority: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    #: Merged into the pod's spec last; fields that the CRD would drop are refused.
    pod_spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_gpu(self) -> bool:
        """Whether its workers have accelerators."""
        return self.accelerator is not None and self.accelerator.count > 0

    def logical_resources(self) -> dict[str, float]:
        """Resources of one of its workers, as the scheduler counts them."""
        found = {"CPU": float(self.cpus), "memory": self.memory_gib * 2**30}
        if self.accelerator is not None:
            found["GPU"] = float(self.accelerator.count)
            found[f"accelerator_type:{self.accelerator.type}"] = 1.0
        return {**found, **self.resources}

    def node_group(self) -> NodeGroup:
        """The group as the planner takes it."""
        labels = {NODE_GROUP_LABEL: self.name, **self.labels}
        if self.accelerator is not None:
            labels.setdefault("ray.io/accelerator-type", self.accelerator.type)
        return NodeGroup(
            self.name,
            self.logical_resources(),
            labels,
            min_nodes=self.min,
            max_nodes=self.max,
            warm_nodes=self.warm,
            idle_timeout_s=self.idle_timeout_s,
            upscaling_speed=self.upscaling_speed,
            cold_start_s=self.cold_start_s,
            price=self.price,
        )


@dataclass(frozen=True, slots=True)
class Queue:
    """A LocalQueue with a ClusterQueue of its own, in one cohort with the others."""

    name: str
    #: Resource of Kubernetes ("nvidia.com/gpu") -> what its workloads may use together.
    quota: Mapping[str, float]
    #: What it may borrow from the cohort beyond that; None: all that is free.
    borrowing: Mapping[str, float] | None = None
    #: Names of the groups whose machines it uses (its flavors), in order.
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Priority:
    """A WorkloadPriorityClass."""

    name: str
    value: int
    description: str = ""


@dataclass(frozen=True, slots=True)
class Bucket:
    """An S3 bucket, and what the pods may do with prefixes of it."""

    name: str
    region: str
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Residency:
    """Nothing may lie or run outside ``region``."""

    region: str
    #: Whether data may be read from other regions (False for an EU region that may not
    #: share storage).
    may_share_storage: bool = False


@dataclass(frozen=True, slots=True)
class ServeLevel:
    """What the serving group is sized for."""

    group: str
    requests_per_s: float
    #: Candidates that one request scores.
    candidates: int
    #: Milliseconds for 99 of 100 requests.
    p99_ms: float
    #: Share of requests that are answered in time, such as 0.999.
    availability: float
    #: Parts of the median latency, ms, in the order of the request's way.
    latency_ms: Mapping[str, float]
    #: What the 99th percentile adds to the median, ms.
    tail_ms: float
    #: Requests that one forward pass takes together.
    batch: int
    #: Share of its time that a replica may be busy, for the queue to stay short.
    utilisation: float
    #: Zones over which replicas are spread, of which one may be lost.
    zones: int
    #: Replicas on one worker.
    replicas_per_worker: int = 1
    #: From this ``scale`` on, serving has an EKS cluster and a head of its own.
    own_cluster_from_scale: float = 10.0


@dataclass(frozen=True, slots=True)
class TrainLevel:
    """What the training group is sized for."""

    group: str
    #: Of Parquet, per run.
    data_tb: float
    rows: float
    epochs: int
    #: Of all its workers together, and how many these are.
    rows_per_s: float
    workers: int
    window_h: float
    runs_per_month: float
    #: Share of the window that an undisturbed run may take; the rest is for late data,
    #: machines that do not come, and what a crash makes it do again.
    window_share: float = 0.55


@dataclass(frozen=True, slots=True)
class IngestLevel:
    """The group that reads the files while the training group learns from them."""

    group: str
    #: That one worker reads, decodes and hands on, megabytes (10**6) of file a second.
    mb_per_s: float


@dataclass(frozen=True, slots=True)
class Halving:
    """A way to stop bad configurations early (successive halving)."""

    #: One configuration of so many goes on at each step.
    reduction_factor: int
    #: Each configuration gets at least one such part of a whole run (9: a ninth).
    grace_divisor: int


@dataclass(frozen=True, slots=True)
class TuneLevel:
    """The search over configurations, on the training group."""

    group: str
    configurations: int
    #: GPU hours of one configuration that runs to its end.
    gpu_hours_each: float
    #: GPU hours that one search may use; between what ``halving`` gives and a whole
    #: search.
    budget_gpu_hours: float
    runs_per_month: float
    #: Whether a search begins on the machines of a training run before they go, and so
    #: waits for no cold start of its own.
    after_training: bool = False
    #: The ways that are compared.
    halving: tuple[Halving, ...] = ()


@dataclass(frozen=True, slots=True)
class DrillLimits:
    """Seconds that a recovery may take."""

    train_worker_s: float = 600.0
    serve_replica_s: float = 120.0
    head_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Prices:
    """What costs money beside machines; 0: not counted. US dollars."""

    #: EKS control plane of one cluster for an hour.
    control_plane: float = 0.0
    #: One gigabyte (10**9 bytes) in a bucket for a month.
    storage_gb_month: float = 0.0
    #: One gigabyte from one region to another.
    transfer_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class Platform:
    """The whole file."""

    #: Of the DaskCluster and prefix of all names.
    name: str
    namespace: str
    region: str
    zones: tuple[str, ...]
    images: Images
    groups: tuple[Group, ...]
    #: What the pods run: rayshim's head and nodes, or Dask's own scheduler and workers.
    runtime: Literal["rayshim", "dask"] = "rayshim"
    head: Head = field(default_factory=Head)
    tls: Tls = field(default_factory=Tls)
    queues: tuple[Queue, ...] = ()
    priorities: tuple[Priority, ...] = ()
    buckets: tuple[Bucket, ...] = ()
    residency: Residency | None = None
    serve: ServeLevel | None = None
    train: TrainLevel | None = None
    ingest: IngestLevel | None = None
    tune: TuneLevel | None = None
    prices: Prices = field(default_factory=Prices)
    drill: DrillLimits = field(default_factory=DrillLimits)
    #: Host name of the Ingress of the serving group; empty: none.
    serve_host: str = ""
    #: Name of the EKS cluster, for eksctl, Karpenter and IAM.
    eks_cluster: str = ""
    #: AWS account, for ARNs.
    account: str = "111122223333"
    kubernetes_version: str = "1.33"
    #: How many of the load of the file this is (``--scale``).
    scale: float = 1.0
    #: The file that it came from.
    source: str = "platform.yaml"
    #: The file as one YAML text, with what it extends: what the autoscaler's pod reads.
    text: str = field(default="", repr=False, compare=False)
    #: Platforms on EKS clusters of their own that belong to this one (serving, from
    #: ``own_cluster_from_scale`` on). Each is rendered and costed beside it.
    others: tuple[Platform, ...] = ()

    def group(self, name: str) -> Group:
        """The group of a name.

        Raises:
            KeyError: there is none.
        """
        for one in self.groups:
            if one.name == name:
                return one
        raise KeyError(name)
