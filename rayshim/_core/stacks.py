"""What the threads of this process do right now, as text.

Answers the question ``stack``: whoever reads the channels looks at the others, so a
call that waits or computes in Python is seen, and is not disturbed. A process whose
threads all wait in a C library that keeps the interpreter cannot answer.
"""

from __future__ import annotations

import sys
import threading
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayshim._core.peer import Peer


def answer(peer: Peer, payload: bytes) -> bytes:
    """The stacks of all threads; names of calls that run come first."""
    lines: list[str] = []
    executor = peer.executor
    if executor is not None:
        for context in list(executor.running.values()):
            name = executor.runner.display_name(context.spec)
            lines.append(f"runs {name} (task {context.task_id.hex()})")
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    for ident, frame in sys._current_frames().items():
        if ident == own:
            continue  # it makes this text
        lines.append(f'Thread {ident} "{names.get(ident, "unknown")}":')
        lines += [line.rstrip() for line in traceback.format_stack(frame)]
    return "\n".join(lines).encode(errors="replace")
