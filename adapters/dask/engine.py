"""Dask's scheduler inside the event loop of the head, or of a session's one node."""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rayshim.adapters.raylet.config import NodeConfig

if TYPE_CHECKING:
    from rayshim.adapters.dask.lease_tasks import LeaseTasks

logger = logging.getLogger(__name__)

#: What costs time in an idle cluster, or would act on memory behind our back.
_DASK_SETTINGS: dict[str, Any] = {
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-saturation": "inf",
}


class Engine(NamedTuple):
    """What runs."""

    #: The scheduler's.
    address: str
    #: Leases as its tasks; None in a session on one node.
    tasks: LeaseTasks | None
    #: Address of Dask's own dashboard; empty: none was asked for, or it has no bokeh.
    dashboard_url: str = ""


async def start(config: NodeConfig) -> Engine:
    """Starts the scheduler, whose tasks are leases, too, in a head.

    Dask's own tasks wait for workers, which `rayshim.get_dask_client` starts as actors:
    none runs in this process.

    The imports (half a second) run in a thread, so that leases are granted
    meanwhile. Outside of a cluster only loopback is listened on; no HTTP server starts.
    """
    directory = str(Path(config.session_dir) / "dask")
    more = () if config.with_raylet else ("lease_scheduler", "lease_tasks")
    servers = await asyncio.to_thread(_load, directory, *more)
    from rayshim.adapters.dask import comm

    comm.use_token(config.token_path, config.settings)
    host = config.listen_ip or "127.0.0.1"
    kind = servers.NodeScheduler
    if not config.with_raylet:
        kind = _late("lease_scheduler").LeaseScheduler
    web_port = _web_port(config)
    scheduler = await kind(
        protocol=comm.SCHEME,
        host=host,
        port=0,
        dashboard=web_port >= 0,
        dashboard_address=f"127.0.0.1:{web_port}" if web_port >= 0 else None,
    )
    tasks = None
    if not config.with_raylet:
        tasks = _late("lease_tasks").LeaseTasks(scheduler)
    # Else each full collection would look at all of distributed, for tens of
    # milliseconds in which no lease is granted.
    gc.freeze()
    url = ""
    if web_port >= 0:
        url = f"http://127.0.0.1:{scheduler.http_server.port}/status"
    return Engine(str(scheduler.address), tasks, url)


def _web_port(config: NodeConfig) -> int:
    """Where Dask's own dashboard is to be; -1: nowhere."""
    port = int(config.settings.get("dask_dashboard_port", -1))
    if port >= 0 and importlib.util.find_spec("bokeh") is None:
        logger.warning(
            "no Dask dashboard at port %d: bokeh is not installed here "
            "(pip install bokeh)",
            port,
        )
        return -1
    return port


def _late(name: str) -> Any:
    """A module of this package that imports distributed."""
    return importlib.import_module(f"rayshim.adapters.dask.{name}")


def _load(directory: str, *more: str) -> Any:
    """Imports distributed; its scratch files go with the session."""
    import dask

    dask.config.set({**_DASK_SETTINGS, "temporary-directory": directory})
    servers = _late("servers")
    for name in more:
        _late(name)
    # distributed sets its own level while it is imported.
    logging.getLogger("distributed").setLevel(logging.WARNING)
    return servers
