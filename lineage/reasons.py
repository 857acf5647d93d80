"""Why something waits, as values: what an explanation is made of.

A :class:`Reason` says one thing that has to change, with its numbers and what would
change it; an :class:`Explanation` is the ordered list for one value, call, actor or
placement group, the most important first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Kind of a reason -> what it means.
KINDS = {
    "argument": "an argument of the call is not there yet",
    "backoff": "the call failed, and runs again after a delay",
    "queued": "the call waits behind others of its function or actor",
    "running": "the call runs",
    "resources": "enough exists, and others hold it now",
    "infeasible": "no node has that much, even when it is idle",
    "labels": "no node has the labels that are asked for",
    "affinity": "the nodes that are asked for are dead, or cannot take it",
    "group": "a placement group has no room for it, or not its bundles yet",
    "group_removed": "its placement group was removed",
    "executor": "resources are there, and a process is being started",
    "environment": "resources are there, and its runtime_env is being made",
    "actor": "an actor is not alive yet, restarts or is dead",
    "node": "a node gets no new work: it is suspect, or leaves",
    "transfer": "the value is on its way from another node",
    "store": "the object store has no room, and values are being moved out of it",
    "owner": "another process owns it, and does not say more",
    "autoscaler": "nodes are being started, or will not be",
    "deadlock": "it waits without a timeout, and may be part of a circle of waits",
    "unknown": "nobody knows it",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why something waits.

    Attributes:
        kind: one of :data:`KINDS`.
        text: a clause without a full stop, with the numbers.
        numbers: the facts that the text is made of; amounts of resources are maps of
            name to amount, durations end in ``_s``, sizes in ``_bytes``.
        remedy: what would end it; empty when only time will.

    Example:
        >>> reason = Reason("queued", "2 calls are ahead", {"ahead": 2})
        >>> str(reason)
        '2 calls are ahead'
        >>> reason.numbers["ahead"]
        2
    """

    kind: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.remedy})" if self.remedy else self.text


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one thing waits; its text reads as a short paragraph.

    Attributes:
        subject: what is explained, such as ``ObjectRef(9f3c...)``.
        state: "ready", "failed", "waiting", "running", "alive", "dead", "created",
            "removed" or "unknown".
        reasons: in order of importance; those of what it waits for come after its own.

    Example:
        >>> need = Reason("resources", "needs {CPU: 2}; free {CPU: 1} of {CPU: 4}")
        >>> told = Explanation("task f", "waiting", (need,))
        >>> print(told)
        task f is waiting: needs {CPU: 2}; free {CPU: 1} of {CPU: 4}.
        >>> told.kinds
        ('resources',)
    """

    subject: str
    state: str
    reasons: tuple[Reason, ...] = ()

    def __str__(self) -> str:
        head = f"{self.subject} is {self.state}"
        if self.state == "failed":
            head = f"{self.subject} failed"
        if not self.reasons:
            return f"{head}."
        if len(self.reasons) == 1:
            return f"{head}: {_sentence(str(self.reasons[0]))}"
        lines = [f"{head}:"]
        lines += [f"  {n}. {one}" for n, one in enumerate(self.reasons, 1)]
        return "\n".join(lines)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each reason, in order."""
        return tuple(reason.kind for reason in self.reasons)

    @property
    def is_infeasible(self) -> bool:
        """Whether nothing that is there now can ever satisfy it."""
        return any(
            reason.kind in ("infeasible", "labels", "affinity", "group_removed")
            for reason in self.reasons
        )

    def sentence(self, limit: int = 3) -> str:
        """On one line, the first ``limit`` reasons: for errors and notices."""
        texts = "; ".join(str(reason) for reason in self.reasons[:limit])
        return f"{self.subject}: {_sentence(texts)}" if texts else str(self)


def merged(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """The same in order, each text once."""
    return tuple({reason.text: reason for reason in reasons}.values())


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
