"""What the cluster's nodes say of their TPUs."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from rayshim.util.tpu.shapes import shape_of

SLICE, WORKER, POD_TYPE = (
    "ray.io/tpu-slice-name",
    "ray.io/tpu-worker-id",
    "ray.io/tpu-pod-type",
)


def get_current_pod_name() -> str | None:
    """Name of the slice of this host (``TPU_NAME``); None where there is none."""
    return os.environ.get("TPU_NAME") or None


def get_current_pod_worker_count() -> int | None:
    """Hosts of this host's slice (``TPU_WORKER_HOSTNAMES``); None without one."""
    names = os.environ.get("TPU_WORKER_HOSTNAMES")
    return len(names.split(",")) if names else None


def get_num_tpu_chips_on_node() -> int:
    """TPU chips of this host: its ``/dev/accel*``, or numbered ``/dev/vfio/*``."""
    chips = [name for name in _names("/dev") if name.startswith("accel")]
    return len(chips) or sum(name.isdigit() for name in _names("/dev/vfio"))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def get_tpu_slice_name_from_node(node: dict[str, Any]) -> str | None:
    """Name of a node's slice; None if it is in none.

    Args:
        node: as ``ray.nodes()`` gives it.
    """
    labels: dict[str, str] = node.get("Labels", {})
    return labels.get(SLICE)


def get_tpu_nodes_for_slice(
    slice_name: str, nodes: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The nodes of a slice.

    Args:
        slice_name: value of their label ``ray.io/tpu-slice-name``.
        nodes: as ``ray.nodes()`` gives them, which is the default.
    """
    if nodes is None:
        import rayshim

        nodes = rayshim.nodes()
    return [node for node in nodes if get_tpu_slice_name_from_node(node) == slice_name]


def get_num_tpu_slices(
    topology: str, accelerator_type: str, tpu_resource_per_chip: float | None = None
) -> int:
    """Slices of a topology all of whose hosts are alive.

    Args:
        topology: as in ``4x4``.
        accelerator_type: as in ``TPU-V6E``.
        tpu_resource_per_chip: amount of ``TPU`` that stands for a chip; default 1.
    """
    return len(_slices(topology, accelerator_type, tpu_resource_per_chip))


def get_num_ready_tpu_slices(
    topology: str, accelerator_type: str, tpu_resource_per_chip: float | None = None
) -> int:
    """Those of :func:`get_num_tpu_slices` none of whose chips is in use.

    Args:
        topology: as in ``4x4``.
        accelerator_type: as in ``TPU-V6E``.
        tpu_resource_per_chip: amount of ``TPU`` that stands for a chip; default 1.
    """
    from rayshim._core import current

    rows = current.require_peer().request("node_table")
    free = {row["node_id"]: row["available"].get("TPU", 0.0) for row in rows}
    found = _slices(topology, accelerator_type, tpu_resource_per_chip)
    return sum(
        all(free.get(node["NodeID"]) == node["Resources"]["TPU"] for node in nodes)
        for nodes in found
    )


def _slices(
    topology: str, accelerator_type: str, per_chip: float | None
) -> list[list[dict[str, Any]]]:
    import rayshim

    shape = shape_of(topology, accelerator_type)
    wanted = shape.chips * (per_chip or 1)
    found: dict[str, list[dict[str, Any]]] = {}
    chips: Counter[str] = Counter()
    for node in rayshim.nodes():
        name = get_tpu_slice_name_from_node(node)
        labels = node.get("Labels", {})
        if not (name and node["Alive"] and labels.get(POD_TYPE) == shape.pod_type):
            continue
        found.setdefault(name, []).append(node)
        chips[name] += node["Resources"].get("TPU", 0)
    return [nodes for name, nodes in found.items() if chips[name] >= wanted]


def init_jax_profiler(port: int | None = None) -> None:
    """Start JAX's profiler server in this process, where JAX is installed.

    Args:
        port: TCP port; default: any that is free.
    """
    try:
        import jax  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return
    if port is None:
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    jax.profiler.start_server(port)
