"""The dashboard's address: there from the start, its process from the first visit.

A socket that listens costs nothing. When the first connection comes, the process of
the dashboard is started with the socket; the connection waits in its queue. If that
process ends by itself, the next connection starts another one. It ends with this
process, whose death closes the pipe that it reads.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from rayshim.adapters.raylet import cluster_file

if TYPE_CHECKING:
    import asyncio
    import subprocess

    from rayshim.adapters.raylet.config import NodeConfig

logger = logging.getLogger(__name__)

#: Ray's.
DEFAULT_PORT = 8265
DEFAULT_HOST = "127.0.0.1"
#: Ports that are tried, one after the other, when none was asked for.
TRIES = 64
#: Looks at the port of an earlier life of this head, and seconds between them.
FORMER_TRIES, FORMER_LOOK_S = 50, 0.02
#: Seconds before a process that ended at once is started again; doubled each time.
FIRST_DELAY_S, LAST_DELAY_S = 0.5, 30.0
#: Seconds of life after which an end is no failed start.
STARTED_S = 10.0


class DashboardDoor:
    """The listening socket, and the process behind it.

    Args:
        listener: listens already.
        config: of this process.
    """

    def __init__(self, listener: socket.socket, config: NodeConfig) -> None:
        self._listener = listener
        self._config = config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._end_fd = -1
        self._started_s = 0.0
        self._delay_s = FIRST_DELAY_S

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the process at the next connection."""
        self._loop = loop
        if self._config.dashboard_at_once:
            self._start()
        else:
            loop.add_reader(self._listener, self._start)

    def close(self) -> None:
        """Ends the process, and listens no more."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._listener)
            if self._end_fd >= 0:
                loop.remove_reader(self._end_fd)
        self._listener.close()
        if self._process is not None:
            self._process.kill()  # it holds nothing that could be lost
        self._forget()

    def _start(self) -> None:
        assert self._loop is not None
        self._loop.remove_reader(self._listener)
        self._started_s = self._loop.time()
        try:
            self._launch()
        except OSError:
            logger.exception("the dashboard's process did not start")
            self._forget()
            self._wait()
        else:
            self._loop.add_reader(self._end_fd, self._ended)

    def _launch(self) -> None:
        import subprocess
        import sys

        config = self._config
        code = (
            f"import sys; sys.path.append({_package_root()!r}); "
            "from rayshim.dashboard.__main__ import main; main()"
        )
        path = os.path.join(config.logs_dir, "dashboard.log")
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        held = [log]
        try:
            lifeline, self._lifeline = os.pipe()
            held.append(lifeline)
            self._end_fd, end = os.pipe()
            held.append(end)
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(lifeline, end, self._listener.fileno()),
                start_new_session=True,
            )
            assert self._process.stdin is not None
            with self._process.stdin as stdin:
                stdin.write(json.dumps(self._facts(lifeline)).encode())
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _facts(self, lifeline: int) -> dict[str, Any]:
        config = self._config
        return {
            "listen_fd": self._listener.fileno(),
            "lifeline_fd": lifeline,
            "address": cluster_file.place(config),
            "head_address": config.address,
            "token": config.token().hex(),
            "session_dir": config.session_dir,
            "dashboard_url": config.dashboard_url,
            "pid": os.getpid(),
            "origin": config.origin,
            "client_port": config.client_port,
            "node_ip": config.node_ip,
            "settings": config.settings,
        }

    def _ended(self) -> None:
        """The process is gone: the next connection starts another one."""
        loop = self._loop
        assert loop is not None
        loop.remove_reader(self._end_fd)
        self._forget()
        self._wait()

    def _wait(self) -> None:
        """A process that ends at once is not started all the time."""
        loop = self._loop
        assert loop is not None
        if loop.time() - self._started_s > STARTED_S:
            self._delay_s = FIRST_DELAY_S
        loop.call_later(self._delay_s, self._open_again)
        self._delay_s = min(2 * self._delay_s, LAST_DELAY_S)

    def _open_again(self) -> None:
        if self._loop is not None:
            self._loop.add_reader(self._listener, self._start)

    def _forget(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
        for descriptor in (self._lifeline, self._end_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._lifeline = self._end_fd = -1


def open_door(config: NodeConfig) -> DashboardDoor | None:
    """Binds the dashboard's socket, and settles ``config.dashboard_url``.

    Returns:
        None if the settings want no dashboard, or this process keeps no control
        service.

    Raises:
        OSError: the port that was asked for is taken.
    """
    port = int(config.settings.get("dashboard_port", -1))
    if port < 0 or config.head_address:
        return None
    host = str(config.settings.get("dashboard_host") or DEFAULT_HOST)
    listener = _listen(host, port, _former_port(config))
    shown = config.node_ip if host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    config.dashboard_url = f"http://{shown}:{listener.getsockname()[1]}"
    return DashboardDoor(listener, config)


def _listen(host: str, port: int, former: int) -> socket.socket:
    if former and former == (port or former):
        import time

        # That of the head's earlier life, whose dashboard ends about now.
        for _ in range(FORMER_TRIES):
            try:
                return _listen_at(host, former)
            except OSError:
                time.sleep(FORMER_LOOK_S)
    if port:
        return _listen_at(host, port)
    for tried in range(DEFAULT_PORT, DEFAULT_PORT + TRIES):
        try:
            return _listen_at(host, tried)
        except OSError:
            continue
    return _listen_at(host, 0)


def _listen_at(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(
            error.errno,
            f"the dashboard cannot listen at {host}:{port} ({error.strerror}); choose "
            "another dashboard_port, or leave it out for the next one that is free",
        ) from None
    return listener


def _former_port(config: NodeConfig) -> int:
    """Of a head that was here before; 0 without one."""
    path = os.path.join(config.session_dir, "cluster.json")
    if config.with_raylet or not os.path.exists(path):
        return 0
    with open(path) as file:
        url = str(json.load(file).get("dashboard_url") or "")
    return int(url.rpartition(":")[2] or 0)


def _package_root() -> str:
    """Where ``rayshim`` is imported from, whichever way this module was."""
    import sys

    package = sys.modules[__name__.partition(".")[0]]
    return os.path.dirname(os.path.dirname(os.path.abspath(package.__file__ or "")))
