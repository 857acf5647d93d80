"""Where values lie."""

from __future__ import annotations

from typing import Any

import rayshim
from rayshim._core import current
from rayshim._core.refs import ObjectRef
from rayshim.adapters.wire import messages as m

__all__ = ["get_local_object_locations", "get_object_locations"]

#: How long an owner is asked about a value that this process does not own, in seconds.
ASK_S = 5.0


def get_object_locations(
    obj_refs: list[ObjectRef], timeout_ms: int = -1
) -> dict[ObjectRef, dict[str, Any]]:
    """Nodes that have a value, and its size.

    Args:
        obj_refs: references.
        timeout_ms: milliseconds for which owners in other processes are asked;
            negative: some seconds.

    Returns:
        For each reference a dict with ``node_ids`` (hex; empty for a value that is not
        there yet, or a small one that lies with its owner), ``object_size`` (bytes, or
        None) and ``did_spill`` (whether this node has it on disk alone). Of a value
        that another process owns the primary copy and the one here are known.

    Raises:
        TypeError: not a list of references.
    """
    entries = _entries(obj_refs)
    peer = current.require_peer()
    unknown = [
        ref
        for ref, entry in zip(obj_refs, entries, strict=True)
        if entry.owner and entry.value is None
    ]
    if unknown:
        timeout_s = ASK_S if timeout_ms < 0 else timeout_ms / 1000
        distinct = list(dict.fromkeys(unknown))
        count = len(distinct)
        rayshim.wait(distinct, num_returns=count, timeout=timeout_s, fetch_local=False)
    with peer.lock:
        return _rows(obj_refs, entries)


def get_local_object_locations(
    obj_refs: list[ObjectRef],
) -> dict[ObjectRef, dict[str, Any]]:
    """`get_object_locations` from what this process knows, without asking owners."""
    entries = _entries(obj_refs)
    with current.require_peer().lock:
        return _rows(obj_refs, entries)


def _entries(refs: list[ObjectRef]) -> list[Any]:
    if not isinstance(refs, list):
        raise TypeError(f"obj_refs must be a list of ObjectRefs, not {type(refs)}")
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"obj_refs must be a list of ObjectRefs; it has {ref!r}")
    if not refs:
        return []
    return current.require_peer().objects.lookup(refs)


def _rows(refs: list[ObjectRef], entries: list[Any]) -> dict[ObjectRef, dict[str, Any]]:
    return {ref: _row(entry) for ref, entry in zip(refs, entries, strict=True)}


def _row(entry: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"node_ids": [], "object_size": None, "did_spill": False}
    payload: m.Payload | None = entry.value
    if payload is None:
        return row
    segment = payload.segment
    if segment is None:
        buffers = sum(map(len, payload.buffers))
        row["object_size"] = len(payload.data) + buffers
        return row
    peer = current.require_peer()
    nodes = {segment.node: None}
    copies = entry.copies
    if copies is not None:
        nodes.update(copies.nodes)
        if copies.near is not None:
            nodes[peer.node_id] = None
    row["node_ids"] = list(nodes)
    row["object_size"] = sum(segment.layout[1::2])
    if segment.node == peer.node_id:
        row["did_spill"] = not peer.store.exists(segment.name)
    return row
