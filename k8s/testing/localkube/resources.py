"""The kinds that the API server knows: those that are built in, and those of CRDs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scale:
    """Where the numbers of the subresource ``scale`` are in an object.

    Attributes:
        wanted: path of the wanted number, as ("spec", "replicas").
        present: path of the present number.
        selector: path of the selector, () if there is none.
    """

    wanted: tuple[str, ...]
    present: tuple[str, ...]
    selector: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of ``kubectl get``: a path in the object; wide if priority is > 0."""

    name: str
    type: str
    path: str
    priority: int = 0


@dataclass(frozen=True, eq=False)
class Resource:
    """A kind of objects.

    Attributes:
        group: API group, "" for the core one.
        versions: served ones, the preferred one first.
        plural: its name in paths.
        kind: its name in objects.
        schemas: version -> structural schema; for CRDs only.
        has_status: ``status`` is written through the subresource alone.
        is_custom: comes from a CRD.
        is_virtual: can be created but is kept nowhere, as access reviews.
        columns: what tables show beside name and age.
    """

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    is_namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = False
    scale: Scale | None = None
    schemas: Mapping[str, Object] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    is_custom: bool = False
    is_virtual: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """(group, plural name)."""
        return self.group, self.plural

    @property
    def full_name(self) -> str:
        """As "pods" or "daskclusters.kubernetes.dask.org"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def api_version(self, version: str = "") -> str:
        """What objects have in ``apiVersion``."""
        version = version or self.versions[0]
        return f"{self.group}/{version}" if self.group else version


_REPLICAS = Scale(("spec", "replicas"), ("status", "replicas"), ("spec", "selector"))
_PRESENT = "status.readyReplicas"


def _columns(
    *rows: tuple[str, str, str] | tuple[str, str, str, int],
) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


#: Columns whose path starts with "=" are computed: see tables.
_POD_COLUMNS = _columns(
    ("Ready", "string", "=pod ready"),
    ("Status", "string", "=pod status"),
    ("Restarts", "string", "=pod restarts"),
    ("Age", "string", "=age"),
    ("IP", "string", "status.podIP", 1),
    ("Node", "string", "spec.nodeName", 1),
)
_DEPLOYMENT_COLUMNS = _columns(
    ("Ready", "string", "=replicas ready"),
    ("Up-to-date", "string", "status.updatedReplicas"),
    ("Available", "string", "status.availableReplicas"),
    ("Age", "string", "=age"),
)
_SERVICE_COLUMNS = _columns(
    ("Type", "string", "spec.type"),
    ("Cluster-IP", "string", "spec.clusterIP"),
    ("Age", "string", "=age"),
)
_NODE_COLUMNS = _columns(
    ("Status", "string", "=node status"),
    ("Age", "string", "=age"),
)
_EVENT_COLUMNS = _columns(
    ("Last Seen", "string", "lastTimestamp"),
    ("Type", "string", "type"),
    ("Reason", "string", "reason"),
    ("Object", "string", "involvedObject.name"),
    ("Message", "string", "message"),
)
_PHASE_COLUMNS = _columns(
    ("Status", "string", "status.phase"), ("Age", "string", "=age")
)


def built_in() -> list[Resource]:
    """The kinds that are there from the beginning."""
    core = [
        Resource("", ("v1",), "namespaces", "Namespace", False, short_names=("ns",),
                 has_status=True, columns=_PHASE_COLUMNS),
        Resource("", ("v1",), "nodes", "Node", False, short_names=("no",),
                 has_status=True, columns=_NODE_COLUMNS),
        Resource("", ("v1",), "pods", "Pod", short_names=("po",), categories=("all",),
                 has_status=True, columns=_POD_COLUMNS),
        Resource("", ("v1",), "services", "Service", short_names=("svc",),
                 categories=("all",), has_status=True, columns=_SERVICE_COLUMNS),
        Resource("", ("v1",), "endpoints", "Endpoints", short_names=("ep",)),
        Resource("", ("v1",), "events", "Event", short_names=("ev",),
                 columns=_EVENT_COLUMNS),
        Resource("", ("v1",), "configmaps", "ConfigMap", short_names=("cm",)),
        Resource("", ("v1",), "secrets", "Secret"),
        Resource("", ("v1",), "serviceaccounts", "ServiceAccount", short_names=("sa",)),
        Resource("", ("v1",), "persistentvolumeclaims", "PersistentVolumeClaim",
                 short_names=("pvc",), has_status=True, columns=_PHASE_COLUMNS),
        Resource("", ("v1",), "persistentvolumes", "PersistentVolume", False,
                 short_names=("pv",), has_status=True, columns=_PHASE_COLUMNS),
        Resource("", ("v1",), "resourcequotas", "ResourceQuota", short_names=("quota",),
                 has_status=True),
        Resource("", ("v1",), "limitranges", "LimitRange", short_names=("limits",)),
    ]  # fmt: skip
    apps = [
        Resource("apps", ("v1",), plural, kind, short_names=(short,),
                 categories=("all",), has_status=True, scale=_REPLICAS,
                 columns=_DEPLOYMENT_COLUMNS)
        for plural, kind, short in (
            ("deployments", "Deployment", "deploy"),
            ("statefulsets", "StatefulSet", "sts"),
            ("replicasets", "ReplicaSet", "rs"),
        )
    ]  # fmt: skip
    rbac = "rbac.authorization.k8s.io"
    others = [
        Resource("apps", ("v1",), "daemonsets", "DaemonSet", short_names=("ds",),
                 categories=("all",), has_status=True),
        Resource("batch", ("v1",), "jobs", "Job", categories=("all",), has_status=True),
        Resource("batch", ("v1",), "cronjobs", "CronJob", short_names=("cj",),
                 categories=("all",), has_status=True),
        Resource("events.k8s.io", ("v1",), "events", "Event", short_names=("ev",)),
        Resource("coordination.k8s.io", ("v1",), "leases", "Lease"),
        Resource("discovery.k8s.io", ("v1",), "endpointslices", "EndpointSlice"),
        Resource("policy", ("v1",), "poddisruptionbudgets", "PodDisruptionBudget",
                 short_names=("pdb",), has_status=True),
        Resource("networking.k8s.io", ("v1",), "networkpolicies", "NetworkPolicy",
                 short_names=("netpol",)),
        Resource("networking.k8s.io", ("v1",), "ingresses", "Ingress",
                 short_names=("ing",), has_status=True),
        Resource("networking.k8s.io", ("v1",), "ingressclasses", "IngressClass", False),
        Resource("storage.k8s.io", ("v1",), "storageclasses", "StorageClass", False,
                 short_names=("sc",)),
        Resource("scheduling.k8s.io", ("v1",), "priorityclasses", "PriorityClass",
                 False, short_names=("pc",)),
        Resource(rbac, ("v1",), "roles", "Role"),
        Resource(rbac, ("v1",), "rolebindings", "RoleBinding"),
        Resource(rbac, ("v1",), "clusterroles", "ClusterRole", False),
        Resource(rbac, ("v1",), "clusterrolebindings", "ClusterRoleBinding", False),
        Resource("apiextensions.k8s.io", ("v1",), "customresourcedefinitions",
                 "CustomResourceDefinition", False, short_names=("crd", "crds"),
                 has_status=True),
    ]  # fmt: skip
    virtual = [
        Resource(group, ("v1",), plural, kind, is_namespaced, is_virtual=True)
        for group, plural, kind, is_namespaced in (
            ("authorization.k8s.io", "selfsubjectaccessreviews",
             "SelfSubjectAccessReview", False),
            ("authorization.k8s.io", "selfsubjectrulesreviews",
             "SelfSubjectRulesReview", False),
            ("authorization.k8s.io", "subjectaccessreviews",
             "SubjectAccessReview", False),
            ("authorization.k8s.io", "localsubjectaccessreviews",
             "LocalSubjectAccessReview", True),
            ("authentication.k8s.io", "selfsubjectreviews", "SelfSubjectReview", False),
            ("authentication.k8s.io", "tokenreviews", "TokenReview", False),
        )
    ]  # fmt: skip
    return [*core, *apps, *others, *virtual]


#: Of a CRD's schema that says nothing: every field is kept.
ANYTHING: Final[Object] = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
}


def of_crd(crd: Object) -> Resource:
    """The kind that a CustomResourceDefinition defines.

    Its versions share one form: there is no conversion.
    """
    spec = crd["spec"]
    served = [one for one in spec["versions"] if one.get("served")]
    served.sort(key=lambda one: not one.get("storage"))
    first = served[0]
    parts = first.get("subresources") or {}
    names = spec["names"]
    scale = parts.get("scale")
    return Resource(
        group=spec["group"],
        versions=tuple(one["name"] for one in served),
        plural=names["plural"],
        kind=names["kind"],
        is_namespaced=spec["scope"] == "Namespaced",
        singular=names.get("singular", ""),
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        has_status="status" in parts,
        scale=scale
        and Scale(
            _path(scale["specReplicasPath"]),
            _path(scale["statusReplicasPath"]),
            _path(scale.get("labelSelectorPath", "")),
        ),
        schemas={
            one["name"]: (one.get("schema") or {}).get("openAPIV3Schema") or ANYTHING
            for one in served
        },
        columns=tuple(
            Column(
                one["name"],
                one.get("type", "string"),
                one["jsonPath"].lstrip("."),
                one.get("priority", 0),
            )
            for one in first.get("additionalPrinterColumns", ())
        ),
        is_custom=True,
    )


def schemaless_crd(
    group: str,
    version: str,
    plural: str,
    kind: str,
    *,
    is_namespaced: bool = True,
    has_status: bool = True,
) -> Object:
    """A CustomResourceDefinition that takes whatever it is given.

    For kinds whose own CRDs are not at hand: cert-manager, Kueue, monitoring.

    Example:
        >>> crd = schemaless_crd("cert-manager.io", "v1", "certificates", "Certificate")
        >>> crd["metadata"]["name"]
        'certificates.cert-manager.io'
    """
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "scope": "Namespaced" if is_namespaced else "Cluster",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": ANYTHING},
                    **({"subresources": {"status": {}}} if has_status else {}),
                }
            ],
        },
    }


def _path(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(".") if part)


class Registry:
    """The kinds that are known now."""

    def __init__(self) -> None:
        #: (group, plural name) -> kind.
        self._kinds = {one.key: one for one in built_in()}

    def __iter__(self) -> Iterator[Resource]:
        return iter(list(self._kinds.values()))

    def get(self, group: str, plural: str) -> Resource | None:
        """The kind at a path."""
        return self._kinds.get((group, plural))

    def of_kind(self, api_version: str, kind: str) -> Resource | None:
        """The kind of an object."""
        group, _, version = api_version.rpartition("/")
        for one in self._kinds.values():
            if one.group == group and one.kind == kind and version in one.versions:
                return one
        return None

    def named(self, plural: str) -> Resource:
        """The kind with a plural name, with ".group" where two have the same.

        Raises:
            KeyError: there is none.
        """
        found = [
            one for one in self._kinds.values() if plural in (one.plural, one.full_name)
        ]
        if not found:
            raise KeyError(
                f"no kind has the plural name {plural!r}: is its CRD installed?"
            )
        return found[0]

    def add(self, resource: Resource) -> None:
        """Serve a kind, in place of the one of that name."""
        self._kinds[resource.key] = resource

    def remove(self, group: str, plural: str) -> None:
        """Serve a kind no more."""
        self._kinds.pop((group, plural), None)
