"""What a test sees of processes that die, and the ways in which they die."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

#: Upper limit of every wait for something that a failure must bring about.
DEADLINE_S = 30

#: Ways to end the own process that count as a crash of a task.
DEATHS = ("exit", "exit_zero", "kill", "segv", "abort", "term", "sys_exit", "thread")


def note_run(path: Path) -> int:
    """Add a mark to the file and return how many there are."""
    with open(path, "a") as file:
        file.write("x")
    return runs_in(path)


def runs_in(path: Path) -> int:
    """Return the number of marks; 0 without a file."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def note_pid(path: Path) -> None:
    """Write the own pid into the file, at once and whole."""
    draft = Path(f"{path}.{os.getpid()}")
    draft.write_text(str(os.getpid()))
    draft.rename(path)


def noted_pid(path: Path) -> int | None:
    """Return the pid in the file; None without one."""
    try:
        return int(Path(path).read_text())
    except FileNotFoundError:
        return None


def wait_for_file(path: Path) -> None:
    """Wait inside a task or an actor until the test made the file."""
    deadline = time.monotonic() + DEADLINE_S
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} was not made")
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Tell whether a process is there and not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rsplit(")", 1)[1].split()[0] != "Z"


def die(how: str) -> None:
    """End this process in the given way (one of `DEATHS`)."""
    if how == "exit":
        os._exit(7)
    if how == "exit_zero":
        os._exit(0)
    if how == "sys_exit":
        sys.exit(3)
    if how == "thread":
        threading.Thread(target=os._exit, args=(9,)).start()
    else:
        name = {"abort": "SIGABRT"}.get(how, f"SIG{how.upper()}")
        os.kill(os.getpid(), getattr(signal, name))
    time.sleep(DEADLINE_S)
