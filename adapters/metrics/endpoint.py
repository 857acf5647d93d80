"""A node's metrics endpoint, which answers Prometheus.

Starlette and Uvicorn are imported in a thread; the first connection waits for them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from rayshim.adapters.http.app import HttpServer

logger = logging.getLogger(__name__)


class MetricsEndpoint:
    """Answers ``GET /metrics`` for those who have the cluster's token.

    Args:
        listener: listens; it is closed by :meth:`stop`.
        text: gives the metrics.
        token: the cluster's, as hex.
        hosts: names without port that the node may be called by.
    """

    def __init__(
        self,
        listener: socket.socket,
        text: Callable[[], Awaitable[bytes]],
        *,
        token: str,
        hosts: Collection[str],
    ) -> None:
        self._listener = listener
        self._text = text
        self._token = token
        port = listener.getsockname()[1]
        names = dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1"])
        self._hosts = [
            f"[{name}]:{port}" if ":" in name else f"{name}:{port}".lower()
            for name in names
            if name
        ]
        self._task: asyncio.Task[None] | None = None
        self._server: HttpServer | None = None

    def start(self) -> None:
        """Answers from now on; the socket listens already."""
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def stop(self) -> None:
        """Listens no more."""
        if self._server is not None:
            self._server.stop()
        self._listener.close()

    async def _serve(self) -> None:
        try:
            self._server = await asyncio.to_thread(self._make_server)
            await self._server.serve(self._listener)
        except Exception:
            logger.exception("the metrics endpoint does not work")
            self._listener.close()

    def _make_server(self) -> HttpServer:
        from rayshim.adapters.http.app import HttpServer

        return HttpServer(make_app(self._text, token=self._token, hosts=self._hosts))


def make_app(
    text: Callable[[], Awaitable[bytes]], *, token: str, hosts: Collection[str]
) -> Starlette:
    """The application of a node's endpoint.

    Args:
        text: gives the metrics.
        token: the cluster's, as hex.
        hosts: names (``HOST:PORT``) that it may be called by, in lower case.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import Response
    from starlette.routing import Route

    from rayshim.adapters.http.guard import HEADERS, Guard
    from rayshim.adapters.metrics.exposition import CONTENT_TYPE

    async def metrics(request: Request) -> Response:
        return Response(await text(), media_type=CONTENT_TYPE, headers=HEADERS)

    return Starlette(
        routes=[Route("/metrics", metrics, methods=["GET"])],
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
    )
