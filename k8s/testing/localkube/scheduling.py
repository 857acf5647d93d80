"""The scheduler: which node a pod goes to, or in Kubernetes' words why to none.

Respected: scheduling gates, nodeName, nodeSelector, required node affinity, taints with
NoSchedule and NoExecute (for new pods), cordoned nodes, requests against what is
allocatable, claims that are not there. Ignored: priority and preemption, preferred
affinity, affinity between pods, topologySpreadConstraints, and how full a node is (the
first that fits by name is taken, those without GPUs first for pods that ask for none).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.connection import (
    Connection,
    Informer,
    Key,
    Reconciler,
    Refused,
    key_of,
    kind_of,
)
from rayshim.k8s.testing.localkube.quantities import pod_requests, quantity

_ALL: Key = ("", "")
_SELECTOR = "node(s) didn't match Pod's node affinity/selector"
_CORDONED = "node(s) were unschedulable"


def obstacle(pod: Object, node: Object, used: Mapping[str, float]) -> list[str]:
    """Why a pod cannot go to a node, in Kubernetes' words; empty if it can.

    Args:
        pod: that waits.
        node: that it might go to.
        used: what pods on the node ask for already, "pods" included.
    """
    spec = pod["spec"]
    if node["spec"].get("unschedulable"):
        return [_CORDONED]
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(
            spec.get("tolerations") or (), taint
        ):
            shown = f"{taint['key']}: {taint.get('value', '')}"
            return [f"node(s) had untolerated taint {{{shown}}}"]
    if not matches_node(spec, node):
        return [_SELECTOR]
    allocatable = node["status"].get("allocatable") or {}
    found = []
    for name, amount in {"pods": 1.0, **pod_requests(spec)}.items():
        free = quantity(allocatable.get(name, "0")) - used.get(name, 0.0)
        if amount > free + 1e-9:
            found.append("Too many pods" if name == "pods" else f"Insufficient {name}")
    return found


def unschedulable_message(obstacles: Sequence[Sequence[str]]) -> str:
    """The message of the condition PodScheduled.

    Args:
        obstacles: of each node.

    Example:
        >>> unschedulable_message([["Insufficient cpu"], ["Insufficient cpu"]])
        '0/2 nodes are available: 2 Insufficient cpu.'
    """
    if not obstacles:
        return "no nodes available to schedule pods"
    counts = Counter(reason for one in obstacles for reason in one)
    reasons = sorted(f"{count} {reason}" for reason, count in counts.items())
    return f"0/{len(obstacles)} nodes are available: {', '.join(reasons)}."


def tolerates(tolerations: Iterable[Object], taint: Object) -> bool:
    """Whether one of a pod's tolerations is for a taint."""
    return any(
        one.get("effect", taint["effect"]) in (taint["effect"], "")
        and (
            (not one.get("key") and one.get("operator") == "Exists")
            or (
                one.get("key") == taint["key"]
                and (
                    one.get("operator") == "Exists"
                    or one.get("value", "") == taint.get("value", "")
                )
            )
        )
        for one in tolerations
    )


def matches_node(spec: Object, node: Object) -> bool:
    """Whether a pod's nodeSelector and required node affinity allow a node."""
    labels = node["metadata"].get("labels") or {}
    wanted = spec.get("nodeSelector") or {}
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(
        all(_matches(labels, one) for one in term.get("matchExpressions") or ())
        and all(
            _matches({"metadata.name": node["metadata"]["name"]}, one)
            for one in term.get("matchFields") or ()
        )
        for term in required.get("nodeSelectorTerms") or ()
    )


def _matches(labels: Mapping[str, str], expression: Object) -> bool:
    value = labels.get(expression["key"])
    values = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
    return False


class Scheduler:
    """Binds pods to nodes.

    Args:
        connection: to write with.
        pods: all pods.
        nodes: all nodes.
        claims: all PersistentVolumeClaims.
    """

    def __init__(
        self, connection: Connection, pods: Informer, nodes: Informer, claims: Informer
    ) -> None:
        self._connection = connection
        self._pods = pods
        self._nodes = nodes
        self._claims = claims
        self._loop = Reconciler("scheduler", self._schedule)
        for informer in (pods, nodes, claims):
            informer.listeners.append(lambda kind, made: self._loop.add(_ALL))

    async def run(self) -> None:
        """Schedule until cancelled."""
        await self._loop.run()

    async def _schedule(self, key: Key) -> None:
        used = self._used()
        waiting = [
            pod
            for pod in self._pods.objects.values()
            if not pod["spec"].get("nodeName")
            and not pod["spec"].get("schedulingGates")
            and not pod["metadata"].get("deletionTimestamp")
            and (pod.get("status") or {}).get("phase") == "Pending"
        ]
        for pod in sorted(waiting, key=_age):
            nodes = sorted(self._nodes.objects.values(), key=_order)
            if missing := self._missing_claim(pod):
                await self._cannot(
                    pod, f"0/{len(nodes)} nodes are available: {missing}."
                )
                continue
            obstacles = []
            for node in nodes:
                name = node["metadata"]["name"]
                obstacles.append(obstacle(pod, node, used.setdefault(name, {})))
                if not obstacles[-1]:
                    await self._bind(pod, name)
                    _count(used[name], pod)
                    break
            else:
                await self._cannot(pod, unschedulable_message(obstacles))

    def _used(self) -> dict[str, dict[str, float]]:
        used: dict[str, dict[str, float]] = {}
        for pod in self._pods.objects.values():
            node = pod["spec"].get("nodeName")
            phase = (pod.get("status") or {}).get("phase")
            if node and phase not in ("Succeeded", "Failed"):
                _count(used.setdefault(node, {}), pod)
        return used

    def _missing_claim(self, pod: Object) -> str:
        for volume in pod["spec"].get("volumes") or ():
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim and self._claims.get((key_of(pod)[0], claim)) is None:
                return f'persistentvolumeclaim "{claim}" not found'
        return ""

    async def _bind(self, pod: Object, node: str) -> None:
        namespace, name = key_of(pod)
        binding: Object = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = kind_of("Pod").path(namespace, name)
        try:
            await self._connection.request("POST", f"{path}/binding", binding)
        except Refused as error:
            if error.status not in (404, 409):
                raise
            return
        # The watch will tell; until then the pod must not be bound again.
        self._pods.remember(await self._connection.get("Pod", (namespace, name)))

    async def _cannot(self, pod: Object, message: str) -> None:
        conditions = (pod.get("status") or {}).get("conditions") or []
        old: Object = next(
            (one for one in conditions if one["type"] == "PodScheduled"), {}
        )
        if old.get("message") == message and old.get("reason") == "Unschedulable":
            return
        new = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
        others = [one for one in conditions if one["type"] != "PodScheduled"]
        self._pods.remember(
            await self._connection.patch(
                "Pod", key_of(pod), {"status": {"conditions": [*others, new]}}, "status"
            )
        )


def _age(pod: Object) -> tuple[str, str, str]:
    meta = pod["metadata"]
    return meta.get("creationTimestamp", ""), meta.get("namespace", ""), meta["name"]


def _order(node: Object) -> tuple[bool, str]:
    allocatable = node["status"].get("allocatable") or {}
    return any("gpu" in name for name in allocatable), node["metadata"]["name"]


def _count(used: dict[str, float], pod: Object) -> None:
    for name, amount in {"pods": 1.0, **pod_requests(pod["spec"])}.items():
        used[name] = used.get(name, 0.0) + amount
