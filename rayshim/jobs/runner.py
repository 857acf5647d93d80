"""The process between a job's supervisor and its command; run as a script.

It holds the command's process group, and kills it when the supervisor is gone, so that
a command never outlives its node. Only the cheapest modules of the standard library are
used: this is on the way of each job's start.

Its first line of input is ``{"entrypoint": TEXT}``; each later one is
``{"stop": SIGNAL, "grace_s": SECONDS}``; the end of input is the supervisor's death.
To the descriptor that its argument names it writes ``{"pid": N}``, then
``{"exit": N}``, or ``{"error": TEXT}``. Output goes to the job's log.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

#: Seconds between looks at a process group that is to end.
LOOK_S = 0.02
#: Seconds for killed processes to be gone.
KILL_LIMIT_S = 2.0


class Runner:
    """Runs one command.

    Args:
        told: descriptor to write to.
    """

    def __init__(self, told: int) -> None:
        self._told = told
        self._input = b""
        self._is_alone = False
        #: When the command's processes are killed, in monotonic seconds.
        self._deadline_s: float | None = None

    def run(self) -> None:
        """Runs the command that the first line of input names to its end."""
        order = self._next_order()
        if order is None:
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        try:
            child = subprocess.Popen(
                order["entrypoint"],
                shell=True,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._tell({"error": f"{type(error).__name__}: {error}"})
            return
        self._tell({"pid": child.pid})
        self._watch(child)
        _signal_group(child.pid, signal.SIGKILL)  # what it left running
        self._tell({"exit": child.returncode})

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(os.pidfd_open(child.pid), select.POLLIN)
        while child.poll() is None:
            if b"\n" in self._input:
                self._take_order(child.pid)  # it came with the one before
                break
            if any(descriptor == 0 for descriptor, _ in poll.poll()):
                self._take_order(child.pid)
            if self._deadline_s is not None:
                break
            if self._is_alone:
                child.wait()
        if self._deadline_s is not None:
            self._end(child)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        """Waits for all of a process group that was asked to end, and sees to it."""
        assert self._deadline_s is not None
        while child.returncode is None or _has_group(child.pid):
            now_s = time.monotonic()
            if now_s >= self._deadline_s:
                _signal_group(child.pid, signal.SIGKILL)
            if now_s >= self._deadline_s + KILL_LIMIT_S:
                break  # the kernel does not let go of one of them
            time.sleep(LOOK_S)
            _reap(child)
        if child.returncode is None:
            child.returncode = -signal.SIGKILL

    def _take_order(self, group: int) -> None:
        order = self._next_order()
        if order is None:
            self._is_alone = True
            _signal_group(group, signal.SIGKILL)
            return
        _adopt_orphans()
        _signal_group(group, order["stop"])
        self._deadline_s = time.monotonic() + float(order["grace_s"])

    def _next_order(self) -> dict[str, Any] | None:
        while b"\n" not in self._input:
            chunk = os.read(0, 65536)
            if not chunk:
                return None
            self._input += chunk
        line, _, self._input = self._input.partition(b"\n")
        return dict(json.loads(line))

    def _tell(self, facts: dict[str, Any]) -> None:
        try:
            os.write(self._told, json.dumps(facts).encode() + b"\n")
        except OSError:
            pass  # nobody is left to hear it


def _adopt_orphans() -> None:
    """Makes this process the parent of what the command leaves behind.

    Else its ends would be seen only when the first process of the machine looks.
    """
    import ctypes

    set_child_subreaper = 36  # linux/prctl.h
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Takes note of the ends of all children."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def _has_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    Runner(int(sys.argv[1])).run()
