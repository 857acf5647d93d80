"""What ``rayshim k8s status`` tells: how a platform is, problems first. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rayshim.k8s import gang, names
from rayshim.k8s.api import Forbidden, Kube, Object
from rayshim.k8s.config import Platform
from rayshim.k8s.differences import served_kinds
from rayshim.k8s.installing import not_ready
from rayshim.k8s.observed import Observed, PodState, Worker
from rayshim.k8s.observing import observe, pod_state, queue_usage, unix_time
from rayshim.k8s.platform_status import read_status

#: Seconds after which the autoscaler's status counts as old.
STALE_S: Final = 60.0
#: Events that are shown.
EVENTS: Final = 10
#: Labels of the operator's pods, by its chart.
OPERATOR: Final = {"app.kubernetes.io/name": "dask-kubernetes-operator"}

Row = dict[str, Any]


@dataclass(slots=True)
class Report:
    """How a platform is."""

    platform: str
    namespace: str
    #: What is broken, each with what to do.
    problems: list[str] = field(default_factory=list)
    #: What waits or cannot be, without anything being broken.
    warnings: list[str] = field(default_factory=list)
    head: Row = field(default_factory=dict)
    autoscaler: Row = field(default_factory=dict)
    groups: list[Row] = field(default_factory=list)
    gangs: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)

    def to_json(self) -> Row:
        """As plain maps and lists."""
        return {name: getattr(self, name) for name in self.__slots__}


def look(kube: Kube, platform: Platform, *, now: float) -> Report:
    """How a platform is.

    Args:
        kube: the cluster.
        platform: the file.
        now: Unix time.

    Raises:
        Forbidden: something in the namespace may not be read.
        Unreachable: the API server does not answer.
    """
    report = Report(platform.name, platform.namespace)
    if kube.get("DaskCluster", platform.name) is None:
        report.problems.append(
            f"DaskCluster {platform.name} is not in namespace {platform.namespace}; "
            "`rayshim k8s up` makes it"
        )
    cluster = {names.CLUSTER_NAME: platform.name}
    # In this order: see rayshim.k8s.observing.
    worker_groups = kube.list("DaskWorkerGroup", names.labels(platform.name))
    deployments = kube.list("Deployment", {**cluster, names.COMPONENT: "worker"})
    pods = kube.list("Pod", names.labels(platform.name))
    workers = [one for one in pods if _component(one) == "worker"]
    quotas = queue_usage(platform, _local_queues(kube, platform))
    seen = observe(worker_groups, deployments, workers, now=now, quotas=quotas)
    _head(kube, platform, pods, now, report)
    _autoscaler(kube, platform, pods, now, report)
    _groups(platform, seen, report)
    _gangs(platform, seen, now, report)
    _others(pods, report)
    _events(kube, platform, now, report)
    return report


def _component(pod: Object) -> str:
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get(names.COMPONENT, ""))


def _local_queues(kube: Kube, platform: Platform) -> list[Object]:
    """LocalQueues, if there are any that may be read."""
    try:
        return kube.list("LocalQueue") if platform.queues else []
    except Forbidden:
        return []


def _head(
    kube: Kube, platform: Platform, pods: Iterable[Object], now: float, report: Report
) -> None:
    mine = [one for one in pods if _component(one) == "scheduler"]
    if not mine:
        report.head = {"pod": "", "state": "missing", "restarts": 0, "age_s": 0.0}
        if not report.problems:
            name = names.scheduler(platform.name)
            why = (
                "has no pod: did the dask operator act? (rayshim k8s status --operator)"
            )
            if kube.get("Deployment", name) is not None:
                why = f"is not there: {not_ready(kube, platform, name)}"
            report.problems.append(f"the head of {platform.name} {why}")
        return
    best = max(mine, key=lambda one: one["metadata"].get("creationTimestamp", ""))
    state, note = pod_state(best)
    name = best["metadata"]["name"]
    containers = (best.get("status") or {}).get("containerStatuses") or []
    report.head = {
        "pod": name,
        "state": state.value,
        "restarts": sum(one.get("restartCount", 0) for one in containers),
        "age_s": round(now - unix_time(best["metadata"].get("creationTimestamp")), 1),
    }
    if state is not PodState.READY:
        why = note or f"see kubectl -n {kube.namespace} logs {name}"
        report.problems.append(f"the head's pod {name} is {state.value}: {why}")


def _autoscaler(
    kube: Kube, platform: Platform, pods: Iterable[Object], now: float, report: Report
) -> None:
    name = names.autoscaler(platform.name)
    ready = [
        one
        for one in pods
        if one["metadata"]["name"].startswith(f"{name}-")
        and pod_state(one)[0] is PodState.READY
    ]
    status = read_status(kube, platform.name)
    report.autoscaler = {"ready_pods": len(ready), "age_s": None, "identity": ""}
    if not ready:
        report.problems.append(
            f"no pod of the autoscaler is ready: see kubectl -n {kube.namespace} get "
            f"pods, and logs deployment/{name}"
        )
    if status is None:
        report.warnings.append("the autoscaler has not told anything yet")
        return
    age_s = now - float(status.get("time_s", 0.0))
    report.autoscaler |= {
        "age_s": round(age_s, 1),
        "identity": status.get("identity", ""),
        "is_dry_run": status.get("is_dry_run", False),
    }
    if age_s > STALE_S:
        report.problems.append(
            f"the autoscaler's status is {age_s:.0f} s old: see kubectl -n "
            f"{kube.namespace} logs deployment/{name}"
        )
    report.problems += [str(one) for one in status.get("problems", ())]
    decisions = status.get("decisions") or status
    for kind in ("infeasible", "waiting"):
        for one in decisions.get(kind, ()):
            text = one["text"] if isinstance(one, Mapping) else str(one)
            report.warnings.append(f"{kind}: {text}")
    report.warnings += [str(one) for one in decisions.get("notes", ())]


def _groups(platform: Platform, seen: Observed, report: Report) -> None:
    for group in platform.groups:
        workers = [one for one in seen.workers if one.group == group.name]
        wanted = sum(one.replicas for one in seen.groups if one.group == group.name)
        draining = [one for one in workers if one.draining_since_s is not None]
        failed = [one for one in workers if one.pod is PodState.FAILED]
        ready = [one for one in workers if one.pod is PodState.READY]
        running = [one for one in ready if one not in draining]
        report.groups.append(
            {
                "group": group.name,
                "min": group.min,
                "max": group.max,
                "wanted": wanted,
                "running": len(running),
                "starting": len(workers) - len(failed) - len({*ready, *draining}),
                "draining": len(draining),
                "failed": len(failed),
                "note": _waits(workers),
            }
        )
        if not any(one.group == group.name and not one.gang for one in seen.groups):
            report.problems.append(
                f"DaskWorkerGroup {names.worker_group(platform.name, group.name)} is "
                "not there; `rayshim k8s up` makes it"
            )
        for one in failed:
            report.problems.append(f"worker {one.name} of {group.name}: {one.note}")


def _waits(workers: Iterable[Worker]) -> str:
    """What those that start wait for, each reason once."""
    reasons: dict[str, int] = {}
    for one in workers:
        if one.note and one.pod is not PodState.FAILED:
            reasons[one.note] = reasons.get(one.note, 0) + 1
    return "; ".join(f"{count}: {text}" for text, count in reasons.items())


def _gangs(platform: Platform, seen: Observed, now: float, report: Report) -> None:
    for one in seen.groups:
        if not one.gang:
            continue
        workers = [worker for worker in seen.workers if worker.gang == one.gang]
        gated = sum(worker.pod is PodState.GATED for worker in workers)
        try:
            queue = platform.group(one.group).queue
        except KeyError:
            queue = ""
        note = ""
        if gated:
            size = one.size or one.replicas
            used = seen.quotas.get(queue, {})
            note = gang.waits_for_quota(one.gang, gated, size, queue, used)
            report.warnings.append(note)
        report.gangs.append(
            {
                "gang": one.gang,
                "group": one.group,
                "size": one.size or one.replicas,
                "ready": sum(worker.pod is PodState.READY for worker in workers),
                "gated": gated,
                "queue": queue,
                "age_s": round(now - one.created_s, 1),
                "note": note,
            }
        )


def _others(pods: Iterable[Object], report: Report) -> None:
    """Pods that are neither worker nor head, such as Valkey's."""
    for pod in pods:
        state, note = pod_state(pod)
        if not _component(pod) and state is PodState.FAILED:
            report.problems.append(f"pod {pod['metadata']['name']}: {note}")


def _events(kube: Kube, platform: Platform, now: float, report: Report) -> None:
    prefixes = (platform.name, f"{platform.name}-")
    rows = []
    for one in kube.list("Event"):
        about = one.get("involvedObject") or one.get("regarding") or {}
        name = about.get("name", "")
        if name != prefixes[0] and not name.startswith(prefixes[1]):
            continue
        when = max(
            unix_time(one.get(key))
            for key in ("lastTimestamp", "eventTime", "firstTimestamp")
        ) or unix_time(one["metadata"].get("creationTimestamp"))
        rows.append(
            {
                "age_s": round(now - when, 1),
                "type": one.get("type", ""),
                "object": f"{about.get('kind', '')} {name}",
                "reason": one.get("reason", ""),
                "message": one.get("message", "") or one.get("note", ""),
            }
        )
    rows.sort(key=lambda row: row["age_s"])
    report.events = rows[:EVENTS]


@dataclass(slots=True)
class OperatorReport:
    """Whether the dask operator can do its work for a platform."""

    problems: list[str] = field(default_factory=list)
    pods: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> Row:
        """As plain maps and lists."""
        return {name: getattr(self, name) for name in self.__slots__}


def look_at_operator(kube: Kube, platform: Platform) -> OperatorReport:
    """Whether the dask operator is there, runs, and acts on the platform.

    Raises:
        Unreachable: the API server does not answer.
    """
    report = OperatorReport()
    kinds = {"DaskCluster", "DaskWorkerGroup"}
    for kind in sorted(kinds - served_kinds(kube, kinds)):
        report.problems.append(
            f"the CRD of {kind} is not installed: install the operator's chart with "
            "dask-operator/values.yaml"
        )
    try:
        found = kube.list("Pod", OPERATOR, everywhere=True)
    except Forbidden as error:
        report.notes.append(f"its pods may not be listed in other namespaces: {error}")
    else:
        for one in found:
            state, note = pod_state(one)
            meta = one["metadata"]
            where = meta.get("namespace", "")
            row = {"pod": meta["name"], "namespace": where, "state": state.value}
            report.pods.append({**row, "note": note})
        if not any(row["state"] == PodState.READY.value for row in report.pods):
            report.problems.append(
                "no pod of the operator is ready (looked for the label "
                f"{'='.join(next(iter(OPERATOR.items())))}): see kubectl get pods -A"
            )
    _acts(kube, platform, report)
    return report


def _acts(kube: Kube, platform: Platform, report: OperatorReport) -> None:
    cluster = kube.get("DaskCluster", platform.name)
    if cluster is None:
        report.notes.append(f"DaskCluster {platform.name} is not there yet")
    elif kube.get("Deployment", names.scheduler(platform.name)) is None:
        phase = (cluster.get("status") or {}).get("phase", "none")
        report.problems.append(
            f"it made no Deployment of DaskCluster {platform.name} (phase: {phase}): "
            f"does it watch namespace {platform.namespace}, and what does its log say?"
        )
    else:
        report.notes.append(f"it acted on DaskCluster {platform.name}")
