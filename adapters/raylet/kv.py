"""The cluster's key-value table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct


class KvPut(Struct):
    """Payload of ``kv_put``."""

    #: Bytes or text, like all keys and values here: a schema has no such union.
    key: Any
    value: Any
    namespace: str | None = None
    overwrite: bool = True


class KvKey(Struct):
    """Payload of ``kv_get``, ``kv_exists`` and ``kv_del``."""

    key: Any
    namespace: str | None = None
    by_prefix: bool = False


class KvList(Struct):
    """Payload of ``kv_list``."""

    prefix: Any = b""
    namespace: str | None = None


class KeyValues:
    """Namespaces of byte keys and byte values; text counts as its UTF-8."""

    def __init__(self) -> None:
        #: Namespace -> key -> value.
        self._spaces: dict[str, dict[bytes, bytes]] = {}
        #: Called with namespace, key and value (None: deleted) before a change counts.
        self.on_change: Callable[[str, bytes, bytes | None], None] | None = None

    def restore(self, space: str, key: bytes, value: bytes) -> None:
        """Takes up a pair that an earlier life of the head had."""
        self._spaces.setdefault(space, {})[key] = value

    def put(self, payload: bytes) -> bool:
        """Stores a value; True if the key is new."""
        args = msgspec.msgpack.decode(payload, type=KvPut)
        name = args.namespace or ""
        space = self._spaces.setdefault(name, {})
        key = _bytes(args.key)
        is_new = key not in space
        if is_new or args.overwrite:
            value = _bytes(args.value)
            if self.on_change is not None:
                self.on_change(name, key, value)
            space[key] = value
        return is_new

    def get(self, payload: bytes) -> bytes | None:
        """The value of a key, or None."""
        args = msgspec.msgpack.decode(payload, type=KvKey)
        return self._spaces.get(args.namespace or "", {}).get(_bytes(args.key))

    def exists(self, payload: bytes) -> bool:
        """Whether a key is known."""
        args = msgspec.msgpack.decode(payload, type=KvKey)
        return _bytes(args.key) in self._spaces.get(args.namespace or "", {})

    def delete(self, payload: bytes) -> int:
        """Deletes a key, or all with that prefix; the count of deleted ones."""
        args = msgspec.msgpack.decode(payload, type=KvKey)
        space = self._spaces.get(args.namespace or "", {})
        key = _bytes(args.key)
        keys = [key] if key in space else []
        if args.by_prefix:
            keys = [other for other in space if other.startswith(key)]
        for one in keys:
            if self.on_change is not None:
                self.on_change(args.namespace or "", one, None)
            del space[one]
        return len(keys)

    def list(self, payload: bytes) -> list[bytes]:
        """The keys with a prefix, in order of their first put."""
        args = msgspec.msgpack.decode(payload, type=KvList)
        prefix = _bytes(args.prefix)
        space = self._spaces.get(args.namespace or "", {})
        return [key for key in space if key.startswith(prefix)]


def _bytes(text: Any) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text
    raise msgspec.ValidationError(
        f"keys and values are bytes or text, not {type(text).__name__}"
    )
