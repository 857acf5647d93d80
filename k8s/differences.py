"""What the rendered objects would change in a cluster.

The comparison is our own and structural, since a dry run of server-side apply needs the
right to write. What counts is what we set: defaults that the API server fills in, and
fields of other managers, are no differences; fields that an earlier version of ours set
(``managedFields``) and that are still there are.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any

from rayshim.k8s import names
from rayshim.k8s.api import KINDS, Forbidden, Kube, NotFound, Object
from rayshim.k8s.stamping import SECRETS

#: Kind -> paths that are not ours once the object exists: the autoscaler writes them.
NOT_OURS: Mapping[str, frozenset[str]] = {
    "DaskWorkerGroup": frozenset({"spec.worker.replicas"}),
}
#: Maps of amounts, which the API server writes in its own way ("2000m" as "2").
_AMOUNTS = frozenset(
    ("borrowingLimit", "capacity", "limits", "nominalQuota", "requests", "sizeLimit")
)
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]|[KMGTPE]i)?")
_DECIMAL: Mapping[str, int] = {
    **{"": 0, "n": -9, "u": -6, "m": -3},
    **{"k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18},
}
_BINARY: Mapping[str, int] = {
    name: 2 ** (10 * (i + 1)) for i, name in enumerate("KMGTPE")
}


class State(Enum):
    """Of a rendered object in the cluster."""

    #: Is not there, and would be created.
    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    #: One of that name is there and does not carry the platform's labels.
    FOREIGN = "not ours"
    #: Its kind is not known to the cluster.
    NO_KIND = "kind is missing"
    #: Of no namespace, and may not be read: an administrator's business.
    HIDDEN = "may not be read"


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field: from what is there to what is wanted; None: not set."""

    path: str
    found: Any
    wanted: Any

    def text(self) -> str:
        """In one line."""
        return f"{self.path}: {_short(self.found)} -> {_short(self.wanted)}"


@dataclass(frozen=True, slots=True)
class Difference:
    """One rendered object against the cluster."""

    kind: str
    name: str
    #: Empty for objects of the cluster as a whole.
    namespace: str
    state: State
    changes: tuple[FieldChange, ...] = ()
    #: For objects that are not ours: whose they seem to be.
    note: str = ""


def is_ours(found: Mapping[str, Any], platform: str) -> bool:
    """Whether an object carries the labels of this platform."""
    labels = found.get("metadata", {}).get("labels") or {}
    return (
        labels.get(names.MANAGED_BY) == names.RAYSHIM
        and labels.get(names.PLATFORM) == platform
    )


def differences(
    kube: Kube, objects: Sequence[Object], platform: str
) -> list[Difference]:
    """Reads each object, and compares; writes nothing.

    Args:
        kube: the cluster.
        objects: rendered ones.
        platform: name of the platform.

    Returns:
        One for each object, in the same order.

    Raises:
        Forbidden: an object may not be read.
        Unreachable: the API server does not answer.
    """
    served = served_kinds(kube, {one["kind"] for one in objects})
    return [_difference(kube, one, platform, served) for one in objects]


def _difference(
    kube: Kube, wanted: Object, platform: str, served: frozenset[str]
) -> Difference:
    kind, meta = wanted["kind"], wanted["metadata"]
    namespace = ""
    if KINDS[kind].is_namespaced:
        namespace = meta.get("namespace") or kube.namespace
    if kind not in served:
        return Difference(kind, meta["name"], namespace, State.NO_KIND)
    made = partial(Difference, kind, meta["name"], namespace)
    try:
        found = kube.get(kind, meta["name"], namespace or None)
    except Forbidden as error:
        if namespace:
            raise
        if kind == "Namespace":
            # Who may write in it need not be allowed to look at it.
            return made(State.UNCHANGED, note="may not be read; taken to be there")
        return made(State.HIDDEN, note=str(error))
    if found is None:
        return made(State.CREATED)
    if not is_ours(found, platform):
        if kind == "Namespace":
            return made(State.UNCHANGED, note="was there before, and stays as it is")
        return made(State.FOREIGN, note=_whose(found))
    changes = tuple(compare(wanted, found))
    return made(State.CHANGED if changes else State.UNCHANGED, changes)


def _whose(found: Object) -> str:
    labels = found["metadata"].get("labels") or {}
    if labels.get(names.MANAGED_BY) == names.RAYSHIM:
        return f"belongs to platform {labels.get(names.PLATFORM, 'without a name')}"
    by = labels.get(names.MANAGED_BY)
    return f"managed by {by}" if by else "without labels of rayshim"


def served_kinds(kube: Kube, kinds: Iterable[str]) -> frozenset[str]:
    """Those of these kinds that the cluster knows (API discovery: needs no rights).

    Raises:
        Unreachable: the API server does not answer.
    """
    served: set[str] = set()
    plurals: dict[str, set[str]] = {}
    for kind in sorted(kinds):
        version = KINDS[kind].api_version
        if version not in plurals:
            prefix = "/apis/" if "/" in version else "/api/"
            try:
                listed = json.loads(kube.text(prefix + version))
            except NotFound:
                listed = {}
            plurals[version] = {one["name"] for one in listed.get("resources", [])}
        if KINDS[kind].plural in plurals[version]:
            served.add(kind)
    return frozenset(served)


def compare(
    wanted: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[FieldChange]:
    """Fields that applying ``wanted`` would change in ``found``.

    Args:
        wanted: a rendered object.
        found: the same object as the cluster has it.

    Example:
        >>> wanted = {"kind": "Service", "spec": {"type": "ClusterIP"}}
        >>> found = {"kind": "Service", "spec": {"type": "NodePort", "port": 1}}
        >>> [change.text() for change in compare(wanted, found)]
        ['spec.type: "NodePort" -> "ClusterIP"']
    """
    left_out = NOT_OURS.get(wanted.get("kind", ""), frozenset())
    pair = _plain(wanted), _plain(found)
    for change in (*_changed(*pair, ""), *_dropped(*pair)):
        # Who may not read Secrets knows no stamp of them.
        is_unknown = change.wanted is None and change.path.endswith(f".{SECRETS}")
        if change.path not in left_out and not is_unknown:
            yield change


def _plain(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """A Secret with its texts as the cluster stores them."""
    if "stringData" not in one:
        return one
    made = dict(one)
    texts = made.pop("stringData") or {}
    data = {
        key: base64.b64encode(text.encode()).decode() for key, text in texts.items()
    }
    return {**made, "data": {**made.get("data", {}), **data}}


def _changed(wanted: Any, found: Any, path: str) -> Iterator[FieldChange]:
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key, value in wanted.items():
            yield from _changed(value, found.get(key), f"{path}.{key}" if path else key)
    elif isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            yield FieldChange(path, found, wanted)
            return
        for number, (one, other) in enumerate(zip(wanted, found, strict=True)):
            name = one.get("name", number) if isinstance(one, Mapping) else number
            yield from _changed(one, other, f"{path}[{name}]")
    elif wanted != found and not _is_same(wanted, found, path):
        yield FieldChange(path, found, wanted)


def _is_same(wanted: Any, found: Any, path: str) -> bool:
    if found is None:
        return _is_empty(wanted)
    if _AMOUNTS.isdisjoint(re.split(r"[.\[]", path)):
        return False
    amounts = quantity(wanted), quantity(found)
    return None not in amounts and amounts[0] == amounts[1]


def _is_empty(value: Any) -> bool:
    """Whether the API server may leave a value out of what it stores."""
    return value is None or value is False or value in ("", [], {})


def quantity(text: Any) -> Decimal | None:
    """An amount as Kubernetes writes it; None: it is none.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity

    Example:
        >>> quantity("1.5Gi") == 1.5 * 2**30, quantity("250m")
        (True, Decimal('0.250'))
    """
    found = _QUANTITY.fullmatch(str(text))
    if found is None or isinstance(text, bool):
        return None
    number, unit = Decimal(found[1]), found[2] or ""
    if unit.endswith("i"):
        return number * Decimal(_BINARY[unit[0]])
    return number.scaleb(_DECIMAL[unit])


def _dropped(
    wanted: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[FieldChange]:
    """Fields that we applied once and that are not wanted any more."""
    for entry in found.get("metadata", {}).get("managedFields") or []:
        is_ours = entry.get("manager") == names.FIELD_MANAGER
        if is_ours and entry.get("operation") == "Apply":
            yield from _owned(entry.get("fieldsV1") or {}, wanted, found, "")


def _owned(
    fields: Mapping[str, Any], wanted: Any, found: Any, path: str
) -> Iterator[FieldChange]:
    for key, inner in fields.items():
        kind, _, name = key.partition(":")
        if kind == "f" and isinstance(found, Mapping):
            there, mine = found.get(name), None
            if isinstance(wanted, Mapping):
                mine = wanted.get(name)
            below = f"{path}.{name}" if path else name
        elif kind == "k" and isinstance(found, list):
            keys = json.loads(name)
            there, mine = _element(found, keys), _element(wanted, keys)
            below = f"{path}[{', '.join(str(one) for one in keys.values())}]"
        else:
            continue
        if there is None:
            continue
        if mine is None:
            if not _is_empty(there):
                yield FieldChange(below, there, None)
        else:
            yield from _owned(inner, mine, there, below)


def _element(items: Any, keys: Mapping[str, Any]) -> Any:
    """The element of a list that has these keys."""
    for one in items if isinstance(items, list) else ():
        if isinstance(one, Mapping) and all(
            # The API server fills in what a key has by default ("protocol": "TCP").
            one.get(key, value) == value
            for key, value in keys.items()
        ):
            return one
    return None


def _short(value: Any) -> str:
    if value is None:
        return "not set"
    text = json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
