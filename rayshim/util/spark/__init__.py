"""Ray's clusters on Spark, which rayshim does not start: every function says so."""

from __future__ import annotations

from typing import Any, NoReturn

#: As many nodes as Spark has room for.
MAX_NUM_WORKER_NODES = -1


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"ray.util.spark.{name}() is not supported: rayshim starts no nodes in Spark "
        "tasks. Start nodes with `rayshim start --address=HOST:PORT` on Spark's hosts, "
        "or run rayshim on Kubernetes, and join with ray.init(address=...)."
    )


def setup_ray_cluster(
    *,
    max_worker_nodes: int,
    min_worker_nodes: int | None = None,
    num_cpus_worker_node: int | None = None,
    num_cpus_head_node: int | None = None,
    num_gpus_worker_node: int | None = None,
    num_gpus_head_node: int | None = None,
    memory_worker_node: int | None = None,
    memory_head_node: int | None = None,
    object_store_memory_worker_node: int | None = None,
    object_store_memory_head_node: int | None = None,
    head_node_options: dict[str, Any] | None = None,
    worker_node_options: dict[str, Any] | None = None,
    ray_temp_root_dir: str | None = None,
    strict_mode: bool = False,
    collect_log_to_path: str | None = None,
    autoscale_upscaling_speed: float = 1.0,
    autoscale_idle_timeout_minutes: float = 1.0,
    **kwargs: Any,
) -> tuple[str, str]:
    """Not supported.

    Raises:
        NotImplementedError: always; it says what to do instead.
    """
    _refuse("setup_ray_cluster")


def setup_global_ray_cluster(
    *,
    max_worker_nodes: int,
    is_blocking: bool = True,
    min_worker_nodes: int | None = None,
    num_cpus_worker_node: int | None = None,
    num_cpus_head_node: int | None = None,
    num_gpus_worker_node: int | None = None,
    num_gpus_head_node: int | None = None,
    memory_worker_node: int | None = None,
    memory_head_node: int | None = None,
    object_store_memory_worker_node: int | None = None,
    object_store_memory_head_node: int | None = None,
    head_node_options: dict[str, Any] | None = None,
    worker_node_options: dict[str, Any] | None = None,
    strict_mode: bool = False,
    collect_log_to_path: str | None = None,
    autoscale_upscaling_speed: float = 1.0,
    autoscale_idle_timeout_minutes: float = 1.0,
) -> None:
    """Not supported.

    Raises:
        NotImplementedError: always; it says what to do instead.
    """
    _refuse("setup_global_ray_cluster")


def shutdown_ray_cluster() -> None:
    """Not supported, since no cluster was set up so.

    Raises:
        NotImplementedError: always; it says what to do instead.
    """
    _refuse("shutdown_ray_cluster")
