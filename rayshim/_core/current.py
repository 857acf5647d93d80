"""The peer of this process and the call that runs in this thread or task.

The one place of process-wide state: everything else hangs on the
:class:`~rayshim._core.peer.Peer` found here.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

#: The peer of this process, or None while no session is open.
peer: Peer | None = None
#: The process that opened the session; a forked child must not use it.
owner_pid: int = 0
#: True in a child that was forked from a process with a session.
forked = False
#: The call that runs in this context (a ``CallContext``), or None in a driver.
call: ContextVar[Any] = ContextVar("rayshim_call", default=None)


def set_peer(new: Peer | None) -> None:
    """Open or close the session of this process."""
    global peer, owner_pid
    peer = new
    owner_pid = os.getpid() if new is not None else 0


def require_peer() -> Peer:
    """The open session, opened now if ``init`` was not called.

    Raises:
        RuntimeError: in a child that was forked from a process with a session.
    """
    if peer is not None:
        return peer
    from rayshim._core import session

    session.auto_init()
    opened: Peer | None = globals()["peer"]  # set meanwhile, by another module
    assert opened is not None
    return opened


def _after_fork() -> None:
    global peer, forked
    if peer is not None:
        peer.forget_after_fork()
        peer = None
        forked = True


os.register_at_fork(after_in_child=_after_fork)
