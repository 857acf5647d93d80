"""One call at its owner: where it is, and what its failures lead to.

States and the events that move a call between them::

    WAITING --arguments known--> QUEUED --pushed--> PUSHED --result--> DONE
       |                          ^  |                |
       |                          +--|--given back----+
       |                          +--|--crashed, raised (a run is left)
       +--failed argument--> FAILED <+--crashed, raised (none is left), cancelled

    PUSHED --arguments lost--> WAITING <--rebuild-- DONE

Rules:

1. A crash of the executor costs a run only if the call may have started: calls
   that waited behind it are given back and cost nothing.
2. An error that user code raised is tried again only if the call asked for it
   (``retry_exceptions``), and counts against the same budget.
3. A cancelled call is never tried again. What it gives is the cancellation, unless
   it had finished or answered by itself.
4. A call ends once. Late and doubled news of a call that has ended change nothing.
   It may only begin anew, for a value of it that was lost, which costs a run.
5. A call whose argument is lost before it starts waits for it again, at no cost: the
   owner notices as it pushes, or the executor as it reads.

The budget follows Ray: ``retries_left`` counts further runs, -1 is without limit.
"""

from __future__ import annotations

from enum import Enum

from rayshim.lineage.transitions import InvalidTransition


class TaskState(Enum):
    """Where a call is."""

    __hash__ = object.__hash__  # in C; the table is looked at for every call

    WAITING = "WAITING"
    QUEUED = "QUEUED"
    PUSHED = "PUSHED"
    DONE = "DONE"
    FAILED = "FAILED"


class TaskEvent(Enum):
    """What happens to a call."""

    __hash__ = object.__hash__  # in C; the table is looked at for every call

    ARGUMENTS_KNOWN = "arguments known"
    ARGUMENT_FAILED = "argument failed"
    PUSHED = "pushed"
    GIVEN_BACK = "given back"
    RESULT = "result"
    RAISED_AGAIN = "raised, a run is left"
    RAISED = "raised, no run is left"
    CRASHED_AGAIN = "crashed, a run is left"
    CRASHED = "crashed, no run is left"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    ARGUMENTS_LOST = "arguments lost"
    REBUILD = "rebuild"


_S, _E = TaskState, TaskEvent

#: (state, event) -> next state. A pair that is missing is a bug of the shell.
TRANSITIONS: dict[tuple[TaskState, TaskEvent], TaskState] = {
    (_S.WAITING, _E.ARGUMENTS_KNOWN): _S.QUEUED,
    (_S.WAITING, _E.ARGUMENT_FAILED): _S.FAILED,
    (_S.WAITING, _E.CANCELLED): _S.FAILED,
    (_S.WAITING, _E.REFUSED): _S.FAILED,
    (_S.QUEUED, _E.PUSHED): _S.PUSHED,
    (_S.QUEUED, _E.ARGUMENT_FAILED): _S.FAILED,
    (_S.QUEUED, _E.CANCELLED): _S.FAILED,
    (_S.QUEUED, _E.REFUSED): _S.FAILED,
    (_S.PUSHED, _E.GIVEN_BACK): _S.QUEUED,
    (_S.PUSHED, _E.RESULT): _S.DONE,
    (_S.PUSHED, _E.RAISED_AGAIN): _S.QUEUED,
    (_S.PUSHED, _E.RAISED): _S.FAILED,
    (_S.PUSHED, _E.CRASHED_AGAIN): _S.QUEUED,
    (_S.PUSHED, _E.CRASHED): _S.FAILED,
    (_S.PUSHED, _E.CANCELLED): _S.FAILED,
    (_S.PUSHED, _E.REFUSED): _S.FAILED,
    (_S.QUEUED, _E.ARGUMENTS_LOST): _S.WAITING,
    (_S.PUSHED, _E.ARGUMENTS_LOST): _S.WAITING,
    (_S.DONE, _E.REBUILD): _S.WAITING,
}


class Verdict(Enum):
    """What is to be done with a call that did not end well."""

    AGAIN = "again"
    FAIL = "fail"
    CANCEL = "cancel"


class TaskLife:
    """The state and the budget of one call.

    The shell's record of a call derives from this, so that the hot path pays one
    attribute for it.
    """

    __slots__ = (
        "attempt",
        "cancelled",
        "memory_kills",
        "retries_left",
        "state",
        "task_id",
    )

    def __init__(self, task_id: bytes, retries: int) -> None:
        self.task_id = task_id
        self.state = TaskState.WAITING
        #: Further runs allowed after a failure; -1: without limit.
        self.retries_left = retries
        #: 0 in the first run.
        self.attempt = 0
        #: Somebody cancelled it (rule 3).
        self.cancelled = False
        #: Runs that ended since their node ran out of memory.
        self.memory_kills = 0

    @property
    def has_ended(self) -> bool:
        """True in DONE and FAILED."""
        return self.state is TaskState.DONE or self.state is TaskState.FAILED

    def on(self, event: TaskEvent) -> None:
        """Take one step of the table.

        Raises:
            InvalidTransition: the state does not know the event.
        """
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            story = [f"run {self.attempt + 1}, {self.retries_left} retries left"]
            raise InvalidTransition(self.task_id, self.state, event.value, story)
        self.state = state

    def crashed(self, *, started: bool) -> Verdict:
        """The executor died; ``started`` if the call may have begun (rule 1)."""
        if self.cancelled:
            self.on(TaskEvent.CANCELLED)
            return Verdict.CANCEL
        if not started:
            self.on(TaskEvent.GIVEN_BACK)
            return Verdict.AGAIN
        if not self.retries_left:
            self.on(TaskEvent.CRASHED)
            return Verdict.FAIL
        self.on(TaskEvent.CRASHED_AGAIN)
        self._spend()
        return Verdict.AGAIN

    def killed_for_memory(self, *, limit: int) -> Verdict:
        """The node killed the executor to get memory, while the call ran there.

        That is not the call's fault alone, so a call that may be run again at all has
        a budget of its own for it: ``limit`` further runs, -1 without limit.
        """
        if self.cancelled or not self.retries_left:
            return self.crashed(started=True)
        if 0 <= limit <= self.memory_kills:
            self.on(TaskEvent.CRASHED)
            return Verdict.FAIL
        self.on(TaskEvent.CRASHED_AGAIN)
        self.memory_kills += 1
        self.attempt += 1
        return Verdict.AGAIN

    def raised(self, *, retryable: bool) -> Verdict:
        """User code raised; ``retryable`` if the call asked to retry it (rule 2)."""
        if self.cancelled or not retryable or not self.retries_left:
            self.on(TaskEvent.RAISED)
            return Verdict.FAIL
        self.on(TaskEvent.RAISED_AGAIN)
        self._spend()
        return Verdict.AGAIN

    def rebuild(self) -> None:
        """Begin anew: a value that it made is lost and needed (rule 4)."""
        self.on(TaskEvent.REBUILD)
        self._spend()

    def fail(self) -> None:
        """Nothing can come of it any more; no change if it has ended."""
        if not self.has_ended:
            self.on(TaskEvent.REFUSED)

    def may_retry(self) -> bool:
        """True if an error is worth a look: a run is left and it is wanted."""
        return bool(self.retries_left) and not self.cancelled

    def _spend(self) -> None:
        if self.retries_left > 0:
            self.retries_left -= 1
        self.attempt += 1

    def validate(self) -> None:
        """Check the invariants; used by tests after every step."""
        assert self.retries_left >= -1
        assert self.attempt >= 0
