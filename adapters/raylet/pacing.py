"""Work that each message may cause, kept to a part of the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Share of the time that passes may take which take longer than :data:`LIGHT_S`.
SHARE = 0.2
LIGHT_S = 0.002


class Pace:
    """Runs a pass at once, or a moment later if the one before took long.

    In a small cluster a pass takes microseconds, and each load of a node may cause one.
    In a large one that would be all that the head does; then one pass serves what came
    since the last one. Counted is the time of this thread alone, so that a busy machine
    makes no pass later.

    Args:
        loop: Calls what is due later.
        run: The pass.
        clock: Seconds that the thread has worked.
    """

    __slots__ = ("_clock", "_is_asked", "_is_running", "_loop", "_rests", "_run")

    def __init__(
        self,
        loop: Any,
        run: Callable[[], None],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._loop = loop
        self._run = run
        self._clock = clock
        self._rests = False
        self._is_asked = False
        self._is_running = False

    def __call__(self) -> None:
        """There may be something to do; what a pass causes itself, it sees."""
        if self._is_running:
            return
        if self._rests:
            self._is_asked = True
            return
        self._is_running = True
        began_s = self._clock()
        try:
            self._run()
        finally:
            self._is_running = False
        took_s = self._clock() - began_s
        if took_s > LIGHT_S:
            self._rests = True
            self._loop.call_later(took_s * (1 / SHARE - 1), self._rested)

    def _rested(self) -> None:
        self._rests = False
        if self._is_asked:
            self._is_asked = False
            self()
