"""Shows how far a long wait is: a bar in a notebook or terminal.

Nothing here is loaded before a wait has lasted a second, or :func:`track` is called.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from rayshim.lineage.references import ObjectEntry

#: Seconds between two looks at what is done.
LOOK_S = 0.25
#: Values of which a wait is worth a bar.
FEWEST = 2


class Bar(Protocol):
    """Something that shows how many of some things are done."""

    def show(self, done: int, total: int, text: str) -> None:
        """Show it as it is now."""

    def close(self) -> None:
        """Leave it as it is."""


class NotebookBar:
    """A bar below the running cell."""

    def __init__(self) -> None:
        import IPython.display

        ipython: Any = IPython.display  # which has types only here and there
        self._make: Any = ipython.HTML
        self._handle: Any = ipython.display(ipython.HTML(""), display_id=True)
        self._last = ""

    def show(self, done: int, total: int, text: str) -> None:
        """Show it as it is now."""
        content = (
            f"<progress value='{done}' max='{total}' style='width:16em'></progress> "
            f"{done:,} of {total:,} {html.escape(text)}"
        )
        if content != self._last and self._handle is not None:
            self._last = content
            self._handle.update(self._make(content))

    def close(self) -> None:
        """Leave it as it is."""


class TerminalBar:
    """A bar in a terminal, on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def show(self, done: int, total: int, text: str) -> None:
        """Show it as it is now."""
        self._progress.update(self._task, completed=done, total=total, description=text)

    def close(self) -> None:
        """Take it away."""
        self._progress.stop()


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    import sys

    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def make_bar() -> Bar | None:
    """The bar that fits this process; None where nobody would see it."""
    import sys

    if is_notebook():
        return NotebookBar()
    return TerminalBar() if sys.stderr.isatty() else None


class WaitBar:
    """Shows, from a thread of its own, how many values a wait still lacks.

    Args:
        entries: the values that are waited for.
    """

    def __init__(self, entries: Sequence[ObjectEntry]) -> None:
        self._entries = list(entries)
        self._total = len(self._entries)
        self._begin = time.monotonic()
        self._ended = threading.Event()
        self._bar: Bar | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._total >= FEWEST:
            self._bar = make_bar()
        if self._bar is not None:
            self._thread = threading.Thread(
                target=self._run, name="rayshim-progress", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is None or self._bar is None:
            return
        self._ended.set()
        self._thread.join(timeout=5 * LOOK_S)
        self._look()
        self._bar.close()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        assert self._bar is not None
        left = [entry for entry in self._entries if entry.value is None]
        self._entries = left
        seconds = time.monotonic() - self._begin
        text = f"values are there; {seconds + 1:.0f} s"
        if not left:
            text = "values are there"
        self._bar.show(self._total - len(left), self._total, text)
