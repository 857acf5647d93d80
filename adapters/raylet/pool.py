"""The node process's side of the fork server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from array import array
from collections.abc import Callable

from rayshim.adapters.processes.forkserver import MAX_RECORD_BYTES

logger = logging.getLogger(__name__)

#: ``(worker_id, pid, read end of stdout, read end of stderr)``
ForkedHandler = Callable[[bytes, int, int, int], None]
#: ``(worker_id, pid, reason, exit code)``; a signal is its number, negative.
ExitedHandler = Callable[[bytes, int, str, int], None]


class ExecutorPool:
    """Forks, kills and mourns executors; decides nothing.

    Args:
        sock: SEQPACKET socket to the fork server.
        forkserver_pid: Its pid, a child of this process.
    """

    def __init__(
        self,
        sock: socket.socket,
        forkserver_pid: int,
        *,
        on_forked: ForkedHandler,
        on_exited: ExitedHandler,
        on_gone: Callable[[], None],
    ) -> None:
        self._sock = sock
        self.forkserver_pid = forkserver_pid
        self._on_forked = on_forked
        self._on_exited = on_exited
        self._on_gone = on_gone
        #: Pid -> worker id of the executors that run.
        self._workers: dict[int, bytes] = {}
        #: The inverse.
        self.pids: dict[bytes, int] = {}
        #: Workers whose fork is not answered -> whether to kill them at once then.
        self._forking: dict[bytes, bool] = {}
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def fork(self, worker_id: bytes) -> None:
        """Asks for an executor; ``on_forked`` follows, later ``on_exited``."""
        self._forking[worker_id] = False
        self._send({"fork": worker_id.hex()})

    def kill(self, worker_id: bytes) -> None:
        """Kills an executor and what it started; unknown ones are let be."""
        if worker_id in self._forking:
            self._forking[worker_id] = True
        elif worker_id in self.pids:
            self._send({"kill": self.pids[worker_id]})

    async def end(self, timeout_s: float) -> None:
        """Kills everything, the fork server last."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock.fileno())
        self._send({"end": True})
        deadline = self._loop.time() + timeout_s
        while not _is_reaped(self.forkserver_pid):
            if self._loop.time() > deadline:
                # Executors have asked the kernel to die with it.
                os.kill(self.forkserver_pid, signal.SIGKILL)
                break
            await asyncio.sleep(0.002)
        self._sock.close()

    def _send(self, record: dict[str, object]) -> None:
        try:
            self._sock.send(json.dumps(record).encode())
        except BlockingIOError:
            # The fork server still imports and the socket is full: try again.
            self._loop.call_later(0.005, self._send, record)
        except OSError:
            logger.debug("the fork server is gone; dropped %s", record)

    def _readable(self) -> None:
        while True:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(
                    MAX_RECORD_BYTES, socket.CMSG_SPACE(8), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                data, ancillary = b"", []
            if not data:
                self._loop.remove_reader(self._sock.fileno())
                self._sock.close()
                self._on_gone()
                return
            descriptors = array("i")
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors.frombytes(content)
            self._take(json.loads(data), list(descriptors))

    def _take(self, record: dict[str, object], descriptors: list[int]) -> None:
        if "forked" in record:
            worker_id = bytes.fromhex(str(record["forked"]))
            pid = int(str(record["pid"]))
            self._workers[pid] = worker_id
            self.pids[worker_id] = pid
            is_doomed = self._forking.pop(worker_id)
            self._on_forked(worker_id, pid, descriptors[0], descriptors[1])
            if is_doomed:
                self.kill(worker_id)
        elif "exited" in record:
            pid = int(str(record["exited"]))
            worker_id = self._workers.pop(pid)
            del self.pids[worker_id]
            reason, code = describe_status(pid, int(str(record["status"])))
            self._on_exited(worker_id, pid, reason, code)
        elif "failed" in record:
            worker_id = bytes.fromhex(str(record["failed"]))
            del self._forking[worker_id]
            reason = f"no process could be forked: {record['error']}"
            self._on_exited(worker_id, 0, reason, 1)


def describe_status(pid: int, status: int) -> tuple[str, int]:
    """Text for a wait status, and the exit code (a signal is negative)."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"the worker process (pid {pid}) exited with exit code {code}", code
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the worker process (pid {pid}) was killed by {name}", code


def _is_reaped(pid: int) -> bool:
    try:
        found, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return found == pid
