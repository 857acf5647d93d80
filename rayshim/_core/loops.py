"""Hands callbacks to event loops, many for one wake-up of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable


class LoopMailboxes:
    """A queue of callbacks for each event loop that awaits something."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[asyncio.AbstractEventLoop, deque[Callable[[], None]]] = {}

    def call_soon(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]
    ) -> None:
        """Run ``callback`` in ``loop``; a closed loop is ignored."""
        with self._lock:
            queue = self._queues.get(loop)
            if queue is not None:
                queue.append(callback)
                return
            self._queues[loop] = deque((callback,))
        try:
            loop.call_soon_threadsafe(self._run, loop)
        except RuntimeError:  # the loop was closed while its calls were under way
            with self._lock:
                self._queues.pop(loop, None)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            queue = self._queues.pop(loop, deque())
        for callback in queue:
            callback()
