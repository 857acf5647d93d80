"""What a node remembers of who printed what is bounded for all executors together."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rayshim.adapters.raylet import logs
from rayshim.adapters.raylet.logs import LogRelay


def print_and_end(relay: LogRelay, number: int) -> None:
    """An executor that prints for ten calls, and ends."""
    out, write = os.pipe()
    err, unused = os.pipe()
    worker_id = number.to_bytes(8, "big")
    relay.add(worker_id, 1000 + number, out, err)
    for call in range(10):
        os.write(write, f"\x1e\x1dcall{call}:0\nline\n".encode())
    os.close(write)
    os.close(unused)
    relay.drain(worker_id)


def test_marks_of_ended_executors_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_ENDED_MARKS", 35)
    config: Any = SimpleNamespace(logs_dir=str(tmp_path), settings={})

    async def run() -> list[int]:
        relay = LogRelay(config, lambda *lines: None, lambda worker_id: False)
        for number in range(20):
            print_and_end(relay, number)
        counts = [file.mark_count for file in relay.files()]
        relay.close()
        return counts

    assert sum(asyncio.run(run())) == 30
