"""What a benchmark line is, and how one is timed.

A line prepares its state once and gives an operation to repeat, with the number of
units that one repetition counts for. Lines register themselves in a `Suite`; a program
runs them on any module that offers Ray's API.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any

RATE = "1/s"
BANDWIDTH = "GB/s"
DURATION = "s"
MEMORY = "MB"
#: Units in which less is better.
LESS_IS_BETTER = frozenset({DURATION, MEMORY})
#: Times that the clock is read in one trial, whatever the operation costs.
CLOCK_READS = 50

Operation = Callable[[], Any]
#: Takes the kit of remote functions; gives the operation and its number of units.
Preparation = Callable[[Any], tuple[Operation, float]]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a benchmark."""

    name: str
    unit: str
    prepare: Preparation


@dataclass(slots=True)
class Result:
    """What a line measured: the median of its samples, or why there is none."""

    name: str
    unit: str
    value: float | None
    samples: list[float] = field(default_factory=list)
    error: str | None = None

    @classmethod
    def of(cls, name: str, unit: str, samples: list[float]) -> Result:
        """A result from the samples of the trials, at least one."""
        return cls(name, unit, statistics.median(samples), samples)

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.name:<46} {'-':>12} {self.unit:<5} {self.error}"
        half_spread = (max(self.samples) - min(self.samples)) / 2
        return (
            f"{self.name:<46} {self.value:>12,.2f} {self.unit:<5} ±{half_spread:,.2f}"
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self)


class Suite:
    """Lines in the order in which they were written."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def line(self, name: str, unit: str = RATE) -> Callable[[Preparation], Preparation]:
        """Register the decorated preparation as a line."""

        def register(prepare: Preparation) -> Preparation:
            self.lines.append(Line(name, unit, prepare))
            return prepare

        return register


def measure(
    line: Line, kit: Any, *, seconds: float, trials: int, limit_s: float
) -> Result:
    """Time a line.

    Args:
        line: the line.
        kit: what its preparation takes.
        seconds: length of a trial; half of it is spent on warming up.
        trials: number of trials, >= 1; their median counts.
        limit_s: after so many seconds the line is given up.

    Returns:
        The result; a line that raises or takes too long gives one without a value.
    """
    try:
        with time_limit(limit_s):
            operation, units = line.prepare(kit)
            repetitions_per_second(operation, seconds / 2)
            samples = [
                units * repetitions_per_second(operation, seconds)
                for _ in range(trials)
            ]
    except Exception as error:  # the other lines are still worth running
        reason = f"{type(error).__name__}: {error}"
        return Result(line.name, line.unit, None, error=reason[:300])
    return Result.of(line.name, line.unit, samples)


def repetitions_per_second(operation: Operation, seconds: float) -> float:
    """Repeat an operation for about `seconds`, at least once."""
    done, burst = 0, 1
    start = time.perf_counter()
    while True:
        for _ in range(burst):
            operation()
        done += burst
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return done / elapsed
        burst = max(1, int(done / elapsed * seconds / CLOCK_READS))


@contextmanager
def time_limit(limit_s: float) -> Iterator[None]:
    """Raise `TimeoutError` in the main thread when the block takes too long."""

    def expire(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"took longer than {limit_s:g} s")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
