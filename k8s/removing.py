"""What ``rayshim k8s down`` does: nothing of a platform is there any more.

Only what carries the platform's labels is deleted, in an order in which nothing is
started anew: the autoscaler, worker groups, the head, the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rayshim.k8s import names
from rayshim.k8s.api import KINDS, Forbidden, Kube, KubeError, NotFound, Object
from rayshim.k8s.config import Platform
from rayshim.k8s.differences import is_ours
from rayshim.k8s.failures import TookTooLong
from rayshim.k8s.rendering import base, rbac
from rayshim.k8s.waiting import Waiting

if TYPE_CHECKING:
    from rayshim.k8s.demand import ClusterLink

#: Seconds for nodes to leave.
DRAIN_S: Final = 30.0
#: What is deleted once worker groups and head are gone, in this order.
REST: Final = (
    "Ingress",
    "ServiceMonitor",
    "PodMonitor",
    "PrometheusRule",
    "PodDisruptionBudget",
    "Deployment",
    "StatefulSet",
    "Service",
    "ConfigMap",
    "Lease",
    "Certificate",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "Secret",
    "RoleBinding",
    "Role",
    "ServiceAccount",
    "LocalQueue",
    "ClusterQueue",
    "ResourceFlavor",
    "Topology",
    "WorkloadPriorityClass",
    "NodePool",
    "EC2NodeClass",
)
#: What ``--keep-state`` keeps beside the objects of the component "state".
_STATE_KINDS: Final = frozenset({"PersistentVolumeClaim", "Secret", "Namespace"})
#: In every namespace, whoever made it: (kind's plural, name).
_ALWAYS_THERE: Final = frozenset(
    {("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")}
)
#: Plurals of what says nothing about whether a namespace is used.
_PASSING: Final = frozenset(
    {"events", "endpoints", "endpointslices", "controllerrevisions"}
)


@dataclass(slots=True)
class Removed:
    """What ``down`` did."""

    #: "Kind name" of what was deleted, in that order.
    deleted: list[str] = field(default_factory=list)
    #: "Kind name" of what was kept on purpose.
    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def labelled(kube: Kube, platform: str) -> Iterator[Object]:
    """All objects of a platform that ``down`` would delete, and its pods.

    Kinds of no namespace that may not be listed are left out.

    Raises:
        Forbidden: a kind of the namespace may not be listed.
        Unreachable: the API server does not answer.
    """
    kinds = ("DaskWorkerGroup", "DaskCluster", *REST, "Pod")
    for kind in kinds:
        try:
            found = kube.list(kind, names.labels(platform))
        except Forbidden:
            if KINDS[kind].is_namespaced:
                raise
            continue
        for one in found:
            # Items of a list need not say what they are.
            yield {**one, "kind": kind}


def remove(
    kube: Kube,
    platform: Platform,
    *,
    waiting: Waiting,
    link: ClusterLink | None = None,
    keep_state: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Removed:
    """Removes what carries the platform's labels, the autoscaler first.

    Args:
        kube: the cluster.
        platform: the file.
        waiting: how long at most.
        link: to the head, for draining; None: nothing is drained.
        keep_state: keep the head's state (Valkey, volumes, Secrets).
        tell: called with each step in words.

    Raises:
        TookTooLong: something is still there; the text lists it.
        Forbidden: a write is not allowed.
        Unreachable: the API server does not answer.
    """
    done = Removed()
    removal = _Removal(kube, platform, waiting, keep_state, tell, done)
    removal.stop_autoscaler()
    if link is not None:
        removal.drain(link)
    removal.delete_all("DaskWorkerGroup")
    removal.delete_workers()
    removal.wait_for_pods("worker")
    removal.delete_all("DaskCluster")
    removal.wait_for_pods("scheduler")
    for kind in REST:
        removal.delete_all(kind)
    removal.wait_for_end()
    removal.delete_own_rights()
    removal.delete_namespace()
    return done


class _Removal:
    def __init__(
        self,
        kube: Kube,
        platform: Platform,
        waiting: Waiting,
        keep_state: bool,
        tell: Callable[[str], None],
        done: Removed,
    ) -> None:
        self._kube = kube
        self._platform = platform
        self._waiting = waiting
        self._keep_state = keep_state
        self._tell = tell
        self._done = done
        self._labels = names.labels(platform.name)

    def stop_autoscaler(self) -> None:
        """Deletes its Deployment, and waits until none of its pods decides any more."""
        name = names.autoscaler(self._platform.name)
        found = self._kube.get("Deployment", name)
        if found is not None and is_ours(found, self._platform.name):
            self._delete("Deployment", found)
        labels = {**self._labels, base.COMPONENT: "autoscaler"}
        is_gone = self._waiting.until(lambda: not self._kube.list("Pod", labels))
        if not is_gone:
            self._give_up("pods of the autoscaler")

    def drain(self, link: ClusterLink) -> None:
        """Asks the head to let all nodes go; says of those that do not."""
        reason = "the platform is being removed"
        try:
            nodes = [one.node_id for one in link.demand().nodes if one.group]
            for node_id in nodes:
                link.drain(node_id, reason)
            if nodes:
                self._tell(f"draining {len(nodes)} nodes")
            left = set(nodes)

            def are_gone() -> bool:
                here = {one.node_id for one in link.demand().nodes}
                left.intersection_update(here)
                return not left

            if not self._waiting.until(are_gone, limit_s=DRAIN_S):
                said = link.drain_notes()
                for node_id in sorted(left):
                    why = said.get(node_id) or "it does not say why"
                    self._note(
                        f"node {node_id[:8]} did not leave within {DRAIN_S:.0f} s "
                        f"({why}): its work ends with its pod"
                    )
        except (ConnectionError, RuntimeError) as error:
            self._note(f"nothing was drained, running work ends with its pods: {error}")

    def delete_all(self, kind: str) -> None:
        """Deletes all of a kind that carry the labels, apart from state to be kept."""
        try:
            found = self._kube.list(kind, self._labels)
        except Forbidden as error:
            if KINDS[kind].is_namespaced:
                raise
            self._note(f"{KINDS[kind].plural} may not be listed and stay: {error}")
            return
        for one in found:
            if self._is_last(kind, one):
                continue
            if self._is_kept(kind, one):
                self._done.kept.append(f"{kind} {one['metadata']['name']}")
            elif not one["metadata"].get("deletionTimestamp"):
                self._delete(kind, one)

    def delete_workers(self) -> None:
        """Deletes Deployments of workers, which a group may have left behind."""
        labels = {**self._labels, names.COMPONENT: "worker"}
        for one in self._kube.list("Deployment", labels):
            if not one["metadata"].get("deletionTimestamp"):
                self._delete("Deployment", one)

    def wait_for_pods(self, component: str) -> None:
        """Waits until no pod of the operator's component is there."""
        labels = {**self._labels, names.COMPONENT: component}
        if not self._waiting.until(lambda: not self._kube.list("Pod", labels)):
            self._give_up(f"pods of component {component}")

    def wait_for_end(self) -> None:
        """Waits until nothing that is to go is there."""
        if not self._waiting.until(lambda: not self._left()):
            self._give_up("objects")

    def delete_own_rights(self) -> None:
        """Deletes the Role of people, on which the deletions so far may have stood."""
        name = rbac.admin(self._platform)
        for kind in ("Role", "RoleBinding"):
            try:
                found = self._kube.get(kind, name)
                if found is None or not is_ours(found, self._platform.name):
                    continue
                if self._keep_state:
                    self._done.kept.append(f"{kind} {name}")
                else:
                    self._delete(kind, found)
            except Forbidden:
                self._note(
                    f"{kind} {name} is left to an administrator: who has no "
                    "other rights has none without it"
                )

    def delete_namespace(self) -> None:
        """Deletes the namespace if it is ours and nobody has anything in it."""
        name = self._platform.namespace
        try:
            found = self._kube.get("Namespace", name)
        except Forbidden:
            return self._note(f"Namespace {name} may not be read, and stays")
        if found is None or not is_ours(found, self._platform.name):
            return None
        if self._keep_state:
            self._done.kept.append(f"Namespace {name}")
            return None
        try:
            used = next(self._contents(), None)
        except Forbidden as error:
            return self._note(f"Namespace {name} stays, it may hold more: {error}")
        if used is not None:
            return self._note(f"Namespace {name} stays: it holds {used}, not made here")
        self._delete("Namespace", found)
        if not self._waiting.until(lambda: self._kube.get("Namespace", name) is None):
            self._give_up(f"Namespace {name}")
        return None

    def _contents(self) -> Iterator[str]:
        """What is in the namespace, of all kinds that the cluster knows."""
        namespace = self._platform.namespace
        for path, resource in _namespaced(self._kube):
            plural = resource["name"]
            try:
                listed = json.loads(
                    self._kube.text(f"{path}/namespaces/{namespace}/{plural}")
                )
            except NotFound:
                continue
            except Forbidden:
                raise
            except KubeError:
                continue  # Kinds that can only be asked about.
            for one in listed.get("items") or []:
                name = one["metadata"]["name"]
                is_known = (plural, name) in _ALWAYS_THERE
                if not is_known and not is_ours(one, self._platform.name):
                    yield f"{resource['kind']} {name}"

    def _is_last(self, kind: str, found: Mapping[str, Any]) -> bool:
        is_right = kind in ("Role", "RoleBinding")
        return is_right and found["metadata"]["name"] == rbac.admin(self._platform)

    def _is_kept(self, kind: str, found: Mapping[str, Any]) -> bool:
        labels = found["metadata"].get("labels") or {}
        return self._keep_state and (
            kind in _STATE_KINDS or labels.get(base.COMPONENT) == "state"
        )

    def _left(self) -> list[Object]:
        return [
            one
            for one in labelled(self._kube, self._platform.name)
            if not self._is_kept(one["kind"], one)
            and not self._is_last(one["kind"], one)
        ]

    def _delete(self, kind: str, found: Mapping[str, Any]) -> None:
        meta = found["metadata"]
        if self._kube.delete(kind, meta["name"], uid=meta.get("uid", "")):
            self._done.deleted.append(f"{kind} {meta['name']}")
            self._tell(f"deleted {kind} {meta['name']}")

    def _note(self, text: str) -> None:
        self._done.notes.append(text)
        self._tell(text)

    def _give_up(self, what: str) -> None:
        lines = []
        for one in self._left():
            meta = one["metadata"]
            why = ""
            if finalizers := meta.get("finalizers"):
                why = f" (waits for {', '.join(finalizers)}: does its operator run?)"
            elif meta.get("deletionTimestamp"):
                why = " (is being deleted)"
            lines.append(f"{one['kind']} {meta['name']}{why}")
        raise TookTooLong(
            f"{what} are still there after {self._waiting.limit_s:.0f} s; "
            f"`rayshim k8s down` goes on. Left: {', '.join(lines) or 'nothing'}"
        )


def _namespaced(kube: Kube) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Path and resource of all kinds in namespaces that can be listed (discovery)."""
    groups = json.loads(kube.text("/apis")).get("groups", [])
    paths = ["/api/v1"]
    paths += [f"/apis/{one['preferredVersion']['groupVersion']}" for one in groups]
    for path in paths:
        try:
            resources = json.loads(kube.text(path)).get("resources", [])
        except (NotFound, ConnectionError):
            continue  # Of an API server beside this one that is away.
        for one in resources:
            is_listed = "list" in one.get("verbs", [])
            if one.get("namespaced") and is_listed and one["name"] not in _PASSING:
                yield path, one
