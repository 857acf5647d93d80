"""Five times the store's size put and read, then the cap of the disk reached.

``python -m pytest tests/chaos/test_store_limits.py -m chaos -s`` prints the figures.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from rayshim._core import session as sessions
from rayshim.exceptions import OutOfDiskError

MB = 10**6
STORE = 200 * MB
VALUE = 10 * MB
SPILL_CAP = 1200 * MB


@pytest.fixture
def session() -> Iterator[sessions.Session]:
    ray.init(
        num_cpus=2,
        object_store_memory=STORE,
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"dask": "off", "spill_limit_bytes": SPILL_CAP},
    )
    assert sessions.session is not None
    yield sessions.session
    gc.collect()
    ray.shutdown()


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take, without segments kept for the next values."""
    used = 0
    if not folder.exists():
        return 0
    for path in folder.iterdir():
        if path.suffix == ".free":
            continue
        try:
            used += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return used


class Watch:
    """The largest that memory and disk have been."""

    def __init__(self, session: sessions.Session) -> None:
        self.store, self.disk = Path(session.store_dir), session.folder / "spill"
        self.memory_bytes = self.disk_bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._end.wait(0.02):
            self.memory_bytes = max(self.memory_bytes, folder_bytes(self.store))
            self.disk_bytes = max(self.disk_bytes, folder_bytes(self.disk))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@ray.remote
def make(number: int) -> np.ndarray[Any, Any]:
    return np.full(VALUE, number % 256, np.uint8)


@ray.remote
def check(value: np.ndarray[Any, Any], number: int) -> bool:
    return bool((value == number % 256).all())


def test_five_stores_are_put_and_read_within_both_limits(
    session: sessions.Session, figure: Callable[[str], None]
) -> None:
    count = 5 * STORE // VALUE
    with Watch(session) as watch:
        begin = time.monotonic()
        refs: list[Any] = [
            ray.put(np.full(VALUE, number % 256, np.uint8))
            for number in range(count // 2)
        ]
        refs += [make.remote(number) for number in range(count // 2, count)]
        ray.wait(refs, num_returns=count)
        put_s = time.monotonic() - begin
        right = sum(
            bool((ray.get(ref) == number % 256).all())
            for number, ref in enumerate(refs)
        )
        right += sum(ray.get([check.remote(ref, i) for i, ref in enumerate(refs)]))
        read_s = time.monotonic() - begin - put_s
    figure(
        f"{count} values of {VALUE // MB} MB into a store of {STORE // MB} MB: put in "
        f"{put_s:.1f} s, read twice in {read_s:.1f} s; at most "
        f"{watch.memory_bytes // MB} MB in memory, {watch.disk_bytes // MB} MB on disk"
    )

    assert right == 2 * count
    # Several writers may pass the limit by what they write at once.
    assert watch.memory_bytes <= STORE + 3 * VALUE
    assert watch.disk_bytes <= SPILL_CAP

    while len(refs) < 1000:
        try:
            refs.append(ray.put(np.full(VALUE, len(refs) % 256, np.uint8)))
        except OutOfDiskError as error:
            text = str(error)
            break
    else:
        pytest.fail("no error at the cap of the disk")
    figure(f"after {len(refs)} values: {text}")
    assert "cannot store a value of 10,000,1" in text
    assert "1.1 GiB" in text and "spill_limit_bytes" in text
    assert "test_store_limits.py:" in text and f"driver {os.getpid()}" in text
    assert folder_bytes(session.folder / "spill") <= SPILL_CAP
    values = ((number, ray.get(ref)) for number, ref in enumerate(refs))
    assert all(value[-1] == number % 256 for number, value in values)

    begin = time.monotonic()
    del refs, values
    while folder_bytes(session.folder / "spill") or folder_bytes(
        Path(session.store_dir)
    ):
        assert time.monotonic() < begin + 10, "dropped values were not removed"
        time.sleep(0.02)
    figure(f"all bytes gone {time.monotonic() - begin:.2f} s after the last reference")
    assert ray.get(ray.put(b"x" * VALUE)) == b"x" * VALUE
