"""The port of a node's metrics: bound at the start, served from the first scrape on."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayshim.adapters.metrics.endpoint import MetricsEndpoint
    from rayshim.adapters.raylet.channels import ChannelServer

logger = logging.getLogger(__name__)


class MetricsDoor:
    """A socket that listens at the node's address, or on loopback without one.

    Args:
        server: the process whose metrics are shown.
    """

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._listener: socket.socket | None = None
        self._endpoint: MetricsEndpoint | None = None
        #: TCP port; 0: none.
        self.port = 0
        config = server.config
        port = int(config.settings.get("metrics_port", -1))
        if port >= 0 and config.with_raylet and not config.is_client:
            self._open(config.listen_ip or "127.0.0.1", port)

    def _open(self, host: str, port: int) -> None:
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            if port:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(16)
        except OSError as error:
            listener.close()
            logger.error(
                "no metrics at %s:%d: %s; choose another metrics_port (0: any)",
                host,
                port,
                error,
            )
            return
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._server.loop.add_reader(listener, self._first)

    def close(self) -> None:
        """Listens no more."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._server.loop.remove_reader(listener)
            listener.close()
        if self._endpoint is not None:
            self._endpoint.stop()
            self._endpoint = None

    def _first(self) -> None:
        from rayshim.adapters.metrics.endpoint import MetricsEndpoint
        from rayshim.adapters.raylet.metric_service import service_of

        listener, self._listener = self._listener, None
        assert listener is not None
        self._server.loop.remove_reader(listener)
        config = self._server.config
        self._endpoint = MetricsEndpoint(
            listener,
            service_of(self._server).text,
            token=self._server.token.hex(),
            hosts=[config.node_ip, config.listen_ip],
        )
        self._endpoint.start()
