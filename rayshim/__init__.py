"""Ray's Core API on Dask and Apache Arrow: ``import rayshim as ray``.

Names are loaded at their first use, so that the import itself takes milliseconds and
loads neither Dask nor Arrow.
"""

from __future__ import annotations

import importlib
from typing import Any

#: Version of this package.
RAYSHIM_VERSION = "0.1.0"
#: Ray's API version that this package follows, as programs compare it.
__version__ = "2.60.0+rayshim." + RAYSHIM_VERSION
__commit__ = "rayshim"

#: Public name -> module that has it.
_NAMES = {
    "init": "rayshim._core.api",
    "shutdown": "rayshim._core.api",
    "is_initialized": "rayshim._core.api",
    "remote": "rayshim._core.api",
    "get": "rayshim._core.api",
    "put": "rayshim._core.api",
    "wait": "rayshim._core.api",
    "cancel": "rayshim._core.api",
    "kill": "rayshim._core.api",
    "method": "rayshim._core.api",
    "get_actor": "rayshim._core.api",
    "nodes": "rayshim._core.api",
    "cluster_resources": "rayshim._core.api",
    "available_resources": "rayshim._core.api",
    "get_gpu_ids": "rayshim._core.api",
    "timeline": "rayshim._core.api",
    "get_dask_client": "rayshim.util.dask.client",
    "driver_log": "rayshim._core.driver_log",
    "explain": "rayshim._core.api",
    "Explanation": "rayshim.lineage.reasons",
    "Reason": "rayshim.lineage.reasons",
    "ObjectRef": "rayshim._core.refs",
    "ObjectRefGenerator": "rayshim._core.generators",
    "DynamicObjectRefGenerator": "rayshim._core.generators",
    "get_runtime_context": "rayshim.runtime_context",
    "LoggingConfig": "rayshim.job_config",
    "client": "rayshim.client_builder",
    "ClientBuilder": "rayshim.client_builder",
    "install_as_ray": "rayshim.dropin",
    "Language": "rayshim.cross_language",
    "cpp_function": "rayshim.cross_language",
    "java_actor_class": "rayshim.cross_language",
    "java_function": "rayshim.cross_language",
    "ActorID": "rayshim.lineage.ids",
    "ActorClassID": "rayshim.lineage.ids",
    "FunctionID": "rayshim.lineage.ids",
    "JobID": "rayshim.lineage.ids",
    "NodeID": "rayshim.lineage.ids",
    "PlacementGroupID": "rayshim.lineage.ids",
    "TaskID": "rayshim.lineage.ids",
    "UniqueID": "rayshim.lineage.ids",
    "WorkerID": "rayshim.lineage.ids",
}
_MODULES = frozenset(
    (
        "_private",
        "actor",
        "autoscaler",
        "client_builder",
        "cloudpickle",
        "dag",
        "cross_language",
        "exceptions",
        "experimental",
        "job_config",
        "remote_function",
        "runtime_context",
        "runtime_env",
        "types",
        "util",
    )
)
#: Modes of a process, as old programs compare them.
SCRIPT_MODE = 0
WORKER_MODE = 1

__all__ = [*sorted(_NAMES), "ObjectID", "SCRIPT_MODE", "WORKER_MODE", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "ObjectID":
        name = "ObjectRef"
    module = _NAMES.get(name)
    if module is not None:
        value = getattr(importlib.import_module(module), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"rayshim.{name}")
    raise AttributeError(f"module 'rayshim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
