"""Which executor is killed when a node runs out of memory.

    CALM --measured, too much used--> KILLING --gone, or not in time--> CALM

In CALM each measurement is compared with the threshold; above it one executor is
chosen. In KILLING nothing more is killed until that one is gone, whose memory is only
then free. Rules:

1. The first that goes is an idle executor that keeps memory; then the newest lease
   whose work may be run again; then the newest of the others. What is oldest has the
   most to lose, and with every other one gone it has all the memory there is, so that
   something always ends. (Ray's policy too: the newest first, and what may be retried
   before the rest.)
2. An executor that uses less than :data:`LEAST_BYTES` is not worth killing while
   another one uses more.
3. One executor at a time, and none while the last one still goes.

Doubled and late news of the end of an executor change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from rayshim.lineage.transitions import InvalidTransition, Story

#: Bytes that make an executor worth killing.
LEAST_BYTES = 32 << 20
#: Seconds that a killed executor may take to go: the kernel frees its memory then.
GONE_LIMIT_S = 5.0


class Pressure(Enum):
    """States of the machine."""

    CALM = 0
    KILLING = 1


class Candidate(NamedTuple):
    """An executor as it is measured."""

    worker_id: bytes
    used_bytes: int
    #: When its lease was granted; of an idle one, when it was last used.
    since_s: float
    is_idle: bool = False
    may_run_again: bool = True


class MemoryMeasured(NamedTuple):
    """What the node uses of what it may use, and who."""

    used_bytes: int
    limit_bytes: int
    candidates: Sequence[Candidate]


class ExecutorGone(NamedTuple):
    """An executor's process is gone."""

    worker_id: bytes


class KillForMemory(NamedTuple):
    """Kill an executor, and say why."""

    worker_id: bytes
    used_bytes: int
    limit_bytes: int


class MemoryPolicy:
    """The machine. See the module's text for its rules.

    Args:
        threshold: share of the limit that may be used, 0 to 1.
    """

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.state = Pressure.CALM
        #: In KILLING: who was killed last.
        self.victim = b""
        self._due_s = 0.0
        self._story = Story()

    def handle(self, event: Any, now: float) -> list[KillForMemory]:
        """Takes one event at time ``now`` (seconds, monotonic).

        Raises:
            InvalidTransition: the event is none of this machine.
        """
        method = _TABLE.get((self.state, type(event)))
        if method is None:
            raise InvalidTransition(self.victim, self.state, event, [])
        commands = method(self, event, now)
        if commands or isinstance(event, ExecutorGone):
            self._story.add(event, now)
        for command in commands:
            self._story.add(command, now)
        return commands

    def story(self, worker_id: bytes) -> list[str]:
        """The remembered kill and end of an executor."""
        return self._story.of(worker_id)

    def validate(self) -> None:
        """Checks the invariants.

        Raises:
            AssertionError: one does not hold.
        """
        assert bool(self.victim) == (self.state is Pressure.KILLING)

    def is_short(self, used_bytes: int, limit_bytes: int) -> bool:
        """Whether something has to go."""
        return used_bytes > self.threshold * limit_bytes

    def _measured(self, event: MemoryMeasured, now: float) -> list[KillForMemory]:
        if not self.is_short(event.used_bytes, event.limit_bytes):
            return []
        chosen = choose(event.candidates)
        if chosen is None:
            return []
        self.state = Pressure.KILLING
        self.victim = chosen.worker_id
        self._due_s = now + GONE_LIMIT_S
        return [KillForMemory(self.victim, event.used_bytes, event.limit_bytes)]

    def _measured_meanwhile(
        self, event: MemoryMeasured, now: float
    ) -> list[KillForMemory]:
        if now < self._due_s:
            return []
        others = [one for one in event.candidates if one.worker_id != self.victim]
        self._calm()
        return self._measured(event._replace(candidates=others), now)

    def _gone(self, event: ExecutorGone, now: float) -> list[KillForMemory]:
        if event.worker_id == self.victim:
            self._calm()
        return []

    def _calm(self) -> None:
        self.state = Pressure.CALM
        self.victim = b""


def choose(candidates: Sequence[Candidate]) -> Candidate | None:
    """Rule 1 and 2; None if there is nobody to kill."""
    large = [one for one in candidates if one.used_bytes >= LEAST_BYTES]
    busy = large or [one for one in candidates if not one.is_idle]
    if not busy:
        return None

    def rank(one: Candidate) -> tuple[bool, bool, float, int, bytes]:
        newest = (one.since_s, one.used_bytes, one.worker_id)
        return (one.is_idle, one.may_run_again, *newest)

    return max(busy, key=rank)


def retry_delay_s(base_s: float, kills: int) -> float:
    """Seconds before a call that was killed ``kills`` times runs again.

    Doubled each time, at most a minute: what used the memory needs time to go.
    """
    return float(min(60.0, base_s * 2.0 ** min(kills - 1, 16)))


_P, _M = Pressure, MemoryPolicy
_TABLE: dict[
    tuple[Pressure, type], Callable[[MemoryPolicy, Any, float], list[KillForMemory]]
] = {
    (_P.CALM, MemoryMeasured): _M._measured,
    (_P.KILLING, MemoryMeasured): _M._measured_meanwhile,
    (_P.CALM, ExecutorGone): _M._gone,
    (_P.KILLING, ExecutorGone): _M._gone,
}
