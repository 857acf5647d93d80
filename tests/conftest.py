"""Fixtures for every test: nothing may be left behind.

A cluster that outlives one test (a fixture of module or session scope) is looked at
when the run ends, a cluster or anything else that a test starts itself when that test
ends.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayshim.testing import leaks

#: Tests start sessions by the thousand: what these did is kept only where a test is
#: about that, in a folder of its own.
os.environ.setdefault("RAYSHIM_HISTORY_SESSIONS", "0")


def session_is_up() -> bool:
    """Whether a driver session is running, without importing anything for it."""
    if "rayshim._core.driver" not in sys.modules and "rayshim._core" not in sys.modules:
        return False
    is_initialized = getattr(sys.modules["rayshim"], "is_initialized", None)
    return bool(is_initialized and is_initialized())


@pytest.fixture(scope="session", autouse=True)
def no_leaks_at_the_end() -> Iterator[None]:
    """Fail the run if something is left after the last fixture has ended."""
    leaks.adopt_orphans()
    before = leaks.Snapshot.take()
    yield
    report(before)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves processes, threads, descriptors or folders."""
    if session_is_up():
        yield
        return
    before = leaks.Snapshot.take()
    yield
    if session_is_up():
        import rayshim

        rayshim.shutdown()
        pytest.fail("the test left a session running", pytrace=False)
    report(before)


def report(before: leaks.Snapshot) -> None:
    """Fail with what is left, after ending the processes among it."""
    left = leaks.wait_until_clean(before)
    if left:
        leaks.end_processes(before)
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    """A real Redis or Valkey server of its own, on a free loopback port."""
    server = shutil.which("redis-server") or shutil.which("valkey-server")
    if server is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    pytest.importorskip("redis")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    process = subprocess.Popen(
        [server, *arguments, "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 20
        while not _answers(port):
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
