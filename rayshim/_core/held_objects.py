"""What this process says of the objects that it owns and borrows.

Loaded by the first question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rayshim._core.calls import CallRecord
from rayshim._core.live_calls import state_of
from rayshim.adapters.wire.event_messages import HeldObject

if TYPE_CHECKING:
    from rayshim._core.peer import Peer
    from rayshim.lineage.references import ObjectEntry

_HANDLE = b"\xff" * 8
_NOBODY = b"\xff" * 12
#: Index of put objects in their ids: the highest bit is set.
_PUT_BIT = 0x80


def answer(peer: Peer, payload: bytes) -> bytes:
    """Answers the question ``objects`` (under the lock)."""
    del payload
    peer.objects.collect()
    used = _used_by_calls(peer)
    inside: set[bytes] = set()
    for entry in peer.objects.entries.values():
        inside.update(entry.contains)
    rows = [_row(entry, used, inside) for entry in peer.objects.entries.values()]
    return msgspec.msgpack.encode(rows)


def _used_by_calls(peer: Peer) -> set[bytes]:
    """Ids that calls without a result have among their arguments."""
    used: set[bytes] = set()
    for record in peer.tasks.records.values():
        encoded = record.encoded
        used.update(ref._bytes for _, _, ref in encoded.dependencies)
        used.update(ref._bytes for ref in encoded.nested)
    return used


def _row(entry: ObjectEntry, used: set[bytes], inside: set[bytes]) -> HeldObject:
    value, task = entry.value, entry.task
    object_id = entry.object_id
    size_bytes, nodes = -1, []
    if value is not None:
        segment = value.segment
        if segment is not None:
            size_bytes = sum(segment.layout[1::2])
            nodes.append(segment.node)
        else:
            size_bytes = len(value.data) + sum(map(len, value.buffers))
    if entry.copies is not None:
        nodes += [node for node in entry.copies.nodes if node not in nodes]
    is_handle = object_id[:8] == _HANDLE and object_id[8:20] != _NOBODY
    status, attempt, name = "NIL", 1, ""
    if isinstance(task, CallRecord):
        status, attempt, name = state_of(task), task.attempt + 1, task.name
    elif value is not None and not is_handle:
        status = "FINISHED"
    if is_handle:
        kind, size_bytes = "ACTOR_HANDLE", -1
    elif object_id in used:
        kind = "USED_BY_PENDING_TASK"
    elif entry.local > (object_id in inside):
        kind = "LOCAL_REFERENCE"
    elif object_id in inside:
        kind = "CAPTURED_IN_OBJECT"
    else:
        kind = "UNKNOWN_STATUS"
    return HeldObject(
        object_id,
        size_bytes,
        status,
        attempt,
        kind,
        _site(entry),
        entry.owner,
        entry.local,
        list(entry.lends or ()),
        nodes,
        name,
    )


def _site(entry: ObjectEntry) -> str:
    """Where in the program an object was made; "disabled" if it is not recorded."""
    if not entry.call_site:
        return "disabled"
    if entry.object_id[27] & _PUT_BIT:
        return f"(put object) | {entry.call_site}"
    is_method = entry.object_id[8:20] != _NOBODY
    return f"({'actor' if is_method else 'task'} call) | {entry.call_site}"
