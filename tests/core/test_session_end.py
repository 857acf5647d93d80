"""How sessions end, whatever ends them, and how they start full of long calls."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rayshim as ray
from live_session import (
    DEADLINE_S,
    LARGE,
    READY,
    echo,
    is_running,
    large,
    pid,
    start,
    wait_until,
    work,
)
from rayshim import exceptions
from rayshim._core import session as sessions

Start = Callable[..., sessions.Session]


@pytest.fixture
def bare() -> Iterator[Start]:
    """Start sessions that the test may destroy."""
    yield start
    ray.shutdown()


# The end.


@pytest.mark.slow
def test_shutdown_leaves_nothing(bare: Start) -> None:
    session = bare(2)
    executor, node = ray.get(pid.remote()), session._process
    ref = ray.put(large())
    assert node is not None
    ray.shutdown()
    assert not session.folder.exists()
    assert not session.store_dir.exists()
    wait_until(lambda: not is_running(executor) and not is_running(node.pid))
    del ref


@pytest.mark.slow
def test_a_view_outlives_its_session(bare: Start) -> None:
    bare()
    value = ray.get(ray.put(large()))
    ray.shutdown()
    assert float(value.sum()) == LARGE // 8


@pytest.mark.slow
def test_references_of_an_ended_session_say_so(
    bare: Start,
) -> None:
    bare()
    old = ray.put(1)
    ray.shutdown()
    bare()
    for use in (ray.get, ray.wait):
        with pytest.raises(ValueError, match="does not belong to the session"):
            use([old])
    with pytest.raises(ValueError, match="does not belong to the session"):
        ray.get(echo.remote(old))
    assert old.hex() in repr(old)
    del old
    assert ray.get(echo.remote(2)) == 2


@pytest.mark.slow
def test_sessions_follow_each_other(bare: Start) -> None:
    names = set()
    for number in range(3):
        names.add(bare().name)
        assert ray.get(echo.remote(number)) == number
        ray.shutdown()
    assert len(names) == 3


DRIVER = """
    import os, sys, time
    import numpy as np
    import rayshim as ray
    from rayshim._core import session as sessions

    @ray.remote
    def work(seconds):
        time.sleep(seconds)
        return os.getpid()

    @ray.remote
    class Actor:
        def pid(self):
            return os.getpid()

    ray.init(num_cpus=3, log_to_driver=False)
    kept = ray.put(np.ones(1 << 17))
    busy = work.remote(60)
    actor = Actor.remote()
    session = sessions.session
    print(session.folder, session.store_dir, session._process.pid,
          ray.get(work.remote(0)), ray.get(actor.pid.remote()), flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_death_of_the_driver_leaves_nothing(number: int) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert driver.stdout is not None
        words = driver.stdout.readline().split()
        folder, store, *pids = Path(words[0]), Path(words[1]), *map(int, words[2:])
        assert folder.exists() and store.exists()
        assert all(is_running(one) for one in pids)
        driver.send_signal(number)
        driver.wait(DEADLINE_S)
        wait_until(
            lambda: (
                not any(is_running(one) for one in pids)
                and not folder.exists()
                and not store.exists()
            ),
            deadline_s=5.0,
        )
    finally:
        driver.kill()
        driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()


@pytest.mark.slow
def test_the_death_of_the_node_process_is_an_error(
    bare: Start,
) -> None:
    session = bare()
    ref = work.remote(60)
    ray.wait([ref], timeout=0.3)
    assert session._process is not None
    os.kill(session._process.pid, signal.SIGKILL)
    with pytest.raises(exceptions.RayError, match=r"(?i)raylet|node"):
        ray.get(ref, timeout=DEADLINE_S)
    ray.shutdown()
    assert not session.folder.exists()
    assert not session.store_dir.exists()


# Scheduling.


@pytest.mark.slow
@pytest.mark.parametrize("long_first", [True, False])
def test_short_calls_pass_long_ones_while_a_cpu_idles(
    bare: Start, long_first: bool
) -> None:
    """Two of three CPUs are taken; 40 short calls need nothing but the third."""
    bare(3, **READY)
    order = [1.5] * 2 + [0.001] * 40 if long_first else [0.001] * 40 + [1.5] * 2
    ends = ray.get([work.remote(seconds) for seconds in order])
    longs, shorts = (ends[:2], ends[2:]) if long_first else (ends[-2:], ends[:-2])
    assert max(shorts) < min(longs) - 0.3


@pytest.mark.slow
def test_calls_that_wait_free_their_cpus(bare: Start) -> None:
    bare(1)
    assert ray.get(depth.remote(4), timeout=20) == 4


@ray.remote
def depth(levels: int) -> int:
    return 1 + ray.get(depth.remote(levels - 1)) if levels else 0


def test_the_next_session_removes_what_killed_ones_left() -> None:
    base = tempfile.mkdtemp(prefix="rs")  # a short path: sockets lie below it
    root = Path(base) / f"rayshim-{os.getuid()}"
    dead = root / "s4194305-00000000"  # above the largest pid
    (dead / "sockets").mkdir(parents=True)
    store = Path("/dev/shm") / f"rayshim-{dead.name}-00000000"
    store.mkdir()
    (store / "segment").write_bytes(b"x")
    os.utime(dead, (0, 0))
    try:
        with ray.init(num_cpus=1, _temp_dir=base, log_to_driver=False):
            assert not dead.exists()
            assert not store.exists()
    finally:
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(base, ignore_errors=True)


def test_a_child_forked_from_a_task_cannot_use_the_session() -> None:
    @ray.remote
    def fork_and_use() -> str:
        reader, writer = os.pipe()
        if not (child := os.fork()):
            try:
                ray.put(1)
                text = "it could"
            except RuntimeError as error:
                text = str(error)
            os.write(writer, text.encode())
            os._exit(0)
        os.waitpid(child, 0)
        return os.read(reader, 1000).decode()

    with ray.init(num_cpus=1, log_to_driver=False):
        assert "forked" in ray.get(fork_and_use.remote())


def test_what_fails_to_close_keeps_no_session_open(bare: Start) -> None:
    bare()
    closed = []
    sessions.before_close.append(lambda: closed.append(1))

    def fail() -> None:
        raise RuntimeError("it is broken")

    sessions.before_close.append(fail)
    ray.shutdown()
    assert closed and not ray.is_initialized()
