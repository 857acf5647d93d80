"""What a request asks for: from its path, query, headers and body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from rayshim.k8s.testing.localkube import protobuf
from rayshim.k8s.testing.localkube.authorizing import Call
from rayshim.k8s.testing.localkube.selectors import name_in_fields
from rayshim.k8s.testing.localkube.statuses import bad_request

Object = dict[str, Any]

APPLY: Final = "application/apply-patch+yaml"
_VERBS: Final = {
    "GET": ("list", "get"),
    "HEAD": ("list", "get"),
    "POST": ("create", "create"),
    "PUT": ("", "update"),
    "PATCH": ("", "patch"),
    "DELETE": ("deletecollection", "delete"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names."""

    group: str
    version: str
    namespace: str
    resource: str
    name: str
    subresource: str

    @classmethod
    def of(cls, path: str) -> Target | None:
        """Of a path; None if it names no kind of objects."""
        parts = [part for part in path.split("/") if part]
        if parts[:1] == ["api"] and len(parts) > 2:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[:1] == ["apis"] and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            return None
        namespace = ""
        is_own = not group and len(rest) > 2 and rest[2] in ("status", "finalize")
        if rest[0] == "namespaces" and len(rest) > 2 and not is_own:
            namespace, rest = rest[1], rest[2:]
        if len(rest) > 3:
            return None
        resource, name, subresource = [*rest, "", ""][:3]
        if (group, resource) == ("", "namespaces"):
            namespace = name  # As the real server does: a Role in it may allow it.
        return cls(group, version, namespace, resource, name, subresource)


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        method: of HTTP.
        target: what the path names.
        query: parameters; of those that are there twice, the last.
        headers: names in lower case.
        body: as it was sent.
    """

    method: str
    target: Target
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_watch(self) -> bool:
        """Whether it is to be told of changes."""
        wants = self.query.get("watch", "").lower() in ("1", "true")
        return wants and self.method == "GET" and not self.target.name

    @property
    def is_apply(self) -> bool:
        """Whether it is a server-side apply."""
        return self.method == "PATCH" and self.content_type == APPLY

    @property
    def content_type(self) -> str:
        """Of the body, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def shape(self) -> str:
        """In which form objects are wanted: see ``watching.View``."""
        for one in self.headers.get("accept", "").split(","):
            words = {part.strip() for part in one.split(";")}
            if "as=Table" in words:
                return "Table"
            if words & {"as=PartialObjectMetadata", "as=PartialObjectMetadataList"}:
                return "PartialObjectMetadata"
        return ""

    @property
    def manager(self) -> str:
        """The field manager; "" if an apply names none."""
        named = self.query.get("fieldManager", "")
        if named or self.is_apply:
            return named
        agent = self.headers.get("user-agent", "")
        return agent.partition("/")[0].strip() or "unknown"

    def call(self, user: str) -> Call:
        """As RBAC sees it."""
        target = self.target
        verb = _VERBS.get(self.method, ("", ""))[bool(target.name)]
        name = target.name
        if not verb:
            verb = self.method.lower()
        if verb in ("list", "deletecollection"):
            name = name_in_fields(self.query.get("fieldSelector", ""))
        if self.is_watch:
            verb = "watch"
        return Call(
            user,
            verb,
            target.group,
            target.resource,
            target.subresource,
            target.namespace,
            name,
        )

    def is_flagged(self, name: str) -> bool:
        """Whether a parameter is true."""
        return self.query.get(name, "").lower() in ("1", "true")

    def decoded(self) -> Any:
        """The body's content; None if there is none.

        Raises:
            Refusal: it cannot be read.
        """
        if not self.body:
            return None
        if "protobuf" in self.content_type:
            return protobuf.decode(self.body)
        try:
            return json.loads(self.body)
        except ValueError as error:
            if "yaml" not in self.content_type:
                raise bad_request(f"the body is no JSON: {error}") from error
        try:
            return yaml.safe_load(self.body)
        except yaml.YAMLError as error:
            raise bad_request(f"the body is no YAML: {error}") from error
