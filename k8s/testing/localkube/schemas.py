"""Structural schemas: what of an object is kept, what is filled in, what is refused.

Source: Kubernetes' page "Extend the Kubernetes API with CustomResourceDefinitions",
sections "Field pruning" and "Defaulting". A field that the schema does not name is
dropped without a word, unless the request asks for ``fieldValidation``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec

Object = dict[str, Any]

KEEP = "x-kubernetes-preserve-unknown-fields"
EITHER = "x-kubernetes-int-or-string"
EMBEDDED = "x-kubernetes-embedded-resource"
#: Of fields that are quantities ("500m", "2Gi"): plain numbers are taken too.
QUANTITY = "x-rayshim-quantity"

_EVERY_OBJECT = ("apiVersion", "kind", "metadata")


def shaped(value: Any, schema: Object, unknown: list[str], path: str = "") -> Any:
    """A copy without fields that the schema does not know, and with its defaults.

    Args:
        value: what was sent.
        schema: structural schema of it.
        unknown: paths of what was dropped are added to it.
        path: where the value is.
    """
    if isinstance(value, dict):
        return _shaped_map(value, schema, unknown, path)
    if isinstance(value, list):
        items = schema.get("items")
        if items is None:
            return copy.deepcopy(value)
        return [
            shaped(one, items, unknown, f"{path}[{place}]")
            for place, one in enumerate(value)
        ]
    if schema.get(QUANTITY) and _is_number(value):
        return str(value)
    return value


def _shaped_map(value: Object, schema: Object, unknown: list[str], path: str) -> Object:
    fields = schema.get("properties") or {}
    rest = schema.get("additionalProperties")
    if rest is True or (rest is None and not fields and schema.get(EITHER)):
        rest = {KEEP: True}
    made: Object = {}
    for name, one in value.items():
        below = f"{path}.{name}" if path else name
        known = fields.get(name)
        if known is None and isinstance(rest, dict):
            known = rest
        if known is None:
            is_general = name in _EVERY_OBJECT and (schema.get(EMBEDDED) or not path)
            if schema.get(KEEP) or is_general:
                made[name] = copy.deepcopy(one)
            else:
                unknown.append(below)
        elif one is None and not known.get("nullable"):
            continue
        else:
            made[name] = shaped(one, known, unknown, below)
    for name, known in fields.items():
        if name not in made and "default" in known:
            made[name] = shaped(copy.deepcopy(known["default"]), known, unknown, name)
    return made


def faults(value: Object, validator: Any) -> list[tuple[str, str]]:
    """What is wrong with an object: (field, words), as the real server words them.

    Args:
        value: the object, shaped.
        validator: of :func:`validator_of`.
    """
    found = []
    for error in validator.iter_errors(value):
        found += list(_worded(error))
    return sorted(set(found))


def validator_of(schema: Object) -> Any:
    """A validator of objects by a structural schema."""
    return jsonschema.Draft202012Validator(
        {**_plain(schema), "$schema": "https://json-schema.org/draft/2020-12/schema"}
    )


def _plain(schema: Any) -> Any:
    """As JSON Schema: without what only Kubernetes knows."""
    if not isinstance(schema, dict):
        return schema
    made: Object = {}
    for name, one in schema.items():
        if name == "properties":
            made[name] = {field: _plain(sub) for field, sub in one.items()}
        elif name in ("items", "additionalProperties", "not"):
            made[name] = _plain(one)
        elif name in ("allOf", "anyOf", "oneOf"):
            made[name] = [_plain(sub) for sub in one]
        elif name in _CHECKED:
            made[name] = one
    if schema.get(EITHER):
        made["type"] = ["integer", "string"]
        made.pop("anyOf", None)
    if schema.get("nullable") and "type" in made:
        made["type"] = [made["type"], "null"]
    return made


_CHECKED = frozenset(
    "type enum pattern required minimum maximum multipleOf minLength maxLength "
    "minItems maxItems uniqueItems minProperties maxProperties".split()
)


def _worded(error: Any) -> Iterator[tuple[str, str]]:
    path = _path(error.absolute_path)
    shown = msgspec.json.encode(error.instance).decode()
    if error.validator == "required":
        missing = [one for one in error.validator_value if one not in error.instance]
        for one in missing:
            yield (f"{path}.{one}" if path else one), "Required value"
    elif error.validator == "type":
        wanted = error.validator_value
        name = wanted if isinstance(wanted, str) else wanted[0]
        yield (
            path,
            f"Invalid value: {_type_or_value(error.instance, shown)}: {path} in body "
            f"must be of type {name}: {_type_or_value(error.instance, shown)}",
        )
    elif error.validator == "enum":
        listed = ", ".join(
            msgspec.json.encode(one).decode() for one in error.validator_value
        )
        yield path, f"Unsupported value: {shown}: supported values: {listed}"
    elif error.validator in ("minimum", "maximum"):
        sign = "greater" if error.validator == "minimum" else "less"
        yield (
            path,
            f"Invalid value: {shown}: {path} in body should be {sign} than or equal to "
            f"{error.validator_value}",
        )
    elif error.validator == "pattern":
        yield (
            path,
            f"Invalid value: {shown}: {path} in body should match "
            f"'{error.validator_value}'",
        )
    else:
        yield path, f"Invalid value: {shown[:200]}: {error.message[:200]}"


def mismatch(value: Any, schema: Object, path: str = "") -> tuple[str, str, str] | None:
    """The first value that a built-in kind's field cannot take.

    Returns:
        (path, what it is, what it should be), or None.
    """
    kind = schema.get("type")
    if value is None or kind is None:
        return None
    if kind == "object":
        if not isinstance(value, dict):
            return path, _word(value), "object"
        fields, rest = (
            schema.get("properties") or {},
            schema.get("additionalProperties"),
        )
        for name, one in value.items():
            known = fields.get(name) or rest
            below = f"{path}.{name}" if path else name
            if isinstance(known, dict) and (found := mismatch(one, known, below)):
                return found
        return None
    if kind == "array":
        if not isinstance(value, list):
            return path, _word(value), "array"
        for one in value:
            if found := mismatch(one, schema.get("items") or {}, path):
                return found
        return None
    is_fit = {
        "string": isinstance(value, str)
        or (bool(schema.get(QUANTITY)) and _is_number(value)),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": _is_number(value),
        "boolean": isinstance(value, bool),
    }
    return None if is_fit[kind] else (path, _word(value), kind)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if _is_number(value):
        return "number"
    names: dict[type, str] = {dict: "object", list: "array", str: "string"}
    return names.get(type(value), "null")


def _type_or_value(value: Any, shown: str) -> str:
    return f'"{_word(value)}"' if isinstance(value, dict | list | str) else shown


def _path(parts: Any) -> str:
    made = ""
    for part in parts:
        if isinstance(part, int):
            made += f"[{part}]"
        else:
            made += f".{part}" if made else str(part)
    return made
