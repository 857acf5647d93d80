"""What the driver tells the node process at its start."""

from __future__ import annotations

import json
import os
import socket
from typing import Any


class NodeConfig:
    """The JSON object on the node process's stdin; see ``docs/design.md``.

    Only the standard library's cheapest modules are used here, since this runs
    before the fork server is forked.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.session: str = values["session"]
        self.session_dir: str = values["session_dir"]
        self.store_dir: str = values["store_dir"]
        #: Hex.
        self.node_id: str = values["node_id"]
        self.token_path: str = values["token_path"]
        #: Resource name -> amount, with CPU, GPU, memory and the store.
        self.resources: dict[str, float] = values["resources"]
        self.labels: dict[str, str] = values.get("labels") or {}
        self.prestart: int = values.get("prestart", 0)
        self.preload: list[str] = values.get("preload") or []
        self.executor_entry: str = values["executor_entry"]
        self.lifeline_fd: int = values.get("lifeline_fd", -1)
        self.ready_fd: int = values.get("ready_fd", -1)
        self.sys_path: list[str] = values.get("sys_path") or []
        self.namespace: str = values.get("namespace") or ""
        #: Hex id of the job whose driver started this process.
        self.job_id: str = values.get("job_id") or ""
        self.settings: dict[str, Any] = values.get("settings") or {}
        self.node_ip: str = values.get("node_ip") or _own_address()
        self.socket_path = os.path.join(
            self.session_dir, "sockets", f"node-{self.node_id[:8]}.sock"
        )
        self.logs_dir = os.path.join(self.session_dir, "logs")
        self.resources.setdefault(f"node:{self.node_ip}", 1.0)
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
        """The raylet's address."""
        return f"unix:{self.socket_path}"

    def token(self) -> bytes:
        """The cluster's token, as both sides of the handshake use it."""
        with open(self.token_path, "rb") as file:
            return bytes.fromhex(file.read().decode().strip())

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
                "token_path": self.token_path,
                "sys_path": self.sys_path,
                "namespace": self.namespace,
                "settings": self.settings,
                "node_ip": self.node_ip,
                "labels": self.labels,
                "job_id": self.job_id,
            },
        }


def _own_address() -> str:
    """This host's address towards others; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A documentation address (RFC 5737): only the route is looked up.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
