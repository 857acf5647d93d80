"""A single-threaded process that forks executors from preloaded modules.

Forking takes about two milliseconds and shares all that was imported before, where
a fresh interpreter takes two hundred and shares nothing. The node process speaks to
it over one SEQPACKET socket in JSON records:

    -> {"fork": worker_id, "env": {..}}      <- {"forked": worker_id, "pid": n}
                                                with the read ends of stdout, stderr
    -> {"kill": pid}                         <- {"exited": pid, "status": wait status}
    -> {"end": true}   kills everything and leaves, as does the end of the socket

Each executor leads a process group of its own session: a terminal's Ctrl-C does not
reach it, and whatever it started is killed together with it. Executors die with the
fork server (PR_SET_PDEATHSIG), the fork server leaves with the node process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from array import array
from typing import Any, NoReturn

from rayshim.adapters.processes.lifeline import close_descriptors, die_with_parent

MAX_RECORD_BYTES = 1 << 17
#: Seconds for which killed executors are waited for at the end.
REAP_LIMIT_S = 1.0


def start(config: dict[str, Any]) -> tuple[int, socket.socket]:
    """Forks the fork server from this process, which must be single-threaded.

    Args:
        config: The node process's configuration; the fork server uses ``preload``,
            ``sys_path``, ``executor_entry`` and ``executor`` (what the entry gets).

    Returns:
        Its pid and the node process's end of the socket.
    """
    parent_pid = os.getpid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    status = 1
    try:
        # SIGTERM rather than SIGKILL: there are process groups to end first.
        die_with_parent(parent_pid, signal.SIGTERM)
        os.setsid()
        close_descriptors({theirs.fileno()})
        ForkServer(theirs, config).run()
        status = 0
    finally:
        os._exit(status)


class ForkServer:
    """The loop of the fork server."""

    def __init__(self, sock: socket.socket, config: dict[str, Any]) -> None:
        self._sock = sock
        self._config = config
        #: Pids of executors that are not reaped.
        self._children: set[int] = set()
        self._is_ending = False

    def run(self) -> None:
        """Serves until the node process leaves."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(signal.SIGTERM, self._end)
        self._preload()
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while not self._is_ending:
            for descriptor, _ in poller.poll():
                if descriptor == wake_read:
                    os.read(wake_read, 4096)
                    self._reap()
                elif not self._receive():
                    self._is_ending = True
        self._kill_all()

    def _preload(self) -> None:
        """Imports what executors need, and moves it out of the collector's sight.

        A collection in an executor would otherwise write to, and so copy, every
        page that holds an object.
        """
        gc.disable()
        sys.path[:0] = [
            path for path in self._config["sys_path"] if path not in sys.path
        ]
        # One thread of BLAS for each executor, as Ray does: executors share the CPUs.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        for name in self._config["preload"]:
            try:
                importlib.import_module(name)
            except ImportError:
                pass  # An optional module that is not installed.
            except Exception as error:
                print(f"rayshim: preloading {name} failed: {error!r}", file=sys.stderr)
        gc.collect()
        gc.freeze()

    def _receive(self) -> bool:
        try:
            data = self._sock.recv(MAX_RECORD_BYTES)
        except OSError:
            return False
        if not data:
            return False
        record = json.loads(data)
        if "fork" in record:
            self._fork(record)
        elif "kill" in record:
            if record["kill"] in self._children:
                _kill_group(record["kill"])
        elif "end" in record:
            return False
        return True

    def _fork(self, record: dict[str, Any]) -> None:
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        parent_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            for descriptor in (out_read, out_write, err_read, err_write):
                os.close(descriptor)
            self._send({"failed": record["fork"], "error": str(error)}, [])
            return
        if pid == 0:
            self._become_executor(record, parent_pid, out_write, err_write)
        os.close(out_write)
        os.close(err_write)
        self._children.add(pid)
        self._send({"forked": record["fork"], "pid": pid}, [out_read, err_read])
        os.close(out_read)
        os.close(err_read)

    def _become_executor(
        self, record: dict[str, Any], parent_pid: int, out: int, err: int
    ) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            die_with_parent(parent_pid)
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            close_descriptors(set())
            self._sock.detach()
            os.environ.update(record.get("env") or {})
            _reseed()
            gc.enable()
            status = _run_entry(
                self._config["executor_entry"],
                {**self._config["executor"], "worker_id": record["fork"]},
            )
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            _flush()
            os._exit(status)

    def _reap(self) -> None:
        while self._children:
            try:
                # Left a zombie until its group is killed, so that no new process
                # can have got the number.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            pid = found.si_pid
            if pid in self._children:
                _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            if pid in self._children:
                self._children.discard(pid)
                self._send({"exited": pid, "status": status}, [])

    def _send(self, record: dict[str, Any], descriptors: list[int]) -> None:
        data = json.dumps(record).encode()
        ancillary = []
        if descriptors:
            ancillary = [
                (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
            ]
        try:
            self._sock.sendmsg([data], ancillary)
        except OSError:
            # The node process is gone: the loop sees the end of the socket.
            self._is_ending = True

    def _end(self, number: int, frame: object) -> None:
        self._is_ending = True

    def _kill_all(self) -> None:
        for pid in self._children:
            _kill_group(pid)
        deadline = time.monotonic() + REAP_LIMIT_S
        while self._children and time.monotonic() < deadline:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid:
                self._children.discard(pid)
            else:
                time.sleep(0.002)


def _nothing(number: int, frame: object) -> None:
    """A handler, so that the signal reaches the wakeup descriptor."""


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # Killed between fork and setsid: it leads no group yet.
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _reseed() -> None:
    """Gives this process random numbers of its own.

    The standard library does so itself after a fork; numpy does not.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _run_entry(entry: str, config: dict[str, Any]) -> int:
    module_name, _, function_name = entry.partition(":")
    function = getattr(importlib.import_module(module_name), function_name)
    try:
        result = function(config)
    except SystemExit as leave:
        result = leave.code
    if isinstance(result, int):
        return result
    return 0 if result is None else 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass
