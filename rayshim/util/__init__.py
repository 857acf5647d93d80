"""Utilities beside the core."""

from __future__ import annotations

from typing import Any

from rayshim._core.custom_serializers import (
    deregister_serializer,
    register_serializer,
)
from rayshim.util.check_serialize import inspect_serializability
from rayshim.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

__all__ = [
    "deregister_serializer",
    "get_current_placement_group",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "placement_group",
    "placement_group_table",
    "register_serializer",
    "remove_placement_group",
]


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Names of the living named actors.

    Args:
        all_namespaces: True gives dicts with ``name`` and ``namespace`` of all.
    """
    from rayshim._core import current

    peer = current.require_peer()
    rows: list[Any] = peer.request(
        "list_named_actors",
        {"all_namespaces": all_namespaces, "namespace": peer.namespace},
    )
    if all_namespaces:
        return rows
    return [row["name"] for row in rows]


def get_node_ip_address() -> str:
    """Address of this node."""
    from rayshim._core import current

    return str(current.require_peer().node_ip)
