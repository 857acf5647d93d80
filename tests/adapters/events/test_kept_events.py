"""A node keeps the newest events only, by number and by size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rayshim.adapters.events import reading
from rayshim.adapters.raylet import event_service
from rayshim.adapters.raylet.event_service import EventService
from rayshim.adapters.wire.event_messages import (
    HIDDEN,
    CallEvent,
    EventBatch,
    TaskEvents,
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[EventService]:
    config: Any = SimpleNamespace(
        session_dir=str(tmp_path),
        settings={"task_events_kept": 50, "event_log_bytes": 0},
    )
    made = EventService(config)
    yield made
    made.close()


def test_the_newest_calls_are_kept(service: EventService) -> None:
    for number in range(100):
        service.take(TaskEvents(2, bytes([number])))
    assert service.batches() == [bytes([number]) for number in range(75, 100)]
    assert (service.dropped, service.told_count) == (150, 200)


def test_long_errors_are_bounded_by_their_bytes(
    service: EventService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_service, "KEPT_BYTES", 10_000)
    for _ in range(40):
        service.take(TaskEvents(1, b"x" * 1000))
    assert len(service.batches()) == 10
    service.take(TaskEvents(1, b"x" * 20_000))
    assert len(service.batches()) == 1  # the newest in any case


def test_files_do_not_have_values_of_variables(tmp_path: Path) -> None:
    config: Any = SimpleNamespace(
        session_dir=str(tmp_path),
        settings={},
        head_address="",
        address="unix:x",
        token=lambda: b"t" * 32,
    )
    (tmp_path / "events").mkdir()
    service = EventService(config)
    lost = CallEvent(b"y" * 24, "f", 0, 0, "FAILED", 1.0, 2.0)
    told = EventBatch(
        "n", "10.0.0.1", b"w", 7, "executor", {"CPU": 1.0}, b"", {"KEY": "hush"}, [lost]
    )
    told.ended = [(b"x" * 24, "f", 0, 1.0, 2.0, b"", b"key")]
    told.names = {b"key": "f"}
    service.take(TaskEvents(2, msgspec.msgpack.encode(told), True))
    service.close()
    found = reading.read([tmp_path / "events"])
    assert [row["env_vars"] for row in found.calls] == [{"KEY": HIDDEN}] * 2
    assert {row["state"] for row in found.calls} == {"FINISHED", "FAILED"}
    assert b"hush" in service.batches()[0]
    for path in (tmp_path / "events").iterdir():
        assert b"hush" not in path.read_bytes()
