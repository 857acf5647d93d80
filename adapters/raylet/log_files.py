"""The log file of one stream of an executor: rotated by size, with an index of tasks.

A file that would grow beyond its limit is renamed to ``NAME.1``, that to ``NAME.2``,
and so on; the oldest is removed. Positions count the bytes of the stream since its
begin, whatever file they are in.
"""

from __future__ import annotations

import logging
import os
from collections import deque

logger = logging.getLogger(__name__)

#: Changes of the writing task that are remembered of each stream.
MAX_MARKS = 20_000


class LogFile:
    """Takes what one stream of an executor prints.

    Args:
        path: of the file.
        max_bytes: it holds at most; 0: no limit.
        backups: rotated files that are kept.
    """

    __slots__ = ("_backups", "_bases", "_marks", "_max_bytes", "path", "position")

    def __init__(self, path: str, max_bytes: int, backups: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._backups = backups
        #: Bytes written so far, to all files.
        self.position = 0
        #: Where the file begins, then the newest rotated one, and so on.
        self._bases: deque[int] = deque([0], maxlen=backups + 1)
        #: (position, who writes from there on).
        self._marks: deque[tuple[int, str]] = deque(maxlen=MAX_MARKS)

    def append(self, data: bytes) -> None:
        """Write, into a new file if this one is full."""
        size = self.position - self._bases[0]
        if self._max_bytes and size and size + len(data) > self._max_bytes:
            self._rotate()
        try:
            descriptor = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
            )
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.debug("cannot write %s: %s", self.path, error)
            return
        self.position += len(data)

    def mark(self, who: str, ahead: int) -> None:
        """Remember who writes from a position on.

        Args:
            who: ``TASK:ATTEMPT``; empty: nobody.
            ahead: bytes that are still to be appended before.
        """
        self._marks.append((self.position + ahead, who))

    @property
    def mark_count(self) -> int:
        """Changes of the writing task that are remembered."""
        return len(self._marks)

    def ranges(self, who: str) -> list[tuple[str, int, int]]:
        """What somebody wrote, as far as it is kept: (path, offset, bytes)."""
        found: list[tuple[str, int, int]] = []
        marks = list(self._marks)
        for index, (begin, writer) in enumerate(marks):
            is_last = index + 1 == len(marks)
            end = self.position if is_last else marks[index + 1][0]
            if writer == who and end > begin:
                found += self._pieces(begin, end)
        return found

    def _pieces(self, begin: int, end: int) -> list[tuple[str, int, int]]:
        pieces: list[tuple[str, int, int]] = []
        upper = self.position
        for number, base in enumerate(self._bases):
            low, high = max(begin, base), min(end, upper)
            if low < high:
                path = f"{self.path}.{number}" if number else self.path
                pieces.append((path, low - base, high - low))
            upper = base
        return pieces[::-1]

    def _rotate(self) -> None:
        try:
            for number in range(self._backups, 0, -1):
                older = f"{self.path}.{number - 1}" if number > 1 else self.path
                if os.path.exists(older):
                    os.replace(older, f"{self.path}.{number}")
            if not self._backups:
                os.unlink(self.path)
        except OSError as error:
            logger.warning("cannot rotate %s: %s", self.path, error)
        self._bases.appendleft(self.position)
