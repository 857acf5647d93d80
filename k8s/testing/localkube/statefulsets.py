"""StatefulSets: pods with names and volumes that stay."""

from __future__ import annotations

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.connection import (
    Connection,
    Informer,
    Key,
    Reconciler,
    Refused,
    key_of,
    owner_of,
)
from rayshim.k8s.testing.localkube.deployments import (
    pod_of,
    template_hash,
    write_status,
)
from rayshim.k8s.testing.localkube.services import is_ready

_REVISION = "controller-revision-hash"


class StatefulSets:
    """The controller of StatefulSets.

    Pods are made in order, each when the one before is ready (at once with the policy
    Parallel), and again under their name when the old one is gone.

    Args:
        connection: to write with.
        sets: all StatefulSets.
        pods: all pods.
        claims: all PersistentVolumeClaims.
    """

    def __init__(
        self, connection: Connection, sets: Informer, pods: Informer, claims: Informer
    ) -> None:
        self._connection = connection
        self._sets = sets
        self._pods = pods
        self._claims = claims
        self._loop = Reconciler("statefulset", self._reconcile)
        sets.listeners.append(lambda kind, made: self._loop.add(key_of(made)))
        pods.listeners.append(self._pod_changed)

    async def run(self) -> None:
        """Control until cancelled."""
        await self._loop.run()

    def _pod_changed(self, kind: str, pod: Object) -> None:
        for one in pod["metadata"].get("ownerReferences", ()):
            if one.get("controller") and one.get("kind") == "StatefulSet":
                self._loop.add((pod["metadata"]["namespace"], one["name"]))

    async def _reconcile(self, key: Key) -> None:
        made = self._sets.get(key)
        if made is None or made["metadata"].get("deletionTimestamp"):
            return
        namespace, name = key
        spec, revision = made["spec"], template_hash(made["spec"]["template"])
        want = spec.get("replicas", 1)
        is_parallel = spec.get("podManagementPolicy") == "Parallel"
        pods: list[Object] = []
        for number in range(want):
            pod = self._pods.get((namespace, f"{name}-{number}"))
            if pod is None:
                pod = await self._create(made, f"{name}-{number}", revision)
            elif _is_to_go(pod, revision):
                await self._delete(pod)
            if owner_of(pod) == made["metadata"]["uid"]:
                pods.append(pod)
            if not is_parallel and not is_ready(pod):
                break
        for pod in self._pods.of_owner(made["metadata"]["uid"]):
            if int(pod["metadata"]["name"].rpartition("-")[2]) >= want:
                await self._delete(pod)
        ready = sum(is_ready(pod) for pod in pods)
        status: Object = {
            "observedGeneration": made["metadata"].get("generation", 1),
            "replicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "currentReplicas": len(pods),
            "updatedReplicas": len(pods),
            "currentRevision": revision,
            "updateRevision": revision,
        }
        await write_status(self._connection, self._sets, made, status)

    async def _create(self, made: Object, name: str, revision: str) -> Object:
        pod = pod_of(made, name)
        pod["metadata"]["labels"].update(
            {_REVISION: revision, "statefulset.kubernetes.io/pod-name": name}
        )
        pod["spec"]["hostname"] = name
        if service := made["spec"].get("serviceName"):
            pod["spec"]["subdomain"] = service
        volumes = list(pod["spec"].get("volumes") or ())
        for template in made["spec"].get("volumeClaimTemplates") or ():
            kind = template["metadata"]["name"]
            claim = await self._claim(made, template, f"{kind}-{name}")
            volumes.append(
                {"name": kind, "persistentVolumeClaim": {"claimName": claim}}
            )
        if volumes:
            pod["spec"]["volumes"] = volumes
        created = await self._connection.create("Pod", pod)
        self._pods.remember(created)
        return created

    async def _claim(self, made: Object, template: Object, name: str) -> str:
        """Stays when the StatefulSet goes, as its retention policy is by default."""
        namespace = made["metadata"]["namespace"]
        if self._claims.get((namespace, name)) is None:
            labels = {
                **(template["metadata"].get("labels") or {}),
                **((made["spec"].get("selector") or {}).get("matchLabels") or {}),
            }
            claim: Object = {
                "metadata": {
                    **template["metadata"],
                    "name": name,
                    "namespace": namespace,
                    "labels": labels,
                },
                "spec": template["spec"],
            }
            try:
                self._claims.remember(
                    await self._connection.create("PersistentVolumeClaim", claim)
                )
            except Refused as error:
                if error.reason != "AlreadyExists":
                    raise
        return name

    async def _delete(self, pod: Object) -> None:
        if not pod["metadata"].get("deletionTimestamp"):
            await self._connection.delete(
                "Pod", key_of(pod), uid=pod["metadata"]["uid"]
            )


def _is_to_go(pod: Object, revision: str) -> bool:
    """Whether a pod has ended, or is of an older template."""
    phase = (pod.get("status") or {}).get("phase")
    labels = pod["metadata"].get("labels") or {}
    return phase in ("Failed", "Succeeded") or labels.get(_REVISION) != revision
