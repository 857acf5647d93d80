"""Start and end of the node process.

The order is chosen for speed: what executors need as well is imported once, then the
fork server is forked, whose own imports run on another CPU while this process listens.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from rayshim.adapters.processes import forkserver
from rayshim.adapters.raylet import dashboard_door
from rayshim.adapters.raylet.config import DRAINED_CODE, NodeConfig

if TYPE_CHECKING:
    import socket

    from rayshim.adapters.raylet.head_server import HeadServer
    from rayshim.adapters.raylet.server import NodeServer

#: Seconds for which the end waits for killed executors.
END_LIMIT_S = 1.0
#: Seconds that Dask's import (half a second of CPU time) is put off, so that it does
#: not compete with the driver's first calls; who asks for Dask before does not wait.
DASK_DELAY_S = 1.0
#: The raylet's loop shares the interpreter with Dask's import and threads; this is
#: how long a thread may keep it when the loop has something to do.
SWITCH_INTERVAL_S = 0.0005


def main() -> None:
    """Runs a node or head until its lifeline is cut. Does not return."""
    config = None
    status = 1
    try:
        config = NodeConfig.from_json(sys.stdin.read())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _import_shared()
        # The fork server's executors are told the port, and close the socket.
        bound = [config.bind(), config.bind_client_port()]
        child = None
        if config.with_raylet:
            child = forkserver.start(config.forkserver())
        door = dashboard_door.open_door(config)
        _run(config, child, _listen(config, bound), door)
        status = 0
    except BaseException as error:
        import traceback

        traceback.print_exc()
        if config is not None and config.ready_fd >= 0:
            text = f"{type(error).__name__}: {error}"
            _write_line(config.ready_fd, {"error": text})
    finally:
        # Nothing here needs an orderly interpreter exit, and Dask's is slow.
        sys.stderr.flush()
        os._exit(status)


def _import_shared() -> None:
    """Imports, once for both, what the fork server's executors need as well."""
    for name in ("asyncio", "rayshim.adapters.wire.messages"):
        importlib.import_module(name)


def _listen(
    config: NodeConfig, bound: list[socket.socket | None]
) -> list[socket.socket]:
    """Binds the raylet's socket (mode 0600) and tells the starting process.

    The kernel lets peers connect from here on; they are answered as soon as the rest
    is imported, so that the driver's own start goes on meanwhile.
    """
    import socket

    listeners = [tcp for tcp in bound if tcp is not None]
    for tcp in listeners:
        tcp.listen(1024)
    if config.with_raylet:
        listener = socket.socket(socket.AF_UNIX)
        previous = os.umask(0o177)
        try:
            listener.bind(config.socket_path)
        finally:
            os.umask(previous)
        listener.listen(1024)
        listeners.append(listener)
    if config.with_raylet and not config.head_address:
        from rayshim.adapters.raylet import cluster_file

        # Before the driver goes on: whoever hears of the session finds it.
        cluster_file.write(config, "")
    if config.ready_fd >= 0:
        ready = {
            "address": config.address,
            "node_id": config.node_id,
            "pid": os.getpid(),
            "node_ip": config.node_ip,
            "dashboard_url": config.dashboard_url,
        }
        _write_line(config.ready_fd, ready)
    return listeners


def _run(
    config: NodeConfig,
    child: tuple[int, socket.socket] | None,
    listeners: list[socket.socket],
    door: dashboard_door.DashboardDoor | None,
) -> None:
    import asyncio

    sys.path[:0] = [path for path in config.sys_path if path not in sys.path]
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_descriptor_limit()
    asyncio.run(_serve(config, child, listeners, door))


async def _serve(
    config: NodeConfig,
    child: tuple[int, socket.socket] | None,
    listeners: list[socket.socket],
    door: dashboard_door.DashboardDoor | None,
) -> None:
    import asyncio

    _start_log(config)
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()

    def end(reason: str) -> None:
        if not ended.done():
            ended.set_result(reason)

    server: NodeServer | HeadServer
    if child is None:
        from rayshim.adapters.raylet.head_server import HeadServer

        server = HeadServer(config, end)
    else:
        from rayshim.adapters.raylet.server import NodeServer

        server = NodeServer(config, child, end)
    if config.lifeline_fd >= 0:
        os.set_blocking(config.lifeline_fd, False)
        loop.add_reader(config.lifeline_fd, _lifeline, config.lifeline_fd, end)
    loop.add_signal_handler(signal.SIGTERM, end, "SIGTERM")
    await server.start(*listeners)
    if door is not None:
        door.watch(loop)
    if config.ready_fd >= 0:
        os.close(config.ready_fd)
        config.ready_fd = -1  # the number will be that of another file
    control = server.control
    if control is not None and config.settings.get("dask", "background") != "off":
        # A head places leases with it, and its own start is over.
        usual_s = DASK_DELAY_S if config.with_raylet else 0.0
        delay_s = float(config.settings.get("dask_delay_s", usual_s))
        loop.call_later(delay_s, control.engine.start)
    reason = await ended
    if door is not None:
        door.close()
    await _end(config, server, reason)


def _lifeline(descriptor: int, end: object) -> None:
    try:
        if os.read(descriptor, 1):
            return
    except BlockingIOError:
        return
    except OSError:
        pass
    assert callable(end)
    end("who started it is gone")


async def _end(
    config: NodeConfig, server: NodeServer | HeadServer, reason: str
) -> None:
    import shutil

    await server.stop(END_LIMIT_S, reason)
    server.keep_history()
    if config.store_dir:
        shutil.rmtree(config.store_dir, ignore_errors=True)
    shutil.rmtree(config.session_dir, ignore_errors=True)
    if server.control is not None:
        server.control.answer_shutdown()
    drain = getattr(server, "drain", None)  # a head has none
    # Leaving the loop would wait for the thread that imports Dask.
    os._exit(DRAINED_CODE if drain is not None and drain.is_done else 0)


def _start_log(config: NodeConfig) -> None:
    import logging

    os.makedirs(config.logs_dir, mode=0o700, exist_ok=True)
    # Opened at once: a message that cannot open its file would raise where it was to
    # be logged, and that is when descriptors are short or the folder is gone.
    handler = logging.FileHandler(
        os.path.join(config.logs_dir, f"node-{config.node_id[:8]}.log")
    )
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(config.settings.get("log_level", "WARNING"))


def _raise_descriptor_limit() -> None:
    """Lets a thousand executors have two pipes and a channel each."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _write_line(descriptor: int, record: dict[str, object]) -> None:
    try:
        os.write(descriptor, json.dumps(record).encode() + b"\n")
    except OSError:
        pass  # The driver is gone; the lifeline says so too.
