"""How the members of a group find each other: through the key-value store.

Each member writes a ticket that nobody else has, with its node; rank 0 writes the list
of all tickets under ``go``. A member goes ahead when its own ticket is in the list, so
that what an earlier group of this name left behind is never taken for this one. What
gloo itself has to exchange is then under a prefix made of that list.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rayshim._core import current

#: Namespace of the keys.
NAMESPACE = "_rayshim_collective"
#: Seconds between two looks at first, and at most.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.1


class GroupKeys:
    """The keys of one group in the control service."""

    def __init__(self, group_name: str) -> None:
        peer = current.require_peer()
        self._peer = peer
        self.group_name = group_name
        self.prefix = f"{peer.namespace}/{group_name}/"

    def put(self, key: str, value: bytes, *, overwrite: bool = True) -> bool:
        """Write a value; returns whether the key is new."""
        payload = {**self._at(key), "value": value, "overwrite": overwrite}
        return bool(self._peer.request("kv_put", payload))

    def get(self, key: str) -> bytes | None:
        """The value of a key, or None."""
        found = self._peer.request("kv_get", self._at(key))
        return None if found is None else bytes(found)

    def delete(self, key: str, *, by_prefix: bool = False) -> None:
        """Remove a key, or all that begin so."""
        self._peer.request("kv_del", {**self._at(key), "by_prefix": by_prefix})

    def wait(self, key: str, deadline_monotonic_s: float) -> bytes | None:
        """The value of a key when there is one; None after the deadline."""
        found: bytes | None = poll(lambda: self.get(key), deadline_monotonic_s)
        return found

    def _at(self, key: str) -> dict[str, Any]:
        return {"namespace": NAMESPACE, "key": (self.prefix + key).encode()}


def poll(look: Callable[[], Any], deadline_monotonic_s: float) -> Any:
    """What ``look`` gives once that is not None; None after the deadline."""
    wait_s = _FIRST_WAIT_S
    while True:
        found = look()
        if found is not None or time.monotonic() >= deadline_monotonic_s:
            return found
        time.sleep(wait_s)
        wait_s = min(wait_s * 1.5, _LONGEST_WAIT_S)


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the members of a group agreed on."""

    #: Begins the keys that gloo uses.
    prefix: str
    #: All members are on one node.
    one_node: bool


def meet(keys: GroupKeys, world_size: int, rank: int, timeout_s: float) -> Meeting:
    """Wait for the other members of a group.

    Raises:
        TimeoutError: some did not come in time; the message names their ranks.
    """
    peer = current.require_peer()
    deadline = time.monotonic() + timeout_s
    ticket = os.urandom(8).hex()
    mine = {"ticket": ticket, "node": str(peer.node_id)}
    keys.put(f"join/{rank}", json.dumps(mine).encode())
    tickets: dict[int, dict[str, str]] = {}

    def all_joined() -> bool | None:
        for other in range(world_size):
            found = keys.get(f"join/{other}")
            if found is not None:
                tickets[other] = json.loads(found)
        return True if len(tickets) == world_size else None

    def let_in() -> dict[str, Any] | None:
        found = keys.get("go")
        if found is None:
            return None
        agreed: dict[str, Any] = json.loads(found)
        return agreed if ticket in agreed["tickets"] else None

    try:
        if rank == 0 and poll(all_joined, deadline):
            nodes = {entry["node"] for entry in tickets.values()}
            agreed = {
                "tickets": [tickets[other]["ticket"] for other in range(world_size)],
                "one_node": len(nodes) == 1,
            }
            keys.put("go", json.dumps(agreed).encode())
        found = let_in() if rank == 0 else poll(let_in, deadline)
    finally:
        keys.delete(f"join/{rank}")
    if found is None:
        missing = sorted(set(range(world_size)) - set(tickets))
        who = f"ranks {missing} did not join" if rank == 0 else "rank 0 did not answer"
        raise TimeoutError(
            f"collective group {keys.group_name!r}: {who} within "
            f"{timeout_s:g} s. All {world_size} members must call "
            "init_collective_group(), each with its own rank; raise gloo_timeout (ms) "
            "if they start slowly."
        )
    return Meeting(f"gloo/{found['tickets'][0]}/", bool(found["one_node"]))
