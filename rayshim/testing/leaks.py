"""Finds what a piece of code left behind in this process and on this machine.

A `Snapshot` before and one after tell which child processes, threads, file
descriptors, shared-memory folders and session folders are new. Other runs on the same
machine do not disturb the comparison: a session names the process that started it,
and one whose process is alive elsewhere is not ours.

Linux only; on other systems the parts that read ``/proc`` find nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Snapshot", "adopt_orphans", "end_processes", "wait_until_clean"]

SHM_FOLDER = Path("/dev/shm")
#: What is meant to outlive sessions, beside their folders.
KEPT = ("environments", "history")
#: ``s<pid of the driver>-<random>``, in names of session and store folders.
SESSION_NAME = re.compile(r"\bs(?P<pid>\d+)-[0-9a-f]+")
#: Open files that libraries keep for the life of a process: gRPC six, Jupyter's client
#: three (an event loop), multiprocessing's resource tracker one, and one for whatever
#: else is imported late.
SPARE_DESCRIPTORS = 11
#: Servers that the standard library starts once and keeps for the process's life.
KEPT_BY_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What this process has, at one moment."""

    #: pid of each living child, orphaned grandchildren included -> command line.
    processes: dict[int, str]
    #: Paths of session folders and node stores, of any process.
    folders: frozenset[Path]
    threads: frozenset[threading.Thread]
    descriptors: int

    @classmethod
    def take(cls) -> Snapshot:
        """Look at the process and the machine as they are now."""
        return cls(
            processes={pid: _command_of(pid) for pid in _children()},
            folders=frozenset(_session_folders()),
            threads=frozenset(
                thread for thread in threading.enumerate() if not thread.daemon
            ),
            descriptors=_open_descriptors(),
        )

    def leaks_since(self, before: Snapshot) -> list[str]:
        """Describe what is here and was not in `before`; empty if nothing is."""
        leaks = [
            f"process {pid}: {command}"
            for pid, command in self.processes.items()
            if pid not in before.processes and not self._is_kept(pid)
        ]
        leaks += [
            f"folder {path}"
            for path in sorted(self.folders - before.folders)
            if _is_ours(path)
        ]
        leaks += [
            f"thread {thread.name}"
            for thread in self.threads - before.threads
            if thread.is_alive()
        ]
        grown_by = self.descriptors - before.descriptors
        if grown_by > SPARE_DESCRIPTORS:
            grown_by -= _accepted_connections()
        if grown_by > SPARE_DESCRIPTORS:
            leaks.append(f"{grown_by} file descriptors: {', '.join(_targets())}")
        return leaks

    def _is_kept(self, pid: int) -> bool:
        """Whether Python keeps a process until this one ends."""
        return any(server in self.processes[pid] for server in KEPT_BY_PYTHON)


def wait_until_clean(before: Snapshot, *, deadline_s: float = 5.0) -> list[str]:
    """Wait until nothing is left that was not there before.

    Processes and folders may end a moment after the call that ends them.

    Args:
        before: what there was at the start.
        deadline_s: seconds to wait, >= 0.

    Returns:
        What is left at the deadline, described; empty as a rule.
    """
    end_s = time.monotonic() + deadline_s
    while leaks := Snapshot.take().leaks_since(before):
        if time.monotonic() >= end_s:
            return leaks
        time.sleep(0.02)
    return []


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies.

    Without it a leaked grandchild goes to init, where nobody looks for it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_processes(before: Snapshot) -> None:
    """Kill the children of this process that were not there before."""
    for pid in _children():
        if pid not in before.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _children() -> list[int]:
    """Living direct children; zombies that nobody waits for are reaped."""
    pids: list[int] = []
    for task in _entries(Path("/proc/self/task")):
        with contextlib.suppress(OSError):
            pids += map(int, (task / "children").read_text().split())
    return [pid for pid in pids if not _reap_if_zombie(pid)]


def _reap_if_zombie(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    if state != "Z":
        return False
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return True


def _command_of(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "?"
    return raw.replace(b"\0", b" ").decode(errors="replace")[:200].strip()


def _session_folders() -> list[Path]:
    stores = [path for path in _entries(SHM_FOLDER) if path.name.startswith("rayshim-")]
    root = Path(tempfile.gettempdir(), f"rayshim-{os.getuid()}")
    return stores + [path for path in _entries(root) if path.name not in KEPT]


def _is_ours(path: Path) -> bool:
    """Whether the process that a session is named after is not another living one."""
    match = SESSION_NAME.search(path.name)
    if match is None:
        return True
    pid = int(match["pid"])
    return pid == os.getpid() or pid in _children() or not Path(f"/proc/{pid}").exists()


def _open_descriptors() -> int:
    return len(_entries(Path("/proc/self/fd")))


def _accepted_connections() -> int:
    """Connections to servers of this process that still listen.

    They are the servers', which outlive a test, and their clients may be elsewhere.
    """
    found = psutil.Process().net_connections("tcp")
    served = {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}
    return sum(
        one.status != psutil.CONN_LISTEN
        and bool(one.laddr)
        and one.laddr.port in served
        for one in found
    )


def _targets() -> list[str]:
    targets = []
    for entry in _entries(Path("/proc/self/fd")):
        with contextlib.suppress(OSError):
            targets.append(str(entry.readlink()))
    return targets


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
