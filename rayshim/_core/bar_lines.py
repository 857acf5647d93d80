"""Lines of executors that are states of progress bars, drawn instead of printed."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

#: Such a line begins with it; the rest is the state, as JSON.
BAR_MARK = "__rayshim_bar__:"


def draw(line: str) -> None:
    """Draw what a marked line says."""
    from rayshim.experimental.tqdm_ray import process_line

    try:
        process_line(line.removeprefix(BAR_MARK))
    except Exception:
        # Whoever reads the channels is here; a bar is not worth the session.
        logger.debug("cannot draw %.200r", line, exc_info=True)


def close() -> None:
    """Leave what is drawn as it is: the session ends."""
    import sys

    module = sys.modules.get("rayshim.experimental.tqdm_ray")
    if module is not None:
        module.instance().close()
