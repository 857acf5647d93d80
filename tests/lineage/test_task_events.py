"""What is known of calls is joined to one row for each attempt."""

from __future__ import annotations

from typing import Any

import pytest

from rayshim.lineage import task_events

Row = dict[str, Any]


def event(state: str, role: str, *, attempt: int = 0, **more: Any) -> Row:
    """A row of the event files, or of a live call."""
    is_over = state in ("FINISHED", "FAILED")
    is_here = role == "executor"
    row = {
        "task_id": "aa" * 24,
        "attempt_number": attempt,
        "name": "f",
        "function": "f",
        "kind": 0,
        "state": state,
        "job_id": "01000000",
        "actor_id": "",
        "parent_task_id": "",
        "node_id": "n1",
        "node_ip": "10.0.0.1",
        "worker_id": "w1",
        "worker_pid": 7,
        "role": role,
        "start_s": 10.0 if is_here else 0.0,
        "end_s": 12.0 if is_over else 0.0,
        "error_type": "",
        "error_message": "",
        "resources": {"CPU": 1.0},
        "placement_group_id": "",
        "env_vars": {},
    }
    return {**row, **more}


def only(rows: list[Row]) -> Row:
    assert len(rows) == 1
    return rows[0]


def test_end_beats_what_is_said_of_it_as_unfinished() -> None:
    live = [event("SUBMITTED_TO_WORKER", "owner"), event("RUNNING", "executor")]
    row = only(task_events.joined([event("FINISHED", "executor")], live))
    assert (row["state"], row["start_time_ms"], row["end_time_ms"]) == (
        "FINISHED",
        10_000,
        12_000,
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_executors_end_beats_the_owners(order: tuple[int, ...]) -> None:
    ends = [
        event("FAILED", "owner", error_type="WORKER_DIED"),
        event("FINISHED", "executor"),
    ]
    row = only(task_events.joined([ends[i] for i in order], []))
    assert (row["state"], row["error_type"]) == ("FINISHED", None)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_executors_word_beats_the_owners(order: tuple[int, ...]) -> None:
    words = [
        event("SUBMITTED_TO_WORKER", "owner", call_site="x.py:3", labels={"a": "b"}),
        event("RUNNING", "executor"),
    ]
    row = only(task_events.joined([], [words[i] for i in order]))
    assert (row["state"], row["worker_pid"]) == ("RUNNING", 7)
    assert (row["call_site"], row["label_selector"]) == ("x.py:3", {"a": "b"})


def test_owner_says_nothing_of_the_place() -> None:
    row = only(task_events.joined([], [event("PENDING_NODE_ASSIGNMENT", "owner")]))
    assert (row["node_id"], row["worker_id"], row["worker_pid"]) == (None, None, None)


def test_attempts_are_rows_of_their_own() -> None:
    rows = task_events.joined(
        [event("FAILED", "owner", error_type="WORKER_DIED")],
        [event("RUNNING", "executor", attempt=1)],
    )
    assert [(row["attempt_number"], row["state"]) for row in rows] == [
        (0, "FAILED"),
        (1, "RUNNING"),
    ]


def test_doubled_and_late_words_change_nothing() -> None:
    ended, live = [event("FINISHED", "executor")], [event("RUNNING", "executor")]
    assert task_events.joined(ended * 2, live * 2) == task_events.joined(ended, live)


def test_call_of_a_driver_has_the_drivers_id_as_parent() -> None:
    row = only(task_events.joined([event("FINISHED", "executor")], []))
    assert row["parent_task_id"] == "ff" * 20 + "01000000"


def test_timeline_has_bars_of_what_ran() -> None:
    ended = [event("FINISHED", "executor"), event("FAILED", "owner", attempt=1)]
    running = [event("RUNNING", "executor", attempt=2)]
    found = task_events.timeline(ended, running, now_s=15.0)
    bars = [one for one in found if one["ph"] == "X"]
    assert [(bar["ts"], bar["dur"]) for bar in bars] == [
        (10.0e6, 2.0e6),
        (10.0e6, 5.0e6),
    ]
    assert {bar["tid"] for bar in bars} == {"worker:w1"}
    names = [one["args"]["name"] for one in found if one["ph"] == "M"]
    assert names == ["pid 7"]


def change(time_s: float, kind: str, state: str, **more: Any) -> Row:
    row = {
        "time_s": time_s,
        "kind": kind,
        "id": "a1",
        "state": state,
        "name": "",
        "node_id": "",
        "pid": 0,
        "job_id": "",
        "message": "",
    }
    return {**row, **more}


def test_replay_is_the_state_of_that_moment() -> None:
    calls = [event("FINISHED", "executor")]
    cluster = [
        change(1.0, "actor", "PENDING_CREATION", name="A"),
        change(2.0, "actor", "ALIVE", pid=5),
        change(11.0, "actor", "DEAD", message="killed"),
    ]
    early = task_events.at(calls, cluster, 1.5)
    assert (early["tasks"], early["actors"][0]["state"]) == ([], "PENDING_CREATION")
    middle = task_events.at(calls, cluster, 10.5)
    assert only(middle["tasks"])["state"] == "RUNNING"
    actor = only(middle["actors"])
    assert (actor["state"], actor["name"], actor["pid"]) == ("ALIVE", "A", 5)
    late = task_events.at(calls, cluster, 20.0)
    assert only(late["tasks"])["state"] == "FINISHED"
    assert only(late["actors"])["message"] == "killed"
