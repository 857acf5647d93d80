"""What tools may read of a node's logs: names and pieces, never paths.

Answers the questions ``list_logs`` and ``read_log``. A name is one of those that
``list_logs`` tells, so nothing outside the folder can be named, and links lead nowhere.
Nothing here runs longer than a piece takes; reading is done in a thread.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import stat
from typing import TYPE_CHECKING

import msgspec

from rayshim.adapters.wire.codec import as_text

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import ChannelServer
    from rayshim.adapters.raylet.server import NodeServer

#: Bytes of an answer at most.
MAX_PIECE_BYTES = 1 << 20
#: Bytes that are looked through for the last lines of a file.
MAX_TAIL_BYTES = 256 << 20
_BLOCK_BYTES = 1 << 16


class ListLogs(msgspec.Struct):
    """The question ``list_logs``."""

    #: Pattern of names, as in a shell.
    pattern: str = "*"


class LogEntry(msgspec.Struct, array_like=True):
    """One file."""

    name: str
    size_bytes: int
    #: Seconds since the epoch.
    changed_s: float


class ReadLog(msgspec.Struct):
    """The question ``read_log``: about a file, or what one task printed."""

    name: str = ""
    #: Where to begin; ignored with ``tail``.
    offset: int = 0
    size_bytes: int = MAX_PIECE_BYTES
    #: Begin with so many last lines; -1: do not.
    tail: int = -1
    #: Of the file that was read before; 0: any. A file that was rotated since is read
    #: to its end under its new name.
    inode: int = 0
    #: Task id in hex, instead of a name: answered by where its lines are.
    task_id: str = ""
    attempt: int = 0
    #: "out" or "err", for a task.
    suffix: str = "out"


class LogPiece(msgspec.Struct):
    """The answer."""

    data: bytes = b""
    #: Where the next piece begins.
    offset: int = 0
    #: Of the file.
    size_bytes: int = 0
    inode: int = 0
    #: The file was rotated: what follows is in a new one, from its begin.
    is_rotated: bool = False
    #: Of a task's lines: (name, offset, bytes).
    ranges: list[tuple[str, int, int]] = []


def check_name(name: str) -> str:
    """The name, if it is that of a file in the folder of logs.

    Raises:
        ValueError: it is a path, or empty, or has other bytes that no log's name has.
    """
    is_plain = name and name not in (".", "..") and name == os.path.basename(name)
    if not is_plain or "\0" in name:
        raise ValueError(
            f"{name!r} is no name of a log file: names have no folder, as list_logs() "
            "tells them"
        )
    return name


async def list_logs(server: ChannelServer, payload: bytes) -> bytes:
    """Answers ``list_logs``: a list of :class:`LogEntry`."""
    wanted = msgspec.msgpack.decode(payload or b"\x80", type=ListLogs)
    found = await asyncio.to_thread(_list, server.config.logs_dir, wanted.pattern)
    return msgspec.msgpack.encode(found)


def _list(folder: str, pattern: str) -> list[LogEntry]:
    found: list[LogEntry] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_text = as_text(entry.name) == entry.name
                if not is_text or not fnmatch.fnmatchcase(entry.name, pattern):
                    continue
                try:
                    about = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # it was rotated away just now
                if stat.S_ISREG(about.st_mode):
                    found.append(LogEntry(entry.name, about.st_size, about.st_mtime))
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda one: one.name)


async def read_log(server: NodeServer, payload: bytes) -> bytes:
    """Answers ``read_log``: a :class:`LogPiece`.

    Raises:
        ValueError: the name is none of a log file.
        FileNotFoundError: there is no such file.
    """
    wanted = msgspec.msgpack.decode(payload, type=ReadLog)
    if wanted.task_id:
        return msgspec.msgpack.encode(_of_task(server, wanted))
    check_name(wanted.name)
    piece = await asyncio.to_thread(_read, server.config.logs_dir, wanted)
    return msgspec.msgpack.encode(piece)


def _of_task(server: NodeServer, wanted: ReadLog) -> LogPiece:
    who = f"{wanted.task_id}:{wanted.attempt}"
    ranges = [
        (os.path.basename(path), offset, size)
        for file in server.logs.files()
        if file.path.endswith(f".{wanted.suffix}")
        for path, offset, size in file.ranges(who)
    ]
    return LogPiece(ranges=ranges)


def _read(folder: str, wanted: ReadLog) -> LogPiece:
    path = os.path.join(folder, wanted.name)
    is_rotated = False
    if wanted.inode:
        found = _find_inode(folder, wanted.name, wanted.inode)
        is_rotated = found != path
        if not found:
            # Rotated so often that it is gone.
            return LogPiece(is_rotated=True)
        path = found
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"this node has no log file {wanted.name!r}; list_logs() tells which it has"
        ) from None
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"{wanted.name!r} is no log file")
        offset = min(max(0, wanted.offset), about.st_size)
        if wanted.tail >= 0:
            offset = _tail_offset(descriptor, about.st_size, wanted.tail)
        file.seek(offset)
        data = file.read(max(0, min(wanted.size_bytes, MAX_PIECE_BYTES))) or b""
        end = offset + len(data)
        return LogPiece(
            data,
            end,
            about.st_size,
            about.st_ino,
            is_rotated and end >= about.st_size,
        )


def _find_inode(folder: str, name: str, inode: int) -> str:
    for candidate in (name, *(f"{name}.{number}" for number in range(1, 100))):
        path = os.path.join(folder, candidate)
        try:
            if os.lstat(path).st_ino == inode:
                return path
        except OSError:
            if candidate != name:
                return ""
    return ""


def _tail_offset(descriptor: int, size: int, lines: int) -> int:
    """Where the last lines of a file begin."""
    if lines == 0:
        return size
    # An end of line at the very end ends the last line; it begins none.
    missing = lines
    end = size
    if size and os.pread(descriptor, 1, size - 1) == b"\n":
        end -= 1
    position = end
    while position > 0 and size - position < MAX_TAIL_BYTES:
        begin = max(0, position - _BLOCK_BYTES)
        block = os.pread(descriptor, position - begin, begin)
        count = block.count(b"\n")
        if count >= missing:
            place = len(block)
            for _ in range(missing):
                place = block.rindex(b"\n", 0, place)
            return begin + place + 1
        missing -= count
        position = begin
    return position
