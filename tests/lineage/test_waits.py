"""The detector: looks, confirmation, and what late or lost messages do to it."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayshim.lineage import waits
from rayshim.lineage.transitions import InvalidTransition
from rayshim.lineage.wait_graph import Maker, Process, Wait
from rayshim.lineage.waits import Phase, WaitDetector

JOB = b"\x01\x00\x00\x00"


def object_id(name: str) -> bytes:
    return name.encode().ljust(8) + b"\xff" * 12 + JOB + b"\x01\x00\x00\x00"


class Party:
    """A process with one slot that owns the value of the call that it runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = 0
        #: Whose value it waits for.
        self.awaits = ""

    def wait(self, other: str) -> None:
        self.number += 1
        self.awaits = other

    def says(self) -> Process:
        found: tuple[Wait, ...] = ()
        if self.awaits:
            wanted = ((object_id(self.awaits), self.awaits),)
            call = self.name.encode()
            found = (Wait(self.number, call, "", wanted, True, self.name),)
        return Process(self.name, found, {"": 1}, {self.name.encode(): ""})

    def makes(self, objects: tuple[bytes, ...]) -> dict[bytes, Maker]:
        own = object_id(self.name)
        call = self.name.encode()
        return (
            {own: Maker(call, "executor", self.name, self.name)}
            if (own in objects)
            else {}
        )


class Cluster:
    """Parties, and the detector, joined by messages that may get lost."""

    def __init__(self, *names: str) -> None:
        self.machine = WaitDetector()
        self.parties = {name: Party(name) for name in names}
        self.now = 0.0
        self.due = 0.0
        self.told: list[tuple[str, tuple[int, ...]]] = []
        self.mail: deque[Any] = deque()

    def feed(self, event: Any) -> None:
        for command in self.machine.handle(event, self.now):
            if isinstance(command, waits.WakeAt):
                self.due = command.due_s
            elif isinstance(command, waits.TellDeadlock):
                self.told.append((command.address, command.numbers))
            else:
                self.mail.append(command)
        self.machine.validate()

    def report(self, name: str) -> None:
        self.feed(waits.WaitsTold(name, self.parties[name].says()))

    def answer(self, question: Any) -> None:
        if isinstance(question, waits.AskNode):
            self.feed(waits.NodeAnswered(question.look, {}, {}, {}))
        elif (party := self.parties.get(question.address)) is None:
            self.feed(waits.ProcessGone(question.address))
        else:
            makers = party.makes(question.objects)
            self.feed(
                waits.WaitsAnswered(party.name, question.look, party.says(), makers)
            )

    def deliver(self) -> None:
        while self.mail:
            self.answer(self.mail.popleft())

    def look(self) -> None:
        """Let time pass until the detector wakes, and answer it."""
        self.now = max(self.now, self.due)
        self.feed(waits.TimePassed())
        self.deliver()


def circle(*names: str) -> Cluster:
    cluster = Cluster(*names)
    for name, other in zip(names, (*names[1:], names[0]), strict=True):
        cluster.parties[name].wait(other)
        cluster.report(name)
    return cluster


def test_deadlock_is_told_at_the_second_look_and_once() -> None:
    cluster = circle("a", "b", "c")
    cluster.look()
    assert cluster.told == []
    cluster.look()
    assert sorted(cluster.told) == [("a", (1,)), ("b", (1,)), ("c", (1,))]
    for _ in range(4):
        cluster.look()
    assert len(cluster.told) == 3


def test_one_report_is_enough_to_find_the_others() -> None:
    cluster = Cluster("a", "b")
    cluster.parties["a"].wait("b")
    cluster.parties["b"].wait("a")
    cluster.report("a")
    cluster.look()
    cluster.look()
    assert len(cluster.told) == 2


def test_wait_that_began_anew_between_the_looks_is_another_one() -> None:
    cluster = circle("a", "b")
    cluster.look()
    cluster.parties["a"].wait("b")
    cluster.look()
    assert cluster.told == []
    cluster.look()
    assert len(cluster.told) == 2


def test_idle_after_the_last_wait_is_over() -> None:
    cluster = circle("a", "b")
    cluster.look()
    for name in ("a", "b"):
        cluster.parties[name].awaits = ""
        cluster.report(name)
    cluster.look()
    assert cluster.machine.phase is Phase.IDLE
    assert cluster.told == []


def test_answer_that_does_not_come_counts_as_moving() -> None:
    cluster = circle("a", "b")
    for _ in range(3):
        cluster.now = cluster.due
        cluster.feed(waits.TimePassed())
        questions = list(cluster.mail)
        cluster.mail.clear()
        for question in questions:
            if question.address == "a":
                cluster.answer(question)
        cluster.mail.clear()
        cluster.now = cluster.due
        cluster.feed(waits.TimePassed())
        assert cluster.machine.phase is Phase.RESTING
    assert cluster.told == []


def test_dead_process_ends_the_circle() -> None:
    cluster = circle("a", "b")
    cluster.look()
    del cluster.parties["b"]
    cluster.feed(waits.ProcessGone("b"))
    for _ in range(3):
        cluster.look()
    assert cluster.told == []


def test_late_and_doubled_answers_change_nothing() -> None:
    cluster = circle("a", "b")
    cluster.look()
    old = waits.WaitsAnswered("a", 1, cluster.parties["a"].says(), {})
    cluster.feed(old)
    cluster.now = cluster.due
    cluster.feed(waits.TimePassed())
    cluster.feed(old)
    cluster.deliver()
    assert len(cluster.told) == 2


def test_story_and_unknown_events() -> None:
    cluster = circle("a", "b")
    assert any("WaitsTold" in line for line in cluster.machine.story("a"))
    with pytest.raises(InvalidTransition):
        cluster.machine.handle(waits.WakeAt(0.0), 0.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from("wait end report look answer lose double time kill".split()),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=400, deadline=None)
def test_no_false_report_whatever_comes_late_or_is_lost(
    steps: list[tuple[str, int, int]],
) -> None:
    names = ["a", "b", "c", "d"]
    cluster = Cluster(*names)
    old: list[Any] = []

    def circle_of(name: str) -> bool:
        """The naive model: following who waits for whom leads back."""
        seen = []
        party = cluster.parties.get(name)
        while party is not None and party.awaits and party.name not in seen:
            seen.append(party.name)
            party = cluster.parties.get(party.awaits)
        return party is not None and party.name == name

    for step, one, two in steps:
        party = cluster.parties.get(names[one])
        if step == "wait" and party is not None and not party.awaits:
            party.wait(names[two])
        elif step == "end" and party is not None and not circle_of(names[one]):
            # In a circle nobody can go on; everybody else may.
            party.awaits = ""
        elif step == "report" and party is not None:
            cluster.report(names[one])
        elif step == "look":
            cluster.look()
        elif step == "answer" and cluster.mail:
            question = cluster.mail[one % len(cluster.mail)]
            cluster.mail.remove(question)
            old.append(question)
            cluster.answer(question)
        elif step == "lose" and cluster.mail:
            cluster.mail.popleft()
        elif step == "double" and old:
            cluster.answer(old[one % len(old)])
        elif step == "time":
            cluster.now = max(cluster.now, cluster.due)
            cluster.feed(waits.TimePassed())
        elif step == "kill" and one == 3:
            cluster.parties.pop(names[two], None)
        for name, numbers in cluster.told:
            known = cluster.parties.get(name)
            if known is not None and known.number in numbers and known.awaits:
                assert circle_of(name) or _broken_by_death(cluster, name)
        cluster.told = []


def _broken_by_death(cluster: Cluster, name: str) -> bool:
    """Whether following the waits ends at a dead process: it was a circle before."""
    party = cluster.parties.get(name)
    for _ in range(9):
        if party is None:
            return True
        party = cluster.parties.get(party.awaits)
    return False
