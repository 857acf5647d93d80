"""Deployments and ReplicaSets: pods that are made again when they are gone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from typing import Any

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.connection import (
    Connection,
    Informer,
    Key,
    Reconciler,
    Refused,
    key_of,
    owned_by,
    owner_of,
)
from rayshim.k8s.testing.localkube.services import is_ready

#: Seconds after which a pod that was refused is tried again.
REFUSED_S = 1.0
TEMPLATE_HASH = "pod-template-hash"
_REVISION = "deployment.kubernetes.io/revision"
#: Letters of names of pods, as Kubernetes draws them: no vowels, no words.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def template_hash(template: Object) -> str:
    """A name for a pod template's content."""
    text = json.dumps(template, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest()[:10]


def random_suffix() -> str:
    """Five letters for a pod's name."""
    number = uuid.uuid4().int
    letters = ""
    for _ in range(5):
        number, place = divmod(number, len(_LETTERS))
        letters += _LETTERS[place]
    return letters


def is_active(pod: Object) -> bool:
    """Whether a pod counts: it has not ended and is not being deleted."""
    phase = (pod.get("status") or {}).get("phase")
    is_going = pod["metadata"].get("deletionTimestamp")
    return not is_going and phase not in ("Succeeded", "Failed")


class Deployments:
    """The controllers of Deployments and of ReplicaSets.

    A new template makes a new ReplicaSet. With the strategy RollingUpdate all its pods
    are started at once and the old ones go when they are ready (maxSurge of 100 %,
    whatever is given); with Recreate the old ones go first.

    Args:
        connection: to write with.
        deployments: all Deployments.
        replica_sets: all ReplicaSets.
        pods: all pods.
    """

    def __init__(
        self,
        connection: Connection,
        deployments: Informer,
        replica_sets: Informer,
        pods: Informer,
    ) -> None:
        self._connection = connection
        self._deployments = deployments
        self._sets = replica_sets
        self._pods = pods
        self._upper = Reconciler("deployment", self._deployment)
        self._lower = Reconciler("replicaset", self._replica_set)
        deployments.listeners.append(lambda kind, made: self._upper.add(key_of(made)))
        replica_sets.listeners.append(self._set_changed)
        pods.listeners.append(self._pod_changed)

    async def run(self) -> None:
        """Control until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._upper.run())
            group.create_task(self._lower.run())

    def _set_changed(self, kind: str, made: Object) -> None:
        self._lower.add(key_of(made))
        self._add_owner(made, self._deployments, self._upper)

    def _pod_changed(self, kind: str, made: Object) -> None:
        self._add_owner(made, self._sets, self._lower)

    @staticmethod
    def _add_owner(made: Object, owners: Informer, loop: Reconciler) -> None:
        for one in made["metadata"].get("ownerReferences", ()):
            if one.get("controller") and one.get("kind") == owners.kind:
                loop.add((made["metadata"].get("namespace", ""), one["name"]))

    async def _deployment(self, key: Key) -> None:
        made = self._deployments.get(key)
        if made is None or made["metadata"].get("deletionTimestamp"):
            return
        spec, uid = made["spec"], made["metadata"]["uid"]
        mine = template_hash(spec["template"])
        sets = self._sets.of_owner(uid)
        new = next((one for one in sets if _hash_of(one) == mine), None)
        old = [one for one in sets if _hash_of(one) != mine]
        want = spec.get("replicas", 1)
        is_recreate = (spec.get("strategy") or {}).get("type") == "Recreate"
        if is_recreate:
            await self._scale_down(old)
            if any(self._pods.of_owner(one["metadata"]["uid"]) for one in old):
                return
        if new is None:
            new = await self._create_set(made, mine, want, len(sets) + 1)
        elif new["spec"].get("replicas", 1) != want:
            change: Object = {"spec": {"replicas": want}}
            self._sets.remember(
                await self._connection.patch("ReplicaSet", key_of(new), change)
            )
        if (new.get("status") or {}).get("readyReplicas", 0) >= want:
            await self._scale_down(old)
        await self._write_status(made, new, old)

    async def _create_set(
        self, made: Object, mine: str, want: int, revision: int
    ) -> Object:
        template = made["spec"]["template"]
        labels = {
            **((template.get("metadata") or {}).get("labels") or {}),
            TEMPLATE_HASH: mine,
        }
        meta = made["metadata"]
        selector = made["spec"].get("selector") or {}
        new: Object = {
            "metadata": {
                "name": f"{meta['name']}-{mine}",
                "namespace": meta["namespace"],
                "labels": labels,
                "annotations": {_REVISION: str(revision)},
                "ownerReferences": owned_by(made),
            },
            "spec": {
                "replicas": want,
                "selector": {
                    **selector,
                    "matchLabels": {
                        **(selector.get("matchLabels") or {}),
                        TEMPLATE_HASH: mine,
                    },
                },
                "template": {
                    **template,
                    "metadata": {**(template.get("metadata") or {}), "labels": labels},
                },
            },
        }
        try:
            created = await self._connection.create("ReplicaSet", new)
        except Refused as error:
            found = await self._connection.get("ReplicaSet", key_of(new))
            if (
                error.reason != "AlreadyExists"
                or found is None
                or owner_of(found) != meta["uid"]
            ):
                raise
            created = found
        self._sets.remember(created)
        return created

    async def _scale_down(self, old: list[Object]) -> None:
        for one in old:
            if one["spec"].get("replicas", 1):
                change: Object = {"spec": {"replicas": 0}}
                self._sets.remember(
                    await self._connection.patch("ReplicaSet", key_of(one), change)
                )

    async def _write_status(self, made: Object, new: Object, old: list[Object]) -> None:
        def total(field: str) -> int:
            return sum((one.get("status") or {}).get(field, 0) for one in [new, *old])

        want = made["spec"].get("replicas", 1)
        ready = total("readyReplicas")
        is_available = ready >= want
        status: Object = {
            "observedGeneration": made["metadata"].get("generation", 1),
            "replicas": total("replicas"),
            "updatedReplicas": (new.get("status") or {}).get("replicas", 0),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(want - ready, 0),
            "conditions": [
                {
                    "type": "Available",
                    "status": "True" if is_available else "False",
                    "reason": "MinimumReplicasAvailable"
                    if is_available
                    else "MinimumReplicasUnavailable",
                    "message": "Deployment has minimum availability."
                    if is_available
                    else "Deployment does not have minimum availability.",
                },
                *((new.get("status") or {}).get("conditions") or ()),
            ],
        }
        await write_status(self._connection, self._deployments, made, status)

    async def _replica_set(self, key: Key) -> None:
        made = self._sets.get(key)
        if made is None or made["metadata"].get("deletionTimestamp"):
            return
        pods = [
            pod
            for pod in self._pods.of_owner(made["metadata"]["uid"])
            if is_active(pod)
        ]
        want = made["spec"].get("replicas", 1)
        failure = ""
        for _ in range(want - len(pods)):
            name = f"{made['metadata']['name']}-{random_suffix()}"
            try:
                pod = await self._connection.create("Pod", pod_of(made, name))
            except Refused as error:
                if error.status not in (400, 403, 422):
                    raise
                failure = str(error)
                self._lower.add_later(key, REFUSED_S)
                break
            self._pods.remember(pod)
            pods.append(pod)
        surplus = sorted(pods, key=_worth)[: max(len(pods) - want, 0)]
        for pod in surplus:
            await self._connection.delete(
                "Pod", key_of(pod), uid=pod["metadata"]["uid"]
            )
            pods.remove(pod)
        ready = sum(is_ready(pod) for pod in pods)
        status: Object = {
            "replicas": len(pods),
            "fullyLabeledReplicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "observedGeneration": made["metadata"].get("generation", 1),
            "conditions": [_failed(failure)] if failure else [],
        }
        await write_status(self._connection, self._sets, made, status)
        if len(pods) == want == 0:
            # Its last pod may just have gone, for which a Recreate waits.
            self._add_owner(made, self._deployments, self._upper)


def pod_of(owner: Object, name: str) -> Object:
    """A pod of a template.

    Args:
        owner: ReplicaSet or StatefulSet.
        name: of the pod.
    """
    template = owner["spec"]["template"]
    meta = template.get("metadata") or {}
    made: dict[str, Any] = {
        "name": name,
        "namespace": owner["metadata"]["namespace"],
        "labels": dict(meta.get("labels") or {}),
        "annotations": dict(meta.get("annotations") or {}),
        "ownerReferences": owned_by(owner),
    }
    return {"metadata": made, "spec": dict(template["spec"])}


async def write_status(
    connection: Connection, informer: Informer, made: Object, status: Object
) -> None:
    """Write what differs of an object's status."""
    old = made.get("status") or {}
    change = {name: value for name, value in status.items() if old.get(name) != value}
    if change:
        informer.remember(
            await connection.patch(
                informer.kind, key_of(made), {"status": change}, "status"
            )
        )


def _failed(message: str) -> Object:
    return {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": message,
    }


def _hash_of(replica_set: Object) -> str:
    return str((replica_set["metadata"].get("labels") or {}).get(TEMPLATE_HASH, ""))


def _worth(pod: Object) -> tuple[bool, bool, float]:
    """Pods that go first are the least: unplaced, not ready, young."""
    born = int(pod["metadata"].get("resourceVersion", 0))
    return bool(pod["spec"].get("nodeName")), is_ready(pod), -born
