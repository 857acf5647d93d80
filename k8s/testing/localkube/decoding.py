"""Objects as they are sent -> objects as they are kept: fields, types, defaults."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayshim.k8s.testing.localkube import built_in, schemas
from rayshim.k8s.testing.localkube.model_schemas import metadata_schema, schema_of
from rayshim.k8s.testing.localkube.resources import Resource
from rayshim.k8s.testing.localkube.statuses import bad_request

Object = dict[str, Any]


@dataclass(slots=True)
class Write:
    """How a request wants to write.

    Attributes:
        user: who asks.
        manager: name of the field manager.
        version: of the API in the request's path.
        is_dry_run: answer as if, and keep nothing.
        on_unknown: "Ignore", "Warn" or "Strict": what becomes of unknown fields.
        warnings: for the answer.
    """

    user: str = "admin"
    manager: str = "unknown"
    version: str = ""
    is_dry_run: bool = False
    on_unknown: str = "Ignore"
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A kind's schema, in the forms that it is used in."""

    full: Object
    without_defaults: Object
    validator: Any


class Decoder:
    """Brings objects into the form of their schema."""

    def __init__(self) -> None:
        #: Kind (a CRD that is changed makes another one) -> version -> schemas.
        self._prepared: dict[Resource, dict[str, _Prepared]] = {}

    def schema(self, resource: Resource, version: str = "") -> Object:
        """The structural schema of a kind; empty if it takes whatever it is given."""
        found = self._of(resource, version)
        return found.full if found else {}

    def decode(
        self,
        resource: Resource,
        sent: Object,
        write: Write,
        *,
        is_partial: bool = False,
    ) -> Object:
        """A copy without unknown fields and nulls, with defaults.

        Args:
            resource: its kind.
            sent: the object.
            write: what becomes of unknown fields.
            is_partial: it is to be applied: no defaults.

        Raises:
            Refusal: a built-in kind's field has another type, or there are unknown
                fields and the request is strict.
        """
        unknown: list[str] = []
        listed = {"metadata": metadata_schema()}
        meta = sent.get("metadata") or {}
        self._check_types(resource, {"metadata": meta}, listed)
        meta = schemas.shaped(meta, metadata_schema(), unknown, "metadata")
        bare = {name: one for name, one in sent.items() if name != "metadata"}
        prepared = self._of(resource, write.version)
        if prepared is None:
            made = copy.deepcopy({k: v for k, v in bare.items() if v is not None})
        else:
            if not resource.is_custom:
                self._check_types(resource, bare, prepared.full["properties"])
            schema = prepared.without_defaults if is_partial else prepared.full
            made = schemas.shaped(bare, schema, unknown)
        head = {"apiVersion": resource.api_version(), "kind": resource.kind}
        made = {**head, "metadata": meta, **made, **head}
        made["metadata"] = meta
        if unknown:
            self._say_unknown(resource, unknown, write)
        if not is_partial and not resource.is_custom:
            built_in.fill_in(resource.kind, made)
        return made

    def faults(
        self, resource: Resource, made: Object, version: str
    ) -> list[tuple[str, str]]:
        """What a CRD's schema finds wrong with an object: (field, words)."""
        prepared = self._of(resource, version)
        if prepared is None or prepared.validator is None:
            return []
        return schemas.faults(made, prepared.validator)

    def _of(self, resource: Resource, version: str) -> _Prepared | None:
        kept = self._prepared.setdefault(resource, {})
        version = version if version in resource.versions else resource.versions[0]
        if version not in kept:
            full, validator = schema_of(resource), None
            if resource.is_custom:
                full = resource.schemas[version]
                fields = dict(full.get("properties") or {})
                fields.pop("metadata", None)
                validator = schemas.validator_of({**full, "properties": fields})
                fields["metadata"] = metadata_schema()
                full = {**full, "properties": fields}
            if full is None:
                return None
            kept[version] = _Prepared(full, _without_defaults(full), validator)
        return kept[version]

    def _check_types(
        self, resource: Resource, sent: Object, fields: Mapping[str, Object]
    ) -> None:
        for name, one in sent.items():
            wrong = schemas.mismatch(one, fields.get(name) or {}, name)
            if wrong:
                path, found, wanted = wrong
                raise bad_request(
                    f'{resource.kind} in version "{resource.versions[0]}" cannot be '
                    f"handled as a {resource.kind}: json: cannot unmarshal {found} "
                    f"into Go struct field {resource.kind}.{path} of type {wanted}"
                )

    def _say_unknown(
        self, resource: Resource, unknown: list[str], write: Write
    ) -> None:
        words = [f'unknown field "{path}"' for path in dict.fromkeys(unknown)]
        if write.on_unknown == "Strict":
            raise bad_request(
                f'{resource.kind} in version "{resource.versions[0]}" cannot be '
                f"handled as a {resource.kind}: strict decoding error: "
                f"{', '.join(words)}"
            )
        if write.on_unknown == "Warn":
            write.warnings += [one for one in words if one not in write.warnings]


def _without_defaults(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    made = {name: one for name, one in schema.items() if name != "default"}
    if "properties" in made:
        made["properties"] = {
            name: _without_defaults(one) for name, one in made["properties"].items()
        }
    for name in ("items", "additionalProperties"):
        if name in made:
            made[name] = _without_defaults(made[name])
    return made
