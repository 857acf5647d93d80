"""Where this host is."""

from __future__ import annotations

import socket

__all__ = ["get_node_ip_address"]


def get_node_ip_address(address: str = "8.8.8.8:53") -> str:
    """Address of the interface of this host that leads to another one.

    Args:
        address: "HOST:PORT" of the other; nothing is sent there.

    Returns:
        The open session's node address for the default; 127.0.0.1 if no interface
        leads there.
    """
    if address == "8.8.8.8:53":
        from rayshim._core import current

        if current.peer is not None:
            return str(current.peer.node_ip)
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # For datagrams, this only asks the routing table.
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
