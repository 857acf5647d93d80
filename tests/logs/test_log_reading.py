"""What tools may read of a node's logs."""

from __future__ import annotations

import asyncio
import os
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rayshim.adapters.raylet import log_reading
from rayshim.adapters.raylet.log_reading import LogEntry, LogPiece, ReadLog


class Server:
    """As much of a node as reading looks at."""

    def __init__(self, folder: Path) -> None:
        self.config = types.SimpleNamespace(logs_dir=str(folder))


@pytest.fixture
def server(tmp_path: Path) -> Any:
    folder = tmp_path / "logs"
    folder.mkdir()
    (tmp_path / "secret").write_text("not for you")
    return Server(folder)


def read(server: Any, **question: Any) -> LogPiece:
    data = msgspec.msgpack.encode(ReadLog(**question))
    answer = asyncio.run(log_reading.read_log(server, data))
    return msgspec.msgpack.decode(answer, type=LogPiece)


def names(server: Any, pattern: str = "*") -> list[str]:
    data = msgspec.msgpack.encode({"pattern": pattern})
    answer = asyncio.run(log_reading.list_logs(server, data))
    found = msgspec.msgpack.decode(answer, type=list[LogEntry])
    return [entry.name for entry in found]


def write(server: Any, name: str, text: str) -> Path:
    path = Path(server.config.logs_dir) / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "name", ["../secret", "..", ".", "", "/etc/passwd", "a/b", "x\0y", "logs/../x"]
)
def test_names_that_lead_elsewhere_are_refused(server: Any, name: str) -> None:
    with pytest.raises(ValueError, match="no name of a log file"):
        read(server, name=name)


def test_links_lead_nowhere(server: Any, tmp_path: Path) -> None:
    os.symlink(tmp_path / "secret", Path(server.config.logs_dir) / "link")
    assert names(server) == []
    with pytest.raises(OSError):
        read(server, name="link")


def test_pipes_are_no_logs(server: Any) -> None:
    os.mkfifo(Path(server.config.logs_dir) / "pipe")
    assert names(server) == []
    with pytest.raises(ValueError, match="no log file"):
        read(server, name="pipe")


def test_a_missing_file_is_named(server: Any) -> None:
    with pytest.raises(FileNotFoundError, match=r"no log file 'nope'.*list_logs"):
        read(server, name="nope")


def test_names_are_listed_by_pattern(server: Any) -> None:
    for name in ("b.out", "a.out", "c.err"):
        write(server, name, "")
    assert names(server) == ["a.out", "b.out", "c.err"]
    assert names(server, "*.out") == ["a.out", "b.out"]


def test_names_that_are_no_utf_8_hide_none_of_the_others(server: Any) -> None:
    write(server, "odd\udcff", "")
    write(server, "plain", "")
    assert names(server) == ["plain"]


def test_a_node_without_logs_has_none(server: Any) -> None:
    os.rmdir(server.config.logs_dir)
    assert names(server) == []


def test_pieces_follow_each_other(server: Any) -> None:
    write(server, "log", "0123456789")
    first = read(server, name="log", size_bytes=4)
    assert (first.data, first.offset, first.size_bytes) == (b"0123", 4, 10)
    rest = read(server, name="log", offset=first.offset)
    assert (rest.data, rest.offset) == (b"456789", 10)
    assert read(server, name="log", offset=99).data == b""


def test_no_piece_is_larger_than_the_limit(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reading, "MAX_PIECE_BYTES", 8)
    write(server, "log", "x" * 100)
    assert len(read(server, name="log", size_bytes=1 << 30).data) == 8
    assert read(server, name="log", size_bytes=-5).data == b""


@pytest.mark.parametrize(
    ("text", "tail", "expected"),
    [
        ("a\nb\nc\n", 1, "c\n"),
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc\n", 9, "a\nb\nc\n"),
        ("a\nb\nc", 1, "c"),
        ("a\nb\nc\n", 0, ""),
        ("", 3, ""),
        ("\n\n\n", 2, "\n\n"),
        ("x" * 200_000 + "\nlast\n", 1, "last\n"),
        ("".join(f"{n}\n" for n in range(50_000)), 3, "49997\n49998\n49999\n"),
    ],
)
def test_the_last_lines(server: Any, text: str, tail: int, expected: str) -> None:
    write(server, "log", text)
    assert read(server, name="log", tail=tail).data.decode() == expected


def test_a_file_that_was_rotated_is_read_to_its_end(server: Any) -> None:
    path = write(server, "log", "old 1\n")
    first = read(server, name="log")
    with path.open("a") as file:
        file.write("old 2\n")
    path.rename(path.with_name("log.1"))
    write(server, "log", "new\n")
    piece = read(server, name="log", offset=first.offset, inode=first.inode)
    assert (piece.data, piece.is_rotated) == (b"old 2\n", True)
    assert read(server, name="log").data == b"new\n"


def test_a_file_that_is_gone_ends(server: Any) -> None:
    write(server, "log", "new\n")
    piece = read(server, name="log", offset=3, inode=1)
    assert (piece.data, piece.is_rotated) == (b"", True)
