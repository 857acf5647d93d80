"""What a driver or executor answers to questions of tools.

Loaded by the first question. A question comes through the raylet of the process' node
(:mod:`rayshim.adapters.raylet.questions`), and whoever reads the channels answers,
so that a call that runs is not disturbed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rayshim.adapters.wire.ask_messages import Ask, Told
from rayshim.adapters.wire.channel import Channel

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

logger = logging.getLogger(__name__)

#: Question -> "module:function", called as ``function(peer, payload)`` under the lock
#: of the process; it returns bytes, soon.
ANSWERS: dict[str, str] = {
    "about_process": "rayshim._core.live_calls:about_process",
    "calls": "rayshim._core.live_calls:answer",
    "flush_events": "rayshim._core.event_log:flush",
    "objects": "rayshim._core.held_objects:answer",
    "collect_garbage": "rayshim._core.garbage:collect",
    "stack": "rayshim._core.stacks:answer",
}


def answer(peer: Peer, channel: Channel, question: Ask) -> None:
    """Answers one question (under the lock)."""
    import importlib

    error, payload = "", b""
    try:
        place = ANSWERS.get(question.method)
        if place is None:
            raise ValueError(f"no process answers the question {question.method!r}")
        module, _, name = place.partition(":")
        payload = getattr(importlib.import_module(module), name)(peer, question.payload)
    except Exception as failure:
        logger.debug("question %s failed", question.method, exc_info=True)
        error = f"{type(failure).__name__}: {failure}"
    channel.send(Told(question.request_id, error, payload))
