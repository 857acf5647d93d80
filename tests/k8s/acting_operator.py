"""What acts on objects in a cluster without controllers: a thread of the test.

It does as the dask operator and Kubernetes' controllers do, as far as `rayshim k8s`
sees: Deployments and Services of DaskClusters, Deployments of workers, pods that are
ready. Nothing runs.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from rayshim.k8s import names
from rayshim.k8s.api import KINDS, Conflict, Kube, KubeError, NotFound, Object


class ActingOperator:
    """Acts on one namespace.

    Args:
        kube: as its administrator.
        acts_on_clusters: False: as an operator that does not watch the namespace.
        is_ready: whether pods become ready.
    """

    def __init__(
        self, kube: Kube, *, acts_on_clusters: bool = True, is_ready: bool = True
    ) -> None:
        self.acts_on_clusters = acts_on_clusters
        self.is_ready = is_ready
        self._kube = kube
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="acting operator")

    def __enter__(self) -> ActingOperator:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            # What is written at the same time is seen at the next look.
            with contextlib.suppress(KubeError, ConnectionError):
                self._look()

    def _look(self) -> None:
        if self.acts_on_clusters:
            for cluster in self._list("DaskCluster"):
                self._of_cluster(cluster)
            for group in self._list("DaskWorkerGroup"):
                self._of_group(group)
        for kind in ("Deployment", "StatefulSet"):
            for one in self._list(kind):
                self._of_pods(kind, one)

    def _list(self, kind: str) -> list[Object]:
        """Items with what they are, which lists leave out."""
        about = {"apiVersion": KINDS[kind].api_version, "kind": kind}
        return [{**about, **one} for one in self._kube.list(kind)]

    def _of_cluster(self, cluster: Object) -> None:
        name = cluster["metadata"]["name"]
        scheduler = cluster["spec"]["scheduler"]
        labels = {names.CLUSTER_NAME: name, names.COMPONENT: "scheduler"}
        made = _owned(cluster, names.scheduler(name), scheduler["metadata"], labels)
        service = {**scheduler["service"]}
        self._create({"apiVersion": "v1", "kind": "Service", **made, "spec": service})
        deployment = {"replicas": 1, **_template(made, scheduler["spec"])}
        self._create(
            {"apiVersion": "apps/v1", "kind": "Deployment", **made, "spec": deployment}
        )

    def _of_group(self, group: Object) -> None:
        name = group["metadata"]["name"]
        worker, cluster = group["spec"]["worker"], group["spec"]["cluster"]
        if not group["metadata"].get("ownerReferences"):
            owner = self._kube.get("DaskCluster", cluster)
            if owner is not None:
                change = {"metadata": {"ownerReferences": [_reference(owner)]}}
                self._kube.patch("DaskWorkerGroup", name, change)
        labels = {
            names.CLUSTER_NAME: cluster,
            names.WORKER_GROUP_NAME: name,
            names.COMPONENT: "worker",
        }
        for number in range(worker["replicas"]):
            worker_name = f"{name}-worker-{number:010x}"
            made = _owned(group, worker_name, worker.get("metadata", {}), labels)
            spec = {"replicas": 1, **_template(made, worker["spec"])}
            self._create(
                {"apiVersion": "apps/v1", "kind": "Deployment", **made, "spec": spec}
            )

    def _of_pods(self, kind: str, owner: Object) -> None:
        meta, template = owner["metadata"], owner["spec"]["template"]
        there = {
            one["metadata"]["name"]: one
            for one in self._kube.list("Pod")
            if one["metadata"]["ownerReferences"][0]["uid"] == meta["uid"]
        }
        wanted = [f"{meta['name']}-{n}" for n in range(owner["spec"]["replicas"])]
        stamps = template["metadata"].get("annotations") or {}
        for name, pod in there.items():
            is_old = (pod["metadata"].get("annotations") or {}) != stamps
            if name not in wanted or is_old:
                self._kube.delete("Pod", name, grace_s=0)
        for name in wanted:
            made = _owned(owner, name, template["metadata"], {})
            pod = {"apiVersion": "v1", "kind": "Pod", **made, "spec": template["spec"]}
            if self._create(pod) and self.is_ready:
                self._kube.patch("Pod", name, _READY, subresource="status")
        count = owner["spec"]["replicas"] if self.is_ready else 0
        status = {
            "observedGeneration": meta["generation"],
            "replicas": owner["spec"]["replicas"],
            "readyReplicas": count,
        }
        if {**(owner.get("status") or {}), **status} != owner.get("status"):
            change = {"status": status}
            self._kube.patch(kind, meta["name"], change, subresource="status")

    def _create(self, made: Object) -> bool:
        name = made["metadata"]["name"]
        try:
            if self._kube.get(made["kind"], name) is None:
                self._kube.create(made)
                return True
        except (Conflict, NotFound):
            pass
        return False


_READY: Object = {
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "any",
                "image": "any",
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {}},
            }
        ],
    }
}


def _reference(owner: Object) -> Object:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }


def _owned(
    owner: Object, name: str, more: Object, labels: dict[str, str]
) -> dict[str, Any]:
    """Metadata as the operator makes it: the owner's labels, the part's, its own."""
    found = owner["metadata"].get("labels") or {}
    meta = {
        "name": name,
        "labels": {**found, **(more.get("labels") or {}), **labels},
        "annotations": more.get("annotations") or {},
        "ownerReferences": [_reference(owner)],
    }
    return {"metadata": meta}


def _template(made: dict[str, Any], spec: Object) -> Object:
    meta = made["metadata"]
    return {
        "selector": {"matchLabels": meta["labels"]},
        "template": {
            "metadata": {
                "labels": meta["labels"],
                "annotations": meta["annotations"],
            },
            "spec": spec,
        },
    }
