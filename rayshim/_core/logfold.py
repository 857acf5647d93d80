"""Folding of log lines that several processes print alike.

The first line of its kind is passed on at once; what other processes print like it
within a window is counted and becomes one line, ``text [repeated 3x across cluster]``.
Lines are alike when they differ in numbers only. A process alone is never folded: what
it repeats it means, as in a progress display. This is what Ray's drivers do.
"""

from __future__ import annotations

import math
import re

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_HINT = " (lines that repeat are folded; RAY_DEDUP_LOGS=0 shows them all)"


class _Kind:
    """Lines that are alike."""

    __slots__ = ("count", "first_source", "last", "started")

    def __init__(self, source: str, now: float) -> None:
        #: Who printed the first line of the window.
        self.first_source = source
        self.started = now
        #: Lines held back, and the last of them.
        self.count = 0
        self.last = ""


class LogFolder:
    """Decides which lines to print, and when.

    Pure: the caller passes a clock in seconds, and prints what is returned.

    Args:
        window_s: how long lines are held back.
        enabled: False passes every line on.
    """

    def __init__(self, *, window_s: float = 5.0, enabled: bool = True) -> None:
        self._window_s = window_s
        self._enabled = enabled
        #: (stream, line without numbers) -> lines of that kind, in order of start.
        self._kinds: dict[tuple[str, str], _Kind] = {}
        #: Kinds with lines held back.
        self._pending_kinds = 0
        self._is_hint_given = False

    def add(self, name: str, line: str, stream: str, now: float) -> list[str]:
        """Take in one line.

        Args:
            name: who printed it, as in ``(f pid=3)``; ``line`` follows after a space,
                or stands alone if it is empty.
            line: without its newline.
            stream: "out" or "err"; their lines are never alike.
            now: seconds, not decreasing.

        Returns:
            The lines to print now, complete.
        """
        if not self._enabled:
            return [joined(name, line)]
        due = self.flush(now)
        if not line or line.isspace():
            return [*due, joined(name, line)]
        key = (stream, _NUMBERS.sub("", line))
        kind = self._kinds.get(key)
        if kind is None:
            self._kinds[key] = _Kind(name, now)
            return [*due, joined(name, line)]
        if kind.first_source == name and not kind.count:
            return [*due, joined(name, line)]
        if not kind.count:
            self._pending_kinds += 1
        kind.count += 1
        kind.last = joined(name, line)
        return due

    def flush(self, now: float) -> list[str]:
        """Return the lines for kinds whose window is over; infinity ends all."""
        lines = []
        while self._kinds:
            key, kind = next(iter(self._kinds.items()))
            if now - kind.started < self._window_s:
                break
            del self._kinds[key]
            if kind.count:
                self._pending_kinds -= 1
                lines.append(self._folded(kind))
                if now != math.inf:
                    # The kind is busy: its next window begins without a line.
                    self._kinds[key] = _Kind("", now)
        return lines

    def has_pending(self) -> bool:
        """Return whether any line is held back."""
        return self._pending_kinds > 0

    def _folded(self, kind: _Kind) -> str:
        if kind.count == 1:
            return kind.last
        text = f"{kind.last} [repeated {kind.count}x across cluster]"
        if not self._is_hint_given:
            self._is_hint_given = True
            text += _HINT
        return text


def joined(name: str, line: str) -> str:
    """A line as it is printed."""
    return f"{name} {line}" if name else line
