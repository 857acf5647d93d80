"""Dask's collections on this cluster.

``dask.compute(x, scheduler=ray_dask_get)``, or `enable_dask_on_ray` for all: each node
of a graph is a task, and its result an object in the store. Arrays and frames are seen
there without copies by everything on their node, tasks and actors too. Constants of a
graph may be ObjectRefs; `dask.persist` gives collections that hold ObjectRefs.

Example:
    >>> import dask.array as da  # doctest: +SKIP
    >>> enable_dask_on_ray()  # doctest: +SKIP
    >>> da.ones((1000, 1000), chunks=100).sum().compute()  # doctest: +SKIP
    np.float64(1000000.0)
"""

from __future__ import annotations

from rayshim.util.dask.callbacks import (
    ProgressBarCallback,
    RayDaskCallback,
    local_ray_callbacks,
    unpack_ray_callbacks,
)
from rayshim.util.dask.optimizations import dataframe_optimize
from rayshim.util.dask.scheduler import (
    disable_dask_on_ray,
    enable_dask_on_ray,
    ray_dask_get,
    ray_dask_get_sync,
    ray_dask_persist,
)

__all__ = [
    "ProgressBarCallback",
    "RayDaskCallback",
    "dataframe_optimize",
    "disable_dask_on_ray",
    "enable_dask_on_ray",
    "local_ray_callbacks",
    "ray_dask_get",
    "ray_dask_get_sync",
    "ray_dask_persist",
    "unpack_ray_callbacks",
]
