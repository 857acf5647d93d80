"""Reads what executors print, names it, and hands whole lines on.

A line that starts with the byte 0x1e names the task or actor that writes from then
on; with 0x1d after that, it gives the id and attempt of the call. It is not shown.
Everything else goes to a file for each executor and stream, with Ray's name, and as
text to whoever asked.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator

from rayshim.adapters.raylet.config import NodeConfig
from rayshim.adapters.raylet.log_files import LogFile

logger = logging.getLogger(__name__)

MARK = b"\x1e"
#: Follows the mark where a call is named, not what is shown.
CALL = b"\x1d"
READ_BYTES = 1 << 16
#: A longer line is cut.
MAX_LINE_BYTES = 1 << 20
#: Seconds that an unfinished line waits for its end.
PARTIAL_LIMIT_S = 0.1

#: Ended executors whose files' tasks can still be told apart, and changes of the
#: writing task that are remembered of all of them.
MAX_ENDED, MAX_ENDED_MARKS = 1000, 200_000
#: Ray's files have the id of a job here; executors are started before they have one.
NO_JOB = "ffffffff"

#: Seconds until a worker whose lines do not go out is read again.
CONGESTION_PAUSE_S = 0.02

#: ``(worker_id, pid, name, "out" or "err", lines)``
LinesHandler = Callable[[bytes, int, str, str, list[str]], None]


class _Stream:
    """One pipe."""

    __slots__ = ("descriptor", "file", "kind", "name", "rest", "timer", "worker")

    def __init__(
        self, worker: _Writer, kind: str, descriptor: int, file: LogFile
    ) -> None:
        self.worker = worker
        self.kind = kind
        self.descriptor = descriptor
        self.file = file
        self.name = ""
        self.rest = b""
        self.timer: asyncio.TimerHandle | None = None


class _Writer:
    """One executor."""

    __slots__ = ("pid", "streams", "worker_id")

    def __init__(self, worker_id: bytes, pid: int) -> None:
        self.worker_id = worker_id
        self.pid = pid
        self.streams: list[_Stream] = []


class LogRelay:
    """The pipes of all executors of a node.

    Args:
        config: Says where the files are, and in its settings how large they get.
        on_lines: Takes whole lines.
        is_congested: Whether a worker's lines go out slower than they come in, so
            that the worker has to wait.
    """

    def __init__(
        self,
        config: NodeConfig,
        on_lines: LinesHandler,
        is_congested: Callable[[bytes], bool],
    ) -> None:
        self._logs_dir = config.logs_dir
        self._max_bytes = int(config.settings.get("rotation_max_bytes", 0))
        self._backups = int(config.settings.get("rotation_backup_count", 5))
        self._on_lines = on_lines
        self._is_congested = is_congested
        self._loop = asyncio.get_running_loop()
        #: Worker id -> its open pipes.
        self._writers: dict[bytes, _Writer] = {}
        #: The files of executors that ended, oldest first.
        self._ended: OrderedDict[bytes, list[LogFile]] = OrderedDict()
        self._ended_marks = 0

    def add(self, worker_id: bytes, pid: int, out: int, err: int) -> None:
        """Takes the read ends of an executor's pipes over."""
        writer = _Writer(worker_id, pid)
        stem = os.path.join(self._logs_dir, f"worker-{worker_id.hex()}-{NO_JOB}-{pid}")
        for kind, descriptor in (("out", out), ("err", err)):
            os.set_blocking(descriptor, False)
            file = LogFile(f"{stem}.{kind}", self._max_bytes, self._backups)
            stream = _Stream(writer, kind, descriptor, file)
            writer.streams.append(stream)
            self._loop.add_reader(descriptor, self._readable, stream)
        self._writers[worker_id] = writer

    def drain(self, worker_id: bytes) -> None:
        """Reads and hands on all that a dead executor left, then forgets it."""
        writer = self._writers.pop(worker_id, None)
        if writer is None:
            return
        for stream in list(writer.streams):
            while stream.descriptor >= 0 and self._read(stream):
                pass
            self._close(stream)
        self._ended[worker_id] = [stream.file for stream in writer.streams]
        self._ended_marks += sum(stream.file.mark_count for stream in writer.streams)
        while len(self._ended) > MAX_ENDED or self._ended_marks > MAX_ENDED_MARKS:
            _, files = self._ended.popitem(last=False)
            self._ended_marks -= sum(file.mark_count for file in files)

    def files(self) -> Iterator[LogFile]:
        """Those of executors that run, and of the last that ended."""
        for writer in self._writers.values():
            yield from (stream.file for stream in writer.streams)
        for files in self._ended.values():
            yield from files

    def close(self) -> None:
        """Drains all."""
        for worker_id in list(self._writers):
            self.drain(worker_id)

    def _readable(self, stream: _Stream) -> None:
        if self._is_congested(stream.worker.worker_id):
            # The pipe fills up, and the executor's print waits.
            self._loop.remove_reader(stream.descriptor)
            self._loop.call_later(CONGESTION_PAUSE_S, self._resume, stream)
        else:
            self._read(stream)

    def _resume(self, stream: _Stream) -> None:
        if stream.descriptor >= 0:
            self._loop.add_reader(stream.descriptor, self._readable, stream)

    def _read(self, stream: _Stream) -> bool:
        """Takes one piece; False when there is no more for now."""
        try:
            data = os.read(stream.descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(stream)
            return False
        self._split(stream, data)
        return True

    def _split(self, stream: _Stream, data: bytes) -> None:
        pieces = (stream.rest + data).split(b"\n")
        rest = pieces.pop()
        if len(rest) > MAX_LINE_BYTES:
            pieces.append(rest)
            rest = b""
        stream.rest = rest
        self._emit(stream, pieces)
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        if rest and MARK not in rest:
            stream.timer = self._loop.call_later(
                PARTIAL_LIMIT_S, self._flush_partial, stream
            )

    def _emit(self, stream: _Stream, pieces: list[bytes]) -> None:
        lines: list[bytes] = []
        written: list[bytes] = []
        ahead = 0
        for piece in pieces:
            if MARK not in piece:
                lines.append(piece)
                ahead += len(piece) + 1
                continue
            before, _, name = piece.rpartition(MARK)
            while MARK in before:
                # Marks without a line between them: only the last one counts.
                before, _, _ = before.rpartition(MARK)
            if before:
                lines.append(before)
                ahead += len(before) + 1
            if name.startswith(CALL):
                stream.file.mark(name[1:].decode(errors="replace"), ahead)
                continue
            if lines:
                self._hand_on(stream, lines)
                written += lines
                lines = []
            stream.name = name.decode(errors="replace")
        if lines:
            self._hand_on(stream, lines)
            written += lines
        if written:
            stream.file.append(b"\n".join(written) + b"\n")

    def _hand_on(self, stream: _Stream, lines: list[bytes]) -> None:
        writer = stream.worker
        text = [line.decode(errors="replace").rstrip("\r") for line in lines]
        self._on_lines(writer.worker_id, writer.pid, stream.name, stream.kind, text)

    def _flush_partial(self, stream: _Stream) -> None:
        stream.timer = None
        if stream.rest:
            rest, stream.rest = stream.rest, b""
            self._emit(stream, [rest])

    def _close(self, stream: _Stream) -> None:
        if stream.descriptor < 0:
            return
        self._loop.remove_reader(stream.descriptor)
        os.close(stream.descriptor)
        stream.descriptor = -1
        if stream.timer is not None:
            stream.timer.cancel()
        self._flush_partial(stream)
