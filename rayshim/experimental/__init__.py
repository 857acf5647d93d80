"""Names of Ray that are experimental there."""

from __future__ import annotations

import importlib
from typing import Any

#: Name -> module that has it; loaded at its first use.
_LAZY = {
    "get_local_object_locations": "rayshim.experimental.locations",
    "get_object_locations": "rayshim.experimental.locations",
    "set_resource": "rayshim.experimental.dynamic_resources",
    "CommunicatorMetadata": "rayshim.experimental.tensor_transports",
    "TensorTransportManager": "rayshim.experimental.tensor_transports",
    "TensorTransportMetadata": "rayshim.experimental.tensor_transports",
    "deregister_nixl_memory": "rayshim.experimental.tensor_transports",
    "register_nixl_memory": "rayshim.experimental.tensor_transports",
    "register_nixl_memory_pool": "rayshim.experimental.tensor_transports",
    "register_tensor_transport": "rayshim.experimental.tensor_transports",
    "set_nixl_cuda_stream": "rayshim.experimental.tensor_transports",
    "set_target_device_for_ref": "rayshim.experimental.tensor_transports",
    "set_target_for_ref": "rayshim.experimental.tensor_transports",
    "wait_tensor_freed": "rayshim.experimental.tensor_transports",
}

__all__ = [
    "CommunicatorMetadata",
    "TensorTransportManager",
    "TensorTransportMetadata",
    "deregister_nixl_memory",
    "get_local_object_locations",
    "get_object_locations",
    "register_nixl_memory",
    "register_nixl_memory_pool",
    "register_tensor_transport",
    "set_nixl_cuda_stream",
    "set_resource",
    "set_target_device_for_ref",
    "set_target_for_ref",
    "wait_tensor_freed",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if name in ("internal_kv", "queue", "tqdm_ray"):
        return importlib.import_module(f"rayshim.experimental.{name}")
    if module is None:
        raise AttributeError(f"module 'rayshim.experimental' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
