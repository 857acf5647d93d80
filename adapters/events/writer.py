"""Writes events to a folder, in a thread that starts with the first of them.

The newest are in a spool; when that is full it becomes Arrow files, and when all files
together are too large the oldest go. pyarrow is imported for the first full spool, so
that a short session does without.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import BinaryIO

from rayshim.adapters.events import spool

logger = logging.getLogger(__name__)

#: Seconds without an event after which a full spool becomes Arrow files: that takes
#: some microseconds for each event, which a busy node had better not spend now.
QUIET_S = 1.0
#: A spool that is so many times as large as it should be does so at once.
BUSY_FACTOR = 8
#: Seconds for which the end waits for the thread.
END_LIMIT_S = 0.05


class EventWriter:
    """The files of one process.

    Thread safety: any thread may call any method.

    Args:
        folder: made when there is something to write.
        limit_bytes: that all files may have together; 0: nothing is written.
        file_bytes: of a spool that becomes Arrow files.
    """

    def __init__(self, folder: Path, *, limit_bytes: int, file_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._file_bytes = min(file_bytes, max(1, limit_bytes // (4 * BUSY_FACTOR)))
        self._queue: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        #: No Arrow files are made any more: that may take a while.
        self._is_closed = False
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._path = folder
        self._size_bytes = 0
        self._number = 0

    def add(self, kind: str, payload: bytes) -> None:
        """Has a record written soon.

        Args:
            kind: "calls" or "cluster".
            payload: as :mod:`.spool` says.
        """
        if self._limit_bytes <= 0 or self._is_closed:
            return
        self._queue.put((kind, payload))
        if self._thread is None:
            name = "rayshim-events"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Writes what is left, and no more; the newest stay in a spool.

        A spool that is just made an Arrow file, which may take a while, is not waited
        for: it stays.
        """
        if self._is_closed or self._thread is None:
            return
        self._is_closed = True
        self._queue.put(None)
        self._thread.join(END_LIMIT_S)
        try:
            with self._lock:
                self._write_queued()
                if self._file is not None:
                    self._file.close()
        except OSError:
            logger.warning("events could not be written", exc_info=True)

    def _run(self) -> None:
        while not self._is_closed:
            is_quiet, record = False, None
            try:
                is_full = self._size_bytes >= self._file_bytes
                record = self._queue.get(timeout=QUIET_S if is_full else None)
            except Empty:
                is_quiet = True
            try:
                full = None
                with self._lock:
                    if record is not None:
                        self._append(*record)
                    self._write_queued()
                    if self._file is not None:
                        self._file.flush()
                    limit_bytes = self._file_bytes * (1 if is_quiet else BUSY_FACTOR)
                    if self._size_bytes >= limit_bytes and not self._is_closed:
                        full = self._end_file()
                if full is not None:
                    self._convert(full)
            except Exception:
                # A full disk, say: what happens now is lost, not the session.
                logger.warning("events could not be written", exc_info=True)

    def _write_queued(self) -> None:
        """Writes what is in the queue, until a spool is full (under the lock)."""
        most_bytes = BUSY_FACTOR * self._file_bytes
        while self._is_closed or self._size_bytes < most_bytes:
            try:
                record = self._queue.get_nowait()
            except Empty:
                return
            if record is not None:
                self._append(*record)

    def _append(self, kind: str, payload: bytes) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        self._size_bytes += spool.append(self._file, kind, payload)

    def _open(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if not self._number:
            taken = [path.stem.rpartition("-")[2] for path in self._folder.iterdir()]
            numbers = [int(number) for number in taken if number.isdigit()]
            self._number = max(numbers, default=0)
        self._number += 1
        self._path = self._folder / f"{self._number:06}.spool"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.fdopen(os.open(self._path, flags, 0o600), "ab")
        self._size_bytes = 0

    def _end_file(self) -> Path:
        """Closes the spool: what comes next goes to another one (under the lock)."""
        assert self._file is not None
        self._file.close()
        self._file = None
        self._size_bytes = 0
        return self._path

    def _convert(self, full: Path) -> None:
        from rayshim.adapters.events import arrow_files

        arrow_files.convert(full)
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        files = sorted(self._folder.glob("*.arrow"), key=lambda path: path.stem[-6:])
        sizes = {path: path.stat().st_size for path in files}
        total = sum(sizes.values()) + self._file_bytes
        for path in files:
            if total <= self._limit_bytes:
                return
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            total -= sizes[path]
