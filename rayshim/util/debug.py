"""Messages that a process gives once."""

from __future__ import annotations

import threading
import time
from typing import Any

__all__ = [
    "disable_log_once_globally",
    "enable_periodic_logging",
    "log_once",
    "reset_log_once",
]

#: Seconds between two messages of one key, where they come periodically.
PERIOD_S = 60.0


class _Once:
    """What was said in this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        #: Key -> when it was last said, in seconds of the monotonic clock.
        self.said_s: dict[Any, float] = {}
        self.disabled = False
        self.periodic = False


#: One for the process, like the loggers that ask it.
_once = _Once()


def log_once(key: str) -> bool:
    """Whether this is the first time that the process asks with this key.

    Args:
        key: names the message.

    Returns:
        True the first time (with `enable_periodic_logging`: once a minute); False
        later, and always after `disable_log_once_globally`.

    Example:
        >>> from rayshim.util.debug import log_once
        >>> log_once("a warning"), log_once("a warning")
        (True, False)
    """
    with _once.lock:
        if _once.disabled:
            return False
        now = time.monotonic()
        last = _once.said_s.get(key)
        if last is None or (_once.periodic and now - last > PERIOD_S):
            _once.said_s[key] = now
            return True
        return False


def reset_log_once(key: str | None = None) -> None:
    """Forget that a key was asked for; all keys, if it is None."""
    with _once.lock:
        if key is None:
            _once.said_s.clear()
        else:
            _once.said_s.pop(key, None)


def disable_log_once_globally() -> None:
    """Let `log_once` say no from now on, in this process."""
    with _once.lock:
        _once.disabled = True


def enable_periodic_logging() -> None:
    """Let `log_once` say yes once a minute for each key, in this process.

    It still says no after `disable_log_once_globally`.
    """
    with _once.lock:
        _once.periodic = True
