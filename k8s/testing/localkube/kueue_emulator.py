"""What pods see of Kueue: gates, groups, quota. Kueue itself is not under test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admission:
    """One decision about a group of pods (or a pod alone)."""

    #: Seconds, of ``time.monotonic``.
    time_s: float
    namespace: str
    group: str
    #: "admitted", "replaced", "preempted" or "finished".
    event: str
    #: Pods that it was about, and how many the group says that it has.
    pods: tuple[str, ...]
    total: int


class KueueEmulator:
    """Gates pods with a queue, and lets groups through when all of them fit."""

    @property
    def history(self) -> tuple[Admission, ...]:
        """All decisions, in order."""
        raise NotImplementedError

    def preempt(self, group: str, namespace: str = "default") -> None:
        """Take an admitted group's quota away: its pods are deleted."""
        raise NotImplementedError

    def admitted(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """(namespace, group) -> pods that were let through and have not ended."""
        raise NotImplementedError
