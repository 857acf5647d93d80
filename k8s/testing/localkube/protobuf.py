"""The few objects that kubectl sends as protobuf, whatever the server prefers.

The envelope is the bytes "k8s", a zero, and a message ``Unknown`` with the type and the
encoded object. Source: Kubernetes' page "Kubernetes API Concepts", section "Kubernetes
Protobuf encoding", and the field numbers of its ``generated.proto`` files.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, Final

from rayshim.k8s.testing.localkube.statuses import Refusal

Object = dict[str, Any]

MAGIC: Final = b"k8s\x00"

#: Message -> field number -> (name, kind). Kinds: "text", "number", "flag", "texts",
#: "map", "bytes map", or a message's name. What is not listed is passed over: the
#: server sets it, or nobody sends it.
_MESSAGES: Final[dict[str, dict[int, tuple[str, str]]]] = {
    "Unknown": {1: ("typeMeta", "TypeMeta"), 2: ("raw", "bytes")},
    "TypeMeta": {1: ("apiVersion", "text"), 2: ("kind", "text")},
    "ObjectMeta": {
        1: ("name", "text"),
        2: ("generateName", "text"),
        3: ("namespace", "text"),
        6: ("resourceVersion", "text"),
        11: ("labels", "map"),
        12: ("annotations", "map"),
        14: ("finalizers", "texts"),
    },
    "DeleteOptions": {
        1: ("gracePeriodSeconds", "number"),
        2: ("preconditions", "Preconditions"),
        3: ("orphanDependents", "flag"),
        4: ("propagationPolicy", "text"),
        5: ("dryRun", "texts"),
    },
    "Preconditions": {1: ("uid", "text"), 2: ("resourceVersion", "text")},
    "Namespace": {1: ("metadata", "ObjectMeta")},
    "ServiceAccount": {1: ("metadata", "ObjectMeta")},
    "ConfigMap": {1: ("metadata", "ObjectMeta"), 2: ("data", "map")},
    "Secret": {
        1: ("metadata", "ObjectMeta"),
        2: ("data", "bytes map"),
        3: ("type", "text"),
        4: ("stringData", "map"),
    },
    "TokenRequest": {1: ("metadata", "ObjectMeta"), 2: ("spec", "TokenRequestSpec")},
    "TokenRequestSpec": {1: ("audiences", "texts"), 4: ("expirationSeconds", "number")},
    "SelfSubjectReview": {1: ("metadata", "ObjectMeta")},
    "SelfSubjectRulesReview": {2: ("spec", "RulesSpec")},
    "RulesSpec": {1: ("namespace", "text")},
    "SelfSubjectAccessReview": {2: ("spec", "AccessSpec")},
    "SubjectAccessReview": {2: ("spec", "AccessSpec")},
    "LocalSubjectAccessReview": {
        1: ("metadata", "ObjectMeta"),
        2: ("spec", "AccessSpec"),
    },
    "AccessSpec": {
        1: ("resourceAttributes", "ResourceAttributes"),
        2: ("nonResourceAttributes", "NonResourceAttributes"),
        3: ("user", "text"),
        4: ("groups", "texts"),
    },
    "NonResourceAttributes": {1: ("path", "text"), 2: ("verb", "text")},
    "ResourceAttributes": {
        1: ("namespace", "text"),
        2: ("verb", "text"),
        3: ("group", "text"),
        4: ("version", "text"),
        5: ("resource", "text"),
        6: ("subresource", "text"),
        7: ("name", "text"),
    },
}
_SENT: Final = frozenset(
    "DeleteOptions Namespace ServiceAccount ConfigMap Secret TokenRequest "
    "SelfSubjectReview SelfSubjectRulesReview SelfSubjectAccessReview "
    "SubjectAccessReview LocalSubjectAccessReview".split()
)


def decode(body: bytes) -> Object:
    """An object that was sent as protobuf.

    Raises:
        Refusal: 415, the kind is none of those that are known here; send JSON.
    """
    kind = "protobuf"
    if body.startswith(MAGIC):
        envelope = _message(body[len(MAGIC) :], "Unknown")
        head = envelope.get("typeMeta") or {}
        kind = head.get("kind", "")
        if kind in _SENT:
            return {**head, **_message(envelope.get("raw", b""), kind)}
    raise Refusal(
        415,
        "UnsupportedMediaType",
        f"this server reads no {kind} in protobuf: send JSON, as `kubectl apply -f` "
        "does (kubectl create ... --dry-run=client -o yaml | kubectl apply -f -)",
    )


def _message(data: bytes, name: str) -> Object:
    made: Object = {}
    for number, value in _fields(data):
        field, kind = _MESSAGES[name].get(number, ("", ""))
        if kind == "text":
            made[field] = value.decode()
        elif kind == "texts":
            made.setdefault(field, []).append(value.decode())
        elif kind == "number":
            made[field] = value
        elif kind == "flag":
            made[field] = bool(value)
        elif kind == "bytes":
            made[field] = value
        elif kind in ("map", "bytes map"):
            pair = dict(_fields(value))
            content = pair.get(2, b"")
            if kind == "bytes map":
                content = base64.b64encode(content)
            made.setdefault(field, {})[pair[1].decode()] = content.decode()
        elif kind:
            made[field] = _message(value, kind)
    return {field: value for field, value in made.items() if value != ""}


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field: an int, or bytes."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, place = _varint(data, place)
            yield number, value
        elif wire == 2:
            size, place = _varint(data, place)
            yield number, data[place : place + size]
            place += size
        else:
            place += {1: 8, 5: 4}[wire]


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
