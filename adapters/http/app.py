"""The routes, and the server that answers them in the head's own event loop."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Collection, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rayshim.adapters.http.answers import Json
from rayshim.adapters.http.guard import HEADERS, Guard, refuse
from rayshim.adapters.http.patience import PatientProtocol

#: Connections at once; each takes a descriptor and some memory of the head.
MAX_CONNECTIONS = 100
#: Seconds for which a connection without requests is kept.
KEEP_ALIVE_S = 5
#: Bytes of a request's head.
MAX_HEAD_BYTES = 16 * 1024


def make_app(
    demand: Callable[[], dict[str, Any]], *, token: str, hosts: Collection[str]
) -> Starlette:
    """The application.

    Args:
        demand: what the cluster lacks, as :meth:`Demand.to_json` says it.
        token: the cluster's, as hex.
        hosts: names (``HOST:PORT``) that it may be called by.
    """

    async def get_demand(request: Request) -> Response:
        return Json(demand(), headers=HEADERS)

    async def explain(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        answer = refuse(
            error.status_code,
            f"{request.method} {request.url.path}: {error.detail}",
        )
        answer.headers.update(error.headers or {})
        return answer

    return Starlette(
        routes=[Route("/api/demand", get_demand, methods=["GET"])],
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
        exception_handlers={HTTPException: explain},
    )


class _Server(uvicorn.Server):
    """One that leaves the process's signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes none."""
        yield


class HttpServer:
    """Serves an application at a socket that listens.

    Args:
        app: the application.
        with_websockets: if a library that speaks them is there.
    """

    def __init__(self, app: Starlette, *, with_websockets: bool = False) -> None:
        from importlib.util import find_spec

        has_websockets = with_websockets and find_spec("wsproto") is not None
        config = uvicorn.Config(
            app,
            loop="none",
            http=PatientProtocol,
            ws="wsproto" if has_websockets else "none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        self._server = _Server(config)

    async def serve(self, listener: socket.socket) -> None:
        """Answers until :meth:`stop`."""
        await self._server.serve(sockets=[listener])

    def stop(self) -> None:
        """Has :meth:`serve` return soon."""
        self._server.should_exit = True
