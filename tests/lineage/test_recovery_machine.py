"""Which lost values are made again, in which order, and what it costs."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rayshim.lineage.recovery import (
    TABLE,
    Broke,
    Command,
    Dropped,
    Event,
    Forget,
    Kept,
    Lost,
    Needed,
    Reason,
    RecoveryManager,
    RecoveryState,
    Refuse,
    Rerun,
)
from rayshim.lineage.transitions import InvalidTransition

LIMIT = 1000


def task(number: int) -> bytes:
    return b"t%023d" % number


def value(number: int, index: int = 1) -> bytes:
    return task(number) + index.to_bytes(4, "little")


class Log:
    """A machine that is checked after every event."""

    def __init__(self, limit_bytes: int = LIMIT) -> None:
        self.machine = RecoveryManager(limit_bytes)
        self.events: list[tuple[Event, float]] = []

    def tell(self, event: Event) -> list[Command]:
        self.events.append((event, float(len(self.events))))
        commands = self.machine.handle(*self.events[-1])
        self.machine.validate()
        return commands

    def keep(
        self,
        number: int,
        *needs: int,
        retries: int = 3,
        size: int = 10,
        attempt: int = 0,
    ) -> list[Command]:
        arguments = tuple(value(need) for need in needs)
        kept = Kept(task(number), (value(number),), arguments, size, retries, attempt)
        return self.tell(kept)

    def state(self, number: int) -> RecoveryState:
        return self.machine.state_of(task(number))


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_lost_value_waits_until_somebody_needs_it(log: Log) -> None:
    log.keep(1)
    assert log.tell(Lost(value(1))) == []
    assert log.state(1) is RecoveryState.LOST
    assert log.tell(Needed(value(1))) == [Rerun(task(1))]
    assert log.tell(Needed(value(1))) == [], "one run serves all"
    assert log.keep(1, retries=2, attempt=1) == []
    assert log.state(1) is RecoveryState.KNOWN


def test_lost_arguments_come_first_and_once(log: Log) -> None:
    log.keep(1)
    log.keep(2, 1)
    log.keep(3, 1)
    log.keep(4, 2, 3)
    for number in (1, 2, 3, 4):
        log.tell(Lost(value(number)))
    commands = log.tell(Needed(value(4)))
    order = [command.task_id for command in commands if isinstance(command, Rerun)]
    assert sorted(order) == [task(n) for n in (1, 2, 3, 4)]
    assert order[0] == task(1) and order[-1] == task(4)


def test_known_arguments_are_left_alone(log: Log) -> None:
    log.keep(1)
    log.keep(2, 1)
    log.tell(Lost(value(2)))
    assert log.tell(Needed(value(2))) == [Rerun(task(2))]


def test_a_chain_may_be_longer_than_the_stack(log: Log) -> None:
    log = Log(10**9)
    log.keep(0)
    for number in range(1, 5000):
        log.machine.handle(
            Kept(task(number), (value(number),), (value(number - 1),), 1, 3), 0.0
        )
    for number in range(5000):
        log.machine.handle(Lost(value(number)), 0.0)
    commands = log.tell(Needed(value(4999)))
    assert commands == [Rerun(task(number)) for number in range(5000)]


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [(0, Reason.RETRIES_DISABLED), (2, Reason.MAX_ATTEMPTS_EXCEEDED)],
)
def test_a_call_without_a_retry_is_not_kept(
    log: Log, attempt: int, reason: Reason
) -> None:
    assert log.keep(1, retries=0, attempt=attempt) == [Forget(task(1))]
    log.tell(Lost(value(1)))
    assert log.tell(Needed(value(1))) == [Refuse(value(1), reason)]
    assert log.tell(Needed(value(1))) == [], "its value says it from now on"


def test_unlimited_retries_are_kept(log: Log) -> None:
    assert log.keep(1, retries=-1) == []
    assert log.state(1) is RecoveryState.KNOWN


def test_the_oldest_goes_when_memory_is_short(log: Log) -> None:
    log.keep(1, size=600)
    assert log.keep(2, size=600) == [Forget(task(1))]
    log.tell(Lost(value(1)))
    assert log.tell(Needed(value(1))) == [Refuse(value(1), Reason.LINEAGE_EVICTED)]


def test_a_call_that_runs_is_not_let_go(log: Log) -> None:
    log.keep(1, size=600)
    log.tell(Lost(value(1)))
    log.tell(Needed(value(1)))
    assert log.keep(2, size=600) == [Forget(task(2))]
    assert log.state(1) is RecoveryState.RECOVERING


def test_what_needs_an_evicted_argument_fails_with_it(log: Log) -> None:
    log.keep(1, size=600)
    log.keep(2, 1, size=600)
    log.tell(Lost(value(1)))
    log.tell(Lost(value(2)))
    assert log.tell(Needed(value(2))) == [
        Refuse(value(1), Reason.LINEAGE_EVICTED),
        Rerun(task(2)),
    ]
    assert log.tell(Broke(task(2))) == [Forget(task(2))]


def test_no_lineage_is_kept_without_memory() -> None:
    log = Log(0)
    assert log.keep(1) == [Forget(task(1))]
    log.tell(Lost(value(1)))
    assert log.tell(Needed(value(1))) == [Refuse(value(1), Reason.LINEAGE_DISABLED)]


def test_put_values_are_refused(log: Log) -> None:
    put = task(9) + b"\x01\x00\x00\x80"
    assert log.tell(Lost(put)) == []
    assert log.tell(Needed(put)) == [Refuse(put, Reason.PUT)]


def test_a_call_is_forgotten_with_its_last_value(log: Log) -> None:
    log.tell(Kept(task(1), (value(1, 1), value(1, 2)), (), 10, 3))
    assert log.tell(Dropped(value(1, 1))) == []
    assert log.tell(Dropped(value(1, 2))) == [Forget(task(1))]
    assert log.state(1) is RecoveryState.UNKNOWN
    assert log.machine.total_bytes == 0


def test_a_call_whose_values_were_dropped_meanwhile_is_forgotten(log: Log) -> None:
    log.keep(1)
    log.tell(Lost(value(1)))
    log.tell(Needed(value(1)))
    assert log.tell(Dropped(value(1))) == []
    assert log.tell(Kept(task(1), (), (), 10, 2, 1)) == [Forget(task(1))]
    assert log.machine.recipes == {}


def test_a_dropped_loss_is_no_loss(log: Log) -> None:
    log.tell(Kept(task(1), (value(1, 1), value(1, 2)), (), 10, 3))
    log.tell(Lost(value(1, 1)))
    log.tell(Dropped(value(1, 1)))
    assert log.state(1) is RecoveryState.KNOWN


def test_an_event_that_makes_no_sense_names_the_story(log: Log) -> None:
    log.keep(1)
    with pytest.raises(InvalidTransition, match="is KNOWN and cannot take Broke"):
        log.machine.handle(Broke(task(1)), 1.0)
    assert len(log.machine.story(task(1))) == 2


class RecoveryStory(RuleBasedStateMachine):
    """A shell that does what it is told, against counts taken by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log(100)
        self.next = 0
        #: Task -> (arguments, retries left) of those that the shell keeps.
        self.kept: dict[int, tuple[tuple[int, ...], int]] = {}
        self.held: set[int] = set()
        self.lost: set[int] = set()
        self.running: set[int] = set()
        self.errors: set[int] = set()

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Refuse):
                number = int(command.object_id[1:24])
                assert number in self.lost, "only lost values are refused"
                assert number not in self.kept
                self.lost.discard(number)
                self.errors.add(number)
                continue
            number = int(command.task_id[1:24])
            if isinstance(command, Forget):
                self.kept.pop(number, None)
                continue
            assert number in self.lost and number not in self.running
            arguments, retries = self.kept[number]
            assert retries, "a run has to be paid for"
            for need in arguments:
                assert (
                    need not in self.lost or need in self.running or need in self.errors
                ), "arguments come first"
            self.running.add(number)
            if retries > 0:
                self.kept[number] = arguments, retries - 1

    def choose(self, data: st.DataObject, numbers: set[int]) -> int:
        return int(data.draw(st.sampled_from(sorted(numbers))))

    @rule(data=st.data(), retries=st.integers(-1, 3), size=st.integers(1, 60))
    def finish(self, data: st.DataObject, retries: int, size: int) -> None:
        self.next += 1
        may = sorted(self.held & self.kept.keys() - self.running)
        needs = (
            tuple(data.draw(st.sets(st.sampled_from(may), max_size=3))) if may else ()
        )
        self.kept[self.next] = needs, retries
        self.held.add(self.next)
        self.do(self.log.keep(self.next, *needs, retries=retries, size=size))

    @precondition(lambda self: self.held - self.lost - self.errors)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        number = self.choose(data, self.held - self.lost - self.errors)
        self.lost.add(number)
        self.do(self.log.tell(Lost(value(number))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def need(self, data: st.DataObject) -> None:
        number = self.choose(data, self.held)
        if number in self.lost:
            self.do(self.log.tell(Needed(value(number))))
            assert number not in self.lost or number in self.running

    @precondition(lambda self: self.running)
    @rule(data=st.data(), well=st.booleans())
    def end(self, data: st.DataObject, well: bool) -> None:
        ready = {
            number
            for number in self.running
            if not any(need in self.running for need in self.kept[number][0])
        }
        assert ready, "runs wait for each other in a circle"
        number = self.choose(data, ready)
        self.running.discard(number)
        self.lost.discard(number)
        arguments, retries = self.kept[number]
        if well:
            returns = (value(number),) if number in self.held else ()
            needs = tuple(value(need) for need in arguments)
            kept = Kept(task(number), returns, needs, 10, retries, 1)
            self.do(self.log.tell(kept))
        else:
            self.errors.add(number)
            self.do(self.log.tell(Broke(task(number))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        used = {n for arguments, _ in self.kept.values() for n in arguments}
        if not self.held - used:
            return
        number = self.choose(data, self.held - used)
        self.held.discard(number)
        if number not in self.running:
            self.lost.discard(number)
        self.do(self.log.tell(Dropped(value(number))))

    @invariant()
    def what_is_kept_is_what_may_run_again(self) -> None:
        alive = {
            number
            for number in range(1, self.next + 1)
            if self.log.state(number)
            in (RecoveryState.KNOWN, RecoveryState.LOST, RecoveryState.RECOVERING)
        }
        assert alive == self.kept.keys()
        running = {
            number
            for number in alive
            if self.log.state(number) is RecoveryState.RECOVERING
        }
        assert running == self.running

    def teardown(self) -> None:
        again = RecoveryManager.replay(100, self.log.events)
        states = {t: (r.state, r.lost) for t, r in again.recipes.items()}
        machine = self.log.machine
        assert states == {t: (r.state, r.lost) for t, r in machine.recipes.items()}
        assert again.total_bytes == machine.total_bytes


TestRecoveryStory = RecoveryStory.TestCase
TestRecoveryStory.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None
)


def test_every_state_but_the_impossible_pairs_is_in_the_table() -> None:
    events = (Kept, Lost, Needed, Broke, Dropped)
    missing = {(s, e) for s in RecoveryState for e in events} - TABLE.keys()
    assert missing == {
        (RecoveryState.KNOWN, Kept),
        (RecoveryState.KNOWN, Broke),
        (RecoveryState.LOST, Kept),
        (RecoveryState.LOST, Broke),
        (RecoveryState.FAILED, Kept),
    }
