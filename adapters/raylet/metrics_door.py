"""The port of a node's metrics: bound at the start, served from the first scrape on.

Where the control service is, the ports of all nodes are kept in a file for Prometheus,
written a moment after a node came or went.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayshim.adapters.metrics.endpoint import MetricsEndpoint
    from rayshim.adapters.raylet.channels import ChannelServer
    from rayshim.adapters.raylet.head_nodes import NodeDirectory

logger = logging.getLogger(__name__)

#: In the session's folder; Ray's name.
TARGETS_FILE = "prom_metrics_service_discovery.json"
#: Seconds until it is written: nodes come together, and starting is not held up.
WRITE_DELAY_S = 1.0


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
        self._nodes: NodeDirectory | None = None
        self._is_due = False
        port = int(config.settings.get("metrics_port", -1))
        if port >= 0 and not config.is_client:
            # The port that was asked for is that of nodes; a head takes any.
            port = port if config.with_raylet else 0
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

    def watch(self, nodes: NodeDirectory) -> None:
        """Keeps the file with the ports of all nodes, from now on."""
        self._nodes = nodes
        nodes.on_joined.append(lambda node: self._changed())
        nodes.on_died.append(lambda node, reason: self._changed())
        self._changed()

    def targets(self) -> list[str]:
        """``HOST:PORT`` of all that may be scraped."""
        config = self._server.config
        found = []
        if self.port and not config.with_raylet:
            found.append(_target(config.node_ip, config.listen_ip, self.port))
        for node in self._nodes.alive() if self._nodes is not None else ():
            if node.join.metrics_port:
                info = node.join.info
                listens = info.node_ip if info.address[:4] == "tcp:" else ""
                found.append(_target(info.node_ip, listens, node.join.metrics_port))
        return found

    def _changed(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._server.loop.call_later(WRITE_DELAY_S, self._write)

    def _write(self) -> None:
        self._is_due = False
        path = os.path.join(self._server.config.session_dir, TARGETS_FILE)
        scratch = f"{path}.{os.getpid()}"
        try:
            with open(scratch, "w") as file:
                json.dump([targets_entry(self.targets())], file)
            os.replace(scratch, path)
        except OSError as error:
            logger.debug("cannot write %s: %s", path, error)

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


def targets_entry(targets: list[str]) -> dict[str, object]:
    """Targets as Prometheus' file and HTTP discovery have them."""
    return {"labels": {"job": "ray"}, "targets": targets}


def _target(node_ip: str, listen_ip: str, port: int) -> str:
    """Where a port is reached: nodes without TCP listen on loopback only."""
    host = node_ip if listen_ip else "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
