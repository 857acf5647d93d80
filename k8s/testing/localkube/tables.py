"""Objects as tables, as ``kubectl get`` asks for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from rayshim.k8s.testing.localkube.resources import Column, Resource

Object = dict[str, Any]

_AGE: Final = Column("Age", "string", "=age")
#: A part of a path: a name, or names with a place or a condition in brackets.
_PART: Final = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")


def table(
    resource: Resource,
    objects: Iterable[Object],
    meta: Object,
    *,
    with_heads: bool = True,
) -> Object:
    """A ``Table`` of objects.

    Args:
        resource: their kind.
        objects: a row each.
        meta: of the list.
        with_heads: with the definitions of the columns; later events of a watch have
            none.
    """
    columns = resource.columns or (_AGE,)
    heads = [
        {
            "name": "Name",
            "type": "string",
            "format": "name",
            "description": "",
            "priority": 0,
        },
        *(
            {
                "name": one.name,
                "type": one.type,
                "format": "",
                "description": "",
                "priority": one.priority,
            }
            for one in columns
        ),
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": heads if with_heads else None,
        "rows": [
            {
                "cells": [
                    made["metadata"]["name"],
                    *(_cell(made, one) for one in columns),
                ],
                "object": partial(made),
            }
            for made in objects
        ],
    }


def partial(made: Object) -> Object:
    """``PartialObjectMetadata`` of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": made["metadata"],
    }


def _cell(made: Object, column: Column) -> Any:
    if column.path.startswith("="):
        return _COMPUTED[column.path](made)
    value = _at(made, column.path)
    if value is None and column.path.endswith("Replicas"):
        return "0"
    if value is None:
        return None if column.type != "string" else ""
    if column.type == "date":
        return _since(str(value))
    return value if column.type in ("integer", "number", "boolean") else str(value)


def _at(made: Any, path: str) -> Any:
    for name, bracket in _PART.findall(path):
        if name:
            made = made.get(name) if isinstance(made, dict) else None
        elif bracket.isdigit():
            listed = made if isinstance(made, list) else []
            made = listed[int(bracket)] if int(bracket) < len(listed) else None
        elif found := re.fullmatch(r"\?\(@\.(\w+)==[\"'](.*)[\"']\)", bracket):
            listed = made if isinstance(made, list) else []
            fits = [one for one in listed if one.get(found[1]) == found[2]]
            made = fits[0] if fits else None
        else:
            return None
    return made


def _since(text: str) -> str:
    then = datetime.fromisoformat(text)
    seconds = int((datetime.now(UTC) - then).total_seconds())
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{letter}"
    return f"{seconds}s"


def _age(made: Object) -> str:
    return _since(made["metadata"]["creationTimestamp"])


def _containers(made: Object) -> list[Object]:
    found: list[Object] = (made.get("status") or {}).get("containerStatuses") or []
    return found


def _pod_ready(made: Object) -> str:
    ready = sum(bool(one.get("ready")) for one in _containers(made))
    return f"{ready}/{len(made['spec'].get('containers') or [])}"


def _pod_status(made: Object) -> str:
    status = made.get("status") or {}
    if made["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for one in _containers(made):
        state = one.get("state") or {}
        for name in ("waiting", "terminated"):
            if reason := (state.get(name) or {}).get("reason"):
                return str(reason)
    if made["spec"].get("schedulingGates"):
        return "SchedulingGated"
    return str(status.get("reason") or status.get("phase") or "")


def _pod_restarts(made: Object) -> str:
    return str(sum(one.get("restartCount", 0) for one in _containers(made)))


def _replicas(made: Object) -> str:
    ready = (made.get("status") or {}).get("readyReplicas", 0)
    return f"{ready}/{made['spec'].get('replicas', 0)}"


def _node_status(made: Object) -> str:
    conditions = (made.get("status") or {}).get("conditions") or []
    is_ready = any(
        one.get("type") == "Ready" and one.get("status") == "True" for one in conditions
    )
    words = "Ready" if is_ready else "NotReady"
    is_closed = made.get("spec", {}).get("unschedulable")
    return f"{words},SchedulingDisabled" if is_closed else words


_COMPUTED: Final = {
    "=age": _age,
    "=pod ready": _pod_ready,
    "=pod status": _pod_status,
    "=pod restarts": _pod_restarts,
    "=replicas ready": _replicas,
    "=node status": _node_status,
}
