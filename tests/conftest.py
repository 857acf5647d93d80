"""Fixtures for every test: nothing may be left behind.

A cluster that outlives one test (a fixture of module or session scope) is looked at
when the run ends, a cluster or anything else that a test starts itself when that test
ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from rayshim.testing import leaks


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
