"""Dask's servers without their HTTP side."""

from __future__ import annotations

from typing import Any

from distributed import Scheduler, Worker
from distributed.http.routing import RoutingApplication
from tornado.httpserver import HTTPServer


class _NoHttp:
    """Listens on no port for HTTP unless asked to: those pages know no token."""

    def start_http_server(
        self,
        routes: Any,
        dashboard_address: Any,
        default_port: int = 0,
        ssl_options: Any = None,
    ) -> None:
        """Makes the server object that distributed stops at the end."""
        if dashboard_address:
            # It was asked for, by the setting dask_dashboard_port.
            super().start_http_server(  # type: ignore[misc]  # of Dask's servers
                routes, dashboard_address, default_port, ssl_options
            )
            return
        self.http_application = RoutingApplication([])  # type: ignore[no-untyped-call]  # distributed is untyped here.
        server: Any = HTTPServer(self.http_application)
        server.port = 0
        self.http_server = server


class NodeScheduler(_NoHttp, Scheduler):
    """The cluster's scheduler."""


class NodeWorker(_NoHttp, Worker):
    """A node as Dask sees it."""
