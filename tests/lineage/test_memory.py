"""The memory policy: whom it kills, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayshim.lineage.memory import (
    GONE_LIMIT_S,
    LEAST_BYTES,
    Candidate,
    ExecutorGone,
    KillForMemory,
    MemoryMeasured,
    MemoryPolicy,
    Pressure,
    choose,
    retry_delay_s,
)
from rayshim.lineage.transitions import InvalidTransition

MUCH = 4 * LEAST_BYTES
OLD = Candidate(b"old", MUCH, 1.0)
NEW = Candidate(b"new", MUCH, 2.0)
ONCE = Candidate(b"once", MUCH, 3.0, may_run_again=False)
IDLE = Candidate(b"idle", MUCH, 0.0, is_idle=True)
SMALL = Candidate(b"small", 1, 9.0)


def measured(used: int, *candidates: Candidate) -> MemoryMeasured:
    return MemoryMeasured(used, 100, candidates)


def test_order_in_which_executors_go() -> None:
    left = [OLD, ONCE, SMALL, NEW, IDLE]
    order = []
    while left:
        chosen = choose(left)
        assert chosen is not None
        order.append(chosen)
        left.remove(chosen)
    assert order == [IDLE, NEW, OLD, ONCE, SMALL]


def test_small_idle_executor_is_let_be() -> None:
    assert choose([Candidate(b"idle", 1, 0.0, is_idle=True)]) is None


def test_nothing_goes_at_the_threshold() -> None:
    policy = MemoryPolicy(0.95)
    assert policy.handle(measured(95, OLD), 0.0) == []
    assert policy.handle(measured(96, OLD), 0.0) == [KillForMemory(b"old", 96, 100)]


def test_one_at_a_time() -> None:
    policy = MemoryPolicy(0.5)
    assert policy.handle(measured(60, OLD, NEW), 0.0)
    assert policy.handle(measured(60, OLD, NEW), 1.0) == []
    policy.handle(ExecutorGone(b"old"), 1.0)
    assert policy.state is Pressure.KILLING
    policy.handle(ExecutorGone(b"new"), 1.0)
    assert policy.state is Pressure.CALM
    assert policy.handle(measured(60, OLD), 1.0) == [KillForMemory(b"old", 60, 100)]


def test_one_that_does_not_go_is_not_waited_for_for_ever() -> None:
    policy = MemoryPolicy(0.5)
    policy.handle(measured(60, OLD, NEW), 0.0)
    commands = policy.handle(measured(60, OLD, NEW), GONE_LIMIT_S)
    assert commands == [KillForMemory(b"old", 60, 100)]


def test_story_names_the_kill_and_the_end() -> None:
    policy = MemoryPolicy(0.5)
    policy.handle(measured(60, OLD), 0.0)
    policy.handle(ExecutorGone(b"old"), 0.1)
    assert len(policy.story(b"old")) == 2


def test_unknown_event_is_refused() -> None:
    with pytest.raises(InvalidTransition):
        MemoryPolicy(0.5).handle(OLD, 0.0)


def test_delay_doubles_up_to_a_minute() -> None:
    assert [retry_delay_s(1.0, n) for n in (1, 2, 3, 7, 1000)] == [1, 2, 4, 60, 60]


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    count = draw(st.integers(0, 6))
    return [
        Candidate(
            bytes([number]),
            draw(st.sampled_from([0, LEAST_BYTES, MUCH])),
            float(draw(st.integers(0, 3))),
            draw(st.booleans()),
            draw(st.booleans()),
        )
        for number in range(count)
    ]


@given(st.lists(st.tuples(st.integers(0, 100), candidates(), st.integers(0, 6))))
def test_at_most_one_is_being_killed(
    steps: list[tuple[int, list[Candidate], int]],
) -> None:
    policy = MemoryPolicy(0.5)
    going: bytes | None = None
    now = 0.0
    for used, found, gone in steps:
        now += 0.25
        commands = policy.handle(measured(used, *found), now)
        policy.validate()
        assert len(commands) <= 1
        for command in commands:
            assert used > 50
            assert command.worker_id != going
            going = command.worker_id
        if going == bytes([gone]):
            policy.handle(ExecutorGone(going), now)
            policy.validate()
            going = None
