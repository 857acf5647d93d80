"""The file by which drivers and commands of this user and host find a session."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayshim.adapters.raylet.config import NodeConfig

#: Its name in the session folder.
NAME = "cluster.json"


def place(config: NodeConfig) -> str:
    """``HOST:PORT`` of a cluster, ``local:SESSION`` of a session on one node."""
    if not config.listen_ip:
        return f"local:{config.session}"
    from rayshim.adapters.wire.address import place_of

    return place_of(config.address)


def write(config: NodeConfig, http_address: str) -> None:
    """Says how to join, to this user alone (mode 0600).

    Args:
        config: of the process with the control service.
        http_address: ``HOST:PORT`` of its HTTP endpoint; empty without one.
    """
    facts = {
        "address": place(config),
        "head_address": config.address,
        "token": config.token().hex(),
        "pid": os.getpid(),
        "session": config.session,
        "http_address": http_address,
        "dashboard_url": config.dashboard_url,
        "origin": config.origin,
        "client_port": config.client_port,
    }
    path = os.path.join(config.session_dir, NAME)
    scratch = f"{path}.{os.getpid()}"
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(facts, file)
    os.replace(scratch, path)
