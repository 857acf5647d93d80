"""Kubernetes, the operator, machines and the head in memory, with a simulated clock.

``FakeKube`` is an API server as :class:`rayshim.k8s.api.Kube` shows it. ``World`` adds
what acts on it by itself: the operator (which makes Deployments when ``replicas``
rises, and removes *any* workers of the cluster when it is lower than what is there, as
the real one does against a scheduler that does not answer it), the pods' life, and a
head that the workers' nodes join.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rayshim.k8s import names
from rayshim.k8s.api import Conflict, Forbidden, Kube, NotFound, Unreachable
from rayshim.k8s.config import Platform
from rayshim.k8s.observing import HANDLED
from rayshim.lineage.demand import (
    NODE_GROUP_LABEL,
    Demand,
    GangDemand,
    NodeFacts,
    ShapeDemand,
)

Object = dict[str, Any]


class FakeKube(Kube):
    """An API server in memory."""

    def __init__(self, clock: Callable[[], float], namespace: str = "test") -> None:
        self.namespace = namespace
        self._clock = clock
        self.objects: dict[tuple[str, str], Object] = {}
        self._version = 0
        #: (verb, kind, name) of each write.
        self.writes: list[tuple[str, str, str]] = []
        self.is_unreachable = False
        #: (verb, kind) that no Role allows.
        self.forbidden: set[tuple[str, str]] = set()
        #: Kind and name of objects whose deletion somebody's finalizer holds.
        self.kept: set[tuple[str, str]] = set()

    def close(self) -> None:
        """Nothing to end."""

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        self._ask("get", kind)
        found = self.objects.get((kind, name))
        return copy.deepcopy(found) if found is not None else None

    def list(
        self,
        kind: str,
        labels: Mapping[str, str] | None = None,
        *,
        namespace: str | None = None,
        everywhere: bool = False,
    ) -> list[Object]:
        self._ask("list", kind)
        return [
            copy.deepcopy(one)
            for (its, _), one in self.objects.items()
            if its == kind and _matches(one, labels or {})
        ]

    def create(self, made: Object) -> Object:
        kind, name = made["kind"], made["metadata"]["name"]
        self._ask("create", kind)
        if (kind, name) in self.objects:
            raise Conflict(f"{kind} {name} exists", 409, "AlreadyExists")
        self._wrote("create", kind, name)
        return self._put(copy.deepcopy(made), is_new=True)

    def apply(self, made: Object, *, dry_run: bool = False) -> Object:
        kind, name = made["kind"], made["metadata"]["name"]
        self._ask("patch", kind)
        if dry_run:
            return made
        self._wrote("apply", kind, name)
        before = self.objects.get((kind, name))
        if before is None:
            return self._put(copy.deepcopy(made), is_new=True)
        return self._put(_merged(before, made))

    def patch(
        self,
        kind: str,
        name: str,
        change: Object,
        *,
        subresource: str = "",
        namespace: str | None = None,
    ) -> Object:
        self._ask("patch", kind)
        before = self.objects.get((kind, name))
        if before is None:
            raise NotFound(f"no {kind} {name}", 404, "NotFound")
        for key in ("resourceVersion", "uid"):
            wanted = change.get("metadata", {}).get(key)
            if wanted and wanted != before["metadata"][key]:
                raise Conflict(f"{kind} {name} is another one", 409, "Conflict")
        self._wrote("patch", kind, name)
        return self._put(_merged(before, change))

    def replace(self, made: Object) -> Object:
        kind, name = made["kind"], made["metadata"]["name"]
        self._ask("update", kind)
        before = self.objects.get((kind, name))
        if before is None:
            raise NotFound(f"no {kind} {name}", 404, "NotFound")
        version = made["metadata"].get("resourceVersion")
        if version != before["metadata"]["resourceVersion"]:
            raise Conflict(f"{kind} {name} has changed", 409, "Conflict")
        self._wrote("replace", kind, name)
        return self._put(copy.deepcopy(made))

    def delete(
        self,
        kind: str,
        name: str,
        *,
        namespace: str | None = None,
        grace_s: int | None = None,
        uid: str = "",
    ) -> bool:
        self._ask("delete", kind)
        before = self.objects.get((kind, name))
        if before is None:
            return False
        if uid and uid != before["metadata"]["uid"]:
            raise Conflict(f"{kind} {name} is another one", 409, "Conflict")
        self._wrote("delete", kind, name)
        self.remove(kind, name)
        return True

    def watch(
        self,
        kind: str,
        labels: Mapping[str, str] | None = None,
        *,
        resource_version: str = "",
        limit_s: int = 60,
        on_open: Callable[[Callable[[], None]], None] | None = None,
    ) -> Iterator[tuple[str, Object]]:
        self._ask("watch", kind)
        return iter(())

    # Without a client.

    def remove(self, kind: str, name: str) -> None:
        """Deletes an object and what it owns."""
        if (kind, name) in self.kept:
            meta = self.objects[kind, name]["metadata"]
            meta["deletionTimestamp"] = _time(self._clock())
            return
        gone = self.objects.pop((kind, name))
        for (its, other), one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == gone["metadata"]["uid"] for owner in owners):
                self.remove(its, other)

    def _ask(self, verb: str, kind: str) -> None:
        if self.is_unreachable:
            raise Unreachable("the API server does not answer")
        if (verb, kind) in self.forbidden:
            raise Forbidden(f"{verb} {kind}: forbidden", 403, "Forbidden")

    def _wrote(self, verb: str, kind: str, name: str) -> None:
        self.writes.append((verb, kind, name))

    def _put(self, made: Object, *, is_new: bool = False) -> Object:
        self._version += 1
        meta = made["metadata"]
        meta["resourceVersion"] = str(self._version)
        if is_new:
            meta["uid"] = f"uid-{self._version}"
            meta["creationTimestamp"] = _time(self._clock())
        self.objects[made["kind"], meta["name"]] = made
        return copy.deepcopy(made)


@dataclass
class FakeHead:
    """A head that knows nodes, and what waits."""

    clock: Callable[[], float]
    instance: str = "life-1"
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    leases: tuple[ShapeDemand, ...] = ()
    gangs: tuple[GangDemand, ...] = ()
    is_away: bool = False
    #: Nodes that refuse to drain, and why.
    refusing: dict[str, str] = field(default_factory=dict)
    #: Node id -> when its drain was ordered.
    drains: dict[str, float] = field(default_factory=dict)
    reports: list[Mapping[str, Any]] = field(default_factory=list)

    def demand(self) -> Demand:
        self._ask()
        return Demand(
            self.instance,
            self.clock(),
            tuple(self.nodes.values()),
            self.leases,
            self.gangs,
        )

    def drain(self, node_id: str, reason: str) -> bool:
        self._ask()
        if node_id not in self.nodes:
            return False
        if node_id not in self.refusing and _is_idle(self.nodes[node_id]):
            self.drains[node_id] = self.clock()
        return True

    def drain_notes(self) -> Mapping[str, str]:
        return self.refusing

    def report(self, report: Mapping[str, Any]) -> None:
        self._ask()
        self.reports.append(report)

    def close(self) -> None:
        """Nothing to end."""

    def _ask(self) -> None:
        if self.is_away:
            raise ConnectionError("the head at tcp:head does not answer")


class World:
    """All that acts by itself, second by second.

    Args:
        platform: whose base worker groups are made, with no workers.
        cold_start_s: from a worker's Deployment until its node joins.
    """

    def __init__(
        self, platform: Platform, *, cold_start_s: float = 2.0, seed: int = 1
    ) -> None:
        self.now = 1_000_000.0
        self.platform = platform
        self.cold_start_s = cold_start_s
        self.random = random.Random(seed)
        self.kube = FakeKube(self.clock, platform.namespace)
        self.head = FakeHead(self.clock)
        #: Groups whose pods never get a machine, and whose are gated.
        self.denied: set[str] = set()
        self.gated: set[str] = set()
        self.failing: set[str] = set()
        #: False: the operator is not running.
        self.has_operator = True
        #: Workers that the operator removed by its own choice.
        self.picked: list[str] = []
        #: Worker -> since when its pod runs.
        self._running_s: dict[str, float] = {}
        self._count = 0
        self._idle_since: dict[str, float] = {}
        #: Most Deployments of a group that there ever were.
        self.most: dict[str, int] = {}
        for group in platform.groups:
            self.kube.create(
                {
                    "kind": "DaskWorkerGroup",
                    "metadata": {
                        "name": names.worker_group(platform.name, group.name),
                        "labels": {
                            names.PLATFORM: platform.name,
                            names.GROUP: group.name,
                        },
                    },
                    "spec": {"worker": {"replicas": 0}},
                }
            )
        self.kube.writes.clear()

    def clock(self) -> float:
        return self.now

    # What tests look at.

    def group(self, name: str, gang: str = "") -> Object:
        own = names.worker_group(self.platform.name, name, gang)
        return self.kube.objects["DaskWorkerGroup", own]

    def replicas(self, name: str, gang: str = "") -> int:
        return int(self.group(name, gang)["spec"]["worker"]["replicas"])

    def workers(self, group: str = "") -> list[str]:
        return [
            name
            for (kind, name), one in self.kube.objects.items()
            if kind == "Deployment"
            and group in ("", one["metadata"]["labels"][names.GROUP])
        ]

    def node_of(self, worker: str) -> NodeFacts | None:
        for node in self.head.nodes.values():
            if node.labels[names.WORKER] == worker:
                return node
        return None

    def scale(self, group: str, replicas: int) -> None:
        """Somebody edits ``replicas``."""
        name = names.worker_group(self.platform.name, group)
        self.kube.patch(
            "DaskWorkerGroup", name, {"spec": {"worker": {"replicas": replicas}}}
        )

    def use(self, worker: str, **amounts: float) -> None:
        """Something runs on a worker's node; no amounts: nothing."""
        node = self.node_of(worker)
        assert node is not None
        free = {
            name: amount - amounts.get(name, 0) for name, amount in node.total.items()
        }
        self._set_node(node, available=free)

    # What happens.

    def step(self, seconds: float = 1.0) -> None:
        """Time goes on."""
        self.now += seconds
        if self.has_operator:
            self.operate()
        self._run_pods()
        self._run_nodes()
        for group in self.platform.groups:
            count = len(self.workers(group.name))
            self.most[group.name] = max(self.most.get(group.name, 0), count)

    def operate(self) -> None:
        """The operator handles what has changed since it looked last."""
        for (kind, name), one in list(self.kube.objects.items()):
            if kind != "DaskWorkerGroup":
                continue
            replicas = one["spec"]["worker"]["replicas"]
            notes = one["metadata"].setdefault("annotations", {})
            handled = json.loads(notes[HANDLED]) if HANDLED in notes else None
            if handled == {"spec": {"worker": {"replicas": replicas}}}:
                continue
            there = self._of(name)
            for _ in range(replicas - len(there)):
                self._make(one)
            surplus = len(there) - replicas
            if surplus > 0:
                # Whichever the scheduler names: of any group.
                everyone = sorted(self.workers())
                for worker in self.random.sample(everyone, surplus):
                    self.picked.append(worker)
                    self.kube.remove("Deployment", worker)
            self.kube.patch(
                "DaskWorkerGroup",
                name,
                {
                    "metadata": {
                        "annotations": {
                            HANDLED: json.dumps(
                                {"spec": {"worker": {"replicas": replicas}}}
                            )
                        }
                    }
                },
            )
            self.kube.writes.pop()

    def _of(self, worker_group: str) -> list[str]:
        return [
            name
            for (kind, name), one in self.kube.objects.items()
            if kind == "Deployment"
            and one["metadata"]["labels"][names.WORKER_GROUP_NAME] == worker_group
        ]

    def _make(self, owner: Object) -> None:
        self._count += 1
        meta = owner["metadata"]
        name = f"{meta['name']}-worker-{self._count:010x}"
        labels = {
            **meta["labels"],
            names.CLUSTER_NAME: self.platform.name,
            names.WORKER_GROUP_NAME: meta["name"],
            names.COMPONENT: "worker",
        }
        owners = [{"kind": "DaskWorkerGroup", "uid": meta["uid"]}]
        made = self.kube.create(
            {
                "kind": "Deployment",
                "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
            }
        )
        owners = [
            {
                "kind": "ReplicaSet",
                "name": f"{name}-5d9",
                "uid": made["metadata"]["uid"],
            }
        ]
        self.kube.create(
            {
                "kind": "Pod",
                "metadata": {
                    "name": f"{name}-5d9-x1",
                    "labels": labels,
                    "ownerReferences": owners,
                },
                "spec": {},
                "status": {"phase": "Pending"},
            }
        )
        del self.kube.writes[-2:]

    def _run_pods(self) -> None:
        for (kind, name), pod in list(self.kube.objects.items()):
            if kind != "Pod":
                continue
            group = pod["metadata"]["labels"][names.GROUP]
            worker = name.removesuffix("-5d9-x1")
            if group in self.gated:
                pod["spec"]["schedulingGates"] = [{"name": names.ADMISSION_GATE}]
                continue
            pod["spec"].pop("schedulingGates", None)
            if group in self.failing:
                waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
                pod["status"]["containerStatuses"] = [{"state": {"waiting": waiting}}]
                continue
            if group in self.denied:
                condition = {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/3 nodes are available",
                }
                pod["status"]["conditions"] = [condition]
                continue
            pod["status"] = {"phase": "Running", "containerStatuses": [_RUNNING]}
            self._running_s.setdefault(worker, self.now)

    def _run_nodes(self) -> None:
        there = set(self.workers())
        for node_id, node in list(self.head.nodes.items()):
            worker = node.labels[names.WORKER]
            if worker not in there:
                self._leave(node_id)
            elif node_id in self.head.drains:
                if node.is_draining:
                    self._leave(node_id)
                    # Its pod starts a new process, which would join.
                    self._running_s[worker] = self.now + 1.0
                else:
                    self._set_node(node, is_draining=True)
            else:
                is_idle = _is_idle(node)
                since_s = self._idle_since.setdefault(node_id, self.now)
                if not is_idle:
                    self._idle_since[node_id] = self.now
                self._set_node(node, idle_s=self.now - since_s if is_idle else 0.0)
        for worker in there:
            started_s = self._running_s.get(worker)
            if started_s is None or self.node_of(worker) is not None:
                continue
            if self.now - started_s >= self.cold_start_s:
                self._join(worker)

    def _join(self, worker: str) -> None:
        labels = self.kube.objects["Deployment", worker]["metadata"]["labels"]
        group = self.platform.group(labels[names.GROUP])
        total = group.logical_resources()
        self._count += 1
        node = NodeFacts(
            f"{self._count:056x}",
            group.name,
            total,
            dict(total),
            {
                **group.node_group().labels,
                NODE_GROUP_LABEL: group.name,
                names.WORKER: worker,
            },
        )
        self.head.nodes[node.node_id] = node

    def _leave(self, node_id: str) -> None:
        del self.head.nodes[node_id]
        self.head.drains.pop(node_id, None)
        self._idle_since.pop(node_id, None)

    def kill(self, worker: str, *, back_s: float = 1e9) -> None:
        """A worker's process dies; its Deployment starts it anew after a while."""
        node = self.node_of(worker)
        assert node is not None
        self._leave(node.node_id)
        self._running_s[worker] = self.now + back_s

    def _set_node(self, node: NodeFacts, **changes: Any) -> None:
        facts = {name: getattr(node, name) for name in NodeFacts.__dataclass_fields__}
        self.head.nodes[node.node_id] = NodeFacts(**{**facts, **changes})


_RUNNING = {"state": {"running": {}}, "ready": True}


def _is_idle(node: NodeFacts) -> bool:
    return all(node.available[name] >= amount for name, amount in node.total.items())


def _matches(one: Object, labels: Mapping[str, str]) -> bool:
    has = one["metadata"].get("labels") or {}
    return all(
        name in has and value in ("", has[name]) for name, value in labels.items()
    )


def _merged(before: Any, change: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    made = dict(before) if isinstance(before, dict) else {}
    for key, value in change.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = _merged(made.get(key), value)
    return copy.deepcopy(made)


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
