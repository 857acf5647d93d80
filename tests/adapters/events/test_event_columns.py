"""Columns of event files are what batches say, however calls are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rayshim.adapters.events import arrow_files, reading, records, spool
from rayshim.adapters.wire import event_messages as ev


def noted(number: int, name: str, function: bytes | str) -> ev.Noted:
    return (number.to_bytes(24, "big"), name, 0, 1.0, 2.0, b"p", function)


def batch(
    ended: list[ev.Noted],
    names: dict[bytes, str] | None = None,
    actor: ev.ActorFacts | None = None,
    failed: list[ev.CallEvent] | None = None,
) -> ev.EventBatch:
    return ev.EventBatch(
        "node",
        "10.0.0.1",
        b"w",
        7,
        "executor",
        {"CPU": 1.0},
        b"",
        {"KEY": "wärme"},
        failed or [],
        ended,
        100.0,
        names or {},
        actor,
    )


def check(told: ev.EventBatch) -> None:
    """Rows agree with the events, one by one."""
    rows = records.call_rows(msgspec.msgpack.encode(told))
    calls = ev.events_of(told)
    assert len(rows) == len(calls)
    for row, call in zip(rows, calls, strict=True):
        assert list(row) == list(records.CALL_COLUMNS)
        assert row["task_id"] == call.task_id.hex()
        assert row["name"] == call.name
        assert row["function"] == (call.function or call.name)
        assert row["kind"] == call.kind
        assert row["state"] == call.state
        assert row["actor_id"] == call.actor_id.hex()
        assert row["parent_task_id"] == call.parent.hex()
        assert (row["start_s"], row["end_s"]) == (call.start_s, call.end_s)
        assert row["error_type"] == call.error_type
        assert row["env_vars"] == told.env_vars


def test_calls_of_functions() -> None:
    failed = ev.CallEvent(
        b"x" * 24, "f", ev.TASK, 1, "FAILED", 1.0, 2.0, error_type="OUT_OF_MEMORY"
    )
    ended = [noted(1, "f", b"key"), noted(2, "named", b"key"), noted(3, "g", b"other")]
    check(batch(ended, {b"key": "f"}, failed=[failed]))


def test_calls_of_actors() -> None:
    actor = ev.ActorFacts(b"a" * 16, "Thing", (1).to_bytes(24, "big"), "Thing.__init__")
    check(batch([noted(1, "", ""), noted(2, "Thing.run", "run")], actor=actor))
    check(batch([noted(3, "its name", "run")], actor=actor))


@pytest.mark.slow
def test_texts_of_any_kind_come_back_from_files(tmp_path: Path) -> None:
    path = tmp_path / "000001.spool"
    names = ["", "plain", "wärme", "温", "x" * 5000]
    told = batch([noted(i, name, b"") for i, name in enumerate(names)])
    with path.open("wb") as file:
        spool.append(file, "calls", msgspec.msgpack.encode(told))
        change = (3.0, "node", "n", "ALIVE")
        spool.append(file, "cluster", msgspec.msgpack.encode([change]))
    before = reading.read([tmp_path])
    arrow_files.convert(path)
    after = reading.read([tmp_path])
    assert {row["name"] for row in after.calls} == set(names)
    assert after.calls == before.calls
    assert [(row["id"], row["message"]) for row in after.cluster] == [("n", "")]


_LOADED = """
import pathlib, sys
from rayshim.adapters.events import arrow_files
arrow_files.convert(pathlib.Path(sys.argv[1]))
assert "pyarrow" in sys.modules
print([name for name in ("pandas", "distributed") if name in sys.modules])
"""


@pytest.mark.slow
def test_files_are_made_without_pandas(tmp_path: Path) -> None:
    path = tmp_path / "000001.spool"
    with path.open("wb") as file:
        told = batch([noted(1, "f", b"key")], {b"key": "f"})
        spool.append(file, "calls", msgspec.msgpack.encode(told))
    done = subprocess.run(
        [sys.executable, "-c", _LOADED, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
