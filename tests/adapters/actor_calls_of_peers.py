"""What a peer says to have actors."""

from __future__ import annotations

import secrets
from typing import Any

from node_process import Peer, spec
from rayshim.adapters.wire import messages as wire


def register(peer: Peer, **options: Any) -> bytes:
    """Registers an actor and subscribes to it; its answer is not awaited."""
    actor_id = secrets.token_bytes(16)
    values: dict[str, Any] = {
        "job_id": peer.job_id,
        "owner": peer.address,
        "class_name": "Counter",
        "name": "",
        "namespace": "ns",
        "detached": False,
        "max_restarts": 0,
        "placement_resources": {"CPU": 1.0},
        "resources": {},
        "env_vars": {},
        "max_concurrency": 1,
        "concurrency_groups": {},
        "handle_blob": b"methods",
        **options,
    }
    peer.send(wire.RegisterActor(7, actor_id, **values))
    peer.send(wire.SubscribeActor(actor_id))
    return actor_id


def start(peer: Peer, constructor: str = "ok", **options: Any) -> bytes:
    """Registers an actor whose constructor's arguments are known."""
    actor_id = register(peer, **options)
    peer.send(wire.StartActor(actor_id, b"key", b"class", spec(constructor)))
    return actor_id


def until(peer: Peer, state: str) -> wire.ActorUpdate:
    """The first update with that state."""
    while True:
        update: wire.ActorUpdate = peer.expect(wire.ActorUpdate)
        if update.state == state:
            return update
