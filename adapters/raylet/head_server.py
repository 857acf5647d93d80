"""The process of a cluster's head: the control service, and no executors."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from rayshim.adapters.raylet.channels import ChannelServer
from rayshim.adapters.raylet.control import ControlService

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import Peer
    from rayshim.adapters.raylet.config import NodeConfig


class HeadServer(ChannelServer):
    """Channels to nodes and peers, and the control service.

    Args:
        config: What the starting process said.
        on_end: Called with a reason when the process has to leave.
    """

    def __init__(self, config: NodeConfig, on_end: Callable[[str], None]) -> None:
        super().__init__(config, on_end)
        self.control = ControlService(self)
        self._handlers.update(self.control.handlers())

    async def start(self, *listeners: socket.socket | None) -> None:
        """Serves bound sockets, and says where in ``cluster.json``."""
        await self.listen(*listeners)
        self.control.start()
        write_cluster_file(self.config)

    async def stop(self, timeout_s: float, reason: str = "its end") -> None:
        """Listens no more; nodes and peers notice that the head is gone."""
        self.control.stop()
        self.stop_listening()

    def peer_came(self, peer: Peer) -> None:
        """A peer said hello."""
        self.control.peer_came(peer)

    def peer_left(self, peer: Peer) -> None:
        """A peer's channel is at its end."""
        self.control.peer_left(peer)


def write_cluster_file(config: NodeConfig) -> None:
    """Tells drivers of this user and host how to join (mode 0600)."""
    facts = {
        "address": config.address.removeprefix("tcp:").partition("/")[0],
        "head_address": config.address,
        "token": config.token().hex(),
        "pid": os.getpid(),
        "session": config.session,
    }
    path = os.path.join(config.session_dir, "cluster.json")
    scratch = f"{path}.{os.getpid()}"
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(facts, file)
    os.replace(scratch, path)
