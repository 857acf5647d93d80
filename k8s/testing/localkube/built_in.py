"""What the server fills in and checks for built-in kinds, beside their fields' types.

The part that programs rely on: a real server checks more. Source: the packages
``pkg/apis/*/v1/defaults.go`` and ``pkg/apis/*/validation`` of Kubernetes, as documented
in its API reference.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from kubernetes.utils.quantity import parse_quantity

from rayshim.k8s.testing.localkube.selectors import selects

Object = dict[str, Any]
Fault = tuple[str, str]

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_KEY: Final = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

_IMMUTABLE: Final = "field is immutable"
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
    "characters, '-' or '.', and must start and end with an alphanumeric character"
)
_LABEL_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or "
    "'-', and must start and end with an alphanumeric character"
)
#: Kinds with a pod template at spec.template.
_TEMPLATES: Final = frozenset(
    {"Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job"}
)


def fill_in(kind: str, made: Object) -> None:
    """Set the defaults of an object, new or changed."""
    spec = made.get("spec")
    if kind == "Pod" and isinstance(spec, dict):
        _fill_in_pod(spec)
        spec.setdefault("serviceAccountName", "default")
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    elif kind in _TEMPLATES and isinstance(spec, dict):
        if isinstance((spec.get("template") or {}).get("spec"), dict):
            _fill_in_pod(spec["template"]["spec"])
        _fill_in_workload(kind, spec)
    elif kind == "Service" and isinstance(spec, dict):
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        for port in spec.get("ports") or []:
            port.setdefault("targetPort", port.get("port"))
    elif kind == "PersistentVolumeClaim" and isinstance(spec, dict):
        spec.setdefault("volumeMode", "Filesystem")
    elif kind == "Secret":
        made.setdefault("type", "Opaque")
        texts = made.pop("stringData", None) or {}
        for name, text in texts.items():
            encoded = base64.b64encode(str(text).encode()).decode()
            made.setdefault("data", {})[name] = encoded
    elif kind == "Namespace":
        made.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
        labels = made["metadata"].setdefault("labels", {})
        labels["kubernetes.io/metadata.name"] = made["metadata"]["name"]


def _fill_in_workload(kind: str, spec: Object) -> None:
    if kind in ("Deployment", "StatefulSet", "ReplicaSet"):
        spec.setdefault("replicas", 1)
    if kind == "Deployment":
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)
        strategy = spec.setdefault("strategy", {})
        if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            rolling.setdefault("maxSurge", "25%")
            rolling.setdefault("maxUnavailable", "25%")
    if kind == "StatefulSet":
        spec.setdefault("podManagementPolicy", "OrderedReady")
        spec.setdefault("updateStrategy", {"type": "RollingUpdate"})


def _fill_in_pod(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for one in _containers(spec):
        image = str(one.get("image", ""))
        tag = image.rpartition("/")[2].partition(":")[2]
        is_floating = tag in ("", "latest") and "@" not in image
        one.setdefault("imagePullPolicy", "Always" if is_floating else "IfNotPresent")
        resources = one.setdefault("resources", {})
        for name, amount in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, amount)


def first_status(kind: str, made: Object) -> Object | None:
    """The status of a new object."""
    if kind == "Pod":
        status: Object = {"phase": "Pending", "qosClass": _quality(made)}
        if made.get("spec", {}).get("schedulingGates"):
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling "
                    "gates",
                }
            ]
        return status
    if kind == "Service":
        return {"loadBalancer": {}}
    phases = {"Namespace": "Active", "PersistentVolumeClaim": "Pending"}
    if kind in phases:
        return {"phase": phases[kind]}
    return {} if kind in _TEMPLATES else None


def _quality(made: Object) -> str:
    asked = [one.get("resources", {}) for one in _containers(made.get("spec", {}))]
    if not any(one.get("requests") or one.get("limits") for one in asked):
        return "BestEffort"
    is_guaranteed = all(
        {"cpu", "memory"} <= set(one.get("limits", {}))
        and one.get("limits") == one.get("requests")
        for one in asked
    )
    return "Guaranteed" if is_guaranteed else "Burstable"


def faults_of_metadata(kind: str, group: str, meta: Object) -> Iterator[Fault]:
    """What is wrong with an object's name, labels and annotations."""
    name = meta["name"]
    if group == "rbac.authorization.k8s.io":
        if "/" in name or "%" in name:
            yield (
                "metadata.name",
                f'Invalid value: "{name}": may not contain "/" or "%"',
            )
    elif kind in ("Namespace", "Service"):
        if not _LABEL.fullmatch(name) or len(name) > 63:
            yield "metadata.name", f'Invalid value: "{name}": {_LABEL_RULE}'
    elif not _SUBDOMAIN.fullmatch(name) or len(name) > 253:
        yield "metadata.name", f'Invalid value: "{name}": {_SUBDOMAIN_RULE}'
    yield from _faults_of_labels("metadata.labels", meta.get("labels"))
    for key, value in (meta.get("annotations") or {}).items():
        if not isinstance(value, str):
            continue  # The schema says so.
        if not _KEY.fullmatch(key):
            yield (
                "metadata.annotations",
                f'Invalid value: "{key}": is no annotation key',
            )


def _faults_of_labels(where: str, labels: Object | None) -> Iterator[Fault]:
    for key, value in (labels or {}).items():
        if not _KEY.fullmatch(key) or len(key.rpartition("/")[2]) > 63:
            yield where, f'Invalid value: "{key}": name part must be a qualified name'
        if isinstance(value, str) and (len(value) > 63 or not _VALUE.fullmatch(value)):
            yield (
                where,
                f'Invalid value: "{value}": a valid label must be an empty string or '
                "consist of at most 63 alphanumeric characters, '-', '_' or '.', and "
                "must start and end with an alphanumeric character",
            )


def faults(kind: str, made: Object, before: Object | None) -> Iterator[Fault]:
    """What is wrong with an object, or with the change of it."""
    spec = made.get("spec") or {}
    old = (before or {}).get("spec") or {}
    if kind == "Pod":
        yield from _faults_of_pod("spec", spec)
        if before and _may_not_change(old) != _may_not_change(spec):
            yield from _faults_of_pod_change(old, spec)
    elif kind in _TEMPLATES:
        yield from _faults_of_workload(kind, spec)
        if before and kind != "Job" and old.get("selector") != spec.get("selector"):
            yield "spec.selector", f"Invalid value: {_shown(spec)}: {_IMMUTABLE}"
    elif kind == "Service" and before and old.get("clusterIP") != spec.get("clusterIP"):
        if old.get("clusterIP"):
            yield "spec.clusterIP", f"Invalid value: {_IMMUTABLE}"
    elif kind in ("RoleBinding", "ClusterRoleBinding"):
        if before and before.get("roleRef") != made.get("roleRef"):
            shown = _shown(made.get("roleRef"))
            yield "roleRef", f"Invalid value: {shown}: cannot change roleRef"
        if not (made.get("roleRef") or {}).get("name"):
            yield "roleRef.name", "Required value"
    elif kind in ("Secret", "ConfigMap"):
        yield from _faults_of_data(kind, made, before)
    elif kind == "PersistentVolumeClaim" and not spec.get("accessModes"):
        yield "spec.accessModes", "Required value: at least 1 access mode is required"
    elif kind == "PodDisruptionBudget" and {"minAvailable", "maxUnavailable"} <= set(
        spec
    ):
        yield (
            "spec",
            "Invalid value: minAvailable and maxUnavailable cannot be both set",
        )


def _faults_of_data(kind: str, made: Object, before: Object | None) -> Iterator[Fault]:
    if before and before.get("immutable") and before.get("data") != made.get("data"):
        yield "data", "Forbidden: field is immutable when `immutable` is set"
    if kind == "Secret":
        if before and before.get("type") != made.get("type"):
            yield "type", f'Invalid value: "{made.get("type")}": {_IMMUTABLE}'
        for name, text in (made.get("data") or {}).items():
            try:
                base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                yield f"data[{name}]", "Invalid value: illegal base64 data"


def _faults_of_workload(kind: str, spec: Object) -> Iterator[Fault]:
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    replicas = spec.get("replicas", 0)
    if replicas < 0:
        yield (
            "spec.replicas",
            f"Invalid value: {replicas}: must be greater than or equal to 0",
        )
    if kind != "Job":
        if not spec.get("selector"):
            yield "spec.selector", "Required value"
        elif not selects(spec["selector"], labels):
            yield (
                "spec.template.metadata.labels",
                f"Invalid value: {_shown(labels)}: `selector` does not match template "
                "`labels`",
            )
    yield from _faults_of_labels("spec.template.metadata.labels", labels)
    pod = template.get("spec") or {}
    # What a StatefulSet claims are volumes of its pods.
    claims = [one["metadata"] for one in spec.get("volumeClaimTemplates") or []]
    pod = {**pod, "volumes": [*(pod.get("volumes") or []), *claims]}
    yield from _faults_of_pod("spec.template.spec", pod)


def _faults_of_pod(where: str, spec: Object) -> Iterator[Fault]:
    if not spec.get("containers"):
        yield f"{where}.containers", "Required value"
    if spec.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never"):
        yield f"{where}.restartPolicy", "Unsupported value"
    volumes = {one.get("name") for one in spec.get("volumes") or []}
    names: set[str] = set()
    for field in ("initContainers", "containers"):
        for place, one in enumerate(spec.get(field) or []):
            here = f"{where}.{field}[{place}]"
            name = one.get("name", "")
            if not name:
                yield f"{here}.name", "Required value"
            elif not _LABEL.fullmatch(name) or len(name) > 63:
                yield f"{here}.name", f'Invalid value: "{name}": {_LABEL_RULE}'
            elif name in names:
                yield f"{here}.name", f'Duplicate value: "{name}"'
            names.add(name)
            if not one.get("image"):
                yield f"{here}.image", "Required value"
            for at, mount in enumerate(one.get("volumeMounts") or []):
                if mount.get("name") not in volumes:
                    yield (
                        f"{here}.volumeMounts[{at}].name",
                        f'Not found: "{mount.get("name")}"',
                    )
            yield from _faults_of_resources(here, one.get("resources") or {})


def _faults_of_resources(where: str, resources: Object) -> Iterator[Fault]:
    limits = resources.get("limits") or {}
    amounts: dict[tuple[str, str], Decimal] = {}
    for field in ("limits", "requests"):
        for name, amount in (resources.get(field) or {}).items():
            try:
                amounts[field, name] = parse_quantity(amount)  # type: ignore[no-untyped-call]
            except ValueError:
                yield (
                    f"{where}.resources.{field}[{name}]",
                    f'Invalid value: "{amount}": quantities must match the regular '
                    "expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                )
    for name in limits:
        limit, asked = (amounts.get((f, name)) for f in ("limits", "requests"))
        if limit is None or asked is None:
            continue
        if "/" in name and limit != asked:
            yield (
                f"{where}.resources.requests",
                f'Invalid value: "{asked}": must be equal to {name} limit of {limit}',
            )
        elif asked > limit:
            yield (
                f"{where}.resources.requests",
                f'Invalid value: "{asked}": must be less than or equal to {name} limit '
                f"of {limit}",
            )


def _may_not_change(spec: Object) -> Object:
    made = {
        name: one
        for name, one in spec.items()
        if name
        not in (
            "activeDeadlineSeconds",
            "terminationGracePeriodSeconds",
            "tolerations",
            "schedulingGates",
            *(("nodeSelector", "affinity") if spec.get("schedulingGates") else ()),
        )
    }
    for field in ("containers", "initContainers"):
        if field in made:
            made[field] = [{**one, "image": ""} for one in made[field]]
    return made


def _faults_of_pod_change(old: Object, new: Object) -> Iterator[Fault]:
    if old.get("schedulingGates"):
        free = ("nodeSelector", "affinity")
        old = {k: v for k, v in old.items() if k not in free}
        new = {k: v for k, v in new.items() if k not in free}
        if _may_not_change(old) == _may_not_change(new):
            return
    yield (
        "spec",
        "Forbidden: pod updates may not change fields other than "
        "`spec.containers[*].image`,`spec.initContainers[*].image`,"
        "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
        "tolerations),`spec.terminationGracePeriodSeconds`",
    )


def faults_of_gates(old: Object, new: Object) -> Iterator[Fault]:
    """Scheduling gates are set when a pod is created, and only taken away later."""
    before = {one["name"] for one in old.get("schedulingGates") or []}
    added = {one["name"] for one in new.get("schedulingGates") or []} - before
    if added:
        yield (
            "spec.schedulingGates",
            f"Forbidden: only deletion is allowed, but found new scheduling gate "
            f"'{min(added)}'",
        )


def _containers(spec: Object) -> list[Object]:
    return [
        one
        for field in ("initContainers", "containers")
        for one in spec.get(field) or []
        if isinstance(one, dict)
    ]


def _shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True)[:300]
