"""What pods see of Kueue: gates, groups, quota. Kueue itself is not under test.

Emulated is the observable contract of the integrations of pods, pod groups and
Deployments (v1beta2): pods with a queue are gated when they are created; a group is let
through as a whole when all its pods are there and its queue has quota for all of them,
in the order of priority and age; quota comes back when no pod of the group is left; a
pod that replaces one of an admitted group is let through; LocalQueue and ClusterQueue
say what is used. Not emulated: Workload objects, finalizers of pods, preemption of its
own accord (:meth:`KueueEmulator.preempt` does it for tests), topologies, fair sharing,
``waitForPodsReady``, namespace selectors, stop policies.

Source: https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rayshim.k8s import names
from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.connection import (
    Connection,
    Informer,
    Key,
    Reconciler,
    key_of,
)
from rayshim.k8s.testing.localkube.quantities import pod_requests, sums
from rayshim.k8s.testing.localkube.quotas import (
    Assignment,
    ClusterQueue,
    assign,
    flavor_obstacle,
    flavors_usage,
    plain_queue,
    read_cluster_queue,
    total_usage,
)
from rayshim.k8s.testing.localkube.statuses import Refusal

logger = logging.getLogger(__name__)

#: Label of pods that Kueue has taken charge of.
MANAGED = "kueue.x-k8s.io/managed"
_ALL: Key = ("", "")
_KINDS = ("ClusterQueue", "LocalQueue", "ResourceFlavor", "WorkloadPriorityClass")


@dataclass(frozen=True, slots=True)
class Admission:
    """One decision about a group of pods (or a pod alone)."""

    #: Seconds, of ``time.monotonic``.
    time_s: float
    namespace: str
    #: Of the pod group, or of the pod.
    group: str
    #: "admitted", "replaced", "preempted" or "finished".
    event: str
    #: Pods that it was about, and how many the group says that it has.
    pods: tuple[str, ...]
    total: int
    #: ClusterQueue, and (flavor, resource) -> amount of the whole group.
    queue: str = ""
    usage: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(slots=True)
class _Admitted:
    local_queue: Key
    queue: str
    assignment: Assignment
    total: int
    #: Its pods are to end; until then it has its quota.
    is_preempted: bool = False


@dataclass(frozen=True, slots=True)
class _Group:
    key: Key
    #: All that have not ended, the terminating ones too.
    pods: tuple[Object, ...]

    @property
    def first(self) -> Object:
        return self.pods[0]

    @property
    def total(self) -> int:
        notes = self.first["metadata"].get("annotations") or {}
        return int(notes.get(names.POD_GROUP_SIZE, 1))

    @property
    def gated(self) -> list[Object]:
        """Pods that wait."""
        return [
            pod
            for pod in self.pods
            if _is_gated(pod) and not pod["metadata"].get("deletionTimestamp")
        ]

    @property
    def let_through(self) -> list[Object]:
        return [pod for pod in self.pods if not _is_gated(pod)]


class KueueEmulator:
    """Gates pods with a queue, and lets groups through when all of them fit.

    Args:
        quotas: ClusterQueue -> resource -> amount; each is also a LocalQueue of that
            name in every namespace. None: as the queues in the API server say.
    """

    #: Kinds that it reads beside pods.
    kinds = _KINDS

    def __init__(self, quotas: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._given = {
            name: plain_queue(name, quota) for name, quota in (quotas or {}).items()
        }
        self._loop = Reconciler("kueue", self._decide)
        self._lock = threading.Lock()
        self._history: list[Admission] = []
        #: (namespace, group) -> what it has.
        self._admitted: dict[Key, _Admitted] = {}
        #: (namespace, group) -> its place in the order in which they came.
        self._arrivals: dict[Key, int] = {}
        self._numbers = itertools.count()
        #: (namespace, group) -> why it waits.
        self._messages: dict[Key, str] = {}

    # -- for tests, from any thread ----------------------------------------------

    @property
    def history(self) -> tuple[Admission, ...]:
        """All decisions, in order."""
        with self._lock:
            return tuple(self._history)

    def admitted(self) -> dict[Key, tuple[str, ...]]:
        """(namespace, group) -> pods that were let through and have not ended."""
        with self._lock:
            keys = [key for key, one in self._admitted.items() if not one.is_preempted]
        groups = self._groups()
        return {
            key: tuple(pod["metadata"]["name"] for pod in groups[key].let_through)
            for key in keys
            if key in groups
        }

    def waiting(self) -> dict[Key, str]:
        """(namespace, group) -> why it waits, in Kueue's words."""
        with self._lock:
            return dict(self._messages)

    def preempt(self, group: str, namespace: str = "default") -> None:
        """Delete the pods of an admitted group.

        When they have ended its quota is free, and it queues again behind the others.

        Raises:
            LookupError: it is not admitted.
        """
        self._call(self._preempt, group, namespace)

    async def _preempt(self, group: str, namespace: str) -> None:
        key = (namespace, group)
        record = self._admitted.get(key)
        if record is None or record.is_preempted:
            raise LookupError(f"no group {group} is admitted in {namespace}")
        found = self._groups()[key]
        record.is_preempted = True
        self._note("preempted", found, record, found.let_through)
        for pod in found.let_through:
            await self._connection.delete(
                "Pod", key_of(pod), uid=pod["metadata"]["uid"]
            )
        self._loop.add(_ALL)

    # -- webhook -----------------------------------------------------------------

    def admission(self, verb: str, resource: str, made: Object, user: str) -> Object:
        """Gate new pods that have a queue; a hook of the API server.

        Raises:
            Refusal: a pod group without its size.
        """
        meta = made.get("metadata") or {}
        labels = meta.get("labels") or {}
        if verb != "create" or resource != "pods" or not labels.get(names.QUEUE):
            return made
        has_size = names.POD_GROUP_SIZE in (meta.get("annotations") or {})
        if (names.POD_GROUP in labels) != has_size:
            raise Refusal(
                403,
                "Forbidden",
                'admission webhook "vpod.kb.io" denied the request: '
                f"metadata.annotations[{names.POD_GROUP_SIZE}]: Required value: both "
                f"the '{names.POD_GROUP_SIZE}' annotation and the '{names.POD_GROUP}' "
                "label should be set",
            )
        gates = [*(made["spec"].get("schedulingGates") or ())]
        return {
            **made,
            "metadata": {**meta, "labels": {**labels, MANAGED: "true"}},
            "spec": {
                **made["spec"],
                "schedulingGates": [*gates, {"name": names.ADMISSION_GATE}],
            },
        }

    # -- controller --------------------------------------------------------------

    def attach(
        self,
        connection: Connection,
        informers: Mapping[str, Informer],
        call: Callable[..., Any],
    ) -> None:
        """Say where it reads and writes, and how to call into its loop."""
        self._call = call
        self._connection = connection
        self._informers = informers
        for kind in ("Pod", *_KINDS):
            informers[kind].listeners.append(lambda kind, made: self._loop.add(_ALL))

    async def run(self) -> None:
        """Decide until cancelled."""
        await self._loop.run()

    async def _decide(self, key: Key) -> None:
        groups = self._groups()
        for key in [key for key in self._admitted if key not in groups]:
            self._finish(key)
        for key in [key for key, one in self._admitted.items() if one.is_preempted]:
            if not groups[key].let_through:
                with self._lock:
                    del self._admitted[key]
                self._arrivals[key] = next(self._numbers)
        for key in [key for key in self._arrivals if key not in groups]:
            del self._arrivals[key]
        for key in groups:
            if key not in self._arrivals:
                self._arrivals[key] = next(self._numbers)
        for key in list(self._admitted):
            await self._replace(groups[key])
        queues = self._queues()
        blocked: set[str] = set()
        messages: dict[Key, str] = {}
        waiting = [one for one in groups.values() if one.key not in self._admitted]
        for group in sorted(waiting, key=self._rank):
            if not group.gated:
                continue
            message = await self._consider(group, queues, blocked)
            if message:
                messages[group.key] = message
        with self._lock:
            new = {
                key: text
                for key, text in messages.items()
                if self._messages.get(key) != text
            }
            self._messages = messages
        for key, text in new.items():
            await self._tell(groups[key], text)
        await self._write_usage(queues)

    async def _consider(
        self,
        group: _Group,
        queues: Mapping[str, ClusterQueue],
        blocked: set[str],
    ) -> str:
        """Admit a group if it fits; else why not."""
        namespace, _ = group.key
        labels = group.first["metadata"]["labels"]
        local = labels[names.QUEUE]
        if group.let_through:
            return "waits for its pods of before to end"
        if len(group.gated) < group.total:
            return (
                f"group has fewer runnable pods than expected: {len(group.gated)} of "
                f"{group.total}"
            )
        queue = self._queue_of(namespace, local, queues)
        if isinstance(queue, str):
            return queue
        if queue.name in blocked:
            return f"waits behind another workload in ClusterQueue {queue.name}"
        pods = group.gated[: group.total]
        spec = pods[0]["spec"]
        found = assign(
            sums(pod_requests(pod["spec"]) for pod in pods),
            queue,
            queues.values(),
            self._used(),
            lambda name: flavor_obstacle(
                self._informers["ResourceFlavor"].get(("", name)), name, spec
            ),
        )
        if isinstance(found, str):
            if queue.is_strict:
                blocked.add(queue.name)
            return found
        record = _Admitted((namespace, local), queue.name, found, group.total)
        with self._lock:
            self._admitted[group.key] = record
        self._note("admitted", group, record, pods)
        for pod in pods:
            await self._let_through(pod, found)
        return ""

    async def _replace(self, group: _Group) -> None:
        """Let through what takes the place of a pod that has ended."""
        record = self._admitted[group.key]
        if record.is_preempted:
            return
        free = record.total - len(group.let_through)
        pods = group.gated[: max(free, 0)]
        if not pods:
            return
        noted = [one for one in self._history if one.event == "admitted"]
        known = {
            name for one in noted for name in one.pods if one.group == group.key[1]
        }
        new = [pod for pod in pods if pod["metadata"]["name"] not in known]
        if new:
            self._note("replaced", group, record, new)
        for pod in pods:
            await self._let_through(pod, record.assignment)

    async def _let_through(self, pod: Object, assignment: Assignment) -> None:
        spec: dict[str, Any] = {
            "schedulingGates": [
                one
                for one in pod["spec"].get("schedulingGates") or ()
                if one["name"] != names.ADMISSION_GATE
            ]
            or None
        }
        for name in assignment.flavors:
            flavor = self._informers["ResourceFlavor"].get(("", name)) or {}
            given = flavor.get("spec") or {}
            if labels := given.get("nodeLabels"):
                spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **labels}
            if more := given.get("tolerations"):
                old = spec.get("tolerations") or pod["spec"].get("tolerations") or []
                spec["tolerations"] = [*old, *(one for one in more if one not in old)]
        self._informers["Pod"].remember(
            await self._connection.patch("Pod", key_of(pod), {"spec": spec})
        )

    def _finish(self, key: Key) -> None:
        with self._lock:
            record = self._admitted.pop(key)
        if not record.is_preempted:
            self._note("finished", _Group(key, ()), record, [])

    def _note(
        self, event: str, group: _Group, record: _Admitted, pods: list[Object]
    ) -> None:
        made = Admission(
            time.monotonic(),
            *group.key,
            event,
            tuple(pod["metadata"]["name"] for pod in pods),
            record.total,
            record.queue,
            record.assignment.usage,
        )
        with self._lock:
            self._history.append(made)

    def _groups(self) -> dict[Key, _Group]:
        found: dict[Key, list[Object]] = {}
        for pod in list(self._informers["Pod"].objects.values()):
            meta = pod["metadata"]
            labels = meta.get("labels") or {}
            phase = (pod.get("status") or {}).get("phase")
            if labels.get(MANAGED) != "true" or phase in ("Succeeded", "Failed"):
                continue
            name = labels.get(names.POD_GROUP) or meta["name"]
            found.setdefault((meta["namespace"], name), []).append(pod)
        return {
            key: _Group(key, tuple(sorted(pods, key=_age)))
            for key, pods in found.items()
        }

    def _rank(self, group: _Group) -> tuple[float, int]:
        """Order in which groups are considered: priority, then arrival."""
        labels = group.first["metadata"].get("labels") or {}
        name = labels.get(names.PRIORITY_CLASS, "")
        found = self._informers["WorkloadPriorityClass"].get(("", name)) or {}
        value = found.get("value", group.first["spec"].get("priority") or 0)
        return -float(value), self._arrivals[group.key]

    def _queues(self) -> dict[str, ClusterQueue]:
        found = [
            read_cluster_queue(one)
            for one in self._informers["ClusterQueue"].objects.values()
        ]
        return {**self._given, **{one.name: one for one in found}}

    def _queue_of(
        self, namespace: str, local: str, queues: Mapping[str, ClusterQueue]
    ) -> ClusterQueue | str:
        made = self._informers["LocalQueue"].get((namespace, local))
        if made is None and local in self._given:
            return self._given[local]
        if made is None:
            return f"LocalQueue {local} doesn't exist"
        name = made["spec"]["clusterQueue"]
        return queues.get(name) or f"ClusterQueue {name} doesn't exist"

    def _used(self) -> dict[str, dict[tuple[str, str], float]]:
        return total_usage(
            (one.queue, one.assignment.usage) for one in self._admitted.values()
        )

    async def _write_usage(self, queues: Mapping[str, ClusterQueue]) -> None:
        """Keep the status of queues that are objects."""
        used = self._used()
        by_local = total_usage(
            ("/".join(one.local_queue), one.assignment.usage)
            for one in self._admitted.values()
        )
        for key, made in list(self._informers["ClusterQueue"].objects.items()):
            rows = flavors_usage(queues[key[1]], used.get(key[1], {}))
            count = sum(one.queue == key[1] for one in self._admitted.values())
            await self._write_status("ClusterQueue", made, rows, count)
        for key, made in list(self._informers["LocalQueue"].objects.items()):
            queue = queues.get(made["spec"]["clusterQueue"])
            if queue is not None:
                rows = flavors_usage(queue, by_local.get("/".join(key), {}))
                mine = [
                    one for one in self._admitted.values() if one.local_queue == key
                ]
                await self._write_status("LocalQueue", made, rows, len(mine))

    async def _write_status(
        self, kind: str, made: Object, rows: list[Object], admitted: int
    ) -> None:
        status: Object = {
            "flavorsUsage": rows,
            "flavorsReservation": rows,
            "admittedWorkloads": admitted,
            "reservingWorkloads": admitted,
        }
        old = made.get("status") or {}
        if any(old.get(name) != value for name, value in status.items()):
            self._informers[kind].remember(
                await self._connection.patch(
                    kind, key_of(made), {"status": status}, "status"
                )
            )

    async def _tell(self, group: _Group, text: str) -> None:
        """Say why a group waits, as an Event of its first pod."""
        meta = group.first["metadata"]
        logger.info("group %s: %s", "/".join(group.key), text)
        await self._connection.create(
            "Event",
            {
                "metadata": {
                    "generateName": f"{meta['name']}.",
                    "namespace": meta["namespace"],
                },
                "involvedObject": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": meta["name"],
                    "namespace": meta["namespace"],
                    "uid": meta["uid"],
                },
                "reason": "Pending",
                "message": text,
                "type": "Warning",
                "source": {"component": "kueue-emulator"},
            },
        )


def kueue_crds() -> list[Object]:
    """CustomResourceDefinitions of the kinds that are read; they check no fields."""
    plurals = {
        "ClusterQueue": "clusterqueues",
        "LocalQueue": "localqueues",
        "ResourceFlavor": "resourceflavors",
        "Topology": "topologies",
        "WorkloadPriorityClass": "workloadpriorityclasses",
    }
    schema: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.kueue.x-k8s.io"},
            "spec": {
                "group": "kueue.x-k8s.io",
                "scope": "Namespaced" if kind == "LocalQueue" else "Cluster",
                "names": {
                    "kind": kind,
                    "listKind": f"{kind}List",
                    "plural": plural,
                    "singular": kind.lower(),
                },
                "versions": [
                    {
                        "name": "v1beta2",
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}},
                        "schema": {"openAPIV3Schema": schema},
                    }
                ],
            },
        }
        for kind, plural in plurals.items()
    ]


def _is_gated(pod: Object) -> bool:
    return any(
        one["name"] == names.ADMISSION_GATE
        for one in pod["spec"].get("schedulingGates") or ()
    )


def _age(pod: Object) -> tuple[str, str]:
    meta = pod["metadata"]
    return meta.get("creationTimestamp", ""), meta["name"]
