"""What the driver tells the node process at its start."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

#: Label of a node that is the store of a driver on a host without a node.
CLIENT_LABEL = "rayshim.io/client"
#: Exit code of a node that was drained, and of its keeper; any other end has another.
DRAINED_CODE = 3

if TYPE_CHECKING:
    from rayshim.adapters.wire.tls import Credentials


class NodeConfig:
    """The JSON object on the node process's stdin; see ``docs/design.md``.

    Only the standard library's cheapest modules are used here, since this runs
    before the fork server is forked.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.session: str = values["session"]
        self.session_dir: str = values["session_dir"]
        #: Empty in a head process.
        self.store_dir: str = values.get("store_dir") or ""
        #: Hex.
        self.node_id: str = values["node_id"]
        self.token_path: str = values["token_path"]
        #: Resource name -> amount, with CPU, GPU, memory and the store.
        self.resources: dict[str, float] = values.get("resources") or {}
        self.labels: dict[str, str] = values.get("labels") or {}
        self.prestart: int = values.get("prestart", 0)
        self.preload: list[str] = values.get("preload") or []
        self.executor_entry: str = values.get("executor_entry") or ""
        self.lifeline_fd: int = values.get("lifeline_fd", -1)
        self.ready_fd: int = values.get("ready_fd", -1)
        self.sys_path: list[str] = values.get("sys_path") or []
        self.namespace: str = values.get("namespace") or ""
        #: Hex id of the job whose driver started this process.
        self.job_id: str = values.get("job_id") or ""
        self.settings: dict[str, Any] = values.get("settings") or {}
        #: False in a head process, which runs nothing.
        self.with_raylet: bool = values.get("with_raylet", True)
        #: Address of the cluster's head; empty in the process that is the head.
        self.head_address: str = values.get("head_address") or ""
        #: IP address to listen at; empty: no TCP.
        self.listen_ip: str = values.get("listen_ip") or ""
        #: TCP port; 0: any that is free, until :meth:`bind`.
        self.port: int = values.get("port") or 0
        #: What started the session: "init", "cluster" (``cluster_utils``), or "start"
        #: (``rayshim start``), whose clusters ``init()`` joins without an address.
        self.origin: str = values.get("origin") or "init"
        #: A second TCP port of the head, by which Ray's programs know it (10001).
        self.client_port: int = values.get("client_port") or 0
        #: ``http://HOST:PORT`` once its socket is bound; empty without a dashboard.
        self.dashboard_url = ""
        #: Its process is started with this one, not by the first visit.
        self.dashboard_at_once: bool = values.get("dashboard_at_once", False)
        #: TCP port of the Flight server; 0: any that is free.
        self.flight_port: int = values.get("flight_port") or 0
        #: Whether it is the store of a driver on a host without a node: it grants no
        #: leases, and is none of the nodes that users see.
        self.is_client: bool = values.get("is_client", False)
        self.is_head_node: bool = values.get("is_head_node", not self.head_address)
        self.node_ip: str = values.get("node_ip") or _reachable(self.listen_ip)
        self.sockets_dir = os.path.join(self.session_dir, "sockets")
        self.socket_path = os.path.join(
            self.sockets_dir, f"node-{self.node_id[:8]}.sock"
        )
        self.logs_dir = os.path.join(self.session_dir, "logs")
        if self.is_client:
            self.labels[CLIENT_LABEL] = "1"
        elif self.with_raylet:
            self.resources.setdefault(f"node:{self.node_ip}", 1.0)
            if self.is_head_node:
                self.resources.setdefault("node:__internal_head__", 1.0)

    @classmethod
    def from_json(cls, text: str) -> NodeConfig:
        """Parses the object.

        Raises:
            ValueError: it is no JSON object.
            KeyError: a value that has no default is missing.
        """
        return cls(json.loads(text))

    @property
    def address(self) -> str:
        """Of this process; with TCP it is known once :meth:`bind` was called."""
        if not self.listen_ip:
            return f"unix:{self.socket_path}"
        from rayshim.adapters.wire import address

        if not self.with_raylet:
            return address.make(self.node_ip, self.port, "head", "head")
        name = os.path.basename(self.socket_path).removesuffix(".sock")
        return address.make(self.node_ip, self.port, self.node_id, name)

    def bind(self) -> socket.socket | None:
        """The bound TCP socket, if there is to be one; settles the port.

        Raises:
            PermissionError: others could read the token, which is all that keeps
                them from running code here.
            OSError: the address is not one of this host, or the port is taken.
        """
        if not self.listen_ip:
            return None
        about = os.stat(self.token_path)
        if about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise PermissionError(
                f"the token file {self.token_path} has mode {about.st_mode & 0o777:o} "
                f"and belongs to user {about.st_uid}: to listen at {self.listen_ip} it "
                f"must be this user's ({os.getuid()}) and private (chmod 600)"
            )
        from rayshim.adapters.wire import address

        sock = address.listen_tcp(self.listen_ip, self.port)
        self.port = sock.getsockname()[1]
        return sock

    def bind_client_port(self) -> socket.socket | None:
        """The bound socket of the second port, if there is to be one.

        Raises:
            OSError: the port is taken.
        """
        if not self.client_port or not self.listen_ip:
            return None
        from rayshim.adapters.wire import address

        return address.listen_tcp(self.listen_ip, self.client_port)

    def remove_socket(self, address: str) -> None:
        """Removes the socket file of a dead process of this node."""
        from rayshim.adapters.wire.address import node_of, parse_tcp

        if node_of(address) == self.node_id[:8]:
            name = os.path.basename(parse_tcp(address).name)
            try:
                os.unlink(os.path.join(self.sockets_dir, f"{name}.sock"))
            except OSError:
                pass  # it removed the file itself

    def token(self) -> bytes:
        """The cluster's token, as both sides of the handshake use it."""
        with open(self.token_path, "rb") as file:
            return bytes.fromhex(file.read().decode().strip())

    def credentials(self) -> Credentials | None:
        """For TLS on TCP; None without.

        Raises:
            ValueError: some of the files are named, and others are not.
        """
        if not self.settings.get("tls_ca"):
            return None
        from rayshim.adapters.wire import tls

        return tls.of_settings(self.settings)

    def forkserver(self) -> dict[str, Any]:
        """The fork server's part."""
        return {
            "preload": self.preload,
            "sys_path": self.sys_path,
            "executor_entry": self.executor_entry,
            "executor": {
                "session": self.session,
                "session_dir": self.session_dir,
                "store_dir": self.store_dir,
                "logs_dir": self.logs_dir,
                "node_id": self.node_id,
                "raylet_address": self.address,
                "control_address": self.head_address,
                "listen_ip": self.listen_ip,
                "token_path": self.token_path,
                "sys_path": self.sys_path,
                "namespace": self.namespace,
                "settings": self.settings,
                "node_ip": self.node_ip,
                "labels": self.labels,
                "job_id": self.job_id,
            },
        }


def _reachable(listen_ip: str) -> str:
    """What others reach a process by that listens there."""
    is_one = listen_ip not in ("", "0.0.0.0", "::")
    return listen_ip if is_one else _own_address()


def _own_address() -> str:
    """This host's address towards others; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A documentation address (RFC 5737): only the route is looked up.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
