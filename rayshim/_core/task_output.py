"""What user code prints in an executor: line by line, with the call that prints it.

Both are paid for by those who print: the call is told to the log relay, in a line that
nobody sees, when another one printed before. So the lines of each task can be found in
the file of its executor (``get_log(task_id=...)``).
"""

from __future__ import annotations

import io
import sys

from rayshim._core import current

#: Marks, in the output of an executor, which call prints from here on.
CALL_MARK = "\x1e\x1d"


class CallStream(io.TextIOWrapper):
    """Standard output or error of an executor.

    Args:
        descriptor: 1 or 2.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        raw = io.FileIO(descriptor, "wb", closefd=False)
        super().__init__(
            io.BufferedWriter(raw),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        self._label = name
        #: The call that printed last.
        self._printed: object = None

    @property
    def name(self) -> str:
        """As of the stream that it stands for."""
        return self._label

    def write(self, text: str, /) -> int:
        """Write text, and who writes it if that is news."""
        call = current.call.get()
        if call is not None and call.task_id is not self._printed:
            self._printed = call.task_id
            mark = f"{CALL_MARK}{call.task_id.hex()}:{call.spec.attempt}\n"
            super().write(mark)
        return super().write(text)


def install() -> None:
    """Have this process print so from now on."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    sys.stdout = CallStream(1, "<stdout>")
    sys.stderr = CallStream(2, "<stderr>")
