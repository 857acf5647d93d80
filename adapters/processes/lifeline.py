"""Ties the life of a process to that of its parent."""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Has the kernel signal this process when the thread that forked it ends.

    Linux only; elsewhere the pipes to the parent do it alone. A parent that died
    before the call is noticed too.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(
        _PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0
    )
    if os.getppid() != parent_pid:
        os._exit(1)


def close_descriptors(keep: set[int]) -> None:
    """Closes every descriptor above 2 that is not in ``keep``."""
    low = 3
    for descriptor in sorted(keep):
        if descriptor >= low:
            os.closerange(low, descriptor)
            low = descriptor + 1
    try:
        high = max(int(name) for name in os.listdir("/proc/self/fd"))
    except (OSError, ValueError):
        high = os.sysconf("SC_OPEN_MAX")
    os.closerange(low, high + 1)
