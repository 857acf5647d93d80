"""Kueue: values of its chart, and its objects for the queues of a platform.

Pods enter Kueue by labels alone (``kueue.x-k8s.io/queue-name`` and, for gangs, those
of pod groups), since the operator makes Deployments and Kueue knows no
DaskWorkerGroup. All objects are ``kueue.x-k8s.io/v1beta2``, which against v1beta1 has
``cohortName`` for ``cohort``, ``MayStopSearch`` for ``Borrow`` and ``Preempt``, and a
configuration without ``waitForPodsReady.enable``.
Source: https://github.com/kubernetes-sigs/kueue, apis/kueue/v1beta2,
apis/config/v1beta2, charts/kueue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import yaml

from rayshim.k8s import names
from rayshim.k8s.config import ConfigError, Group, Platform, Queue
from rayshim.k8s.rendering import machines
from rayshim.k8s.rendering.values_file import Chart, values_text

Object = dict[str, Any]

API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
CHART: Final = Chart(
    "kueue", "oci://registry.k8s.io/kueue/charts/kueue", "0.16.1", "kueue-system"
)


def files(platform: Platform) -> dict[str, str | list[Object]]:
    """Path -> text or objects; nothing for a platform without queues.

    Raises:
        ConfigError: a queue names no group, or a group that there is not.
    """
    if not platform.queues:
        return {}
    return {
        "kueue/values.yaml": values_text(platform, CHART, values(platform)),
        "kueue/queues.yaml": objects(platform),
    }


def objects(platform: Platform) -> list[Object]:
    """Topology, flavors, queues and priorities, in an order in which each is known.

    Raises:
        ConfigError: as for :func:`files`.
    """
    if not platform.queues:
        return []
    used = {
        group.name: group for queue in platform.queues for group in _of(platform, queue)
    }
    flavors = [group for group in platform.groups if group.name in used]
    return [
        _topology(platform),
        *(_flavor(platform, group) for group in flavors),
        *(_cluster_queue(platform, queue) for queue in platform.queues),
        *(_local_queue(platform, queue) for queue in platform.queues),
        *(
            {
                **_object(platform, "WorkloadPriorityClass", one.name),
                "value": one.value,
                "description": one.description,
            }
            for one in platform.priorities
        ),
    ]


def values(platform: Platform) -> dict[str, Any]:
    """Values of the chart. The configuration replaces the chart's own as a whole."""
    # A machine that is late is not yet one that will not come.
    ready = 2 * max((group.cold_start_s for group in platform.groups), default=300.0)
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {
            "bindAddress": ":8443",
            "enableClusterQueueResources": True,
        },
        "webhook": {"port": 9443},
        "leaderElection": {
            "leaderElect": True,
            "resourceName": "c1f6bfd2.kueue.x-k8s.io",
        },
        "controller": {
            "groupKindConcurrency": {
                "Pod": 5,
                "Workload.kueue.x-k8s.io": 5,
                "LocalQueue.kueue.x-k8s.io": 1,
                "ClusterQueue.kueue.x-k8s.io": 1,
                "ResourceFlavor.kueue.x-k8s.io": 1,
            }
        },
        "clientConnection": {"qps": 50, "burst": 100},
        # A gang of which a pod does not get ready in time gives its quota back and
        # queues again: all or nothing, also when machines are lacking.
        "waitForPodsReady": {
            "timeout": f"{ready:g}s",
            "recoveryTimeout": f"{ready:g}s",
            "blockAdmission": False,
            "requeuingStrategy": {
                "timestamp": "Eviction",
                "backoffBaseSeconds": 60,
                "backoffMaxSeconds": 3600,
            },
        },
        # Only what asks for a queue, and only here: neither the head nor the
        # autoscaler, nor anything of the system, can be held back.
        "manageJobsWithoutQueueName": False,
        "managedJobsNamespaceSelector": _namespace(platform),
        "integrations": {"frameworks": ["pod", "deployment"]},
    }
    return {
        "controllerManager": {
            "replicas": 1,
            "manager": {
                "resources": {
                    "requests": {"cpu": "500m", "memory": "512Mi"},
                    "limits": {"cpu": "2", "memory": "512Mi"},
                }
            },
        },
        "managerConfig": {
            "controllerManagerConfigYaml": yaml.safe_dump(
                configuration, sort_keys=False, default_flow_style=False
            )
        },
    }


def pod_resources(group: Group) -> dict[str, float]:
    """What a worker's pod asks for of Kubernetes, as far as queues count it.

    Returns:
        Resource -> amount; memory in bytes, as quotas are.
    """
    found = {"cpu": group.cpus, "memory": group.memory_gib * 2**30}
    if group.accelerator is not None and group.is_gpu:
        found[group.accelerator.resource] = float(group.accelerator.count)
    return found


def _topology(platform: Platform) -> Object:
    """Zone and machine; used by flavors whose machines are always there."""
    levels = ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    return {
        **_object(platform, "Topology", platform.name),
        "spec": {"levels": [{"nodeLabel": one} for one in levels]},
    }


def _flavor(platform: Platform, group: Group) -> Object:
    spec: Object = {
        "nodeLabels": {names.GROUP: group.name},
        "nodeTaints": machines.taints(group),
        "tolerations": machines.tolerations(group),
    }
    if 0 < group.min == group.max:
        # Kueue places pods by topology only on machines that are there. A group that
        # grows would never be admitted: its machines start for admitted pods.
        spec["topologyName"] = platform.name
    return {**_object(platform, "ResourceFlavor", group.name), "spec": spec}


def _cluster_queue(platform: Platform, queue: Queue) -> Object:
    groups = _of(platform, queue)
    resources = list(dict.fromkeys([*queue.quota, *_all_resources(groups)]))
    left = {name: queue.quota[name] for name in queue.quota}
    flavors = []
    for place, group in enumerate(groups):
        is_last = place == len(groups) - 1
        rows = []
        for resource in resources:
            most = group.max * pod_resources(group).get(resource, 0.0)
            if resource in left:
                share = left[resource] if is_last else min(most, left[resource])
                left[resource] -= share
            else:
                # Not limited by the file, but pods ask for it: as much as the group
                # can ever use.
                share = most
            row: Object = {"name": resource, "nominalQuota": _amount(resource, share)}
            limit = _borrowing(queue, resource, is_first=place == 0)
            if limit is not None:
                row["borrowingLimit"] = _amount(resource, limit)
            rows.append(row)
        flavors.append({"name": group.name, "resources": rows})
    is_gang = any(group.is_gang for group in groups)
    return {
        **_object(platform, "ClusterQueue", queue.name),
        "spec": {
            "cohortName": platform.name,
            "namespaceSelector": _namespace(platform),
            # A large gang must not be overtaken by small ones for ever.
            "queueingStrategy": "StrictFIFO" if is_gang else "BestEffortFIFO",
            "resourceGroups": [{"coveredResources": resources, "flavors": flavors}],
            "flavorFungibility": {
                "whenCanBorrow": "TryNextFlavor",
                "whenCanPreempt": "TryNextFlavor",
            },
            "preemption": {
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "Never"},
                "withinClusterQueue": "LowerPriority",
            },
        },
    }


def _borrowing(queue: Queue, resource: str, *, is_first: bool) -> float | None:
    """What may be borrowed in one flavor; None: all that is free.

    The file's figure is for the queue, Kueue's for each flavor: so it stands in the
    first one.
    """
    if queue.borrowing is None or resource not in queue.quota:
        return None
    return queue.borrowing.get(resource, 0.0) if is_first else 0.0


def _local_queue(platform: Platform, queue: Queue) -> Object:
    made = _object(platform, "LocalQueue", queue.name)
    made["metadata"] = {
        "name": queue.name,
        "namespace": platform.namespace,
        "labels": names.labels(platform.name),
    }
    return {**made, "spec": {"clusterQueue": queue.name}}


def _of(platform: Platform, queue: Queue) -> list[Group]:
    """Groups whose machines a queue uses: those it names, or those that name it."""
    path = f"queues.{queue.name}.groups"
    known = {group.name: group for group in platform.groups}
    for name in queue.groups:
        if name not in known:
            raise ConfigError(
                path,
                f"there is no group {name!r}; write one of {', '.join(known)}",
                platform.source,
            )
    found = [known[name] for name in queue.groups] or [
        group for group in platform.groups if group.queue == queue.name
    ]
    if not found:
        raise ConfigError(
            path,
            f"no group uses the queue; name the groups whose machines it may use, or "
            f"set queue: {queue.name} in a group",
            platform.source,
        )
    return found


def _all_resources(groups: Iterable[Group]) -> list[str]:
    return [resource for group in groups for resource in pod_resources(group)]


def _namespace(platform: Platform) -> Object:
    return {
        "matchExpressions": [
            {
                "key": "kubernetes.io/metadata.name",
                "operator": "In",
                "values": [platform.namespace],
            }
        ]
    }


def _object(platform: Platform, kind: str, name: str) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, "labels": names.labels(platform.name)},
    }


def _amount(resource: str, value: float) -> str:
    """As Kubernetes writes quantities."""
    if resource == "memory":
        mebibytes = round(value / 2**20)
        if mebibytes % 1024 == 0:
            return f"{mebibytes // 1024}Gi"
        return f"{mebibytes}Mi"
    return f"{round(value)}" if value == round(value) else f"{round(value * 1000)}m"
