"""Cached environments: made once, never half, and removed when nobody uses them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rayshim.adapters.environments.cache import Cache, hold


def cache_in(folder: Path, limit_bytes: int = 1 << 30, days: float = 0.0) -> Cache:
    return Cache(
        folder, limit_bytes=limit_bytes, max_age_days=days, log=lambda text: None
    )


def fill(folder: Path) -> None:
    folder.mkdir()
    (folder / "content").write_bytes(bytes(8192))


def fail(folder: Path) -> None:
    fill(folder)
    raise RuntimeError("no")


def test_entries_are_made_once(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        fill(folder)

    for _ in range(3):
        cache = cache_in(tmp_path)
        assert (cache.use("one", make) / "content").exists()
        cache.close()
    assert len(made) == 1


def test_entries_that_fail_leave_nothing(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    with pytest.raises(RuntimeError):
        cache.use("one", fail)
    assert not (tmp_path / "one").exists()
    assert cache.use("one", fill).exists()
    cache.close()


def test_threads_that_want_the_same_wait_for_it(tmp_path: Path) -> None:
    made: list[int] = []

    def make(folder: Path) -> None:
        made.append(1)
        time.sleep(0.05)
        fill(folder)

    def use() -> None:
        cache = cache_in(tmp_path)
        cache.use("one", make)
        cache.close()

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


def _make_for_ever(folder: str, started: str) -> None:
    def make(path: Path) -> None:
        fill(path)
        Path(started).touch()
        signal.pause()

    cache_in(Path(folder)).use("one", make)


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    started = tmp_path / "started"
    folder = tmp_path / "cache"
    builder = multiprocessing.get_context("spawn").Process(
        target=_make_for_ever, args=(str(folder), str(started))
    )
    builder.start()
    deadline = time.monotonic() + 30
    while not started.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (folder / "one" / "content").exists()
    assert builder.pid is not None
    os.kill(builder.pid, signal.SIGKILL)
    builder.join()
    builder.close()
    made = []

    def make(path: Path) -> None:
        made.append(path.exists())
        fill(path)

    cache = cache_in(folder)
    cache.use("one", make)
    cache.close()
    assert made == [False]


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    assert cache_in(tmp_path / "missing").evict() == []
    fill(tmp_path / "half")
    cache.evict()
    assert not (tmp_path / "half").exists()


def test_the_oldest_go_when_there_is_too_much(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "middle", "new")):
        cache = cache_in(tmp_path)
        cache.use(name, fill)
        cache.close()
        os.utime(tmp_path / f"{name}.ready", (1000 + number, 1000 + number))
    assert cache_in(tmp_path, 20_000).evict() == ["old"]
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "middle").exists()


def test_what_nobody_used_for_long_goes(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    cache.use("old", fill)
    cache.use("new", fill)
    cache.close()
    os.utime(tmp_path / "old.ready", (1000, 1000))
    assert cache_in(tmp_path, days=1.0).evict() == ["old"]
    assert (tmp_path / "new").exists()


def test_what_is_used_stays(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    cache.use("one", fill)
    assert cache_in(tmp_path, 0).evict() == []
    held = hold(cache.locks)
    assert held is not None
    cache.close()
    assert cache_in(tmp_path, 0).evict() == []
    for lock in held:
        lock.close()
    assert cache_in(tmp_path, 0).evict() == ["one"]


def test_what_was_removed_cannot_be_held(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    cache.use("one", fill)
    locks = cache.locks
    cache.close()
    cache_in(tmp_path, 0).evict()
    assert hold(locks) is None
