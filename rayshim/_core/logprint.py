"""Prints the lines of executors in the driver, with repeats folded."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from rayshim._core.logfold import LogFolder
from rayshim.adapters.wire import messages as m

if TYPE_CHECKING:
    from rayshim._core.peer import Peer


class LogPrinter:
    """Takes in ``LogLines`` and writes ``(name pid=N) text`` lines."""

    def __init__(self, peer: Peer, fold_s: float) -> None:
        self._peer = peer
        self._fold_s = fold_s
        self._folder = LogFolder(
            window_s=fold_s,
            enabled=os.environ.get("RAY_DEDUP_LOGS", "1") != "0" and fold_s > 0,
        )
        self._armed = False

    def accept(self, lines: m.LogLines) -> None:
        """Print or fold lines (under the lock)."""
        name = f"({lines.name} pid={lines.pid})" if lines.name else f"(pid={lines.pid})"
        if not lines.pid:
            name = f"({lines.name})"  # it is a part of the system, not a call
        now = time.monotonic()
        out: list[str] = []
        for line in lines.lines:
            out += self._folder.add(name, line, lines.stream, now)
        self._print(out, lines.stream)
        self._arm()

    def _arm(self) -> None:
        if not self._armed and self._folder.has_pending():
            self._armed = True
            self._peer.reactor.call_later(self._fold_s, self._due)

    def _due(self) -> None:
        self._armed = False
        self._print(self._folder.flush(time.monotonic()), "out")
        self._arm()

    def close(self) -> None:
        """Print what is still folded."""
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
