"""Progress bars of tasks and actors, shown by the driver.

A bar in an executor prints its state as a marked line, which takes the way of all log
lines to the driver; there it is drawn instead of printed. Without a driver that shows
log lines (`init(log_to_driver=False)`) nothing is drawn.
"""

from __future__ import annotations

import builtins
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from rayshim._core import current
from rayshim._core.bar_lines import BAR_MARK

__all__ = ["BarManager", "instance", "safe_print", "tqdm"]


class tqdm:
    """A progress bar with the interface of the ``tqdm`` package.

    Args:
        iterable: what to iterate, if the bar counts its items.
        desc: text before the bar.
        total: number of items, or None if it is unknown.
        unit: what is counted; default "it".
        position: row of the bar among those of its process.
        flush_interval_s: least time between two states that are sent, in seconds.

    Example:
        >>> from rayshim.experimental import tqdm_ray
        >>> bar = tqdm_ray.tqdm(desc="work", total=2)
        >>> bar.update(2)
        >>> bar.n, bar.total
        (2, 2)
        >>> bar.close()
    """

    DEFAULT_FLUSH_INTERVAL_SECONDS = 1.0

    def __init__(
        self,
        iterable: Iterable[Any] | None = None,
        desc: str | None = None,
        total: int | None = None,
        unit: str | None = None,
        position: int | None = None,
        flush_interval_s: float | None = None,
    ) -> None:
        if total is None and hasattr(iterable, "__len__"):
            total = len(iterable)  # type: ignore[arg-type]  # it was looked for
        self._iterable = iterable
        self._desc = desc or ""
        self._total = total
        self._unit = unit or "it"
        self._position = position or 0
        self._uuid = uuid.uuid4().hex
        self._n = 0
        self._closed = False
        if flush_interval_s is None:
            flush_interval_s = self.DEFAULT_FLUSH_INTERVAL_SECONDS
        self._interval_s = flush_interval_s
        self._sent_s = float("-inf")
        self.refresh()

    @property
    def n(self) -> int:
        """Number of items so far."""
        return self._n

    @n.setter
    def n(self, value: int) -> None:
        self._n = value
        self._send_sometimes()

    @property
    def total(self) -> int | None:
        """Number of all items, or None."""
        return self._total

    @total.setter
    def total(self, value: int | None) -> None:
        self._total = value
        self._send_sometimes()

    def set_description(self, desc: str) -> None:
        """Change the text before the bar."""
        self._desc = desc
        self._send_sometimes()

    def update(self, n: int = 1) -> None:
        """Count ``n`` more items."""
        self._n += n
        self._send_sometimes()

    def refresh(self) -> None:
        """Show the state now."""
        self._sent_s = time.monotonic()
        _send(self._state())

    def close(self) -> None:
        """Show the last state; the bar stays where it is."""
        if not self._closed:
            self._closed = True
            self.refresh()

    def __iter__(self) -> Iterator[Any]:
        if self._iterable is None:
            raise ValueError("No iterable provided: pass one, or call update()")
        try:
            for item in self._iterable:
                yield item
                self.update(1)
        finally:
            self.close()

    def __enter__(self) -> tqdm:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _send_sometimes(self) -> None:
        if time.monotonic() - self._sent_s >= self._interval_s:
            self.refresh()

    def _state(self) -> dict[str, Any]:
        return {
            "x": self._n,
            "total": self._total,
            "desc": self._desc,
            "unit": self._unit,
            "pos": self._position,
            "uuid": self._uuid,
            "pid": os.getpid(),
            "ip": _host(),
            "closed": self._closed,
        }


class BarManager:
    """Draws the bars of all processes, in the driver.

    A terminal shows them while they move; elsewhere each group of bars is written
    once, when all of it are closed. They go to standard error.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: Id of a bar -> its number in the group on the screen.
        self._bars: dict[str, Any] = {}
        self._open: set[str] = set()
        self._progress: Any = None
        #: States that were taken in.
        self.num_updates = 0

    def process_state_update(self, state: dict[str, Any]) -> None:
        """Draw a state of a bar."""
        with self._lock:
            self.num_updates += 1
            bar = state["uuid"]
            if self._progress is None:
                if state["closed"] and not state["x"]:
                    return
                self._progress = _new_progress()
                self._progress.start()
            fields = {
                "description": _title(state),
                "total": state["total"],
                "completed": state["x"],
                "unit": state["unit"],
            }
            if bar not in self._bars:
                self._bars[bar] = self._progress.add_task(**fields)
                self._open.add(bar)
            else:
                self._progress.update(self._bars[bar], **fields, refresh=True)
            if state["closed"]:
                self._open.discard(bar)
                if not self._open:
                    self.close()

    def hide_bars(self) -> None:
        """Take the bars off the screen, before something else writes there."""
        with self._lock:
            if self._progress is not None:
                self._progress.live.update(self._progress.get_renderable())
                self._progress.live.transient = True
                self._progress.stop()

    def unhide_bars(self) -> None:
        """Draw the bars again."""
        with self._lock:
            if self._progress is not None:
                self._progress.live.transient = False
                self._progress.start()

    def close(self) -> None:
        """Leave the bars as they are; later ones are a new group."""
        with self._lock:
            progress, self._progress = self._progress, None
            self._bars.clear()
            self._open.clear()
            if progress is not None:
                progress.stop()

    @property
    def has_bars(self) -> bool:
        """Whether bars are on the screen."""
        return self._progress is not None


#: One for the process: a screen has one group of bars.
_manager = BarManager()


def instance() -> BarManager:
    """The manager of this process."""
    return _manager


def safe_print(*args: Any, **kwargs: Any) -> None:
    """``print``, without tearing bars apart."""
    manager = instance()
    if not manager.has_bars:
        builtins.print(*args, **kwargs)
        return
    manager.hide_bars()
    try:
        builtins.print(*args, **kwargs)
    finally:
        manager.unhide_bars()


def process_line(line: str) -> None:
    """Draw what a line of an executor, without its mark, says of a bar."""
    try:
        state = json.loads(line)
        instance().process_state_update(state)
    except (ValueError, KeyError, TypeError):
        builtins.print(line)  # no bar of ours: show what it is


def _send(state: dict[str, Any]) -> None:
    """Hand a state to the driver, which may be this process."""
    if current.peer is not None and current.peer.executor is not None:
        builtins.print(BAR_MARK + json.dumps(state), flush=True)
    else:
        instance().process_state_update(state)


def _host() -> str:
    return str(current.peer.node_ip) if current.peer is not None else _HOSTNAME


_HOSTNAME = socket.gethostname()


def _title(state: dict[str, Any]) -> str:
    """The text of a bar; another process says which one it is."""
    if state["pid"] == os.getpid():
        return str(state["desc"])
    return f"(pid={state['pid']}) {state['desc']}".rstrip()


def _new_progress() -> Any:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[unit]}", markup=False),
        progress.TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        auto_refresh=False,
        # What is printed meanwhile appears above the bars, if it goes to a terminal.
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
    )
