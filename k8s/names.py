"""Labels, annotations and names of what the platform puts into Kubernetes.

Everything that is made here carries ``MANAGED_BY`` and ``PLATFORM``; nothing else is
ever changed or removed.
"""

from __future__ import annotations

from typing import Final

#: Label and its value: of every object that this package makes.
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
RAYSHIM: Final = "rayshim"
#: Label: name of the platform (of the DaskCluster).
PLATFORM: Final = "rayshim.io/platform"
#: Label of worker groups, Deployments, pods, and the machines that are kept for them
#: (which are tainted with it, too): name of the group in platform.yaml.
GROUP: Final = "rayshim.io/group"
#: Label of those of a gang: its id.
GANG: Final = "rayshim.io/gang"
#: Label of a rayshim node: the name of its Deployment, which is the Dask worker's name.
WORKER: Final = "rayshim.io/worker"
#: Label of pods that may connect to the platform as drivers: "true".
CLIENT: Final = "rayshim.io/client"
#: ``GROUP`` of the head's pod and machine.
HEAD: Final = "head"

#: Annotations of a worker's Deployment: since when it drains (Unix time), and why.
DRAINING_SINCE: Final = "rayshim.io/draining-since"
DRAIN_REASON: Final = "rayshim.io/drain-reason"
#: Annotation beside them: hex id of the node that was to leave; a worker whose process
#: started anew is another node.
DRAINING_NODE: Final = "rayshim.io/draining-node"
#: Annotation of a Deployment that has been in the cluster: when that was first seen.
JOINED: Final = "rayshim.io/joined"
#: Annotation of a worker group: the ``replicas`` that the autoscaler wrote last; what
#: is above that, somebody asked for.
REPLICAS: Final = "rayshim.io/replicas"

#: Set by the operator.
CLUSTER_NAME: Final = "dask.org/cluster-name"
WORKER_GROUP_NAME: Final = "dask.org/workergroup-name"
COMPONENT: Final = "dask.org/component"

#: Of Kueue: labels and annotations of pods.
QUEUE: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
POD_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
POD_GROUP_SIZE: Final = "kueue.x-k8s.io/pod-group-total-count"
POD_GROUP_SERVING: Final = "kueue.x-k8s.io/pod-group-serving"
ADMISSION_GATE: Final = "kueue.x-k8s.io/admission"

#: Field manager of server-side apply.
FIELD_MANAGER: Final = "rayshim"


def scheduler(platform: str) -> str:
    """Name of the head's Deployment and Service, as the operator makes it."""
    return f"{platform}-scheduler"


def default_group(platform: str) -> str:
    """Name of the worker group that the operator makes of a DaskCluster; stays 0."""
    return f"{platform}-default"


def worker_group(platform: str, group: str, gang: str = "") -> str:
    """Name of the DaskWorkerGroup of a group, or of one gang of it."""
    return f"{platform}-{group}-{gang}" if gang else f"{platform}-{group}"


def status_map(platform: str) -> str:
    """Name of the ConfigMap with the autoscaler's status."""
    return f"{platform}-autoscaler-status"


def autoscaler(platform: str) -> str:
    """Name of the autoscaler's Deployment, ServiceAccount, Role and Lease."""
    return f"{platform}-autoscaler"


def head_host(platform: str, namespace: str) -> str:
    """Host name of the head's Service inside the Kubernetes cluster."""
    return f"{scheduler(platform)}.{namespace}.svc.cluster.local"


def service_account(platform: str) -> str:
    """Name of the ServiceAccount of the head and the workers; its role reads S3."""
    return f"{platform}-node"


def token_secret(platform: str) -> str:
    """Name of the Secret whose key ``token`` is the cluster's token."""
    return f"{platform}-token"


def labels(platform: str) -> dict[str, str]:
    """Labels of every object that is made here."""
    return {MANAGED_BY: RAYSHIM, PLATFORM: platform}
