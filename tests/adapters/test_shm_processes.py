"""The segment store between real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayshim.adapters.shm import give
from rayshim.adapters.shm.store import SegmentStore
from rayshim.adapters.wire.messages import Segment

MIB = 1 << 20


def names_in(folder):
    return sorted(p.name for p in Path(folder).iterdir() if p.name != ".views")


READER = """
import sys, gc, hashlib
import msgspec
from rayshim.adapters.shm.store import SegmentStore
from rayshim.adapters.wire.messages import Segment

store = SegmentStore(sys.argv[1], node="ab", address="unix:/reader")
held = None
for line in sys.stdin:
    verb, _, text = line.strip().partition(" ")
    if verb == "read":
        segment = msgspec.json.decode(text, type=Segment)
        held = store.read(segment, lambda: print("released", flush=True))[1][0]
        print(hashlib.md5(held).hexdigest(), flush=True)
    elif verb == "check":
        print(hashlib.md5(held).hexdigest(), flush=True)
    elif verb == "drop":
        held = None
    elif verb == "files":
        print(len(__import__("os").listdir("/proc/self/fd")), flush=True)
"""


class Reader:
    def __init__(self, folder):
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def read(self, segment):
        import msgspec

        return self.ask("read " + msgspec.json.encode(segment).decode())

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture
def folder(tmp_path):
    # Real shared memory where there is any: file systems on disks differ.
    if not os.access("/dev/shm", os.W_OK):
        yield str(tmp_path)
        return
    import shutil
    import tempfile

    path = tempfile.mkdtemp(prefix="rayshim-test-", dir="/dev/shm")
    yield path
    shutil.rmtree(path)


@pytest.fixture
def store(folder):
    made = SegmentStore(folder, node="ab", address="unix:/writer")
    yield made
    made.close()


@pytest.fixture
def reader(folder):
    made = Reader(folder)
    yield made
    made.close()


def digest(content):
    import hashlib

    return hashlib.md5(content).hexdigest()


def test_a_reader_keeps_its_view_when_the_creator_removes_the_file(
    store, folder, reader
):
    content = os.urandom(MIB)
    segment = store.write(b"s", [memoryview(content)])
    assert reader.read(segment) == digest(content)

    store.discard(segment)

    assert names_in(folder) == []
    assert reader.ask("check") == digest(content)
    assert reader.ask("drop") == "released"


def test_a_recycled_segment_shows_the_next_value_to_a_reader(store, reader):
    for number in range(5):
        content = bytes([number]) * MIB
        segment = store.write(b"s", [memoryview(content)])
        assert reader.read(segment) == digest(content)
        assert reader.ask("drop") == "released"
        store.recycle(segment.name)

    assert store.statistics().fresh_writes == 1


def test_mappings_hold_no_descriptors(store, reader):
    reader.read(store.write(b"s", [memoryview(b"x" * MIB)]))
    reader.ask("drop")
    before = reader.ask("files")

    for _ in range(20):
        reader.read(store.write(b"s", [memoryview(b"x" * MIB)]))
        reader.ask("drop")

    assert reader.ask("files") == before


def test_a_forked_child_leaves_the_parents_segments_alone(store, folder):
    live = store.write(b"s", [memoryview(b"a" * MIB)])
    free = store.write(b"s", [memoryview(b"b" * MIB)])
    store.recycle(free.name)
    released = []
    view = store.read(live, lambda: released.append(1))[1][0]

    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.recycle(live.name)
            made = store.write(b"s", [memoryview(b"c" * MIB)])
            store.recycle(made.name)
            del view
            code = 2 if released else 0
            code = 3 if made.name in (live.name, free.name) else code
            store.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert names_in(folder) == sorted([live.name, free.name + give.FREE])
    assert view == b"a" * MIB
    assert store.write(b"s", [memoryview(b"d" * MIB)]).name == free.name


def test_values_outlive_their_creator_until_discarded(store, folder):
    script = (
        "import sys, msgspec\n"
        "from rayshim.adapters.shm.store import SegmentStore\n"
        "s = SegmentStore(sys.argv[1], node='ab', address='unix:/dead')\n"
        "print(msgspec.json.encode(s.write(b's', [memoryview(b'z' * 200000)]))"
        ".decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, folder],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    import msgspec

    segment = msgspec.json.decode(done.stdout, type=Segment)
    assert store.read(segment, lambda: None)[1][0] == b"z" * 200000

    store.discard(segment)

    assert names_in(folder) == []
