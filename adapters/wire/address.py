"""Names of processes, which also say how to reach them.

A session on one node uses ``unix:PATH``. Where several nodes work together an address
is ``tcp:HOST:PORT/NODE8/NAME``: ``NODE8`` are the first 8 hex digits of the node's id
and ``NAME`` is the process's socket in the folder of its node. A process of the same
node takes the unix socket, since it is faster; any other takes TCP, so that hosts need
to share neither files nor sockets.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from typing import Any, NamedTuple


class TcpAddress(NamedTuple):
    """The parts of ``tcp:HOST:PORT/NODE8/NAME``."""

    host: str
    port: int
    node: str
    name: str


def parse_tcp(address: str) -> TcpAddress:
    """Split an address.

    Raises:
        ValueError: it is none.
    """
    kind, _, rest = address.partition(":")
    place, _, who = rest.partition("/")
    host, _, port = place.rpartition(":")
    node, _, name = who.partition("/")
    if kind != "tcp" or not host or not port.isdigit():
        raise ValueError(f"not an address of a process: {address!r}")
    return TcpAddress(host.strip("[]"), int(port), node, name)


def node_of(address: str) -> str:
    """``NODE8`` of an address; empty in a session on one node."""
    if not address.startswith("tcp:"):
        return ""
    return address.split("/", 2)[1] if "/" in address else ""


def place_of(address: str) -> str:
    """``HOST:PORT`` of a TCP address, as users write the address of a cluster."""
    return address.removeprefix("tcp:").partition("/")[0]


def make(host: str, port: int, node_id: str, name: str) -> str:
    """The address of a process that listens at ``host:port``.

    Args:
        host: name or IP address that other hosts reach it by.
        port: of its TCP listener.
        node_id: hex id of its node.
        name: of its unix socket, without ``.sock``.
    """
    shown = f"[{host}]" if ":" in host else host
    return f"tcp:{shown}:{port}/{node_id[:8]}/{name}"


def lasting(asked: str, told: str) -> str:
    """The address by which a head is found again after a restart.

    A head says the IP address that it listens at. One that is started again elsewhere
    (a pod has another address each time) is found by its name alone, so whoever was
    given a name keeps it, and looks it up at each connection.

    Args:
        asked: the address that the head was called by just now.
        told: the one that it says itself.

    Example:
        >>> lasting("tcp:head.ray.svc:6379/head/head", "tcp:10.0.0.7:6379/head/head")
        'tcp:head.ray.svc:6379/head/head'
        >>> lasting("tcp:10.0.0.7:10001/head/head", "tcp:10.0.0.7:6379/head/head")
        'tcp:10.0.0.7:6379/head/head'
    """
    if not asked.startswith("tcp:"):
        return told
    host = parse_tcp(asked).host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # Of this host alone there is no other address.
        return told if host == "localhost" else asked
    return told


def socket_path(address: str, home: str, sockets_dir: str) -> str:
    """The unix socket to take, or an empty string for TCP.

    Args:
        address: of the process to reach.
        home: ``NODE8`` of this process's node.
        sockets_dir: the folder of that node's sockets.
    """
    if address.startswith("unix:"):
        return address[5:]
    parts = parse_tcp(address)
    if home and parts.node == home and parts.name:
        return os.path.join(sockets_dir, parts.name + ".sock")
    return ""


def listen_tcp(ip: str, port: int = 0) -> socket.socket:
    """A bound TCP socket of this host.

    Raises:
        OSError: the address is not one of this host, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ip, port))
    except BaseException:
        listener.close()
        raise
    return listener


def listen_in(ip: str, ports: str) -> socket.socket:
    """A bound TCP socket at one of several ports.

    Args:
        ip: of this host.
        ports: "LOW-HIGH", or ports with commas between them; empty: any port.

    Raises:
        OSError: all of them are taken.
        ValueError: they are no ports.
    """
    if not ports:
        return listen_tcp(ip)
    low, dash, high = ports.partition("-")
    listed = range(int(low), int(high) + 1) if dash else [*map(int, ports.split(","))]
    # Processes that start together should not all try the same one first.
    first = os.getpid() % len(listed)
    for index in range(len(listed)):
        listener = None
        try:
            listener = listen_tcp(ip, listed[(first + index) % len(listed)])
            # Two may be bound to a port, as long as neither listens.
            listener.listen()
            return listener
        except OSError:
            if listener is not None:
                listener.close()
    raise OSError(
        errno.EADDRINUSE,
        f"all {len(listed)} ports of worker_ports ({ports}) are taken at {ip}",
    )


def own_ip_towards(host: str, port: int) -> str:
    """The address of this host that a connection to another one would have.

    Example:
        >>> own_ip_towards("127.0.0.1", 6379)
        '127.0.0.1'
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family[0], socket.SOCK_DGRAM) as probe:
        probe.connect(family[4])  # nothing is sent: only the route is looked up
        return str(probe.getsockname()[0])


def tune(sock: Any) -> None:
    """Send small frames at once; notice a host that is gone within half a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
