"""Events are written to spools and Arrow files, bounded, and read from both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rayshim.adapters.events import arrow_files, reading, spool
from rayshim.adapters.events.writer import EventWriter
from rayshim.adapters.wire import event_messages as ev


def batch(first: int, count: int) -> bytes:
    """A batch of calls with numbers for ids."""
    events = [
        ev.CallEvent(
            number.to_bytes(24, "big"), "f", ev.TASK, 0, "FINISHED", 1.0, 2.0 + number
        )
        for number in range(first, first + count)
    ]
    told = ev.EventBatch(
        "node", "10.0.0.1", b"w", 7, "executor", {"CPU": 1.0}, b"", {}, events
    )
    return msgspec.msgpack.encode(told)


def numbers(events: reading.Events) -> list[int]:
    return [int(row["task_id"], 16) for row in events.calls]


def write(writer: EventWriter, folder: Path, count: int) -> None:
    """Write calls, and wait until all of them are in files."""
    for first in range(0, count, 100):
        writer.add("calls", batch(first, 100))
    deadline = time.monotonic() + 20.0
    while not writer._queue.empty():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "events"


@pytest.fixture
def writer(folder: Path) -> Iterator[EventWriter]:
    made = EventWriter(folder, limit_bytes=1 << 20, file_bytes=3_000)
    yield made
    made.close()


def test_nothing_is_there_before_the_first_event(
    writer: EventWriter, folder: Path
) -> None:
    assert writer._thread is None
    assert not folder.exists()


def test_few_events_stay_in_a_spool(writer: EventWriter, folder: Path) -> None:
    writer.add("calls", batch(0, 5))
    writer.add("cluster", msgspec.msgpack.encode([(3.0, "node", "n", "ALIVE")]))
    writer.close()
    assert [path.name for path in folder.iterdir()] == ["000001.spool"]
    events = reading.read([folder])
    assert numbers(events) == [0, 1, 2, 3, 4]
    assert events.calls[0]["resources"] == {"CPU": 1.0}
    assert [row["state"] for row in events.cluster] == ["ALIVE"]


def test_full_spools_become_arrow_files(writer: EventWriter, folder: Path) -> None:
    write(writer, folder, 1000)
    assert list(folder.glob("calls-*.arrow"))
    events = reading.read([folder])
    assert numbers(events) == list(range(1000))
    assert events.calls[0]["resources"] == {"CPU": 1.0}
    assert events.calls[0]["env_vars"] == {}


def test_arrow_files_have_the_documented_columns(
    writer: EventWriter, folder: Path
) -> None:
    from pyarrow import ipc

    write(writer, folder, 1000)
    path = min(folder.glob("calls-*.arrow"))
    with ipc.open_file(path) as file:
        table = file.read_all()
    assert table.column_names == list(arrow_files.COLUMNS["calls"])
    assert table.column("end_s").to_pylist()[0] == 2.0


def test_files_together_are_bounded_and_the_newest_stay(folder: Path) -> None:
    writer = EventWriter(folder, limit_bytes=64_000, file_bytes=2_000)
    write(writer, folder, 20_000)
    files = list(folder.iterdir())
    assert sum(path.stat().st_size for path in files) < 96_000
    assert numbers(reading.read([folder]))[-1] == 19_999


def test_record_that_was_cut_off_is_left_out(folder: Path) -> None:
    folder.mkdir()
    path = folder / "000001.spool"
    with path.open("wb") as file:
        spool.append(file, "calls", batch(0, 3))
        spool.append(file, "calls", batch(3, 3))
    path.write_bytes(path.read_bytes()[:-7])
    assert numbers(reading.read([folder])) == [0, 1, 2]


def test_damage_is_left_out_and_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    with (folder / "000001.spool").open("wb") as file:
        spool.append(file, "calls", batch(0, 3))
        spool.append(file, "calls", b"\xc1")
        file.write((2).to_bytes(4, "little") + b"\xff\xff")
        spool.append(file, "calls", batch(3, 3))
    (folder / "000002.arrow").write_bytes(b"something else")
    (folder / "000003.spool").mkdir()
    assert numbers(reading.read([folder])) == list(range(6))
    assert caplog.text.count("a damaged record of") == 2
    assert "000002.arrow is damaged" in caplog.text
    assert "000003.spool is damaged" in caplog.text


def test_events_that_are_in_two_files_count_once(folder: Path) -> None:
    folder.mkdir()
    for name in ("000001.spool", "000002.spool"):
        with (folder / name).open("wb") as file:
            spool.append(file, "calls", batch(0, 3))
    arrow_files.convert(folder / "000001.spool")
    assert numbers(reading.read([folder])) == [0, 1, 2]


def test_names_go_on_where_an_earlier_process_ended(folder: Path) -> None:
    for first in (0, 3):
        writer = EventWriter(folder, limit_bytes=1 << 20, file_bytes=20_000)
        writer.add("calls", batch(first, 3))
        writer.close()
    assert numbers(reading.read([folder])) == list(range(6))
    assert {path.name for path in folder.iterdir()} == {"000001.spool", "000002.spool"}


def test_nothing_is_written_where_that_is_turned_off(folder: Path) -> None:
    writer = EventWriter(folder, limit_bytes=0, file_bytes=20_000)
    writer.add("calls", batch(0, 3))
    writer.close()
    assert not folder.exists()


def test_full_disk_costs_events_and_not_the_process(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("no folder")
    writer = EventWriter(folder, limit_bytes=1 << 20, file_bytes=20_000)
    writer.add("calls", batch(0, 3))
    writer.close()
    assert "events could not be written" in caplog.text


def test_place_without_events_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no events"):
        reading.read([tmp_path / "nothing"])


def test_file_of_something_else_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    path.write_bytes(b"something else")
    with pytest.raises(ValueError, match="no event file"):
        reading.read([path])
