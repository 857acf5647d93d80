"""The leak fixture sees what it must and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from rayshim.testing import leaks
from rayshim.testing.leaks import Snapshot


def test_nothing_new_is_no_leak() -> None:
    before = Snapshot.take()

    assert Snapshot.take().leaks_since(before) == []


def test_a_running_child_is_a_leak_until_it_ends() -> None:
    before = Snapshot.take()
    with subprocess.Popen(["sleep", "60"]) as child:
        found = leaks.wait_until_clean(before, deadline_s=0)
        leaks.end_processes(before)

    assert found == [f"process {child.pid}: sleep 60"]
    assert leaks.wait_until_clean(before) == []


def test_an_orphaned_grandchild_is_a_leak() -> None:
    before = Snapshot.take()
    subprocess.run(["sh", "-c", "sleep 61 >&- 2>&- &"], check=True)

    found = leaks.wait_until_clean(before, deadline_s=0)
    leaks.end_processes(before)

    assert len(found) == 1
    assert "sleep 61" in found[0]
    assert leaks.wait_until_clean(before) == []


def test_a_thread_is_a_leak_unless_it_is_a_daemon() -> None:
    before = Snapshot.take()
    end = threading.Event()
    threads = [
        threading.Thread(target=end.wait, name=name, daemon=name == "daemon")
        for name in ("daemon", "plain")
    ]
    for thread in threads:
        thread.start()

    found = Snapshot.take().leaks_since(before)
    end.set()
    for thread in threads:
        thread.join()

    assert found == ["thread plain"]


def test_many_descriptors_are_a_leak() -> None:
    before = Snapshot.take()
    files = [tempfile.TemporaryFile() for _ in range(leaks.SPARE_DESCRIPTORS + 1)]

    found = Snapshot.take().leaks_since(before)
    for file in files:
        file.close()

    assert len(found) == 1
    assert found[0].startswith(f"{leaks.SPARE_DESCRIPTORS + 1} file descriptors: ")


@pytest.mark.parametrize(
    ("process", "is_leak"), [("dead", True), ("own", True), ("other", False)]
)
def test_a_session_folder_is_a_leak_of_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: str, is_leak: bool
) -> None:
    monkeypatch.setattr(leaks, "SHM_FOLDER", tmp_path)
    before = Snapshot.take()
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    pid = {"dead": int(dead.stdout), "own": os.getpid(), "other": 1}[process]
    folder = tmp_path / f"rayshim-s{pid}-0011aabb-00000000"
    folder.mkdir()

    found = Snapshot.take().leaks_since(before)

    assert found == ([f"folder {folder}"] if is_leak else [])
