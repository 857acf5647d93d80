"""Which kinds there are: discovery documents and a small OpenAPI document.

The OpenAPI documents name the paths and that they take ``fieldValidation``; with that
``kubectl`` leaves the validation to the server. They contain no schemas.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rayshim.k8s.testing.localkube.resources import Resource

Object = dict[str, Any]

#: What the server says it is.
VERSION: Final[Object] = {
    "major": "1",
    "minor": "33",
    "gitVersion": "v1.33.0+localkube",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2025-04-23T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "",
}
_VERBS: Final = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
]


def core_versions() -> Object:
    """``/api``."""
    return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}


def groups(kinds: Iterable[Resource]) -> Object:
    """``/apis``."""
    versions: dict[str, dict[str, None]] = {}
    for one in kinds:
        if one.group:
            versions.setdefault(one.group, {}).update(dict.fromkeys(one.versions))
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, list(listed)) for name, listed in versions.items()],
    }


def group(kinds: Iterable[Resource], name: str) -> Object | None:
    """``/apis/GROUP``; None if nothing is in it."""
    for one in groups(kinds)["groups"]:
        if one["name"] == name:
            return {"kind": "APIGroup", "apiVersion": "v1", **one}
    return None


def resources(kinds: Iterable[Resource], name: str, version: str) -> Object | None:
    """``/apis/GROUP/VERSION``; None if nothing is in it."""
    listed: list[Object] = []
    for one in kinds:
        if one.group == name and version in one.versions:
            listed += _entries(one)
    if not listed:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{name}/{version}" if name else version,
        "resources": listed,
    }


def openapi_v3_index(kinds: Iterable[Resource]) -> Object:
    """``/openapi/v3``: where the documents of each group and version are."""
    places = sorted({_root(one, version) for one in kinds for version in one.versions})
    return {
        "paths": {
            place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places
        }
    }


def openapi_v3(kinds: Iterable[Resource], place: str) -> Object | None:
    """``/openapi/v3/PLACE``; None if nothing is there."""
    paths: Object = {}
    for one in kinds:
        for version in one.versions:
            if _root(one, version) == place:
                paths |= _paths(one, version, {"schema": {"type": "string"}})
    if not paths:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "localkube", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": {}},
    }


def openapi_v2(kinds: Iterable[Resource]) -> Object:
    """``/openapi/v2``."""
    paths: Object = {}
    for one in kinds:
        for version in one.versions:
            paths |= _paths(one, version, {"type": "string", "uniqueItems": True})
    return {
        "swagger": "2.0",
        "info": {"title": "localkube", "version": VERSION["gitVersion"]},
        "paths": paths,
        "definitions": {},
    }


def _group(name: str, versions: list[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{one}", "version": one} for one in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _entries(one: Resource) -> list[Object]:
    base = {
        "singularName": one.singular or one.kind.lower(),
        "namespaced": one.is_namespaced,
        "kind": one.kind,
    }
    entry = {**base, "name": one.plural, "verbs": _VERBS}
    if one.is_virtual:
        return [{**entry, "verbs": ["create"]}]
    if one.short_names:
        entry["shortNames"] = list(one.short_names)
    if one.categories:
        entry["categories"] = list(one.categories)
    below = [entry]
    base["singularName"] = ""
    if one.has_status:
        name = f"{one.plural}/status"
        below.append({**base, "name": name, "verbs": ["get", "patch", "update"]})
    if one.scale:
        below.append(
            {
                **base,
                "name": f"{one.plural}/scale",
                "kind": "Scale",
                "group": "autoscaling",
                "version": "v1",
                "verbs": ["get", "patch", "update"],
            }
        )
    for name, kind, verbs in _OTHERS.get(one.key, ()):
        made = {**base, "name": f"{one.plural}/{name}", "kind": kind, "verbs": verbs}
        below.append(made)
    return below


_OTHERS: Final[dict[tuple[str, str], tuple[tuple[str, str, list[str]], ...]]] = {
    ("", "pods"): (
        ("log", "Pod", ["get"]),
        ("binding", "Binding", ["create"]),
        ("eviction", "Eviction", ["create"]),
    ),
    ("", "serviceaccounts"): (("token", "TokenRequest", ["create"]),),
}


def _root(one: Resource, version: str) -> str:
    return f"apis/{one.group}/{version}" if one.group else f"api/{version}"


def _paths(one: Resource, version: str, kind: Object) -> Object:
    scope = "namespaces/{namespace}/" if one.is_namespaced else ""
    path = f"/{_root(one, version)}/{scope}{one.plural}"
    about = {"group": one.group, "version": version, "kind": one.kind}
    operation = {
        "x-kubernetes-group-version-kind": about,
        "parameters": [
            {"name": name, "in": "query", **kind}
            for name in ("dryRun", "fieldManager", "fieldValidation")
        ],
        "responses": {"200": {"description": "OK"}},
    }
    if one.is_virtual:
        return {path: {"post": operation}}
    return {
        path: {"post": operation},
        f"{path}/{{name}}": {"patch": operation, "put": operation},
    }
