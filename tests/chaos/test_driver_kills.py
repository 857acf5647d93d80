"""Drivers that are killed: nothing of theirs is there five seconds later."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil

KILLS = 50
LIMIT_S = 5.0

DRIVER = """
    import os, random, sys, time
    import rayshim as ray

    ray.init(num_cpus=2, log_to_driver=False)

    @ray.remote
    def work(size):
        time.sleep(random.random() / 10)
        return bytes(size)

    @ray.remote
    def nest(depth):
        return ray.get(nest.remote(depth - 1)) if depth else os.getpid()

    @ray.remote
    class Counter:
        def add(self):
            return bytes(300_000)

    actors = [Counter.remote() for _ in range(2)]
    kept = [ray.put(bytes(1_000_000)) for _ in range(4)]
    ray.get([actor.add.remote() for actor in actors])
    print("SESSION", ray.get_runtime_context().get_session_name(), flush=True)
    while True:
        ray.get([work.remote(500_000) for _ in range(8)] + [nest.remote(2)])
"""


def test_killed_drivers_leave_nothing(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    slowest = 0.0
    for number in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if number % 10 == 9:
            # In the middle of its start.
            time.sleep(0.05 + 0.02 * number)
            pids = family(process.pid)
        else:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("SESSION")
            time.sleep(0.01 * (number % 7))
            pids = family(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        killed = time.monotonic()
        process.communicate()
        while left := leftovers(process.pid, pids):
            assert time.monotonic() - killed < LIMIT_S, left
            time.sleep(0.02)
        slowest = max(slowest, time.monotonic() - killed)
    figure(f"{KILLS} drivers killed, nothing left after {slowest:.2f} s at most")


def family(pid: int) -> dict[int, float]:
    """Descendants of a process: pid -> start time, since pids are used again."""
    found = {}
    for process in psutil.Process(pid).children(recursive=True):
        try:
            found[process.pid] = process.create_time()
        except psutil.NoSuchProcess:
            continue
    return found


def leftovers(pid: int, pids: dict[int, float]) -> list[str]:
    """What is still there of a driver."""
    left = []
    for child, started in pids.items():
        try:
            process = psutil.Process(child)
            gone = process.create_time() != started
            if not gone and process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"process {child}: {' '.join(process.cmdline())[:80]}")
        except psutil.NoSuchProcess:
            continue
    ours = re.compile(rf"\bs{pid}-[0-9a-f]+")
    root = Path(tempfile.gettempdir()) / f"rayshim-{os.getuid()}"
    for folder in (Path("/dev/shm"), root):
        if folder.is_dir():
            left += [str(path) for path in folder.iterdir() if ours.search(path.name)]
    return left
