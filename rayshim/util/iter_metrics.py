"""Counts that the functions of an iterator share with who consumes it."""

from __future__ import annotations

import collections
import time
from typing import Any

__all__ = ["MetricsContext", "SharedMetrics", "Timer"]


class Timer:
    """Measures ``with`` blocks.

    Example:
        >>> timer = Timer()
        >>> with timer:
        ...     pass
        >>> timer.count, timer.mean < 1
        (1, True)
    """

    def __init__(self) -> None:
        self.count = 0
        #: Seconds of all blocks.
        self.total_s = 0.0
        self._start_s = 0.0

    @property
    def mean(self) -> float:
        """Seconds of a block, on the average; 0 without one."""
        return self.total_s / self.count if self.count else 0.0

    def push(self, duration_s: float) -> None:
        """Count a block that was measured elsewhere."""
        self.count += 1
        self.total_s += duration_s

    def __enter__(self) -> None:
        self._start_s = time.monotonic()

    def __exit__(self, *exc_info: object) -> None:
        self.push(time.monotonic() - self._start_s)


class MetricsContext:
    """Counters, timers and notes of one iterator."""

    def __init__(self) -> None:
        #: Name -> count.
        self.counters: collections.defaultdict[str, int] = collections.defaultdict(int)
        #: Name -> timer.
        self.timers: collections.defaultdict[str, Timer] = collections.defaultdict(
            Timer
        )
        self.info: dict[str, Any] = {}
        #: The actor that the item at hand came from, or None.
        self.current_actor: Any = None


class SharedMetrics:
    """Holds the context that all stages of an iterator use.

    Args:
        metrics: the context; a new one by default.
    """

    def __init__(self, metrics: MetricsContext | None = None) -> None:
        self.metrics = metrics or MetricsContext()
        self.parents: list[SharedMetrics] = []

    def get(self) -> MetricsContext:
        """The context."""
        return self.metrics

    def set(self, metrics: MetricsContext) -> None:
        """Use another context, here and in the iterators that were united."""
        self.metrics = metrics
        for parent in self.parents:
            parent.set(metrics)
