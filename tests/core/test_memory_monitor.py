"""Executors are killed when the memory of their node runs out, the newest first."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rayshim as ray
from live_session import start, wait_until
from rayshim.exceptions import ActorUnavailableError, OutOfMemoryError

pytestmark = pytest.mark.slow

MB = 1 << 20
#: What the executors of the session may use: a task of 300 MB and the rest, not two.
LIMIT = 600 * MB


@pytest.fixture
def session() -> Iterator[None]:
    start(
        num_cpus=4,
        memory_limit_bytes=LIMIT,
        memory_usage_threshold=0.8,
        memory_monitor_refresh_ms=50,
        task_oom_retry_delay_s=0.2,
    )
    yield
    ray.shutdown()


def fill(size: int) -> bytearray:
    """Memory that is really there."""
    data = bytearray(size)
    data[::4096] = b"x" * len(data[::4096])
    return data


@ray.remote
def use(folder: str, name: str, size: int) -> str:
    """Note that it ran; use memory until it is told to go on."""
    data = fill(size)
    with open(Path(folder) / f"{name}.runs", "a") as runs:
        runs.write(f"{os.getpid()}\n")
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    del data
    return name


def runs(folder: Path, name: str) -> int:
    path = folder / f"{name}.runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_task_without_retries_fails_with_the_numbers(session: None) -> None:
    @ray.remote(max_retries=0)
    def hog() -> int:
        data = fill(700 * MB)
        time.sleep(60)
        return len(data)

    with pytest.raises(OutOfMemoryError) as caught:
        ray.get(hog.remote(), timeout=20)
    text = str(caught.value)
    for part in (
        "task hog",
        "running low on memory",
        "GB used / 0.59GB limit",
        "threshold of 0.8",
        "Top 10 memory users: PID\tMEM(GB)\tCOMMAND",
        "RAY_memory_usage_threshold",
    ):
        assert part in text


def test_newest_goes_first_and_runs_again_when_there_is_room(
    session: None, tmp_path: Path
) -> None:
    old = use.remote(str(tmp_path), "old", 300 * MB)
    wait_until(lambda: runs(tmp_path, "old"))
    new = use.options(max_retries=1).remote(str(tmp_path), "new", 300 * MB)
    # More often than max_retries says: memory has a budget of its own.
    wait_until(lambda: runs(tmp_path, "new") >= 1 or _kills() >= 1)
    wait_until(lambda: _kills() >= 3)
    (tmp_path / "go").touch()
    assert ray.get([old, new], timeout=20) == ["old", "new"]
    assert runs(tmp_path, "old") == 1


def _kills() -> int:
    from rayshim._core import current

    peer = current.peer
    assert peer is not None
    return max((r.memory_kills for r in peer.tasks.records.values()), default=0)


def test_what_may_run_again_goes_before_what_may_not(
    session: None, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    again = use.options(max_retries=3).remote(folder, "again", 300 * MB)
    wait_until(lambda: runs(tmp_path, "again"))
    once = use.options(max_retries=0).remote(folder, "once", 300 * MB)
    wait_until(lambda: runs(tmp_path, "once") and _kills())
    (tmp_path / "go").touch()
    assert ray.get([again, once], timeout=20) == ["again", "once"]
    assert runs(tmp_path, "once") == 1


def test_budget_for_memory_ends() -> None:
    start(
        num_cpus=1,
        memory_limit_bytes=LIMIT,
        memory_usage_threshold=0.8,
        memory_monitor_refresh_ms=50,
        task_oom_retry_delay_s=0.05,
        task_oom_retries=1,
    )

    @ray.remote
    def hog() -> None:
        data = fill(700 * MB)
        time.sleep(60)
        del data

    with pytest.raises(OutOfMemoryError):
        ray.get(hog.remote(), timeout=20)
    ray.shutdown()


@ray.remote
class Hog:
    def fill(self) -> None:
        self.data = fill(700 * MB)
        time.sleep(60)

    def ready(self) -> bool:
        return True


def test_actor_dies_of_memory(session: None) -> None:
    hog: Any = Hog.remote()
    with pytest.raises(OutOfMemoryError, match="actor Hog"):
        ray.get(hog.fill.remote(), timeout=20)
    with pytest.raises(OutOfMemoryError):
        ray.get(hog.ready.remote(), timeout=20)


def test_actor_restarts_after_it_was_killed_for_memory(session: None) -> None:
    hog: Any = Hog.options(max_restarts=1).remote()
    with pytest.raises(ActorUnavailableError, match="memory"):
        ray.get(hog.fill.remote(), timeout=20)
    assert ray.get(hog.ready.remote(), timeout=20)


def test_nothing_is_killed_below_the_threshold(session: None, tmp_path: Path) -> None:
    ref = use.remote(str(tmp_path), "one", 200 * MB)
    wait_until(lambda: runs(tmp_path, "one"))
    time.sleep(0.5)
    (tmp_path / "go").touch()
    assert ray.get(ref, timeout=20) == "one"
    assert runs(tmp_path, "one") == 1
