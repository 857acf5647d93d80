"""``ray.util.debugpy``: refused, with what to do instead."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["set_trace"]


def set_trace(breakpoint_uuid: str | None = None) -> NoReturn:
    """Refuse to wait for an editor's debugger.

    Args:
        breakpoint_uuid: name of the breakpoint.

    Raises:
        NotImplementedError: always. debugpy listens at a TCP port at which every user
            of the host could run code in the executor, without any token.
    """
    raise NotImplementedError(
        "ray.util.debugpy is not supported: debugpy would listen at a port without a "
        "token. Call rayshim.util.rpdb.set_trace() and run 'rayshim debug' on that "
        "host, or call debugpy.listen() in the task yourself, if nobody else uses it"
    )
