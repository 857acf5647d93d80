"""Kubernetes' objects -> what the planner sees. Pure.

The worker groups have to be listed before the Deployments: then a Deployment that is
missing, although the operator says that it has finished with ``replicas``, was deleted
and will not come. The operator (by its framework, kopf) notes what it has finished with
as an annotation (https://docs.kopf.dev/en/stable/configuration/#change-detection).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from rayshim.k8s import gang, names
from rayshim.k8s.config import Platform
from rayshim.k8s.observed import Observed, ObservedGroup, PodState, Worker

Object = Mapping[str, Any]

#: Annotation of kopf with the object as its handlers last saw it to the end.
HANDLED: Final = "kopf.zalando.org/last-handled-configuration"
#: Reasons for which a container waits, and will wait however long one waits.
FAILING: Final = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
#: How good a state of a pod is: of several pods of a worker the best one counts.
_ORDER: Final = tuple(PodState)


def observe(
    worker_groups: Iterable[Object],
    deployments: Iterable[Object],
    pods: Iterable[Object],
    *,
    now: float,
    quotas: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
) -> Observed:
    """What is there.

    Args:
        worker_groups: DaskWorkerGroups, listed first; those without the label of a
            group, as the operator's default one, are left out.
        deployments: of workers.
        pods: of workers.
        now: Unix time.
        quotas: of :func:`queue_usage`.
    """
    groups = [
        _group(one)
        for one in worker_groups
        if names.GROUP in (one["metadata"].get("labels") or {})
    ]
    best: dict[str, tuple[PodState, str]] = {}
    for pod in pods:
        worker = worker_of(pod)
        state = pod_state(pod)
        before = best.get(worker)
        if before is None or _rank(state[0]) > _rank(before[0]):
            best[worker] = state
    known = {one.name for one in groups}
    workers = [
        _worker(one, best)
        for one in deployments
        if (one["metadata"].get("labels") or {}).get(names.WORKER_GROUP_NAME) in known
        or names.GROUP in (one["metadata"].get("labels") or {})
    ]
    return Observed(
        now,
        tuple(sorted(groups, key=lambda one: one.name)),
        tuple(sorted(workers, key=lambda one: one.name)),
        quotas or {},
    )


def queue_usage(
    platform: Platform, local_queues: Iterable[Object]
) -> dict[str, dict[str, tuple[float, float]]]:
    """Queue -> what it is of ("a100") -> (used, quota).

    Each LocalQueue has a ClusterQueue of its own here, so that its status says what is
    used of the whole, and no right on the ClusterQueue is needed. Amounts are those of
    accelerators, or of all resources in queues without.

    Args:
        platform: whose file has the quotas.
        local_queues: as Kubernetes has them.
    """
    used: dict[str, dict[str, float]] = {}
    for one in local_queues:
        mine = used.setdefault(one["metadata"]["name"], {})
        for flavor in (one.get("status") or {}).get("flavorsUsage") or []:
            for row in flavor.get("resources") or []:
                total = gang.quantity(row.get("total", 0))
                mine[row["name"]] = mine.get(row["name"], 0.0) + total
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for queue in platform.queues:
        if queue.name not in used:
            continue
        types = {
            group.accelerator.resource: group.accelerator.type.lower()
            for group in platform.groups
            if group.accelerator is not None and group.name in queue.groups
        }
        wanted = [name for name in queue.quota if name in types] or list(queue.quota)
        found[queue.name] = {
            types.get(name, name): (used[queue.name].get(name, 0.0), queue.quota[name])
            for name in wanted
        }
    return found


def unix_time(text: str | None) -> float:
    """A time of Kubernetes as Unix time; 0 for none."""
    if not text:
        return 0.0
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def pod_state(pod: Object) -> tuple[PodState, str]:
    """How far a pod has come, and what it waits for in Kubernetes' words."""
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled", {})
    if pod["metadata"].get("deletionTimestamp"):
        return PodState.PENDING, "the pod is being deleted"
    gates = pod["spec"].get("schedulingGates") or []
    if gates:
        waits = ", ".join(one["name"] for one in gates)
        return PodState.GATED, scheduled.get("message") or f"gated by {waits}"
    for container in _containers(status):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        if reason in FAILING:
            return PodState.FAILED, _said(reason, waiting.get("message", ""))
    if phase == "Failed":
        said = _said(status.get("reason", "Failed"), status.get("message", ""))
        return PodState.FAILED, said
    if phase != "Running":
        if scheduled.get("status") == "False":
            reason = scheduled.get("reason", "Unschedulable")
            return PodState.PENDING, _said(reason, scheduled.get("message", ""))
        for container in _containers(status):
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason"):
                said = _said(waiting["reason"], waiting.get("message", ""))
                return PodState.PENDING, said
        return PodState.PENDING, ""
    if any("running" not in (one.get("state") or {}) for one in _containers(status)):
        return PodState.PENDING, "its process has ended and starts anew"
    if conditions.get("Ready", {}).get("status") == "True":
        return PodState.READY, ""
    return PodState.RUNNING, ""


def _containers(status: Object) -> list[Object]:
    return [*(status.get("containerStatuses") or [])]


def _said(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason


def _rank(state: PodState) -> int:
    return -1 if state is PodState.FAILED else _ORDER.index(state)


def worker_of(pod: Object) -> str:
    """The Deployment's name: of the pod's ReplicaSet without the hash."""
    for owner in pod["metadata"].get("ownerReferences") or []:
        if owner.get("kind") == "ReplicaSet":
            return str(owner["name"]).rpartition("-")[0]
    return str(pod["metadata"]["name"]).rsplit("-", 2)[0]


def _group(one: Object) -> ObservedGroup:
    meta = one["metadata"]
    labels = meta.get("labels") or {}
    annotations = meta.get("annotations") or {}
    size = 0
    subject = ""
    if gang.is_gang(one):
        try:
            found = gang.read_gang(one)
            size, subject = found.size, found.subject
        except gang.GangError:
            size = int(one["spec"]["worker"].get("replicas") or 0)
    return ObservedGroup(
        name=meta["name"],
        group=labels[names.GROUP],
        replicas=int(one["spec"]["worker"].get("replicas") or 0),
        resource_version=str(meta.get("resourceVersion", "")),
        gang=labels.get(names.GANG, ""),
        created_s=unix_time(meta.get("creationTimestamp")),
        is_deleting=bool(meta.get("deletionTimestamp")),
        handled=_handled(annotations.get(HANDLED)),
        written=_count(annotations.get(names.REPLICAS)),
        uid=str(meta.get("uid", "")),
        subject=subject,
        size=size,
    )


def _handled(text: str | None) -> int | None:
    try:
        replicas = json.loads(text or "")["spec"]["worker"]["replicas"]
        return int(replicas)
    except (ValueError, KeyError, TypeError):
        return None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _worker(one: Object, best: Mapping[str, tuple[PodState, str]]) -> Worker:
    meta = one["metadata"]
    labels = meta.get("labels") or {}
    annotations = meta.get("annotations") or {}
    state, note = best.get(meta["name"], (PodState.MISSING, ""))
    if state is PodState.MISSING:
        note = _refusal(one)
    return Worker(
        name=meta["name"],
        group=labels.get(names.GROUP, ""),
        worker_group=labels.get(names.WORKER_GROUP_NAME, ""),
        created_s=unix_time(meta.get("creationTimestamp")),
        pod=state,
        note=note,
        gang=labels.get(names.GANG, ""),
        has_joined=names.JOINED in annotations,
        draining_since_s=_number(annotations.get(names.DRAINING_SINCE)),
        drain_reason=annotations.get(names.DRAIN_REASON, ""),
        draining_node=annotations.get(names.DRAINING_NODE, ""),
        is_deleting=bool(meta.get("deletionTimestamp")),
        uid=str(meta.get("uid", "")),
    )


def _refusal(deployment: Object) -> str:
    """Why a Deployment could not make its pod, such as a quota."""
    for one in (deployment.get("status") or {}).get("conditions") or []:
        if one["type"] == "ReplicaFailure" and one["status"] == "True":
            return _said(one.get("reason", ""), one.get("message", ""))
    return ""


def _number(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        return 0.0  # Somebody wrote it by hand: it drains since long ago.
    return found if math.isfinite(found) else 0.0
