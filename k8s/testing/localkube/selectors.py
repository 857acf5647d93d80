"""Label and field selectors.

Source: Kubernetes' pages "Labels and Selectors" and "Field Selectors".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rayshim.k8s.testing.localkube.statuses import bad_request

Object = dict[str, Any]
Test = Callable[[Object], bool]

_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_EQUAL = re.compile(r"([^\s=!]+)\s*(==|=|!=)\s*([^\s=!]*)")
_NAME = re.compile(r"(!?)\s*([^\s=!,()]+)")
#: A comma that is not within parentheses.
_COMMA = re.compile(r",(?![^(]*\))")


def labels_match(selector: str, labels: Mapping[str, str] | None) -> bool:
    """Whether labels satisfy a selector, as "app=web,tier in (a, b),!old"."""
    return parse_labels(selector)(labels or {})


def parse_labels(selector: str) -> Callable[[Mapping[str, str]], bool]:
    """A test of labels.

    Raises:
        Refusal: the selector cannot be understood.
    """
    tests = [
        _requirement(part.strip()) for part in _COMMA.split(selector) if part.strip()
    ]
    return lambda labels: all(test(labels) for test in tests)


def _requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET.fullmatch(text):
        name, word, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if word == "in":
            return lambda labels: name in labels and labels[name] in values
        return lambda labels: labels.get(name) not in values
    if found := _EQUAL.fullmatch(text):
        name, sign, value = found.groups()
        if sign == "!=":
            return lambda labels: labels.get(name) != value
        return lambda labels: labels.get(name) == value
    if found := _NAME.fullmatch(text):
        is_absent, name = bool(found[1]), found[2]
        return lambda labels: (name in labels) != is_absent
    raise bad_request(f"unable to parse requirement: {text!r} is no label selector")


def parse_fields(selector: str) -> Test:
    """A test of objects by their fields, as "spec.nodeName=a,status.phase!=Failed".

    Any path to a scalar works; the real server knows a few of each kind.

    Raises:
        Refusal: the selector cannot be understood.
    """
    wanted: list[tuple[list[str], bool, str]] = []
    for part in filter(None, (one.strip() for one in selector.split(","))):
        found = _EQUAL.fullmatch(part)
        if found is None:
            raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
        wanted.append((found[1].split("."), found[2] != "!=", found[3]))
    return lambda made: all(
        (_text(made, path) == value) == is_equal for path, is_equal, value in wanted
    )


def name_in_fields(selector: str) -> str:
    """The name that a field selector asks for; "" if for none."""
    for part in selector.split(","):
        found = _EQUAL.fullmatch(part.strip())
        if found and found[1] == "metadata.name" and found[2] != "!=":
            return found[3]
    return ""


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a ``LabelSelector`` of an object matches; an empty one matches all."""
    selector = selector or {}
    for name, value in (selector.get("matchLabels") or {}).items():
        if labels.get(name) != value:
            return False
    for one in selector.get("matchExpressions") or []:
        name, values = one["key"], one.get("values") or []
        holds = {
            "In": labels.get(name) in values,
            "NotIn": labels.get(name) not in values,
            "Exists": name in labels,
            "DoesNotExist": name not in labels,
        }[one["operator"]]
        if not holds:
            return False
    return True


def as_text(selector: Mapping[str, Any] | None) -> str:
    """A ``LabelSelector`` of an object as text, for the subresource ``scale``."""
    selector = selector or {}
    parts = [f"{k}={v}" for k, v in (selector.get("matchLabels") or {}).items()]
    for one in selector.get("matchExpressions") or []:
        values = ",".join(one.get("values") or [])
        parts.append(
            {
                "In": f"{one['key']} in ({values})",
                "NotIn": f"{one['key']} notin ({values})",
                "Exists": one["key"],
                "DoesNotExist": f"!{one['key']}",
            }[one["operator"]]
        )
    return ",".join(parts)


def _text(made: Any, path: list[str]) -> str:
    for part in path:
        made = made.get(part) if isinstance(made, dict) else None
    if made is None:
        return ""
    return str(made).lower() if isinstance(made, bool) else str(made)
