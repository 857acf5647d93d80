"""A store beyond its limit, with real processes, deaths and races."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from live_session import is_running, start, wait_until
from rayshim._core.session import Session
from rayshim.exceptions import ObjectStoreFullError, OutOfDiskError

MIB = 1 << 20
LIMIT = 32 * MIB
VALUE = 4 * MIB


def value(number: int, size: int = VALUE) -> np.ndarray[Any, Any]:
    return np.full(size, number % 256, np.uint8)


def is_value(array: np.ndarray[Any, Any], number: int) -> bool:
    return bool((array == number % 256).all())


def in_memory(session: Session) -> int:
    """Bytes of all files in the store's folder."""
    used = 0
    for path in Path(session.store_dir).iterdir():
        try:
            used += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return used


def spilled(session: Session) -> list[str]:
    folder = session.folder / "spill"
    return sorted(path.name for path in folder.glob("*")) if folder.exists() else []


@pytest.fixture
def session() -> Iterator[Session]:
    yield start(2, object_store_limit_bytes=LIMIT)
    gc.collect()
    ray.shutdown()


@ray.remote(num_cpus=0)
class Holder:
    """Holds views, and values of its own."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def view(self, refs: list[Any]) -> int:
        self.kept.append(ray.get(refs[0]))
        return os.getpid()

    def put(self, number: int) -> list[Any]:
        return [ray.put(value(number))]

    def check(self, number: int) -> bool:
        return is_value(self.kept[-1], number)

    def drop(self) -> None:
        self.kept.clear()

    def churn(self, seed: int, rounds: int) -> int:
        """Put, read and drop values in every order; the number of wrong ones."""
        order = np.random.default_rng(seed)
        held: dict[int, Any] = {}
        wrong = 0
        for number in range(rounds):
            held[number] = ray.put(value(number + seed))
            if len(held) > 6:
                key = int(order.choice(list(held)))
                got = ray.get(held[key])
                wrong += not is_value(got, key + seed)
                if order.random() < 0.7:
                    del held[key]
                del got
        return wrong


def test_memory_stays_within_the_limit_and_all_is_read(session: Session) -> None:
    refs = []
    for number in range(40):
        refs.append(ray.put(value(number)))
        assert in_memory(session) <= LIMIT

    assert all(is_value(ray.get(ref), number) for number, ref in enumerate(refs))


def test_freed_values_leave_neither_memory_nor_disk(session: Session) -> None:
    refs = [ray.put(value(number)) for number in range(30)]
    assert len(spilled(session)) > 20

    del refs

    wait_until(lambda: spilled(session) == [])
    wait_until(lambda: in_memory(session) == 0)


def test_what_a_process_views_is_not_spilled(session: Session) -> None:
    holder = Holder.remote()
    ref = ray.put(value(1))
    ray.get(holder.view.remote([ref]))
    segment = session.peer.objects.entries[ref._bytes].value.segment  # type: ignore

    others = [ray.put(value(number)) for number in range(20)]

    assert segment.name not in spilled(session)
    assert ray.get(holder.check.remote(1))
    ray.get(holder.drop.remote())
    others += [ray.put(value(number)) for number in range(20)]
    assert segment.name in spilled(session)
    assert is_value(ray.get(ref), 1) and is_value(ray.get(others[0]), 0)


def test_a_killed_reader_gives_its_views_up(session: Session) -> None:
    holder = Holder.remote()
    ref = ray.put(value(1))
    pid = ray.get(holder.view.remote([ref]))
    segment = session.peer.objects.entries[ref._bytes].value.segment  # type: ignore

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    others = [ray.put(value(number)) for number in range(20)]

    assert segment.name in spilled(session)
    assert is_value(ray.get(ref), 1) and is_value(ray.get(others[3]), 3)


def test_values_of_a_killed_creator_are_spilled_and_freed(session: Session) -> None:
    @ray.remote(num_cpus=0, max_retries=0)
    def make(number: int) -> tuple[Any, int]:
        return value(number), os.getpid()

    made = [make.options(num_returns=2).remote(n) for n in range(4)]
    pids = {ray.get(pid) for _, pid in made}
    refs = [ref for ref, _ in made]
    ray.wait(refs, num_returns=4)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)))

    others = [ray.put(value(number)) for number in range(20)]
    assert all(is_value(ray.get(ref), number) for number, ref in enumerate(refs))

    del refs, made, others
    wait_until(lambda: spilled(session) == [])
    wait_until(lambda: in_memory(session) == 0)


def test_views_stay_valid_when_their_value_is_spilled_and_freed(
    session: Session,
) -> None:
    ref = ray.put(value(9))
    view = ray.get(ref)
    part = view[100:200]
    others = [ray.put(value(number)) for number in range(30)]

    del ref, view
    others += [ray.put(value(number)) for number in range(10)]

    assert (part == 9).all() and len(others) == 40


def test_spilling_races_with_recycling_and_reuse(session: Session) -> None:
    holders = [Holder.remote() for _ in range(2)]
    calls = [holder.churn.remote(seed, 60) for seed, holder in enumerate(holders)]
    failures: list[int] = []

    def churn(seed: int) -> None:
        held: list[tuple[int, Any]] = []
        for number in range(60):
            held.append((number, ray.put(value(number + seed))))
            if len(held) > 5:
                key, ref = held.pop(0)
                if not is_value(ray.get(ref), key + seed):
                    failures.append(key)

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in (10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ray.get(calls) == [0, 0] and failures == []
    wait_until(lambda: spilled(session) == [])


def test_a_full_store_and_disk_names_the_largest_holders() -> None:
    start(1, object_store_limit_bytes=LIMIT, spill_limit_bytes=8 * MIB)
    try:
        refs: list[Any] = []
        with pytest.raises(OutOfDiskError) as caught:
            while len(refs) < 40:
                refs.append(ray.put(value(len(refs))))
        text = str(caught.value)
        assert "cannot store a value of 4,194,4" in text  # and its pickle stream
        assert "test_store_spilling.py:" in text and f"driver {os.getpid()}" in text
        assert "32.0 MiB" in text and "spill_limit_bytes" in text
        assert all(is_value(ray.get(ref), n) for n, ref in enumerate(refs))
    finally:
        refs.clear()
        ray.shutdown()


def test_without_spilling_a_full_store_is_an_error_that_says_so() -> None:
    session = start(1, object_store_limit_bytes=LIMIT, spill_limit_bytes=-1)
    try:
        held = []
        with pytest.raises(ObjectStoreFullError, match="everything in it is in use"):
            while len(held) < 20:
                held.append(ray.put(value(len(held))))
        assert len(held) >= 6 and spilled(session) == []
        held.clear()
        assert is_value(ray.get(ray.put(value(5))), 5)
    finally:
        ray.shutdown()


@pytest.mark.parametrize("kind", ["folder", "url"])
def test_a_place_of_your_own_is_used_and_left_empty(tmp_path: Path, kind: str) -> None:
    place = str(tmp_path) if kind == "folder" else f"file://{tmp_path}"
    start(1, object_store_limit_bytes=LIMIT, spill_dir=place)
    try:
        refs = [ray.put(value(number)) for number in range(20)]
        assert len(list(tmp_path.rglob("*-*"))) > 10
        assert all(is_value(ray.get(ref), n) for n, ref in enumerate(refs))
        assert all(is_value(x, n) for n, x in enumerate(ray.get(refs)))
        del refs
    finally:
        ray.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_the_next_init_removes_what_a_killed_session_spilled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rayshim._core import session_folders

    monkeypatch.setattr(session_folders, "STALE_AFTER_S", 0.0)
    script = f"""
import os, signal, numpy as np, rayshim as ray
ray.init(num_cpus=1, log_to_driver=False, _system_config=dict(
    dask="off", prestart_executors=0, object_store_limit_bytes={LIMIT},
    spill_dir={str(tmp_path)!r}))
refs = [ray.put(np.zeros({VALUE}, np.uint8)) for _ in range(20)]
from rayshim._core.session import session
os.kill(session._process.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], check=False, timeout=40)
    assert len(list(tmp_path.rglob("*-*"))) > 10

    start(1)
    ray.shutdown()

    assert list(tmp_path.iterdir()) == []


def test_waiting_calls_go_on_while_the_store_spills(session: Session) -> None:
    @ray.remote(num_cpus=1)
    def quick() -> int:
        return 1

    refs = [ray.put(value(number)) for number in range(6)]
    calls = [quick.remote() for _ in range(50)]
    refs += [ray.put(value(number)) for number in range(20)]

    assert sum(ray.get(calls)) == 50 and len(refs) == 26
