"""``ray.util.connect`` and ``disconnect``: older ``init`` and ``shutdown``."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["connect", "disconnect"]


def connect(
    conn_str: str,
    secure: bool = False,
    metadata: list[tuple[str, str]] | None = None,
    connection_retries: int = 3,
    job_config: Any = None,
    namespace: str | None = None,
    *,
    ignore_version: bool = False,
    _credentials: Any = None,
    ray_init_kwargs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Connect this process to a cluster: ``init("ray://...")``.

    Args:
        conn_str: "host:port" of the cluster.
        secure: not supported: the token of the cluster is what lets a driver in.
        metadata: not supported: there is no gRPC that would carry it.
        connection_retries: attempts, each of which may take 10 s.
        job_config: a JobConfig; its namespace and runtime_env are used.
        namespace: of named actors.
        ignore_version: not supported: with other versions nothing would work.
        _credentials: not supported.
        ray_init_kwargs: more parameters of ``init``.

    Returns:
        ``num_clients``, ``python_version``, ``ray_version`` and ``ray_commit``.

    Raises:
        NotImplementedError: a parameter that is not supported, with what to do.
        RuntimeError: this process is connected already.
        ConnectionError: there is no such cluster.
    """
    refused = {
        "secure": (secure, "the token of the cluster (RAYSHIM_TOKEN) lets drivers in"),
        "metadata": (metadata, "leave it out: there is no gRPC"),
        "ignore_version": (
            ignore_version,
            "leave it out, and run the driver with the cluster's Python and rayshim",
        ),
        "_credentials": (_credentials, "leave it out: there is no gRPC"),
    }
    for name, (value, instead) in refused.items():
        if value:
            raise NotImplementedError(f"connect(): {name} is not supported; {instead}")
    import rayshim

    arguments = dict(ray_init_kwargs or {})
    if job_config is not None:
        arguments["job_config"] = job_config
    if namespace is not None:
        arguments["namespace"] = namespace
    address = conn_str if conn_str.startswith("ray://") else f"ray://{conn_str}"
    for left in range(max(connection_retries, 1) - 1, -1, -1):
        try:
            rayshim.init(address, **arguments)
            break
        except ConnectionError:
            if not left:
                raise
    return {
        "num_clients": 1,
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "ray_version": rayshim.__version__,
        "ray_commit": rayshim.__commit__,
    }


def disconnect() -> None:
    """End the connection: ``shutdown()``."""
    import rayshim

    rayshim.shutdown()
