"""Lines of executors that are states of progress bars, drawn instead of printed."""

from __future__ import annotations

#: Such a line begins with it; the rest is the state, as JSON.
BAR_MARK = "__rayshim_bar__:"


def draw(line: str) -> None:
    """Draw what a marked line says."""
    from rayshim.experimental.tqdm_ray import process_line

    process_line(line.removeprefix(BAR_MARK))


def close() -> None:
    """Leave what is drawn as it is: the session ends."""
    import sys

    module = sys.modules.get("rayshim.experimental.tqdm_ray")
    if module is not None:
        module.instance().close()
