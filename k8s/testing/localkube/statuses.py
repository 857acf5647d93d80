"""Refusals of the API server, in the words of the real one."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


class Refusal(Exception):
    """A request is refused; becomes the answer, a ``Status`` object.

    Admission hooks raise it to refuse an object.

    Args:
        code: HTTP status.
        reason: Kubernetes' word for it, as "AlreadyExists".
        message: what is wrong.
        details: as in a ``Status``: name, group, kind, uid, causes.

    Example:
        >>> Refusal(403, "Forbidden", "no room").status()["reason"]
        'Forbidden'
    """

    def __init__(
        self, code: int, reason: str, message: str, details: Object | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> Object:
        """The answer's body."""
        made: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            made["details"] = self.details
        return made


def not_found_path() -> Refusal:
    """No such path, hence no such kind of objects."""
    return Refusal(404, "NotFound", "the server could not find the requested resource")


def not_found(resource: str, group: str, name: str) -> Refusal:
    """No such object.

    Args:
        resource: plural name of the kind.
        group: API group, "" for the core one.
        name: of the object.
    """
    return Refusal(
        404,
        "NotFound",
        f'{full_name(resource, group)} "{name}" not found',
        _about(resource, group, name),
    )


def already_exists(resource: str, group: str, name: str) -> Refusal:
    """The name is taken."""
    return Refusal(
        409,
        "AlreadyExists",
        f'{full_name(resource, group)} "{name}" already exists',
        _about(resource, group, name),
    )


def conflict(resource: str, group: str, name: str, why: str = "") -> Refusal:
    """The object is not the one that was meant any more."""
    why = why or (
        "the object has been modified; please apply your changes to the latest "
        "version and try again"
    )
    return Refusal(
        409,
        "Conflict",
        f"Operation cannot be fulfilled on {full_name(resource, group)} "
        f'"{name}": {why}',
        _about(resource, group, name),
    )


def invalid(kind: str, group: str, name: str, causes: list[tuple[str, str]]) -> Refusal:
    """The object is not as its schema wants it.

    Args:
        kind: as "DaskCluster".
        group: API group.
        name: of the object.
        causes: (field, what is wrong with it) of each fault.
    """
    faults = [f"{field}: {what}" if field else what for field, what in causes]
    listed = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    details: Object = {
        "name": name,
        "group": group,
        "kind": kind,
        "causes": [
            {"reason": "FieldValueInvalid", "message": what, "field": field}
            for field, what in causes
        ],
    }
    return Refusal(
        422,
        "Invalid",
        f'{full_name(kind, group)} "{name}" is invalid: {listed}',
        details,
    )


def bad_request(message: str) -> Refusal:
    """What was sent cannot be understood."""
    return Refusal(400, "BadRequest", message)


def full_name(resource: str, group: str) -> str:
    """As the server names kinds: "pods", "deployments.apps"."""
    return f"{resource}.{group}" if group else resource


def _about(resource: str, group: str, name: str) -> Object:
    made = {"name": name, "kind": resource}
    return {**made, "group": group} if group else made
