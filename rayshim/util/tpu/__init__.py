"""Slices of TPUs: hosts that belong together are reserved together.

Nodes of a slice carry the labels ``ray.io/tpu-slice-name``, ``ray.io/tpu-worker-id``,
``ray.io/tpu-pod-type`` and ``ray.io/tpu-topology``, and the resource ``TPU`` (chips).
"""

from __future__ import annotations

from rayshim.util.tpu.nodes import (
    get_current_pod_name,
    get_current_pod_worker_count,
    get_num_ready_tpu_slices,
    get_num_tpu_chips_on_node,
    get_num_tpu_slices,
    get_tpu_nodes_for_slice,
    get_tpu_slice_name_from_node,
    init_jax_profiler,
)
from rayshim.util.tpu.shapes import (
    get_tpu_coordinator_env_vars,
    get_tpu_num_slices_for_workers,
    get_tpu_version_from_type,
    get_tpu_worker_resources,
)
from rayshim.util.tpu.slices import (
    SlicePlacementGroup,
    dispatch,
    run_on_slice,
    slice_placement_group,
    subslice_placement_group,
)

__all__ = [
    "SlicePlacementGroup",
    "dispatch",
    "get_current_pod_name",
    "get_current_pod_worker_count",
    "get_num_ready_tpu_slices",
    "get_num_tpu_chips_on_node",
    "get_num_tpu_slices",
    "get_tpu_coordinator_env_vars",
    "get_tpu_nodes_for_slice",
    "get_tpu_num_slices_for_workers",
    "get_tpu_slice_name_from_node",
    "get_tpu_version_from_type",
    "get_tpu_worker_resources",
    "init_jax_profiler",
    "run_on_slice",
    "slice_placement_group",
    "subslice_placement_group",
]
