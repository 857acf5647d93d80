"""Puts the routes of the dashboard together, behind one guard."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from rayshim.adapters.http.answers import Json
from rayshim.adapters.http.bodies import BodyLimit
from rayshim.adapters.http.cookies import Cookies
from rayshim.adapters.http.guard import Guard, refuse
from rayshim.dashboard import login
from rayshim.dashboard.context import DashboardContext

#: Modules with ``routes(context) -> list[Route]``.
ROUTE_MODULES = (
    "rayshim.dashboard.pages",
    "rayshim.dashboard.api",
    "rayshim.dashboard.log_routes",
    "rayshim.dashboard.metric_routes",
    "rayshim.jobs.rest",
)
#: Files of the pages: scripts, styles, pictures.
STATIC = Path(__file__).parent / "static"
#: Bytes of a body, and of one that is a package with a program's files (Ray's limit).
MAX_BODY_BYTES = 4 * 2**20
MAX_PACKAGE_BYTES = 512 * 2**20
PACKAGES = "/api/packages/"

#: Of every answer that does not say otherwise. No script and no style counts that is
#: not a file of this host, and no other site may show, or read, what is here.
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self' data:; font-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not "no-referrer": browsers would send forms with the origin "null".
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def routes(context: DashboardContext) -> list[BaseRoute]:
    """All routes of the dashboard.

    Args:
        context: of the cluster that it shows.
    """

    async def demand(request: Request) -> Response:
        return Json(await context.ask("demand"))

    found: list[BaseRoute] = [
        *login.routes(context),
        Route("/api/demand", demand, methods=["GET"]),
    ]
    for name in ROUTE_MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.rpartition(".")[0]):
                raise
            continue
        found += module.routes(context)
    found.append(Mount("/static", StaticFiles(directory=STATIC, check_dir=False)))
    return found


def make_app(context: DashboardContext, hosts: Sequence[str], port: int) -> Starlette:
    """The application.

    Args:
        context: of the cluster that it shows.
        hosts: names (``HOST:PORT``) that it may be called by, in lower case.
        port: that it listens at.

    Example:
        >>> app = make_app(context, ["127.0.0.1:8265"], 8265)  # doctest: +SKIP
    """
    token = context.found.token.hex()
    cookies = Cookies(token, port)
    app = Starlette(
        routes=routes(context),
        middleware=[
            Middleware(
                Guard,
                token=token,
                hosts=hosts,
                cookies=cookies,
                public=login.PUBLIC,
                on_unknown=login.page_for_unknown,
                headers=HEADERS,
            ),
            Middleware(BodyLimit, limit_bytes=limit_bytes),
        ],
        exception_handlers={
            HTTPException: _refused,
            ConnectionError: _away,
            RuntimeError: _failed,
            Exception: _broken,
        },
    )
    app.state.cookies = cookies
    return app


def limit_bytes(path: str) -> int:
    """How large the body of a request may be."""
    return MAX_PACKAGE_BYTES if path.startswith(PACKAGES) else MAX_BODY_BYTES


def names_of(listener: socket.socket, *more: str) -> list[str]:
    """``HOST:PORT`` of all names that a socket may be called by.

    Args:
        listener: bound.
        *more: names without port, beside those of this host for itself.
    """
    host, port = listener.getsockname()[:2]
    names = dict.fromkeys(["localhost", "127.0.0.1", "::1", host, *more])
    unusable = ("", "0.0.0.0", "::")
    return [
        f"[{name}]:{port}".lower() if ":" in name else f"{name}:{port}".lower()
        for name in names
        if name not in unusable
    ]


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    answer = refuse(error.status_code, text)
    answer.headers.update(error.headers or {})
    return answer


async def _away(request: Request, error: Exception) -> Response:
    return refuse(503, f"{error}; the head may be back soon: try again")


async def _failed(request: Request, error: Exception) -> Response:
    return refuse(500, str(error))


async def _broken(request: Request, error: Exception) -> Response:
    # Starlette logs it with its traceback.
    return refuse(500, f"{type(error).__name__}: {error}")


def find_routes(app: Starlette) -> list[tuple[str, Any]]:
    """Path and route of every endpoint, for tests that look at all of them."""
    return [(getattr(route, "path", ""), route) for route in app.routes]
