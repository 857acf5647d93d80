"""How fast this machine copies memory: the bound of the lines on large puts.

    python benchmarks/plain_copy.py --megabytes 256

Prints the bandwidth of copying an array into memory that was used before, into fresh
shared memory through a new mapping, and into a fresh shared-memory file by ``pwrite``.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from harness import BANDWIDTH, Result

SHARED_MEMORY = Path("/dev/shm")


def copy_into_used(source: np.ndarray) -> Callable[[], None]:
    """Copy into the same mapped memory again and again."""
    target = np.empty_like(source)
    target[:] = 0
    return lambda: np.copyto(target, source)


def copy_into_new_mapping(source: np.ndarray) -> Callable[[], None]:
    """Copy into a file of shared memory that is mapped for the first time."""

    def run() -> None:
        with tempfile.TemporaryFile(dir=SHARED_MEMORY) as file:
            os.ftruncate(file.fileno(), source.nbytes)
            with mmap.mmap(file.fileno(), source.nbytes) as memory:
                target = np.frombuffer(memory, dtype=source.dtype)
                np.copyto(target, source)
                del target

    return run


def write_into_new_file(source: np.ndarray) -> Callable[[], None]:
    """Write into a new file of shared memory, without a mapping."""
    data = memoryview(source).cast("B")

    def run() -> None:
        with tempfile.TemporaryFile(dir=SHARED_MEMORY) as file:
            written = 0
            while written < len(data):
                written += os.pwrite(file.fileno(), data[written:], written)

    return run


def bandwidth(operation: Callable[[], None], size_bytes: int) -> float:
    """Bandwidth of one repetition, in GB/s."""
    start = time.perf_counter()
    operation()
    return size_bytes / 1e9 / (time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256, help="size of the array")
    parser.add_argument("--trials", type=int, default=9, help="the median counts")
    options = parser.parse_args()

    source = np.ones(options.megabytes * 1024 * 1024 // 8, dtype=np.int64)
    for name, operation in {
        "copy into used memory": copy_into_used(source),
        "copy into fresh shared memory, mapped": copy_into_new_mapping(source),
        "copy into fresh shared memory, pwrite": write_into_new_file(source),
    }.items():
        operation()
        samples = [bandwidth(operation, source.nbytes) for _ in range(options.trials)]
        print(Result(name, BANDWIDTH, statistics.median(samples), samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
