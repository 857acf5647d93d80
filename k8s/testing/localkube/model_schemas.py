"""Structural schemas of the built-in kinds, from the official client's models.

The models say the fields and types of each kind. What they do not say, and what
server-side apply and strategic merge need, is by which fields the items of a list are
told apart: :data:`LIST_KEYS`.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from kubernetes.client import models

from rayshim.k8s.testing.localkube.resources import Resource
from rayshim.k8s.testing.localkube.schemas import KEEP, QUANTITY

Object = dict[str, Any]

#: Type of a list's items -> what tells them apart. Others are replaced as a whole.
#: Source: ``x-kubernetes-list-map-keys`` in the API's OpenAPI document; the first of
#: the keys is the ``x-kubernetes-patch-merge-key``.
LIST_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "V1Container": ("name",),
    "V1EphemeralContainer": ("name",),
    "V1EnvVar": ("name",),
    "V1ContainerPort": ("containerPort", "protocol"),
    "V1ServicePort": ("port", "protocol"),
    "V1Volume": ("name",),
    "V1VolumeMount": ("mountPath",),
    "V1VolumeDevice": ("devicePath",),
    "V1LocalObjectReference": ("name",),
    "V1HostAlias": ("ip",),
    "V1TopologySpreadConstraint": ("topologyKey", "whenUnsatisfiable"),
    "V1PodSchedulingGate": ("name",),
    "V1PodResourceClaim": ("name",),
    "V1OwnerReference": ("uid",),
    "V1NodeAddress": ("type",),
    "V1PodIP": ("ip",),
}
#: (type, field) -> keys of that list alone.
_LIST_KEYS_OF_FIELD: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("V1ServiceAccount", "secrets"): ("name",),
}
_DEFAULTS: Final[dict[tuple[str, str], Any]] = {
    ("V1ContainerPort", "protocol"): "TCP",
    ("V1ServicePort", "protocol"): "TCP",
}
_QUANTITIES: Final = frozenset(
    "limits requests capacity allocatable hard used overhead sizeLimit "
    "allocatedResources".split()
)
_LIST = re.compile(r"[Ll]ist\[(.+)\]")
_MAP = re.compile(r"[Dd]ict[\[(]str, ?(.+)[\])]")
_SIMPLE: Final[dict[str, Object]] = {
    "str": {"type": "string"},
    "bytes": {"type": "string"},
    "datetime": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "object": {KEEP: True},
}
_OTHER_NAMES: Final = {
    ("", "Event"): "CoreV1Event",
    ("events.k8s.io", "Event"): "EventsV1Event",
}
_UNTYPED: Final = frozenset({"CustomResourceDefinition"})


def schema_of(resource: Resource) -> Object | None:
    """The schema of a built-in kind; None for one that takes whatever it is given."""
    if resource.is_custom or resource.is_virtual or resource.kind in _UNTYPED:
        return None
    name = _OTHER_NAMES.get((resource.group, resource.kind), f"V1{resource.kind}")
    return _of_model(name)


@functools.cache
def metadata_schema() -> Object:
    """The schema of every object's ``metadata``."""
    return _of_model("V1ObjectMeta")


@functools.cache
def _of_model(name: str) -> Object:
    model = getattr(models, name)
    fields: Object = {}
    for attribute, written in model.openapi_types.items():
        field = model.attribute_map[attribute]
        made = dict(_of_type(written, field))
        keys = _LIST_KEYS_OF_FIELD.get((name, field))
        if keys:
            made |= _list_of(keys)
        if (name, field) in _DEFAULTS:
            made["default"] = _DEFAULTS[name, field]
        if (name, field) == ("V1ObjectMeta", "finalizers"):
            made["x-kubernetes-list-type"] = "set"
        fields[field] = made
    schema: Object = {"type": "object", "properties": fields}
    if name in ("V1LabelSelector", "V1ObjectReference", "V1NodeSelector"):
        schema["x-kubernetes-map-type"] = "atomic"
    return schema


def _of_type(written: str, field: str) -> Object:
    if found := _LIST.fullmatch(written):
        item = found[1]
        made: Object = {"type": "array", "items": _of_type(item, field)}
        keys = ("type",) if item.endswith("Condition") else LIST_KEYS.get(item, ())
        return made | _list_of(keys) if keys else made
    if found := _MAP.fullmatch(written):
        return {"type": "object", "additionalProperties": _of_type(found[1], field)}
    if written in _SIMPLE:
        simple = _SIMPLE[written]
        is_quantity = field in _QUANTITIES and written == "str"
        return {**simple, QUANTITY: True} if is_quantity else simple
    return _of_model(written)


def _list_of(keys: tuple[str, ...]) -> Object:
    return {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": list(keys),
    }
