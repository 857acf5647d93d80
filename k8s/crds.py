"""The CRDs of the installed operator, and what they would refuse or drop.

The API server drops fields that a CRD's schema does not know without a word. Those of
the operator know pods as they were in Kubernetes 1.21, and want numbers of ports and
amounts of resources as texts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

Object = dict[str, Any]

#: Kubernetes' version whose pods the schemas describe.
SCHEMA_VERSION: Final = "1.21"
_FOLDER: Final = "operator/deployment/helm/dask-kubernetes-operator/crds"
#: Classes that a value of a schema's type has; bool is an int for Python alone.
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (Mapping,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
#: What the API server itself knows of every object.
_OF_ALL: Final = frozenset({"apiVersion", "kind", "metadata"})


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in an object that the operator's CRDs do not take.

    Attributes:
        subject: kind and name of the object.
        path: as ``spec.worker.spec.containers[0].image``.
        text: what is wrong and what to do, for people.
    """

    subject: str
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}"


@functools.cache
def _crds() -> tuple[Object, ...]:
    # Looked up, not imported: that would take a second and load Dask.
    spec = find_spec("dask_kubernetes")
    where = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(where[0], _FOLDER) if where else Path(_FOLDER)
    # PyYAML's own parser takes two seconds for these 18,000 lines.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = [
        yaml.load(one.read_text(), loader) for one in sorted(folder.glob("*.yaml"))
    ]
    if not found:
        raise FileNotFoundError(
            f"dask-kubernetes has no CRDs in {folder}: install a release with "
            "the operator in it (pip install 'rayshim[k8s]')"
        )
    return tuple(found)


def crd_objects() -> list[Object]:
    """The CustomResourceDefinitions in the wheel of dask-kubernetes, by file name.

    They must not be changed: all calls give the same ones.

    Raises:
        FileNotFoundError: the installed operator has none where they should be.
    """
    return list(_crds())


@functools.cache
def _schemas() -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """(apiVersion, kind) -> schema."""
    found = {}
    for one in _crds():
        spec = one["spec"]
        for version in spec["versions"]:
            api_version = f"{spec['group']}/{version['name']}"
            schema = version["schema"]["openAPIV3Schema"]
            found[api_version, spec["names"]["kind"]] = schema
    return found


def schema_of(made: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Schema of an object's kind; None if it is not the operator's."""
    return _schemas().get((made.get("apiVersion", ""), made.get("kind", "")))


def validate(made: Mapping[str, Any]) -> list[Problem]:
    """What the API server would refuse: types, required fields, enumerations.

    Raises:
        KeyError: no CRD of the operator has this kind.

    Example:
        >>> broken = {
        ...     "apiVersion": "kubernetes.dask.org/v1",
        ...     "kind": "DaskWorkerGroup",
        ...     "metadata": {"name": "demo-gpu"},
        ...     "spec": {"worker": {"replicas": "2", "spec": {"containers": []}}},
        ... }
        >>> for one in validate(broken):
        ...     print(one)
        DaskWorkerGroup demo-gpu: spec.cluster is missing; give it
        DaskWorkerGroup demo-gpu: spec.worker.replicas must be of type integer, not '2'
    """
    schema = _needed(made)
    return [
        Problem(_subject(made), path, f"{path} {problem}")
        for path, problem in _refused(_without_meta(schema), _own(made), "")
    ]


def dropped_fields(made: Mapping[str, Any]) -> list[str]:
    """Paths of fields that the API server would drop in silence.

    Raises:
        KeyError: no CRD of the operator has this kind.
    """
    return list(_dropped(_without_meta(_needed(made)), _own(made), ""))


def check(objects: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """Both, of those objects whose kinds are the operator's; for ``plan``."""
    found: list[Problem] = []
    for one in objects:
        if schema_of(one) is None:
            continue
        found += validate(one)
        found += [
            Problem(
                _subject(one),
                path,
                f"{path} is not in the operator's CRD schema (Kubernetes "
                f"{SCHEMA_VERSION}) and would be dropped; remove it",
            )
            for path in dropped_fields(one)
        ]
    return found


def _needed(made: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = schema_of(made)
    if schema is None:
        raise KeyError(
            f"the operator has no CRD for {made.get('apiVersion')} {made.get('kind')}"
        )
    return schema


def _subject(made: Mapping[str, Any]) -> str:
    return f"{made['kind']} {made['metadata']['name']}"


def _own(made: Mapping[str, Any]) -> Object:
    return {key: value for key, value in made.items() if key not in _OF_ALL}


def _without_meta(schema: Mapping[str, Any]) -> Object:
    kept = [one for one in schema.get("required", ()) if one not in _OF_ALL]
    return {**schema, "required": kept}


def _children(
    schema: Mapping[str, Any], value: Any, path: str
) -> Iterator[tuple[str, Mapping[str, Any] | None, Any]]:
    """(path, schema, value) of what is in a value; None: the schema knows no such."""
    if isinstance(value, Mapping):
        known = schema.get("properties") or {}
        others = schema.get("additionalProperties")
        is_open = others is True or schema.get("x-kubernetes-preserve-unknown-fields")
        for key, one in value.items():
            inner = f"{path}.{key}" if path else str(key)
            if key in known:
                yield inner, known[key], one
            elif isinstance(others, Mapping):
                yield inner, others, one
            elif not is_open:
                yield inner, None, one
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = schema.get("items")
        if isinstance(items, Mapping):
            for index, one in enumerate(value):
                yield f"{path}[{index}]", items, one


def _refused(
    schema: Mapping[str, Any], value: Any, path: str
) -> Iterator[tuple[str, str]]:
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            yield path, f"must be a number or a text, not {value!r}"
        return
    wanted = schema.get("type", "")
    classes = _TYPES.get(wanted, (object,))
    is_wrong_bool = isinstance(value, bool) and wanted in ("integer", "number")
    if is_wrong_bool or not isinstance(value, classes):
        yield path, f"must be of type {wanted}, not {value!r}"
        return
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(map(str, schema["enum"]))
        yield path, f"must be one of {known}, not {value!r}"
    if isinstance(value, Mapping):
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{path}.{name}".lstrip("."), "is missing; give it"
    for inner, about, one in _children(schema, value, path):
        if about is not None:
            yield from _refused(about, one, inner)


def _dropped(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[str]:
    for inner, about, one in _children(schema, value, path):
        if about is None:
            yield inner
        else:
            yield from _dropped(about, one, inner)
