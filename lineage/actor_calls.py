"""A caller's side of one actor: its calls in order, across the actor's lives.

States of the actor as the caller knows them: PENDING (no life yet), ALIVE,
RESTARTING, DEAD. Rules:

1. Calls are sent in the order submitted; a call whose arguments are not ready
   holds back the later ones.
2. When a life ends, calls that were sent and not answered are in doubt. They are sent
   again, before all others, if retries are left; else they fail.
3. A verdict (RESTARTING, DEAD) takes effect only when the channel of that life is at
   its end, so that answers which the actor sent before it died are still heard.

Duplicated or late updates are recognised by their incarnation.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Any

from rayshim.lineage.tasks import TaskEvent, Verdict


class ActorState(Enum):
    """What the caller knows of the actor."""

    PENDING = "PENDING"
    ALIVE = "ALIVE"
    RESTARTING = "RESTARTING"
    DEAD = "DEAD"


class ActorQueue:
    """The calls of this process on one actor.

    A call is a :class:`~rayshim.lineage.tasks.TaskLife` that also tells ``ready``: its
    arguments are known.
    """

    __slots__ = (
        "actor_id",
        "incarnation",
        "inflight",
        "pending",
        "state",
        "verdict",
    )

    def __init__(self, actor_id: bytes) -> None:
        self.actor_id = actor_id
        self.state = ActorState.PENDING
        #: Number of the life that calls are sent to; -1 before the first.
        self.incarnation = -1
        #: Calls not sent yet, in order.
        self.pending: deque[Any] = deque()
        #: Task id -> call sent to the present life and not answered, in order.
        self.inflight: dict[bytes, Any] = {}
        #: The update that waits for the end of the channel (rule 3).
        self.verdict: Any = None

    def __len__(self) -> int:
        return len(self.pending) + len(self.inflight)

    def sendable(self, limit: int) -> list[Any]:
        """Take up to ``limit`` calls that may be sent now (rule 1)."""
        calls: list[Any] = []
        if self.state is not ActorState.ALIVE or self.verdict is not None:
            return calls
        pending = self.pending
        while pending and len(calls) < limit and pending[0].ready:
            call = pending.popleft()
            call.on(TaskEvent.PUSHED)
            self.inflight[call.task_id] = call
            calls.append(call)
        return calls

    def answered(self, task_id: bytes) -> Any:
        """The call of a reply, or None for a doubled or late one."""
        return self.inflight.pop(task_id, None)

    def alive(self, incarnation: int) -> bool:
        """A life began. Returns False if it is not news."""
        if self.state is ActorState.DEAD or incarnation <= self.incarnation:
            return False
        self.state = ActorState.ALIVE
        self.incarnation = incarnation
        self.verdict = None
        return True

    def resume(self) -> None:
        """The life that is known goes on behind a new channel."""
        self.state = ActorState.ALIVE
        self.verdict = None

    def life_ended(self, *, dead: bool) -> list[Any]:
        """The present life is over and its channel drained (rule 2).

        Returns:
            The calls that fail: those in doubt without a retry, and when the
            actor is dead everything else.
        """
        failed: list[Any] = []
        again: list[Any] = []
        for call in self.inflight.values():
            if dead or call.crashed(started=True) is not Verdict.AGAIN:
                failed.append(call)
            else:
                again.append(call)
        self.inflight.clear()
        self.pending.extendleft(reversed(again))
        self.verdict = None
        if dead:
            self.state = ActorState.DEAD
            failed.extend(self.pending)
            self.pending.clear()
        else:
            self.state = ActorState.RESTARTING
        return failed

    def withdraw(self, task_id: bytes) -> Any:
        """Take an unsent call back (cancel), or None if it is not here."""
        for call in self.pending:
            if call.task_id == task_id:
                self.pending.remove(call)
                return call
        return None

    def validate(self) -> None:
        """Check the invariants; used by tests after every step."""
        waiting = {call.task_id for call in self.pending}
        assert not waiting & set(self.inflight), "a call is both sent and unsent"
        if self.state is ActorState.DEAD:
            assert not self.pending and not self.inflight, "a dead actor has calls"
