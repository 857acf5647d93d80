"""The life of one call at its owner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayshim.lineage.tasks import (
    TRANSITIONS,
    TaskEvent,
    TaskLife,
    TaskState,
    Verdict,
)
from rayshim.lineage.transitions import InvalidTransition


def pushed(retries: int = 0) -> TaskLife:
    life = TaskLife(b"t", retries)
    life.on(TaskEvent.ARGUMENTS_KNOWN)
    life.on(TaskEvent.PUSHED)
    return life


def test_a_call_that_ends_well_passes_the_four_states() -> None:
    life = pushed()
    life.on(TaskEvent.RESULT)
    assert life.state is TaskState.DONE
    assert life.has_ended


def test_a_crash_behind_another_call_costs_no_run() -> None:
    life = pushed(retries=0)
    assert life.crashed(started=False) is Verdict.AGAIN
    assert (life.state, life.retries_left, life.attempt) == (TaskState.QUEUED, 0, 0)


def test_a_crash_of_a_started_call_costs_a_run() -> None:
    life = pushed(retries=1)
    assert life.crashed(started=True) is Verdict.AGAIN
    assert (life.retries_left, life.attempt) == (0, 1)
    life.on(TaskEvent.PUSHED)
    assert life.crashed(started=True) is Verdict.FAIL
    assert life.state is TaskState.FAILED


def test_unlimited_retries_are_not_counted_down() -> None:
    life = pushed(retries=-1)
    for run in range(1, 50):
        assert life.crashed(started=True) is Verdict.AGAIN
        assert (life.retries_left, life.attempt) == (-1, run)
        life.on(TaskEvent.PUSHED)


def test_errors_of_user_code_are_retried_only_if_asked() -> None:
    assert pushed(retries=3).raised(retryable=False) is Verdict.FAIL
    assert pushed(retries=3).raised(retryable=True) is Verdict.AGAIN
    assert pushed(retries=0).raised(retryable=True) is Verdict.FAIL


def test_a_cancelled_call_is_never_tried_again() -> None:
    crashed, raised = pushed(retries=-1), pushed(retries=-1)
    crashed.cancelled = raised.cancelled = True
    assert crashed.crashed(started=False) is Verdict.CANCEL
    assert raised.raised(retryable=True) is Verdict.FAIL
    assert crashed.has_ended
    assert raised.has_ended


def test_an_ended_call_refuses_news_and_names_itself() -> None:
    life = pushed()
    life.on(TaskEvent.RESULT)
    life.fail()  # late news of an end: nothing
    assert life.state is TaskState.DONE
    with pytest.raises(InvalidTransition, match="74 is DONE and cannot take pushed"):
        life.on(TaskEvent.PUSHED)


def test_every_open_state_can_fail_and_no_ended_one_moves() -> None:
    ended = {TaskState.DONE, TaskState.FAILED}
    moves = {pair for pair in TRANSITIONS if pair[0] in ended}
    assert moves == {(TaskState.DONE, TaskEvent.REBUILD)}
    refusable = {s for s, event in TRANSITIONS if event is TaskEvent.REFUSED}
    assert refusable == set(TaskState) - ended


@given(
    retries=st.integers(-1, 4),
    deaths=st.lists(st.booleans(), max_size=12),
)
def test_runs_never_exceed_the_budget(retries: int, deaths: list[bool]) -> None:
    life = pushed(retries)
    runs = 1
    for started in deaths:
        verdict = life.crashed(started=started)
        life.validate()
        if verdict is not Verdict.AGAIN:
            break
        runs += started
        life.on(TaskEvent.PUSHED)
    assert retries == -1 or runs <= retries + 1
