"""Waiting for values: what it gives up meanwhile, and why it takes so long.

A call that waits inside an executor gives its CPUs back and returns calls that were
pushed behind it, so waiting never keeps others from running. A wait that exceeds
``pending_warn_s`` explains itself once; one that exceeds ``deadlock_report_s`` is told
to the control service, which finds out whether it can ever end.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import node_messages as n
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.references import ObjectEntry

if TYPE_CHECKING:
    from rayshim._core.peer import Peer
    from rayshim._core.wait_reports import StandingWait

logger = logging.getLogger("rayshim")

#: A wait shorter than this is not worth two messages.
SPIN_S = 0.0005


def wait(
    peer: Peer,
    done: Callable[[], Any],
    missing: Sequence[ObjectEntry],
    deadline: float | None,
    *,
    needs_all: bool = False,
) -> None:
    """Return when ``done()`` is true or the deadline passed.

    Args:
        peer: this process.
        done: as for :meth:`Reactor.wait`.
        missing: the objects that are waited for.
        deadline: on the monotonic clock, or None.
        needs_all: nothing but all of ``missing`` ends the wait.

    Raises:
        DeadlockError: ``missing`` will never be there, and there is no deadline.
    """
    reactor = peer.reactor
    if peer.executor is not None:
        now = time.monotonic()
        soon = now + SPIN_S
        if reactor.wait(done, soon if deadline is None else min(soon, deadline)):
            return
        with peer.executor.yielding():
            _wait_explaining(peer, done, missing, deadline, needs_all)
        return
    _wait_explaining(peer, done, missing, deadline, needs_all)


def _wait_explaining(
    peer: Peer,
    done: Callable[[], Any],
    missing: Sequence[ObjectEntry],
    deadline: float | None,
    needs_all: bool,
) -> None:
    settings = peer.settings
    warn_s, report_s = settings.pending_warn_s, settings.deadlock_report_s
    notice_s = warn_s if report_s <= 0 or 0 < warn_s < report_s else report_s
    if notice_s > 0:
        notice = time.monotonic() + notice_s
        if deadline is None or notice < deadline:
            if not peer.reactor.wait(done, notice):
                _wait_long(peer, done, missing, deadline, needs_all, notice_s)
            return
    peer.reactor.wait(done, deadline)


def _wait_long(
    peer: Peer,
    done: Callable[[], Any],
    missing: Sequence[ObjectEntry],
    deadline: float | None,
    needs_all: bool,
    waited_s: float,
) -> None:
    """Go on with a wait that has lasted ``waited_s``: explain and report it."""
    begun = time.monotonic() - waited_s
    warn_s, report_s = peer.settings.pending_warn_s, peer.settings.deadlock_report_s
    steps = sorted((after_s, after_s == report_s) for after_s in {warn_s, report_s})
    standing: StandingWait | None = None
    with contextlib.ExitStack() as stack:
        for after_s, is_report in steps:
            if after_s <= 0:
                continue
            due = begun + after_s
            if deadline is not None and deadline <= due:
                break
            if peer.reactor.wait(done, due):
                break
            if is_report:
                from rayshim._core import wait_reports

                is_certain = needs_all and deadline is None
                reports = wait_reports.of(peer)
                standing = stack.enter_context(
                    reports.standing(missing, is_certain=is_certain)
                )
                done = standing.until(done)
            if after_s == warn_s:
                _warn(peer, missing, warn_s)
        peer.reactor.wait(done, deadline)
    if standing is not None:
        standing.check()


def _warn(peer: Peer, missing: Sequence[ObjectEntry], warn_s: float) -> None:
    waiting = [entry for entry in missing if entry.value is None]
    if waiting:
        logger.warning(
            "waiting for %d of %d objects for %.1f s. %s",
            len(waiting),
            len(missing),
            warn_s,
            reason(peer, waiting[0], ask=True),
        )


def handlers(peer: Peer) -> dict[type, Callable[[Channel, Any], None]]:
    """The messages that are about waits."""

    def asked(channel: Channel, message: n.AskWaits) -> None:
        from rayshim._core import wait_reports

        wait_reports.of(peer).asked(message)

    def told(channel: Channel, message: n.Deadlock) -> None:
        if peer.wait_reports is not None:
            peer.wait_reports.told(message)

    return {n.AskWaits: asked, n.Deadlock: told}


def reason(peer: Peer, entry: ObjectEntry, *, ask: bool = False) -> str:
    """One sentence on why a value is not there.

    Args:
        peer: this process.
        entry: the object.
        ask: also ask the raylet about the lease that its task waits for.
    """
    name = f"ObjectRef({entry.object_id.hex()[:16]}...)"
    if entry.value is not None:
        return f"{name} {peer.objects.pulling.describe(entry)}."
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
