"""The head's HTTP address: there from the start, paid for by the first who asks.

A socket that listens costs nothing. Starlette and Uvicorn are imported, in a thread,
when the first connection comes; it waits until they are there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayshim.adapters.http.app import HttpServer

logger = logging.getLogger(__name__)


class HttpEndpoint:
    """Answers HTTP requests with what the control service knows.

    Args:
        listener: bound; it is closed by :meth:`stop`.
        demand: what the cluster lacks, as a map.
        token: the cluster's, as hex.
        hosts: names without port that the head may be called by.
    """

    def __init__(
        self,
        listener: socket.socket,
        demand: Callable[[], dict[str, Any]],
        *,
        token: str,
        hosts: Collection[str],
    ) -> None:
        self._listener = listener
        self._demand = demand
        self._token = token
        port = listener.getsockname()[1]
        names = dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"])
        self._hosts = [f"{_in_url(name)}:{port}".lower() for name in names if name]
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Listens from now on."""
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._first)

    def stop(self) -> None:
        """Listens no more."""
        self._loop.remove_reader(self._listener)
        if self._server is not None:
            self._server.stop()
        self._listener.close()

    def _first(self) -> None:
        self._loop.remove_reader(self._listener)
        self._task = self._loop.create_task(self._serve())

    async def _serve(self) -> None:
        try:
            app = await asyncio.to_thread(_import_app)
            made = app.make_app(self._demand, token=self._token, hosts=self._hosts)
            self._server = app.HttpServer(made)
            await self._server.serve(self._listener)
        except Exception:
            logger.exception("the HTTP endpoint does not work")
            self._listener.close()


def bind(host: str, port: int) -> socket.socket | None:
    """A socket bound to an address; None, and a line in the log, if it is taken.

    A head goes on without it: what runs in the cluster does not need it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        logger.error(
            "no HTTP endpoint at %s:%d: %s; choose another http_port (0: any)",
            host,
            port,
            error,
        )
        return None
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """``HOST:PORT`` by which others reach it."""
    return f"{_in_url(host)}:{listener.getsockname()[1]}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _import_app() -> Any:
    from rayshim.adapters.http import app

    return app
