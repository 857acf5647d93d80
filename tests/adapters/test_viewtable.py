"""The table of views, across processes and their deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rayshim.adapters.shm import viewtable
from rayshim.adapters.shm.viewtable import ViewTable, fingerprint, look

VIEWER = """
import sys
from rayshim.adapters.shm.viewtable import ViewTable, fingerprint
table = ViewTable(sys.argv[1], "abc")
table.enter(fingerprint("abc-1"))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path)


def test_a_view_is_seen_while_it_lives(folder):
    table = ViewTable(folder, "aa")
    slot = table.enter(fingerprint("aa-1"))
    assert look(folder).has("aa-1") and not look(folder).has("aa-2")

    table.leave(slot)

    assert look(folder).words == set() and look(folder).tags == {"aa"}
    table.close()
    assert look(folder).tags == set()


def test_two_views_of_one_segment_end_one_by_one(folder):
    table = ViewTable(folder, "aa")
    first, second = (table.enter(fingerprint("aa-1")) for _ in range(2))

    table.leave(first)
    assert look(folder).has("aa-1")
    table.leave(second)
    assert not look(folder).has("aa-1")
    table.close()


def test_slots_are_used_again(folder):
    table = ViewTable(folder, "aa")
    for _ in range(10):
        table.leave(table.enter(5))
    assert table.words[0] == 1
    table.close()


def test_views_beyond_the_table_are_not_listed(folder, monkeypatch):
    monkeypatch.setattr(viewtable, "MAX_SLOTS", 2)
    table = ViewTable(folder, "aa")

    slots = [table.enter(number) for number in (3, 5, 7)]

    assert slots == [1, 2, 0]
    for slot in slots:
        table.leave(slot)
    assert table.enter(9) in (1, 2)
    table.close()


def test_threads_get_slots_of_their_own(folder):
    table = ViewTable(folder, "aa")
    slots: list[int] = []
    threads = [
        threading.Thread(target=lambda: slots.extend(table.enter(9) for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(slots)) == 200
    table.close()


def test_what_a_killed_process_viewed_counts_no_more(folder):
    viewer = subprocess.Popen(
        [sys.executable, "-c", VIEWER, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with viewer:
        assert viewer.stdout.readline() == b"ready\n"
        assert look(folder).has("abc-1")

        viewer.send_signal(signal.SIGKILL)
        viewer.wait()

        assert look(folder).words == set() and look(folder).tags == set()
        assert list(Path(folder, viewtable.FOLDER).iterdir()) == []


def test_a_forked_child_keeps_the_views_of_its_dead_parent(folder):
    go_read, go_write = os.pipe()
    parent = os.fork()
    if parent == 0:
        table = ViewTable(folder, "aa")
        table.enter(fingerprint("aa-1"))
        if os.fork() == 0:
            os.close(go_write)
            os.read(go_read, 1)
        os._exit(0)
    os.waitpid(parent, 0)
    try:
        assert look(folder).has("aa-1")
    finally:
        os.close(go_write)
        os.close(go_read)


def test_an_unknown_store_has_no_viewers(folder):
    assert look(folder + "/missing").words == set()
