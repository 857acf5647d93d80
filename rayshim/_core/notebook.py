"""What a session does in a notebook: interrupts and bars.

The kernel sets its own handler of SIGINT before each cell, which would raise in the
middle of a state change. So ours is put in its place again when a cell begins.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayshim._core.peer import Peer


def attach(
    peer: Peer, install_sigint: Callable[[Peer], None]
) -> Callable[[], None] | None:
    """Fit a session into the notebook of this process.

    Args:
        peer: of the session.
        install_sigint: puts the handler in the place of Python's own.

    Returns:
        What ends it; None if this process is no notebook's kernel.
    """
    from rayshim._core import progress

    if not progress.is_notebook():
        return None
    shell: Any = sys.modules["IPython"].get_ipython()

    def begin(*_: object) -> None:
        if not peer.ended:
            install_sigint(peer)

    def end() -> None:
        shell.events.unregister("pre_run_cell", begin)
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(signal.SIGINT, signal.default_int_handler)

    shell.events.register("pre_run_cell", begin)
    peer.wait_bar = progress.WaitBar
    return end
