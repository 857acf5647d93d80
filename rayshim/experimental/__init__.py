"""Names of Ray that are experimental there."""

from __future__ import annotations

import importlib
from typing import Any

#: Name -> module that has it; loaded at its first use.
_LAZY = {
    "get_local_object_locations": "rayshim.experimental.locations",
    "get_object_locations": "rayshim.experimental.locations",
    "set_resource": "rayshim.experimental.dynamic_resources",
}

__all__ = ["get_local_object_locations", "get_object_locations", "set_resource"]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'rayshim.experimental' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
