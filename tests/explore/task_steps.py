"""Calls of one owner on up to two executors, for the explorer.

The owner's shell is what docs/design.md says of submission: calls wait in a
:class:`SchedulingClass`, go to leases in batches, are taken back by ``StealTasks``, and
end with a result or with the death of their executor. Two channels bring news of a
death, and either may be first: the end of the executor's own channel, before which all
its results arrive, and the raylet's word (an *obituary*). ``stray`` results are doubled
ones that come at any later time.

Calls may run at least once and, with no retry left, at most once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rayshim.lineage.dispatch import LeaseSlot, SchedulingClass
from rayshim.lineage.explore import Step
from rayshim.lineage.tasks import TaskEvent, TaskLife, Verdict
from twins import twin_of


class Call(TaskLife):
    """A call and what became of it."""

    __slots__ = ("answer",)

    def __init__(self, task_id: bytes, retries: int) -> None:
        super().__init__(task_id, retries)
        self.answer = ""


class Executor:
    """What the executor's process does: one call at a time, in order."""

    __slots__ = ("accepted", "alive", "held", "inbox", "outbox", "running")

    def __init__(self) -> None:
        self.alive = True
        self.inbox: list[Step] = []
        self.outbox: list[Step] = []
        self.accepted: list[int] = []
        self.running = -1
        #: Results that wait for the next batch.
        self.held: list[Step] = []


class Tasks:
    """One owner, its calls, and executors that may die.

    Args:
        calls: how many calls are made.
        retries: further runs that each call may have after a crash.
        executors: how many leases are granted in all.
        max_depth: calls that an executor may hold.
        deaths: how many executors may die.
        steals: how often the owner may take unstarted calls back.
        errors: how many runs may raise, with retries for it.
        cancels: how many calls may be cancelled.
        strays: how many results may come twice, at any time.
        holding: executors hold results for a batch.
    """

    def __init__(
        self,
        calls: int = 2,
        *,
        retries: int = 0,
        executors: int = 2,
        max_depth: int = 512,
        deaths: int = 1,
        steals: int = 1,
        errors: int = 0,
        cancels: int = 0,
        strays: int = 0,
        holding: bool = False,
    ) -> None:
        self.options = {
            name: value
            for name, value in locals().items()
            if name in Tasks.__init__.__kwdefaults__
        }
        self.count = calls
        self.grants = executors
        self.deaths = deaths
        self.steals = steals
        self.errors = errors
        self.cancels = cancels
        self.strays = strays
        self.scheduling = SchedulingClass("f", "f", None, max_depth)
        self.scheduling.cost_s = 0.0001  # deep pipelines
        self.records: dict[int, Call] = {}
        self.made = 0
        self.executors: list[Executor] = []
        #: Leases whose channel ended, with their calls, until the obituary.
        self.orphans: dict[int, list[int]] = {}
        self.obituaries: set[int] = set()
        #: Executors whose obituary is under way.
        self.announced: set[int] = set()
        self.runs = [0] * calls
        self.answers = [""] * calls

    def __repr__(self) -> str:
        default = Tasks.__init__.__kwdefaults__
        parts = [repr(self.count)]
        parts += [f"{k}={v!r}" for k, v in self.options.items() if v != default[k]]
        return f"Tasks({', '.join(parts)})"

    # -- the world as the explorer sees it ---------------------------------------

    def clone(self) -> Tasks:
        """A copy that shares nothing that can change."""
        return twin_of(self)

    def key(self) -> Any:
        """All that matters, in one order."""
        return (
            self.made,
            self.grants,
            self.deaths,
            self.steals,
            self.errors,
            self.cancels,
            self.strays,
            [
                (n, c.state.name, c.retries_left, c.attempt, c.cancelled)
                for n, c in self.records.items()
            ],
            list(self.scheduling.queue),
            [
                (s.lease_id, list(s.inflight), s.draining, s.stealing)
                for s in self.scheduling.slots
            ],
            [
                (e.alive, e.inbox, e.outbox, e.accepted, e.running, e.held)
                for e in self.executors
            ],
            sorted(self.orphans.items()),
            sorted(self.obituaries),
            sorted(self.announced),
            self.runs,
            self.answers,
        )

    def steps(self) -> Iterator[Step]:
        """Everything that can happen."""
        if self.made < self.count:
            yield ("submit",)
        for number, record in self.records.items():
            if self.cancels and not record.cancelled:
                yield "cancel", number
        # The owner asks for leases while calls wait, as the shell does.
        is_waiting = bool(self.scheduling.queue)
        if is_waiting and len(self.scheduling.slots) < 2 and self.grants:
            yield ("grant",)
        for number, executor in enumerate(self.executors):
            if executor.outbox:
                yield "deliver", number
            if number in self.announced:
                yield "obituary", number
            if not executor.alive:
                continue
            if executor.inbox:
                yield "accept", number
            if executor.running >= 0:
                yield "finish", number
                if self.errors:
                    yield "fail", number
            elif executor.accepted:
                yield "start", number
            if executor.held:
                yield "send", number
            if self.deaths:
                yield "die", number
        if self.steals:
            for slot in self.scheduling.slots:
                if len(slot.inflight) > 1 and not slot.stealing:
                    yield "steal", slot.lease_id[0]
        if self.strays:
            for number in range(self.made):
                if self.answers[number] or self.runs[number]:
                    yield "stray", number

    def check(self) -> None:
        """No call runs too often, none is lost, the machines are sound."""
        self.scheduling.validate()
        for record in self.records.values():
            record.validate()
        for number, runs in enumerate(self.runs):
            allowed = 1 + self.options["retries"]
            assert runs <= allowed, f"call {number} ran {runs} times, not {allowed}"
        places: list[int] = list(self.scheduling.queue)
        for slot in self.scheduling.slots:
            places += slot.inflight
        for calls in self.orphans.values():
            places += calls
        assert len(places) == len(set(places)), f"a call is in two places: {places}"
        lost = set(self.records) - set(places)
        assert not lost, f"calls {sorted(lost)} are nowhere"
        if self.made == self.count and not self._goes_on():
            waiting = [n for n, answer in enumerate(self.answers) if not answer]
            assert not waiting, f"calls {waiting} never end"

    def _goes_on(self) -> bool:
        if any(step[0] not in ("cancel", "stray", "die") for step in self.steps()):
            return True
        # A cluster always grants another lease in the end; this world may not.
        return bool(self.scheduling.queue) and not self.grants

    # -- the owner ---------------------------------------------------------------

    def submit(self) -> None:
        """Make the next call."""
        number = self.made
        self.made += 1
        record = Call(bytes([number]), self.options["retries"])
        self.records[number] = record
        record.on(TaskEvent.ARGUMENTS_KNOWN)
        self.scheduling.queue.append(number)
        self._advance()

    def grant(self) -> None:
        """The raylet grants a lease on a fresh executor."""
        self.grants -= 1
        number = len(self.executors)
        self.executors.append(Executor())
        self.scheduling.slots.append(LeaseSlot(bytes([number]), None, 0.0))
        self._advance()

    def steal(self, number: int) -> None:
        """Ask for the unstarted calls of an executor."""
        self.steals -= 1
        slot = self._slot(number)
        assert slot is not None
        slot.stealing = True
        self._push(number, ("steal", len(slot.inflight) - 1))

    def cancel(self, number: int) -> None:
        """User code wants the value no more."""
        self.cancels -= 1
        record = self.records[number]
        record.cancelled = True
        if number in self.scheduling.queue:
            self.scheduling.queue.remove(number)
            record.on(TaskEvent.CANCELLED)
            self._end(number, "cancelled")
            return
        for slot in self.scheduling.slots:
            if number in slot.inflight:
                self._push(slot.lease_id[0], ("cancel", number))

    def deliver(self, number: int) -> None:
        """Take in the oldest message of an executor, or its end."""
        message = self.executors[number].outbox.pop(0)
        slot = self._slot(number)
        if message[0] == "results":
            for task, answer in message[1]:
                self._result(slot, task, answer)
        elif message[0] == "stolen":
            assert slot is not None
            slot.stealing = False
            for task in reversed(message[1]):
                record = self.records.get(task)
                if record is None:
                    continue
                slot.inflight.pop(task, None)
                record.on(TaskEvent.GIVEN_BACK)
                self.scheduling.queue.appendleft(task)
        else:
            assert slot is not None
            self.scheduling.slots.remove(slot)
            if number in self.obituaries:
                self._bury(list(slot.inflight))
            else:
                self.orphans[number] = list(slot.inflight)
        self._advance()

    def obituary(self, number: int) -> None:
        """The raylet tells why an executor died."""
        self.announced.discard(number)
        if number in self.orphans:
            self._bury(self.orphans.pop(number))
        else:
            self.obituaries.add(number)
        self._advance()

    def stray(self, number: int) -> None:
        """A result comes a second time."""
        self.strays -= 1
        for slot in self.scheduling.slots:
            if number in slot.inflight:
                return  # that channel is in order: a copy would be the result itself
        record = self.records.get(number)
        if record is not None and not record.has_ended:
            return  # nobody has sent a result of this call yet, or it was an error
        self._result(None, number, "late")

    def _result(self, slot: LeaseSlot | None, number: int, answer: str) -> None:
        record = self.records.get(number)
        if record is None:
            return
        if slot is not None:
            slot.inflight.pop(number, None)
        if answer != "error":
            record.on(TaskEvent.RESULT)
            self._end(number, answer)
        elif record.may_retry() and record.raised(retryable=True) is Verdict.AGAIN:
            self.scheduling.queue.append(number)
        else:
            record.fail()
            self._end(number, answer)

    def _bury(self, numbers: list[int]) -> None:
        again = []
        for position, number in enumerate(numbers):
            record = self.records[number]
            verdict = record.crashed(started=position == 0)
            if verdict is Verdict.AGAIN:
                again.append(number)
            else:
                self._end(number, verdict.value)
        self.scheduling.queue.extendleft(reversed(again))

    def _end(self, number: int, answer: str) -> None:
        assert not self.answers[number], f"call {number} ends twice"
        self.answers[number] = answer
        del self.records[number]

    def _advance(self) -> None:
        for slot, numbers in self.scheduling.assign(flush=True, now_s=0.0):
            for number in numbers:
                self.records[number].on(TaskEvent.PUSHED)
                slot.inflight[number] = None  # type: ignore[index]
            self._push(slot.lease_id[0], ("push", tuple(numbers)))

    def _slot(self, number: int) -> LeaseSlot | None:
        for slot in self.scheduling.slots:
            if slot.lease_id[0] == number:
                return slot
        return None

    def _push(self, number: int, message: Step) -> None:
        if self.executors[number].alive:
            self.executors[number].inbox.append(message)

    # -- an executor -------------------------------------------------------------

    def accept(self, number: int) -> None:
        """The executor reads the oldest message of its owner."""
        executor = self.executors[number]
        kind, content = executor.inbox.pop(0)
        if kind == "push":
            executor.accepted += content
        elif kind == "steal":
            stolen = executor.accepted[-content:] if content else []
            del executor.accepted[len(executor.accepted) - len(stolen) :]
            executor.outbox.append(("stolen", tuple(stolen)))
        elif content in executor.accepted:
            executor.accepted.remove(content)
            executor.outbox.append(("results", ((content, "cancelled"),)))

    def start(self, number: int) -> None:
        """Begin the next call."""
        executor = self.executors[number]
        executor.running = executor.accepted.pop(0)
        self.runs[executor.running] += 1

    def finish(self, number: int) -> None:
        """The call returns."""
        self._done(number, "value")

    def fail(self, number: int) -> None:
        """The call raises."""
        self.errors -= 1
        self._done(number, "error")

    def _done(self, number: int, answer: str) -> None:
        executor = self.executors[number]
        executor.held.append((executor.running, answer))
        executor.running = -1
        if not (self.options["holding"] and executor.accepted):
            self.send(number)

    def send(self, number: int) -> None:
        """Send the results that were held."""
        executor = self.executors[number]
        executor.outbox.append(("results", tuple(executor.held)))
        executor.held.clear()

    def die(self, number: int) -> None:
        """SIGKILL."""
        self.deaths -= 1
        executor = self.executors[number]
        executor.alive = False
        executor.running = -1
        executor.inbox.clear()
        executor.accepted.clear()
        executor.held.clear()
        executor.outbox.append(("end",))
        self.announced.add(number)
