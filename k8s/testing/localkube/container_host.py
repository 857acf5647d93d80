"""The process below which all containers run; a program of its own.

It is started with the number of a connected socket, on which it reads requests and
writes events, each a line of JSON. For each container it forks a keeper that plays the
part of a PID namespace: whatever the container's processes start, and even what leaves
its session or loses its parent, stays below the keeper and is killed when the first
process of the container ends. Only the standard library is imported, so a fork costs a
millisecond. When the socket closes, all containers are killed and it ends.

Requests: ``{"op": "run", "id", "argv", "env", "cwd", "log"}``,
``{"op": "signal", "id", "signal"}`` (to the first process only),
``{"op": "kill", "id"}`` (all processes).

Events: ``{"id", "pid"}`` of a start, ``{"id", "code", "signal", "error"}`` of an end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: Exit codes of a container runtime for what cannot be executed.
NOT_EXECUTABLE = 126
NOT_FOUND = 127
#: Seconds between two looks for processes that have to be killed.
LOOK_S = 0.01


def main() -> None:
    """Serve requests until the other end closes."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    Host(connection).serve()


class Host:
    """Forks keepers, and carries requests and events between them and the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        #: Container id -> socket to its keeper.
        self._keepers: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}

    def serve(self) -> None:
        """Serve until the socket closes and all containers have ended."""
        rest = b""
        is_open = True
        while is_open or self._keepers:
            by_fd = {one.fileno(): number for number, one in self._keepers.items()}
            wanted = [*by_fd, *([self._connection.fileno()] if is_open else [])]
            ready, _, _ = select.select(wanted, [], [])
            for fd in ready:
                if fd in by_fd:
                    self._from_keeper(by_fd[fd])
                    continue
                data = self._receive()
                if not data:
                    is_open = False
                    for keeper in self._keepers.values():
                        with contextlib.suppress(OSError):
                            keeper.send(b"9")
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(2**20)
        except OSError:
            return b""

    def _tell(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall(json.dumps(event).encode() + b"\n")

    def _obey(self, request: dict[str, Any]) -> None:
        number = request["id"]
        if request["op"] == "run":
            self._run(number, request)
        elif number in self._keepers:
            what = 0 if request["op"] == "kill" else request["signal"]
            with contextlib.suppress(OSError):
                self._keepers[number].send(b"9" if not what else b"s%d" % what)

    def _run(self, number: int, request: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            # The other keepers must find their sockets closed when the host dies.
            self._connection.close()
            ours.close()
            for one in self._keepers.values():
                one.close()
            code = 1
            try:
                Keeper(theirs).keep(request)
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        self._keepers[number] = ours
        self._pids[number] = pid

    def _from_keeper(self, number: int) -> None:
        try:
            data = self._keepers[number].recv(2**16)
        except OSError:
            data = b""
        event = json.loads(data) if data else {"code": 137, "signal": 9, "error": ""}
        if "pid" not in event:
            self._keepers.pop(number).close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pids.pop(number), 0)
        self._tell({"id": number, **event})


class Keeper:
    """Runs one container: its first process, and an eye on all others."""

    def __init__(self, host: socket.socket) -> None:
        self._host = host

    def keep(self, request: dict[str, Any]) -> None:
        """Start the container, and return when none of its processes is left."""
        os.setsid()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        wake, wake_write = os.pipe()
        for fd in (wake, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        main, error = self._start(request)
        if main:
            self._tell({"pid": main})
            status = self._wait(main, wake)
            kill_descendants()
        else:
            status = NOT_FOUND << 8
        by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 128 + by if by else os.WEXITSTATUS(status)
        self._tell({"code": code, "signal": by, "error": error})

    def _tell(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._host.send(json.dumps(event).encode())

    def _start(self, request: dict[str, Any]) -> tuple[int, str]:
        """Start the first process: its pid and "", or 0 and why it cannot run."""
        failed, failed_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._become(request)
            except OSError as problem:
                what = problem.filename or request["argv"][0]
                os.write(failed_write, f"{what}: {problem.strerror}".encode())
            finally:
                os._exit(NOT_FOUND)
        os.close(failed_write)
        error = os.read(failed, 1000).decode()
        os.close(failed)
        if error:
            os.waitpid(pid, 0)
            return 0, error
        return pid, ""

    def _become(self, request: dict[str, Any]) -> None:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        log = os.open(request["log"], flags, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        os.chdir(request["cwd"])
        os.execvpe(request["argv"][0], request["argv"], request["env"])

    def _wait(self, main: int, wake: int) -> int:
        """Wait for the end of the first process; obeys the host meanwhile."""
        while True:
            while True:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    return 0
                if pid == main:
                    return status
                if pid == 0:
                    break
            ready, _, _ = select.select([self._host.fileno(), wake], [], [])
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 1000)
            if self._host.fileno() in ready:
                self._obey(main)

    def _obey(self, main: int) -> None:
        try:
            order = self._host.recv(100)
        except OSError:
            order = b""
        with contextlib.suppress(ProcessLookupError):
            if order.startswith(b"s"):
                os.kill(main, int(order[1:]))
            else:  # or the host is gone
                os.kill(main, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill all processes below this one, until there is none."""
    while True:
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(LOOK_S)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children") as file:
                children = [int(one) for one in file.read().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found


def _prctl(what: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(what, value, 0, 0, 0)


if __name__ == "__main__":
    main()
