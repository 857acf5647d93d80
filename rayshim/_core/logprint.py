"""Prints the lines of executors in the driver, with repeats folded."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import time
from typing import TYPE_CHECKING

from rayshim._core import bar_lines
from rayshim._core.logfold import LogFolder, joined
from rayshim.adapters.wire import messages as m

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

_END_COLOR = "\x1b[0m"
#: Of tasks and actors, as in Ray.
_COLOR = "\x1b[36m"
#: With ``RAY_COLOR_PREFIX=1``: one for each process, by its number.
_COLORS = tuple(
    f"\x1b[{number}m" for number in (31, 32, 33, 34, 35, 36, 95, 94, 93, 92)
)


@dataclasses.dataclass(frozen=True, slots=True)
class DriverLog:
    """How a driver shows what its executors print."""

    #: Whether it shows anything.
    show: bool = True
    #: Whether lines that several processes print alike are folded.
    fold: bool = True
    #: Seconds in which they are.
    fold_s: float = 5.0
    #: Lines in which this is found are never folded; empty: none.
    allow_regex: str = ""
    #: Lines in which this is found are not shown; empty: none.
    skip_regex: str = ""
    #: Colours of ``(name pid=N)``: "0" none, "1" one for each process, "" one for all.
    #: Only on a terminal.
    color: str = ""
    #: Whether lines begin with ``(name pid=N)``.
    prefix: bool = True

    @classmethod
    def from_environment(cls, fold_s: float) -> DriverLog:
        """As Ray's variables say.

        Args:
            fold_s: setting ``log_fold_s``.
        """
        return cls(
            fold=os.environ.get("RAY_DEDUP_LOGS", "1") != "0" and fold_s > 0,
            fold_s=fold_s,
            allow_regex=os.environ.get("RAY_DEDUP_LOGS_ALLOW_REGEX", ""),
            skip_regex=os.environ.get("RAY_DEDUP_LOGS_SKIP_REGEX", ""),
            color=os.environ.get("RAY_COLOR_PREFIX", ""),
        )


class LogPrinter:
    """Takes in ``LogLines`` and writes ``(name pid=N) text`` lines.

    Args:
        peer: the driver's.
        options: how; see :meth:`change`.

    Raises:
        ValueError: a regular expression is none.
    """

    def __init__(self, peer: Peer, options: DriverLog) -> None:
        self._peer = peer
        self._armed = False
        self._set(options)

    def _set(self, options: DriverLog) -> None:
        self._allow = _pattern("allow_regex", options.allow_regex)
        self._skip = _pattern("skip_regex", options.skip_regex)
        self.options = options
        self._folder = LogFolder(window_s=options.fold_s, enabled=options.fold)

    def change(self, options: DriverLog) -> None:
        """Go on otherwise; what is folded so far is printed."""
        with self._peer.lock:
            before = self._folder
            self._set(options)
            self._print(before.flush(float("inf")), "out")

    def accept(self, lines: m.LogLines) -> None:
        """Print or fold lines (under the lock)."""
        if not self.options.show:
            return
        name = self._name(lines)
        now = time.monotonic()
        out: list[str] = []
        for line in lines.lines:
            if line.startswith(bar_lines.BAR_MARK):
                bar_lines.draw(line)
                continue
            if self._skip is not None and self._skip.search(line):
                continue
            if self._allow is not None and self._allow.search(line):
                out.append(joined(name, line))
            else:
                out += self._folder.add(name, line, lines.stream, now)
        self._print(out, lines.stream)
        self._arm()

    def _name(self, lines: m.LogLines) -> str:
        """What a line begins with."""
        if not self.options.prefix:
            return ""
        who = [lines.name] if lines.name else []
        if lines.pid:  # else it is a part of the system, not a call
            who.append(f"pid={lines.pid}")
        name = " ".join(who)
        if lines.pid and lines.node_ip and lines.node_ip != self._peer.node_ip:
            name += f", ip={lines.node_ip}"
        name = f"({name})"
        stream = sys.stderr if lines.stream == "err" else sys.stdout
        if self.options.color == "0" or not _is_terminal(stream):
            return name
        color = _COLOR
        if self.options.color == "1":
            color = _COLORS[lines.pid % len(_COLORS)]
        return f"{color}{name}{_END_COLOR}"

    def _arm(self) -> None:
        if not self._armed and self._folder.has_pending():
            self._armed = True
            self._peer.reactor.call_later(self.options.fold_s, self._due)

    def _due(self) -> None:
        self._armed = False
        self._print(self._folder.flush(time.monotonic()), "out")
        self._arm()

    def close(self) -> None:
        """Print what is still folded."""
        bar_lines.close()
        self._print(self._folder.flush(float("inf")), "out")

    @staticmethod
    def _print(lines: list[str], stream: str) -> None:
        if not lines:
            return
        target = sys.stderr if stream == "err" else sys.stdout
        try:
            target.write("".join(line + "\n" for line in lines))
            target.flush()
        except (OSError, ValueError):
            pass  # the driver closed its output: nobody can read the lines


def _is_terminal(stream: object) -> bool:
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False


def _pattern(name: str, text: str) -> re.Pattern[str] | None:
    if not text:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"{name} {text!r} is no regular expression: {error}") from None
