"""Server-side apply, and who manages which field (``metadata.managedFields``).

Source: Kubernetes' page "Server-Side Apply". A field is a path such as ("f:spec",
"f:ports", 'k:{"port":80,"protocol":"TCP"}', "f:name"). Lists without keys in the schema
are atomic, as are the maps that say so.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rayshim.k8s.testing.localkube.statuses import Refusal

Object = dict[str, Any]
Path = tuple[str, ...]

_NOT_MANAGED = frozenset(
    "name namespace uid resourceVersion creationTimestamp generation managedFields "
    "selfLink deletionTimestamp deletionGracePeriodSeconds generateName".split()
)
#: A list's item that is there, apart from what its fields are.
_THERE = object()


@dataclass(frozen=True, slots=True)
class Manager:
    """Who writes.

    Attributes:
        name: of the field manager.
        is_apply: writes by server-side apply.
        api_version: of what it sends.
        subresource: "" or "status".
        time: as in ``managedFields``.
    """

    name: str
    is_apply: bool
    api_version: str
    subresource: str
    time: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells its entry from others."""
        return self.name, "Apply" if self.is_apply else "Update", self.subresource


def apply(
    live: Object | None,
    applied: Object,
    schema: Object,
    manager: Manager,
    *,
    is_forced: bool,
) -> Object:
    """What server-side apply makes of an object.

    Fields that the manager applied before, does not apply now, and that nobody else
    manages, are removed.

    Args:
        live: the object, None if it is new.
        applied: what is sent.
        schema: structural schema of the object.
        manager: who sends it.
        is_forced: take over fields that others manage with another value.

    Raises:
        Refusal: 409, others manage some of the fields.
    """
    wanted = fields_of(applied, schema)
    base = live or {}
    entries = _entries(base)
    own = entries.get(manager.key)
    had = _paths(own) if own else set()
    present = fields_of(base, schema)
    disputed = {
        path
        for path, value in wanted.items()
        if value is not _THERE and path in present and present[path] != value
    }
    conflicts: list[tuple[Object, Path]] = []
    for key, entry in entries.items():
        if key == manager.key:
            continue
        lost = disputed & _paths(entry)
        if lost and is_forced:
            _write(entry, _paths(entry) - lost)
        conflicts += [(entry, path) for path in sorted(lost)]
    if conflicts and not is_forced:
        raise _conflict(conflicts)
    made: Object = _merged(base, applied, schema)
    others = [_paths(one) for key, one in entries.items() if key != manager.key]
    for path in sorted(had - wanted.keys(), key=len, reverse=True):
        if not any(path in theirs for theirs in others):
            _remove(made, path, set(wanted).union(*others))
    mine = own or {}
    if mine.get("fieldsV1") is None or had != wanted.keys():
        entries[manager.key] = _entry(manager, wanted)
    return _with_entries(made, entries)


def track(
    before: Object | None, after: Object, schema: Object, manager: Manager
) -> Object:
    """The object after a write that is no apply, with the fields' new managers.

    Who changes a field manages it from then on, and nobody else does.
    """
    old = fields_of(before, schema) if before else {}
    new = fields_of(after, schema)
    changed = {
        path for path, value in new.items() if path not in old or old[path] != value
    }
    lost = changed | (old.keys() - new.keys())
    entries = _entries(before or {})
    if lost:
        for entry in entries.values():
            _write(entry, _paths(entry) - lost)
        own = entries.get(manager.key)
        kept = _paths(own) if own else set()
        entries[manager.key] = _entry(manager, kept | changed)
    return _with_entries(after, entries)


def fields_of(made: Object, schema: Object) -> dict[Path, Any]:
    """Every field of an object that can be managed, with its value."""
    meta = {k: v for k, v in made.get("metadata", {}).items() if k not in _NOT_MANAGED}
    bare = {
        k: v for k, v in made.items() if k not in ("apiVersion", "kind", "metadata")
    }
    if meta:
        bare["metadata"] = meta
    found: dict[Path, Any] = {}
    for name, value in bare.items():
        _collect(value, _field(schema, name), (f"f:{name}",), found)
    return found


def _collect(value: Any, schema: Object, path: Path, found: dict[Path, Any]) -> None:
    if isinstance(value, dict) and schema.get("x-kubernetes-map-type") != "atomic":
        if not value:
            found[path] = value
        for name, one in value.items():
            _collect(one, _field(schema, name), (*path, f"f:{name}"), found)
    elif isinstance(value, list) and _kind_of_list(schema) == "map":
        if not value:
            found[path] = value
        items = schema.get("items") or {}
        for one in value:
            below = (*path, _key(one, schema))
            found[below] = _THERE
            for name, sub in one.items():
                _collect(sub, _field(items, name), (*below, f"f:{name}"), found)
    elif isinstance(value, list) and _kind_of_list(schema) == "set":
        for one in value:
            found[(*path, f"v:{json.dumps(one)}")] = _THERE
    else:
        found[path] = value


def _merged(live: Any, applied: Any, schema: Object) -> Any:
    if isinstance(applied, dict) and schema.get("x-kubernetes-map-type") != "atomic":
        made = dict(live) if isinstance(live, dict) else {}
        for name, one in applied.items():
            made[name] = _merged(made.get(name), one, _field(schema, name))
        return made
    if isinstance(applied, list) and _kind_of_list(schema) == "map":
        kept = list(live or [])
        items = schema.get("items") or {}
        places = {_key(one, schema): place for place, one in enumerate(kept)}
        for one in applied:
            place = places.get(_key(one, schema))
            if place is None:
                kept.append(copy.deepcopy(one))
            else:
                kept[place] = _merged(kept[place], one, items)
        return kept
    if isinstance(applied, list) and _kind_of_list(schema) == "set":
        kept = list(live or [])
        return kept + [one for one in applied if one not in kept]
    return copy.deepcopy(applied)


def _remove(made: Object, path: Path, kept: set[Path]) -> None:
    """Remove a field, and what it leaves empty; along the way maps are copied."""
    trail: list[tuple[Any, Any]] = []
    here: Any = made
    for part in path:
        step = _step(here, part)
        if step is None:
            return
        trail.append((here, step))
        child = here[step]
        if isinstance(child, dict | list):
            here[step] = child = copy.copy(child)
        here = child
    is_first = True
    for depth, (holder, step) in reversed(list(enumerate(trail))):
        place = path[: depth + 1]
        if not is_first and (holder[step] or place in kept):
            return
        if is_first and any(one[: len(place)] == place for one in kept):
            return
        del holder[step]
        is_first = False


def _step(here: Any, part: str) -> Any:
    mark, _, name = part.partition(":")
    if mark == "f":
        return name if isinstance(here, dict) and name in here else None
    if not isinstance(here, list):
        return None
    wanted = json.loads(name)
    for place, one in enumerate(here):
        if mark == "v" and one == wanted:
            return place
        if mark == "k" and all(one.get(k, v) == v for k, v in wanted.items()):
            return place
    return None


def _field(schema: Object, name: str) -> Object:
    found = (schema.get("properties") or {}).get(name)
    if found is None:
        found = schema.get("additionalProperties")
    return found if isinstance(found, dict) else {}


def _kind_of_list(schema: Object) -> str:
    return str(schema.get("x-kubernetes-list-type", "atomic"))


def _key(item: Object, schema: Object) -> str:
    fields = (schema.get("items") or {}).get("properties") or {}
    keys = {}
    for name in schema["x-kubernetes-list-map-keys"]:
        value = item.get(name, (fields.get(name) or {}).get("default"))
        if value is not None:
            keys[name] = value
    return "k:" + json.dumps(keys, sort_keys=True, separators=(",", ":"))


def _entries(made: Object) -> dict[tuple[str, str, str], Object]:
    listed = (made.get("metadata") or {}).get("managedFields") or []
    return {
        (one.get("manager", ""), one["operation"], one.get("subresource", "")): dict(
            one
        )
        for one in listed
    }


def _with_entries(
    made: Object, entries: Mapping[tuple[str, str, str], Object]
) -> Object:
    listed = [one for one in entries.values() if one.get("fieldsV1")]
    meta = {**made["metadata"], "managedFields": listed}
    return {**made, "metadata": meta}


def _entry(manager: Manager, paths: Iterable[Path]) -> Object:
    made: Object = {
        "manager": manager.name,
        "operation": "Apply" if manager.is_apply else "Update",
        "apiVersion": manager.api_version,
        "time": manager.time,
        "fieldsType": "FieldsV1",
    }
    if manager.subresource:
        made["subresource"] = manager.subresource
    _write(made, set(paths))
    return made


def _paths(entry: Object) -> set[Path]:
    found: set[Path] = set()

    def walk(tree: Object, path: Path) -> None:
        for part, below in tree.items():
            if part == ".":
                found.add(path)
            elif below:
                walk(below, (*path, part))
            else:
                found.add((*path, part))

    walk(entry.get("fieldsV1") or {}, ())
    return found


def _write(entry: Object, paths: set[Path]) -> None:
    above = {path[:depth] for path in paths for depth in range(1, len(path))}
    tree: Object = {}
    for path in sorted(paths):
        here = tree
        for part in path:
            here = here.setdefault(part, {})
        if path in above:
            here["."] = {}
    entry["fieldsV1"] = tree


def _conflict(found: list[tuple[Object, Path]]) -> Refusal:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{one["manager"]}" using {one["apiVersion"]}',
            "field": _words(path),
        }
        for one, path in found
    ]
    plural = "s" if len(found) > 1 else ""
    listed = "\n".join(f"{one['message']}: {one['field']}" for one in causes)
    return Refusal(
        409,
        "Conflict",
        f"Apply failed with {len(found)} conflict{plural}: {listed}",
        {"causes": causes},
    )


def _words(path: Path) -> str:
    made = ""
    for part in path:
        mark, _, name = part.partition(":")
        if mark == "f":
            made += f".{name}"
        elif mark == "k":
            pairs = (f"{k}={json.dumps(v)}" for k, v in json.loads(name).items())
            made += f"[{','.join(pairs)}]"
        else:
            made += f"[={name}]"
    return made
