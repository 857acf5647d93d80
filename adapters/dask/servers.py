"""Dask's servers without their HTTP side."""

from __future__ import annotations

from typing import Any

from distributed import Scheduler, Worker
from distributed.http.routing import RoutingApplication
from tornado.httpserver import HTTPServer


class _NoHttp:
    """Listens on no port for HTTP: those pages know no token."""

    def start_http_server(
        self,
        routes: Any,
        dashboard_address: Any,
        default_port: int = 0,
        ssl_options: Any = None,
    ) -> None:
        """Makes the server object that distributed stops at the end."""
        self.http_application = RoutingApplication([])
        self.http_server = HTTPServer(self.http_application)
        self.http_server.port = 0


class NodeScheduler(_NoHttp, Scheduler):  # type: ignore[misc]  # untyped base
    """The cluster's scheduler."""


class NodeWorker(_NoHttp, Worker):  # type: ignore[misc]  # untyped base
    """A node as Dask sees it."""
