"""When the processes of a node began and ended, and how."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rayshim.adapters.wire import messages as wire

if TYPE_CHECKING:
    from rayshim.adapters.raylet.server import NodeServer

#: Ended executors that are remembered.
KEPT = 1_000
#: How long an executor that has to end may take to tell what its program counted.
LAST_WORDS_S = 0.1
#: `EndedWorker.reason` of those that the node has ended.
ENDED_HERE = (
    "its node ended it: its job, its caller or its placement group is gone, or "
    "somebody asked for it (ray.kill, ray.cancel)"
)


class EndedWorker(NamedTuple):
    """An executor that has ended."""

    worker_id: bytes
    pid: int
    reason: str
    #: 0 if it left by itself; -1 after a signal.
    exit_code: int
    is_memory: bool
    #: Since the epoch.
    began_s: float
    ended_s: float


class WorkerLives:
    """The executors of a node."""

    def __init__(self) -> None:
        #: Worker id -> when it was forked, since the epoch, of those that run.
        self.began_s: dict[bytes, float] = {}
        self.past: deque[EndedWorker] = deque(maxlen=KEPT)
        #: Told to end now.
        self._ending: set[bytes] = set()

    def began(self, worker_id: bytes, pid: int) -> None:
        """An executor was forked."""
        self.began_s[worker_id] = time.time()

    def end(self, server: NodeServer, worker_id: bytes) -> None:
        """End an executor and what it started: by itself, or by SIGKILL."""
        if worker_id in self._ending:
            return
        if worker_id in self.began_s:
            self._ending.add(worker_id)
        if server.send_executor(worker_id, wire.Interrupt(wire.END_NOW)):
            server.loop.call_later(LAST_WORDS_S, server.pool.kill, worker_id)
        else:
            server.pool.kill(worker_id)

    def ended(
        self, worker_id: bytes, pid: int, reason: str, code: int, *, is_memory: bool
    ) -> None:
        """An executor has ended."""
        began_s = self.began_s.pop(worker_id, 0.0)
        if worker_id in self._ending:
            self._ending.discard(worker_id)
            if not is_memory:
                reason, code = ENDED_HERE, 0
        self.past.append(
            EndedWorker(worker_id, pid, reason, code, is_memory, began_s, time.time())
        )


def rows(server: NodeServer, payload: bytes) -> bytes:
    """Answers the question ``workers``: rows as of ``ray.util.state.WorkerState``."""
    del payload
    config = server.config
    place = {"node_id": config.node_id, "ip": config.node_ip}
    found: list[dict[str, Any]] = []
    for peer in server.peers.values():
        if peer.role not in ("driver", "executor"):
            continue
        began_ms = int(server.lives.began_s.get(peer.worker_id, 0.0) * 1000)
        found.append(
            {
                **place,
                "worker_id": peer.worker_id.hex(),
                "is_alive": True,
                "worker_type": "DRIVER" if peer.role == "driver" else "WORKER",
                "exit_type": None,
                "pid": peer.pid,
                "exit_detail": None,
                "worker_launch_time_ms": began_ms,
                "worker_launched_time_ms": began_ms,
                "start_time_ms": began_ms,
                "end_time_ms": 0,
            }
        )
    for past in server.lives.past:
        began_ms = int(past.began_s * 1000)
        found.append(
            {
                **place,
                "worker_id": past.worker_id.hex(),
                "is_alive": False,
                "worker_type": "WORKER",
                "exit_type": _exit_type(past),
                "pid": past.pid,
                "exit_detail": past.reason,
                "worker_launch_time_ms": began_ms,
                "worker_launched_time_ms": began_ms,
                "start_time_ms": began_ms,
                "end_time_ms": int(past.ended_s * 1000),
            }
        )
    return msgspec.msgpack.encode(found)


def _exit_type(past: EndedWorker) -> str:
    if past.is_memory:
        return "NODE_OUT_OF_MEMORY"
    return "SYSTEM_ERROR" if past.exit_code else "INTENDED_SYSTEM_EXIT"
