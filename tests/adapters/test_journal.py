"""The journal's backends: what was put is there in the next process."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from rayshim.adapters.journal.journal import (
    Journal,
    JournalError,
    MemoryJournal,
    open_journal,
)

Opener = Callable[[], Journal]


@pytest.fixture(params=["sqlite", "redis"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same durable journal again and again."""
    url = ""
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
    return lambda: open_journal(url, folder=str(tmp_path), cluster="test")


def test_records_are_there_after_it_was_opened_again(opener: Opener) -> None:
    first = opener()
    first.put("actors", b"\x00a", b"one")
    first.put("actors", b"b", b"two")
    first.put("kv", b"b", b"other table")
    first.put("actors", b"b", b"newer")
    first.delete("actors", b"\x00a")
    first.delete("actors", b"never there")
    first.close()
    second = opener()
    assert second.load("actors") == {b"b": b"newer"}
    assert second.load("kv") == {b"b": b"other table"}
    assert second.load("groups") == {}
    second.clear()
    assert second.load("kv") == {}
    second.close()


def test_large_and_odd_records(opener: Opener) -> None:
    journal = opener()
    value = os.urandom(3 << 20)
    journal.put("kv", bytes(range(256)), value)
    assert journal.load("kv") == {bytes(range(256)): value}
    with pytest.raises(ValueError, match="not the name of a journal table"):
        journal.put("Robert'); DROP TABLE records; --", b"", b"")
    journal.close()


def test_a_killed_process_loses_nothing_that_put_returned_for(tmp_path: Path) -> None:
    script = f"""
        from rayshim.adapters.journal.journal import open_journal
        journal = open_journal("", folder={str(tmp_path)!r}, cluster="x")
        for number in range(100_000):
            journal.put("kv", str(number).encode(), b"v")
            print(number, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    last = -1
    for line in process.stdout:
        last = int(line)
        if last == 500:
            process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait()
    journal = open_journal("", folder=str(tmp_path), cluster="x")
    found = {int(key) for key in journal.load("kv")}
    assert set(range(last + 1)) <= found
    journal.close()


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_clusters_in_one_journal_do_not_meet(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite://{tmp_path}/shared.sqlite"
    if kind == "redis":
        url = request.getfixturevalue("redis_url")
    one = open_journal(url, folder="", cluster="one")
    other = open_journal(url, folder="", cluster="other")
    one.put("kv", b"k", b"v")
    assert other.load("kv") == {}
    other.clear()
    assert one.load("kv") == {b"k": b"v"}
    one.clear()
    one.close()
    other.close()


def test_the_file_is_private(tmp_path: Path) -> None:
    open_journal("", folder=str(tmp_path), cluster="x").close()
    mode = stat.S_IMODE((tmp_path / "journal.sqlite").stat().st_mode)
    assert mode == 0o600


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"this is no database" * 100)
    with pytest.raises(JournalError, match=r"broken.*cannot be opened"):
        open_journal(f"sqlite://{broken}", folder="", cluster="x")
    with pytest.raises(ValueError, match="no known kind"):
        open_journal("mysql://x", folder="", cluster="x")
    pytest.importorskip("redis")
    with pytest.raises(JournalError, match=r"127\.0\.0\.1:1"):
        open_journal("redis://:secret@127.0.0.1:1/0", folder="", cluster="x")


def test_the_password_is_not_shown() -> None:
    pytest.importorskip("redis")
    with pytest.raises(JournalError) as caught:
        open_journal("redis://:secret@127.0.0.1:1/0", folder="", cluster="x")
    assert "secret" not in str(caught.value)


def test_memory_is_for_tests() -> None:
    journal = open_journal("memory:", folder="", cluster="x")
    assert isinstance(journal, MemoryJournal)
    journal.put("kv", b"k", b"v")
    assert journal.load("kv") == {b"k": b"v"}
