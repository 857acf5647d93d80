"""Annotations of pods that say what they were made from. Pure.

The operator makes the head's Deployment and those of workers once and never changes
them; and a pod does not notice that a Secret was changed. So each carries what it was
made from, and what is older shows.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

Object = dict[str, Any]

#: Annotation of the pods of head and workers: of their specification.
SPEC: Final = "rayshim.io/spec"
#: Annotation of pods: of what is in the platform's Secrets that they use.
SECRETS: Final = "rayshim.io/secrets"

#: Kind -> the parts of its ``spec`` that are templates of pods.
_TEMPLATES: Final[Mapping[str, str]] = {
    "DaskCluster": "scheduler",
    "DaskWorkerGroup": "worker",
    "Deployment": "template",
    "StatefulSet": "template",
}
_OPERATORS: Final = frozenset({"DaskCluster", "DaskWorkerGroup"})


def stamped(
    objects: Iterable[Object], secrets: Iterable[Mapping[str, Any]]
) -> list[Object]:
    """The objects, with the annotations on those that make pods.

    Args:
        objects: rendered ones; they are not changed.
        secrets: the platform's Secrets as they are in the cluster; those that may not
            be read are left out.
    """
    known = {one["metadata"]["name"]: one.get("data") or {} for one in secrets}
    return [_stamped(one, known) for one in objects]


def _stamped(made: Object, secrets: Mapping[str, Any]) -> Object:
    part = _TEMPLATES.get(made["kind"])
    if part is None:
        return made
    made = copy.deepcopy(made)
    template = made["spec"][part]
    text = json.dumps(template["spec"], sort_keys=True)
    used = {name: data for name, data in secrets.items() if f'"{name}"' in text}
    stamps = {}
    if made["kind"] in _OPERATORS:
        stamps[SPEC] = _digest(text)
    if used:
        stamps[SECRETS] = _digest(json.dumps(used, sort_keys=True))
    if stamps:
        meta = template.setdefault("metadata", {})
        meta["annotations"] = {**(meta.get("annotations") or {}), **stamps}
    return made


def stamps_of(template: Mapping[str, Any]) -> dict[str, str]:
    """The annotations of a template of pods (``metadata`` and ``spec``)."""
    found = (template.get("metadata") or {}).get("annotations") or {}
    return {name: found[name] for name in (SPEC, SECRETS) if name in found}


def is_older(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether pods of one template were made from something else than the other's.

    Those without annotations count as current: others made them.
    """
    there, now = stamps_of(found), stamps_of(wanted)
    return any(name in there and there[name] != now[name] for name in now)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
