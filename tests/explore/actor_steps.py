"""One actor, its calls from one process, and the lives that it lives; for the explorer.

Three channels matter, each in order, none in step with another: the control service
tells the caller how the actor is; the caller and the present life exchange calls and
answers, until its end; the node tells the control service what became of each life.
So the caller hears of a death before, while or after it reads the last answers.

The caller's shell is what docs/design.md says of calls on actors: connect when told
that the actor is alive, and act upon bad news when the channel is at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rayshim.lineage import actor_events as ev
from rayshim.lineage.actor_calls import ActorQueue
from rayshim.lineage.actor_calls import ActorState as Known
from rayshim.lineage.actors import ActorManager, ActorState
from rayshim.lineage.explore import Step
from rayshim.lineage.tasks import TaskEvent, TaskLife
from twins import twin_of

A = b"a"


class Call(TaskLife):
    """A call on the actor."""

    __slots__ = ("ready",)

    def __init__(self, task_id: bytes, retries: int) -> None:
        super().__init__(task_id, retries)
        self.ready = True


class Life:
    """The process of one incarnation."""

    __slots__ = (
        "accepted",
        "alive",
        "connected",
        "created",
        "finished",
        "inbox",
        "leaving",
        "outbox",
        "running",
        "started",
    )

    def __init__(self) -> None:
        self.alive = True
        self.created = False
        self.connected = False
        self.leaving = False
        self.inbox: list[int] = []
        self.outbox: list[Step] = []
        self.accepted: list[int] = []
        self.running = -1
        #: Calls started in this life, in order.
        self.started: list[int] = []
        self.finished: list[int] = []


class Actors:
    """One actor and one caller.

    Args:
        calls: how many calls are made.
        retries: ``max_task_retries``.
        restarts: ``max_restarts``.
        crashes: how many lives may end by themselves.
        kills: how often the caller kills it (with a restart to come).
        ends: the handle may be dropped, the actor may leave, or be killed for good.
        late: how many notices of the node may come twice.
    """

    def __init__(
        self,
        calls: int = 2,
        *,
        retries: int = 0,
        restarts: int = 1,
        crashes: int = 1,
        kills: int = 0,
        ends: int = 0,
        late: int = 0,
    ) -> None:
        self.options = {
            name: value
            for name, value in locals().items()
            if name in Actors.__init__.__kwdefaults__
        }
        self.count = calls
        self.made = 0
        self.crashes = crashes
        self.kills = kills
        self.ends = ends
        self.late = late
        self.manager = ActorManager()
        self.queue = ActorQueue(A)
        self.records: dict[int, Call] = {}
        self.answers = [""] * calls
        self.runs = [0] * calls
        self.lives: list[Life] = []
        #: Incarnation that waits for an executor, or -1.
        self.placing = -1
        #: Life that the caller's channel leads to, or -1.
        self.channel = -1
        #: What the control service told the caller and is on its way.
        self.updates: list[tuple[str, int]] = []
        #: What the node told the control service and is on its way.
        self.news: list[Any] = []
        self.scope = False
        spec = ev.ActorSpec(A, b"j", "owner", "C", "", "", False, restarts, {}, {})
        self._control(ev.Registered(A, spec))
        self._control(ev.Started(A))

    def __repr__(self) -> str:
        default = Actors.__init__.__kwdefaults__
        parts = [repr(self.count)]
        parts += [f"{k}={v!r}" for k, v in self.options.items() if v != default[k]]
        return f"Actors({', '.join(parts)})"

    # -- the world as the explorer sees it ---------------------------------------

    def clone(self) -> Actors:
        """A copy that shares nothing that can change."""
        return twin_of(self)

    def key(self) -> Any:
        """All that matters, in one order."""
        actor = self.manager.actors[A]
        return (
            self.made,
            self.crashes,
            self.kills,
            self.ends,
            self.late,
            (actor.state.name, actor.incarnation, actor.restarts_left),
            (actor.ending, actor.is_out_of_scope, actor.is_created),
            (self.queue.state.name, self.queue.incarnation, self.queue.verdict),
            [n[0] for n in (c.task_id for c in self.queue.pending)],
            [n[0] for n in self.queue.inflight],
            [(n, c.retries_left) for n, c in self.records.items()],
            self.answers,
            self.runs,
            [
                (
                    (one.alive, one.created, one.connected, one.leaving),
                    one.inbox,
                    one.outbox,
                    one.accepted,
                    one.running,
                    one.started,
                )
                for one in self.lives
            ],
            self.placing,
            self.channel,
            self.updates,
            self.news,
            self.scope,
        )

    def steps(self) -> Iterator[Step]:
        """Everything that can happen."""
        if self.made < self.count and not self.scope:
            yield ("submit",)
        if self.updates:
            yield ("hear",)
        if self.news:
            yield ("report",)
            if self.late:
                yield ("report_twice",)
        if self.placing >= 0:
            yield ("place",)
        for number, life in enumerate(self.lives):
            if life.outbox:
                yield "deliver", number
            if not life.alive:
                continue
            if life.inbox:
                yield "accept", number
            if not life.created:
                yield "construct", number
                if self.ends:
                    yield "fail_constructor", number
            elif life.running >= 0:
                yield "finish", number
            elif life.accepted:
                yield "start", number
            elif life.leaving and not life.inbox:
                yield "leave", number
            if self.crashes:
                yield "crash", number
        state = self.manager.actors[A].state
        if self.kills and state is not ActorState.DEAD:
            yield "kill", False
        if self.ends and state is not ActorState.DEAD:
            yield "kill", True
            if not self.scope and not self.queue.pending and not self.queue.inflight:
                yield ("drop_handle",)

    def check(self) -> None:
        """No call runs too often or out of order, and each ends."""
        self.manager.validate()
        self.queue.validate()
        actor = self.manager.actors[A]
        for number, runs in enumerate(self.runs):
            allowed = 1 + self.options["retries"]
            assert runs <= allowed, f"call {number} ran {runs} times, not {allowed}"
        for number, life in enumerate(self.lives):
            assert life.started == sorted(life.started), (
                f"life {number} started its calls as {life.started}"
            )
            is_late = life.alive and number < actor.incarnation
            assert not is_late, f"life {number} goes on beside {actor.incarnation}"
        if any(
            step[0] not in ("crash", "kill", "drop_handle") for step in self.steps()
        ):
            return
        waiting = [n for n in range(self.made) if not self.answers[n]]
        assert not waiting, f"calls {waiting} never end"
        assert self.placing < 0

    # -- the caller --------------------------------------------------------------

    def submit(self) -> None:
        """Make the next call."""
        number = self.made
        self.made += 1
        record = Call(bytes([number]), self.options["retries"])
        if self.queue.state is Known.DEAD:
            record.fail()
            self._end(number, "dead")
            return
        self.records[number] = record
        record.on(TaskEvent.ARGUMENTS_KNOWN)
        self.queue.pending.append(record)
        self._flush()

    def kill(self, no_restart: bool) -> None:
        """Somebody kills the actor."""
        if no_restart:
            self.ends -= 1
        else:
            self.kills -= 1
        self._control(ev.Killed(A, no_restart))

    def drop_handle(self) -> None:
        """The last handle is gone, and no call of it waits."""
        self.ends -= 1
        self.scope = True
        self._control(ev.OutOfScope(A))

    def hear(self) -> None:
        """The caller reads what the control service says."""
        state, incarnation = self.updates.pop(0)
        queue = self.queue
        is_open = self.channel >= 0
        if state == "ALIVE":
            if is_open:
                if incarnation <= queue.incarnation:
                    return
                self._end_of_life(dead=False)
            if not queue.alive(incarnation):
                return
            life = self.lives[incarnation]
            if not life.alive:
                queue.state = Known.RESTARTING
                return
            life.connected = True
            self.channel = incarnation
            self._flush()
        elif state in ("RESTARTING", "DEAD"):
            if not is_open:
                self._end_of_life(dead=state == "DEAD")
            else:
                queue.verdict = state

    def deliver(self, number: int) -> None:
        """The caller reads from a life, or sees its end."""
        message = self.lives[number].outbox.pop(0)
        if number != self.channel:
            return  # given up before
        if message[0] == "end":
            self.channel = -1
            if self.queue.verdict is not None:
                self._end_of_life(dead=self.queue.verdict == "DEAD")
            return
        call = self.queue.answered(bytes([message[1]]))
        if call is not None:
            call.on(TaskEvent.RESULT)
            self._end(message[1], "value")
            self._flush()

    def _end_of_life(self, *, dead: bool) -> None:
        self.channel = -1
        for record in self.queue.life_ended(dead=dead):
            record.fail()
            self._end(record.task_id[0], "failed")

    def _end(self, number: int, answer: str) -> None:
        assert not self.answers[number], f"call {number} ends twice"
        self.answers[number] = answer
        self.records.pop(number, None)

    def _flush(self) -> None:
        if self.channel < 0:
            return
        for record in self.queue.sendable(64):
            life = self.lives[self.channel]
            if life.alive:
                life.inbox.append(record.task_id[0])

    # -- the control service -----------------------------------------------------

    def report(self) -> None:
        """The control service hears of a life."""
        self._control(self.news.pop(0))

    def report_twice(self) -> None:
        """The same, and a copy stays behind all other news."""
        self.late -= 1
        self.news.append(self.news[0])
        self.report()

    def place(self) -> None:
        """An executor is found."""
        incarnation, self.placing = self.placing, -1
        assert incarnation == len(self.lives)
        self.lives.append(Life())
        self._control(ev.Placed(A, incarnation, b"w%d" % incarnation, "", 0))

    def _control(self, event: Any) -> None:
        for command in self.manager.handle(event, 0.0):
            kind = type(command)
            if kind is ev.Place:
                self.placing = command.incarnation
            elif kind is ev.Unplace:
                self.placing = -1
            elif kind is ev.Kill:
                self._die(command.incarnation, "killed")
            elif kind is ev.Dismiss:
                self.lives[command.incarnation].leaving = True
            elif kind is ev.Publish:
                actor = self.manager.actors[A]
                self.updates.append((actor.shown_state, actor.incarnation))

    # -- a life ------------------------------------------------------------------

    def construct(self, number: int) -> None:
        """The constructor returns."""
        self.lives[number].created = True
        self.news.append(ev.Created(A, number))

    def fail_constructor(self, number: int) -> None:
        """The constructor raises."""
        self.ends -= 1
        self.lives[number].created = True
        self.news.append(ev.ConstructorFailed(A, number))

    def accept(self, number: int) -> None:
        """The life reads a call."""
        life = self.lives[number]
        life.accepted.append(life.inbox.pop(0))

    def start(self, number: int) -> None:
        """The next call begins."""
        life = self.lives[number]
        life.running = life.accepted.pop(0)
        life.started.append(life.running)
        self.runs[life.running] += 1

    def finish(self, number: int) -> None:
        """The running call returns."""
        life = self.lives[number]
        life.outbox.append(("result", life.running))
        life.running = -1

    def leave(self, number: int) -> None:
        """The process goes, having been asked to."""
        self._die(number, "left")

    def crash(self, number: int) -> None:
        """SIGKILL."""
        self.crashes -= 1
        self._die(number, "crashed")

    def _die(self, number: int, reason: str) -> None:
        life = self.lives[number]
        if not life.alive:
            return
        life.alive = False
        life.running = -1
        life.inbox.clear()
        life.accepted.clear()
        if life.connected:
            life.outbox.append(("end",))
        self.news.append(ev.ExecutorLost(A, number, reason))
