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

from rayshim.adapters.wire import ask_messages as ask
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import node_messages as n
from rayshim.adapters.wire import why_messages as w
from rayshim.adapters.wire.channel import Channel
from rayshim.lineage.references import ObjectEntry

if TYPE_CHECKING:
    from rayshim._core.peer import Peer
    from rayshim._core.wait_reports import StandingWait

logger = logging.getLogger("rayshim")

#: A wait shorter than this is not worth two messages.
SPIN_S = 0.0005
#: For the reasons of a wait that took too long others are asked for this share of it,
#: and not at all if that is less than MIN_ASKED_S.
ASKED_SHARE = 0.2
MIN_ASKED_S = 0.02


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
        if peer.wait_bar is not None:
            stack.enter_context(peer.wait_bar(list(missing)))
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
    if waiting and not _is_explained(peer, waiting[0]):
        logger.warning(
            "waiting for %d of %d objects for %.1f s. %s",
            len(waiting),
            len(missing),
            warn_s,
            reason(peer, waiting[0], waited_s=warn_s),
        )


def _is_explained(peer: Peer, entry: ObjectEntry) -> bool:
    """Whether it was said before why the call of a value does not begin."""
    task: Any = entry.task
    scheduling = getattr(task, "scheduling", None)
    if scheduling is None or task.slot is not None or task.missing:
        return False
    is_known = scheduling.key in peer.explained
    peer.explained.add(scheduling.key)
    return is_known


def handlers(peer: Peer) -> dict[type, Callable[[Channel, Any], None]]:
    """The messages that are about waits."""

    def asked(channel: Channel, message: n.AskWaits) -> None:
        from rayshim._core import wait_reports

        wait_reports.of(peer).asked(message)

    def told(channel: Channel, message: n.Deadlock) -> None:
        if peer.wait_reports is not None:
            peer.wait_reports.told(message)

    def asked_why(channel: Channel, message: w.AskWhy) -> None:
        from rayshim._core import explaining

        explaining.answer(peer, message)

    def asked_by_tool(channel: Channel, message: ask.Ask) -> None:
        from rayshim._core import answers

        answers.answer(peer, channel, message)

    return {
        n.AskWaits: asked,
        n.Deadlock: told,
        w.AskWhy: asked_why,
        ask.Ask: asked_by_tool,
    }


def reason(peer: Peer, entry: ObjectEntry, *, waited_s: float = 0.0) -> str:
    """The first reasons why a value is not there, on one line.

    Args:
        peer: this process.
        entry: the object.
        waited_s: others are asked, for a fraction of that; not after a short wait.
    """
    from rayshim._core import explaining

    limit_s = min(1.0, waited_s * ASKED_SHARE)
    return explaining.sentence(
        peer, entry, limit_s=limit_s if limit_s >= MIN_ASKED_S else 0.0
    )


def notice(peer: Peer, blocked: bool) -> None:
    """Tell the raylet that this executor's call waits, or goes on."""
    with peer.lock:
        peer.raylet.send(m.Blocked(blocked))
