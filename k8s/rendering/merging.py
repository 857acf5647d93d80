"""What a user adds to a pod's spec."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

Object = dict[str, Any]


def merged(made: Mapping[str, Any], change: Mapping[str, Any]) -> Object:
    """A spec with a change in it; both are left as they are.

    Maps are merged. Lists of things with names (containers, env, volumes) are merged by
    name, and what is new is appended; of other lists the change's is taken.

    Example:
        >>> made = {"a": [{"name": "x", "n": 1}], "b": 1}
        >>> merged(made, {"a": [{"name": "x", "n": 2}]})
        {'a': [{'name': 'x', 'n': 2}], 'b': 1}
    """
    found: Object = copy.deepcopy(dict(made))
    for key, value in change.items():
        old = found.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            found[key] = merged(old, value)
        elif _are_named(old) and _are_named(value):
            found[key] = _by_name(old, value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def _are_named(value: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(isinstance(one, Mapping) and "name" in one for one in value)
    )


def _by_name(
    old: Sequence[Mapping[str, Any]], change: Sequence[Mapping[str, Any]]
) -> list[Object]:
    found = {one["name"]: dict(one) for one in old}
    for one in change:
        found[one["name"]] = merged(found.get(one["name"], {}), one)
    return list(found.values())
