"""Waiting for values: what it gives up meanwhile, and why it takes so long.

A call that waits inside an executor gives its CPUs back and returns calls that were
pushed behind it, so waiting never keeps others from running. A wait that exceeds
``pending_warn_s`` explains itself once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rayshim.adapters.wire import messages as m
from rayshim.lineage.references import ObjectEntry

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

logger = logging.getLogger("rayshim")

#: A wait shorter than this is not worth two messages.
SPIN_S = 0.0005


def wait(
    peer: Peer,
    done: Callable[[], Any],
    missing: Sequence[ObjectEntry],
    deadline: float | None,
) -> None:
    """Return when ``done()`` is true or the deadline passed."""
    reactor = peer.reactor
    if peer.executor is not None:
        now = time.monotonic()
        soon = now + SPIN_S
        if reactor.wait(done, soon if deadline is None else min(soon, deadline)):
            return
        with peer.executor.yielding():
            _wait_explaining(peer, done, missing, deadline)
        return
    _wait_explaining(peer, done, missing, deadline)


def _wait_explaining(
    peer: Peer,
    done: Callable[[], Any],
    missing: Sequence[ObjectEntry],
    deadline: float | None,
) -> None:
    warn_s = peer.settings.pending_warn_s
    if warn_s > 0:
        notice = time.monotonic() + warn_s
        if deadline is None or notice < deadline:
            if peer.reactor.wait(done, notice):
                return
            waiting = [entry for entry in missing if entry.value is None]
            if waiting:
                logger.warning(
                    "waiting for %d of %d objects for %.1f s. %s",
                    len(waiting),
                    len(missing),
                    warn_s,
                    reason(peer, waiting[0], ask=True),
                )
    peer.reactor.wait(done, deadline)


def reason(peer: Peer, entry: ObjectEntry, *, ask: bool = False) -> str:
    """One sentence on why a value is not there.

    Args:
        peer: this process.
        entry: the object.
        ask: also ask the raylet about the lease that its task waits for.
    """
    name = f"ObjectRef({entry.object_id.hex()[:16]}...)"
    if entry.owner:
        return f"{name} is made by another process, {entry.owner}."
    task: Any = entry.task
    if task is None:
        return f"{name} has no task that makes it."
    lines = [f"{name}: {task.describe()}."]
    if ask:
        lease_ids = task.lease_ids()
        actor_ids = [task.actor_id] if task.actor_id else []
        if lease_ids or actor_ids:
            lines += peer.request(
                "explain", {"lease_ids": lease_ids, "actor_ids": actor_ids}
            )
    return " ".join(lines)


def notice(peer: Peer, blocked: bool) -> None:
    """Tell the raylet that this executor's call waits, or goes on."""
    with peer.lock:
        peer.raylet.send(m.Blocked(blocked))
