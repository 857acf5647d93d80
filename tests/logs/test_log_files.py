"""Files of executors: rotated, and whose lines are where."""

from __future__ import annotations

import os
from pathlib import Path

from rayshim.adapters.raylet.log_files import LogFile


def read(pieces: list[tuple[str, int, int]]) -> bytes:
    found = b""
    for path, offset, size in pieces:
        data = Path(path).read_bytes()[offset : offset + size]
        assert len(data) == size
        found += data
    return found


def test_a_file_that_would_be_too_large_begins_anew(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), 10, 2)
    for line in (b"one..\n", b"two..\n", b"three\n", b"four.\n"):
        file.append(line)
    assert (tmp_path / "log").read_bytes() == b"four.\n"
    assert (tmp_path / "log.1").read_bytes() == b"three\n"
    assert (tmp_path / "log.2").read_bytes() == b"two..\n"
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1", "log.2"]


def test_without_a_limit_nothing_is_rotated(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), 0, 5)
    for _ in range(100):
        file.append(b"x" * 100)
    assert os.listdir(tmp_path) == ["log"]


def test_without_backups_old_lines_go(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), 4, 0)
    file.append(b"old\n")
    file.append(b"new\n")
    assert os.listdir(tmp_path) == ["log"]
    assert (tmp_path / "log").read_bytes() == b"new\n"


def test_a_line_larger_than_the_limit_has_a_file_of_its_own(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), 4, 5)
    file.append(b"a very long line\n")
    file.append(b"b\n")
    assert (tmp_path / "log.1").read_bytes() == b"a very long line\n"


def test_lines_are_private(tmp_path: Path) -> None:
    LogFile(str(tmp_path / "log"), 0, 5).append(b"x\n")
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_lines_of_a_task_are_found(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), 0, 5)
    for who, line in (("a:0", b"1\n"), ("b:0", b"2\n"), ("a:0", b"3\n")):
        file.mark(who, 0)
        file.append(line)
    assert read(file.ranges("a:0")) == b"1\n3\n"
    assert read(file.ranges("b:0")) == b"2\n"
    assert file.ranges("a:1") == []


def test_a_mark_may_come_with_lines_before_it(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), 0, 5)
    file.mark("a:0", 0)
    file.mark("b:0", len(b"of a\n"))
    file.append(b"of a\nof b\n")
    assert read(file.ranges("a:0")) == b"of a\n"
    assert read(file.ranges("b:0")) == b"of b\n"


def test_lines_of_a_task_are_found_in_rotated_files(tmp_path: Path) -> None:
    file = LogFile(str(tmp_path / "log"), 8, 2)
    file.mark("a:0", 0)
    lines = [f"line{number}\n".encode() for number in range(5)]
    for line in lines:
        file.append(line)
    assert read(file.ranges("a:0")) == b"".join(lines[2:])  # the oldest are gone
