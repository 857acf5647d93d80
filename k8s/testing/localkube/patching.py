"""Merge patch, JSON patch and strategic merge patch.

Source: RFC 7386, RFC 6902, and Kubernetes' "Update API Objects in Place Using kubectl
patch". Strategic merge is simplified: lists that Kubernetes merges by a key are merged
(those of ``model_schemas.LIST_KEYS``), with ``$patch``, ``$retainKeys`` and
``$deleteFromPrimitiveList``; items that are new come last, whatever
``$setElementOrder`` says.
"""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch

from rayshim.k8s.testing.localkube.statuses import Refusal, bad_request

Object = dict[str, Any]


def merge(target: Any, patch: Any) -> Any:
    """What JSON merge patch makes of a value (RFC 7386).

    Example:
        >>> merge({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
        {'b': {'c': 2, 'd': 3}}
    """
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    made = dict(target) if isinstance(target, dict) else {}
    for name, one in patch.items():
        if one is None:
            made.pop(name, None)
        else:
            made[name] = merge(made.get(name), one)
    return made


def json_patch(target: Object, operations: Any) -> Object:
    """What a JSON patch makes of an object (RFC 6902).

    Raises:
        Refusal: an operation does not fit the object, or is none.
    """
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: a JSON patch is a list of operations")
    try:
        made: Object = jsonpatch.apply_patch(copy.deepcopy(target), operations)
    except jsonpatch.InvalidJsonPatch as error:
        raise bad_request(f"error decoding patch: {error}") from error
    except (
        jsonpatch.JsonPatchException,
        jsonpatch.JsonPointerException,
        TypeError,
    ) as error:
        raise Refusal(
            422,
            "Invalid",
            f"the server rejected our request due to an error in our request: {error}",
        ) from error
    return made


def strategic_merge(target: Any, patch: Any, schema: Object | None) -> Any:
    """What a strategic merge patch makes of a value.

    Args:
        target: the value.
        patch: the change.
        schema: structural schema of the value.
    """
    schema = schema or {}
    if isinstance(patch, dict):
        return _merged_map(target, patch, schema)
    keys = schema.get("x-kubernetes-list-map-keys")
    if isinstance(patch, list) and keys:
        return _merged_list(target or [], patch, keys[0], schema.get("items") or {})
    if isinstance(patch, list) and schema.get("x-kubernetes-list-type") == "set":
        kept = list(target or [])
        return kept + [one for one in patch if one not in kept]
    return copy.deepcopy(patch)


def _merged_map(target: Any, patch: Object, schema: Object) -> Any:
    how = patch.get("$patch")
    rest = {name: one for name, one in patch.items() if not name.startswith("$")}
    if how == "replace":
        return copy.deepcopy(rest)
    if how == "delete":
        return {}
    made = dict(target) if isinstance(target, dict) else {}
    if "$retainKeys" in patch:
        made = {k: v for k, v in made.items() if k in patch["$retainKeys"]}
    fields = schema.get("properties") or {}
    for name, one in rest.items():
        known = fields.get(name) or schema.get("additionalProperties")
        if one is None:
            made.pop(name, None)
        else:
            made[name] = strategic_merge(
                made.get(name), one, known if isinstance(known, dict) else None
            )
    for name, one in patch.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            made[field] = [kept for kept in made.get(field, []) if kept not in one]
    return made


def _merged_list(target: list[Any], patch: list[Any], key: str, items: Object) -> Any:
    if any(one.get("$patch") == "replace" for one in patch):
        return [copy.deepcopy(one) for one in patch if one.get("$patch") != "replace"]
    made = list(target)
    for one in patch:
        if key not in one:
            raise bad_request(f"map: {one} does not contain declared merge key: {key}")
        places = [i for i, kept in enumerate(made) if kept.get(key) == one[key]]
        if one.get("$patch") == "delete":
            made = [kept for kept in made if kept.get(key) != one[key]]
        elif places:
            made[places[0]] = strategic_merge(made[places[0]], one, items)
        else:
            made.append(strategic_merge({}, one, items))
    return made
