"""Byte keys and values that the control service keeps for the whole cluster.

They outlive the process that put them, and a restart of the head; a session's end
removes them.
"""

from __future__ import annotations

from typing import Any

from rayshim._core import current

__all__ = [
    "_internal_kv_del",
    "_internal_kv_exists",
    "_internal_kv_get",
    "_internal_kv_initialized",
    "_internal_kv_list",
    "_internal_kv_put",
]


def _internal_kv_initialized() -> bool:
    """Whether a session is open."""
    return current.peer is not None


def _internal_kv_put(
    key: str | bytes,
    value: str | bytes,
    overwrite: bool = True,
    *,
    namespace: str | bytes | None = None,
) -> bool:
    """Put a value.

    Args:
        key: text counts as its UTF-8.
        value: likewise.
        overwrite: False leaves a value that is there.
        namespace: keys of different namespaces are different.

    Returns:
        Whether the key was there before.

    Raises:
        TypeError: neither bytes nor text.
    """
    fields = {"key": _bytes(key), "value": _bytes(value), "overwrite": overwrite}
    return not _ask("kv_put", namespace, **fields)


def _internal_kv_get(
    key: str | bytes, *, namespace: str | bytes | None = None
) -> bytes | None:
    """The value of a key, or None."""
    value: bytes | None = _ask("kv_get", namespace, key=_bytes(key))
    return value


def _internal_kv_exists(
    key: str | bytes, *, namespace: str | bytes | None = None
) -> bool:
    """Whether a key is there."""
    return bool(_ask("kv_exists", namespace, key=_bytes(key)))


def _internal_kv_del(
    key: str | bytes,
    *,
    del_by_prefix: bool = False,
    namespace: str | bytes | None = None,
) -> int:
    """Delete a key.

    Args:
        key: the key.
        del_by_prefix: delete all keys that begin with it.
        namespace: as of `_internal_kv_put`.

    Returns:
        Number of deleted keys.
    """
    fields = {"key": _bytes(key), "by_prefix": del_by_prefix}
    return int(_ask("kv_del", namespace, **fields))


def _internal_kv_list(
    prefix: str | bytes, *, namespace: str | bytes | None = None
) -> list[bytes]:
    """The keys that begin with a prefix, in order of their first put."""
    keys: list[bytes] = _ask("kv_list", namespace, prefix=_bytes(prefix))
    return keys


def _ask(method: str, namespace: str | bytes | None, **fields: Any) -> Any:
    if isinstance(namespace, bytes):
        namespace = namespace.decode()
    payload = {**fields, "namespace": namespace}
    return current.require_peer().request(method, payload)


def _bytes(text: str | bytes) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if not isinstance(text, bytes):
        raise TypeError(f"keys and values are bytes or text, not {type(text).__name__}")
    return text
