"""What the state machines share: their story, and how they refuse an event."""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

#: Events that a machine remembers.
STORY_EVENTS = 2048
_SUBJECTS = (
    "lease_id",
    "worker_id",
    "actor_id",
    "group",
    "node_id",
    "object_id",
    "address",
)


class InvalidTransition(Exception):
    """An event that its subject's state does not allow."""

    def __init__(
        self, subject: bytes, state: Enum | None, event: object, story: list[str]
    ) -> None:
        name = state.name if state else "unknown"
        lines = "\n".join(story)
        super().__init__(f"{subject.hex()} is {name} and cannot take {event}\n{lines}")


class Story:
    """The last events of a machine."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, Any]] = deque(maxlen=STORY_EVENTS)

    def add(self, event: Any, now: float) -> None:
        """Remembers one event."""
        self._events.append((now, event))

    def of(self, subject: bytes | str) -> list[str]:
        """The remembered events that name ``subject``, one line each."""
        return [
            f"{now:.6f} {event}"
            for now, event in self._events
            if any(getattr(event, name, None) == subject for name in _SUBJECTS)
        ]

    def of_prefix(self, task_id: bytes) -> list[str]:
        """The remembered events of a call and of the objects that it makes."""
        return [
            f"{now:.6f} {event}"
            for now, event in self._events
            if getattr(event, "task_id", b"") == task_id
            or getattr(event, "object_id", b"")[: len(task_id)] == task_id
        ]
