"""Virtual time: a queue of things to do, and one source of chance."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

#: Lines of the trace that are kept for a report.
TRACE_LINES = 400


class Kernel:
    """The clock of a simulated world.

    Args:
        seed: of everything that is left to chance.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_s = 0.0
        #: Things done so far.
        self.events = 0
        self._line: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        #: Broken rules, in the order found.
        self.broken: list[str] = []
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self._digest = hashlib.blake2b(digest_size=16)
        #: Called after each event.
        self.after_each: list[Callable[[], None]] = []

    def after(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Do something later."""
        self._count += 1
        entry = (self.now_s + delay_s, self._count, action, args)
        heapq.heappush(self._line, entry)

    def note(self, text: str) -> None:
        """Write a line to the trace; two runs of one seed have the same lines."""
        line = f"{self.now_s:10.6f} {text}"
        self.trace.append(line)
        self._digest.update(line.encode())

    def fail(self, text: str) -> None:
        """A rule is broken."""
        self.note(f"BROKEN {text}")
        self.broken.append(f"at {self.now_s:.3f} s: {text}")

    @property
    def digest(self) -> str:
        """Of the whole trace."""
        return self._digest.hexdigest()

    def run(self, until_s: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; True if ``is_over`` came first."""
        line = self._line
        while line and line[0][0] <= until_s:
            if is_over():
                return True
            self.now_s, _, action, args = heapq.heappop(line)
            self.events += 1
            action(*args)
            for hook in self.after_each:
                hook()
        if is_over():
            return True
        self.now_s = max(self.now_s, until_s)
        return False
