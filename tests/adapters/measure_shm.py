"""Measures ways to get a value into shared memory, in alternation.

    python tests/adapters/measure_shm.py [MiB] [rounds]

Not a test: the figures depend on the machine. ``adapters/shm/store.py`` quotes them.
"""

from __future__ import annotations

import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rayshim.adapters.shm.mapping import Mapping, _move_without_gil

MADV_POPULATE_WRITE = 23


def measure(size_bytes: int, rounds: int, folder: Path) -> None:
    """Prints the median and the best rate of each way."""
    source = memoryview(os.urandom(size_bytes))
    path = folder / "segment"
    warm = folder / "warm"
    warm.write_bytes(source)
    mapped = Mapping(str(warm), size_bytes, writable=True)
    mapped.populate(size_bytes)

    def write(fd: int, chunk_bytes: int = size_bytes) -> None:
        at = 0
        while at < size_bytes:
            at += os.pwrite(fd, source[at : at + chunk_bytes], at)

    def copy(fd: int, *, flags: int = 0, populate: bool = False) -> None:
        os.ftruncate(fd, size_bytes)
        with mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED | flags) as target:
            if populate:
                target.madvise(MADV_POPULATE_WRITE)
            target[:] = source

    def allocate(fd: int) -> None:
        os.posix_fallocate(fd, 0, size_bytes)

    def fresh(fill: Callable[[int], None]) -> Callable[[], None]:
        def run() -> None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                fill(fd)
            finally:
                os.close(fd)

        return run

    def rewrite() -> None:
        fd = os.open(warm, os.O_RDWR)
        try:
            write(fd)
        finally:
            os.close(fd)

    def remap() -> None:
        again = Mapping(str(warm), size_bytes, writable=True)
        again.populate(size_bytes)
        again.copy_in(0, source)

    def one_thread() -> None:
        _move_without_gil(mapped.address, source.obj, size_bytes)

    ways: dict[str, Callable[[], None]] = {
        "recycled, mapped, one thread": one_thread,
        "recycled, mapped, as the store does": lambda: mapped.copy_in(0, source),
        "recycled, new mapping, populated": remap,
        "recycled, pwrite": rewrite,
        "fresh, pwrite": fresh(write),
        "fresh, pwrite by 1 MiB": fresh(lambda fd: write(fd, 1 << 20)),
        "fresh, fallocate, pwrite": fresh(lambda fd: (allocate(fd), write(fd))[1]),
        "fresh, MADV_POPULATE_WRITE, copy": fresh(lambda fd: copy(fd, populate=True)),
        "fresh, fallocate, populate, copy": fresh(
            lambda fd: (allocate(fd), copy(fd, populate=True))[1]
        ),
        "fresh, MAP_POPULATE, copy": fresh(
            lambda fd: copy(fd, flags=mmap.MAP_POPULATE)
        ),
        "fresh, plain mapping, copy": fresh(copy),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            rates[name].append(size_bytes / 1e9 / (time.perf_counter() - start))
            path.unlink(missing_ok=True)
    for name, found in rates.items():
        sys.stdout.write(
            f"{name:38} {statistics.median(found):6.2f} GB/s, best {max(found):.2f}\n"
        )


if __name__ == "__main__":
    mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory(dir="/dev/shm") as made:
        measure(mebibytes << 20, repeats, Path(made))
