"""Utilities beside the core."""

from __future__ import annotations

import importlib
import os
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

#: Name -> module that has it; loaded at its first use.
_LAZY = {
    "ActorPool": "rayshim.util.actor_pool",
    "as_completed": "rayshim.util.helpers",
    "map_unordered": "rayshim.util.helpers",
    "disable_log_once_globally": "rayshim.util.debug",
    "enable_periodic_logging": "rayshim.util.debug",
    "log_once": "rayshim.util.debug",
    "connect": "rayshim.util.client_connect",
    "disconnect": "rayshim.util.client_connect",
}

#: Modules that are attributes without an import of their own.
_MODULES = frozenset(
    (
        "accelerators",
        "actor_group",
        "actor_pool",
        "client",
        "debug",
        "debugpy",
        "helpers",
        "iter",
        "iter_metrics",
        "pdb",
        "rpdb",
        "scheduling_strategies",
        "serialization",
        "tpu",
    )
)

__all__ = [
    "ActorPool",
    "as_completed",
    "connect",
    "deregister_serializer",
    "disable_log_once_globally",
    "disconnect",
    "enable_periodic_logging",
    "get_current_placement_group",
    "get_node_instance_id",
    "get_node_ip_address",
    "get_placement_group",
    "inspect_serializability",
    "list_named_actors",
    "log_once",
    "map_unordered",
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


def get_node_ip_address(address: str | None = None) -> str:
    """Address of this node, as other nodes reach it.

    Args:
        address: "HOST:PORT"; gives the address of the interface that leads there. None
            gives that of the open session's node, without one that of the interface
            that leads out of this host. Nothing is sent.
    """
    from rayshim._core import current

    if address is None and current.peer is not None:
        return str(current.peer.node_ip)
    from rayshim._private.services import get_node_ip_address

    return get_node_ip_address() if address is None else get_node_ip_address(address)


def get_node_instance_id() -> str:
    """Id that a cloud gives to this node's machine (RAY_CLOUD_INSTANCE_ID), or ""."""
    return os.environ.get("RAY_CLOUD_INSTANCE_ID", "")


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if name in _MODULES:
        return importlib.import_module(f"rayshim.util.{name}")
    if module is None:
        raise AttributeError(f"module 'rayshim.util' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
