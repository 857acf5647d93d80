"""Watches the memory of a node, and kills an executor before the kernel does.

Without ``memory_limit_bytes`` the limit is the machine's memory, or what the container
may use. With it, the executors of this node and its store count against it: then
several nodes may share a machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from rayshim.adapters.raylet import memory_usage
from rayshim.lineage import memory
from rayshim.lineage.leases import Executor, ExecutorState

if TYPE_CHECKING:
    from rayshim.adapters.raylet.server import NodeServer

logger = logging.getLogger(__name__)

_GB = float(1 << 30)


class MemoryMonitor:
    """Runs the memory policy of one node.

    Args:
        server: The node.
        settings: ``memory_usage_threshold``, ``memory_limit_bytes`` and
            ``memory_monitor_refresh_ms`` of the session.
    """

    def __init__(self, server: NodeServer, settings: dict[str, Any]) -> None:
        self._server = server
        self._limit_bytes = int(settings.get("memory_limit_bytes", 0))
        self._refresh_s = float(settings.get("memory_monitor_refresh_ms", 250)) / 1000
        threshold = float(settings.get("memory_usage_threshold", 0.95))
        self.policy = memory.MemoryPolicy(threshold)
        self._folders = memory_usage.cgroup_folders()
        #: Worker id -> why it was killed, until its process is gone.
        self._reasons: dict[bytes, str] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Looks from now on."""
        self._timer = self._server.loop.call_later(self._refresh_s, self._look)

    def stop(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()

    def reason(self, worker_id: bytes) -> str:
        """Why this node killed an executor that is gone; empty if it did not."""
        self.policy.handle(memory.ExecutorGone(worker_id), self._server.now())
        return self._reasons.pop(worker_id, "")

    def _look(self) -> None:
        try:
            self._measure()
        except Exception:
            logger.exception("the memory of the node could not be measured")
        self.start()

    def _measure(self) -> None:
        if self._limit_bytes:
            used = sum(memory_usage.private_bytes(one.pid) for one in self._executors())
            used += _folder_bytes(self._server.config.store_dir)
            limit = self._limit_bytes
        else:
            used, limit = memory_usage.node_memory(self._folders)
        if not self.policy.is_short(used, limit):
            return
        measured = memory.MemoryMeasured(
            used, limit, [self._candidate(one) for one in self._executors()]
        )
        for command in self.policy.handle(measured, self._server.now()):
            executor = self._server.raylet.executors.by_id[command.worker_id]
            reason = self._report(executor, used, limit)
            logger.warning("%s", reason)
            self._reasons[command.worker_id] = reason
            self._server.pool.kill(command.worker_id)

    def _executors(self) -> list[Executor]:
        return [one for one in self._server.raylet.executors if one.pid]

    @staticmethod
    def _candidate(executor: Executor) -> memory.Candidate:
        lease = executor.lease
        return memory.Candidate(
            executor.worker_id,
            memory_usage.private_bytes(executor.pid),
            executor.since_s,
            executor.state is ExecutorState.IDLE,
            lease is None or lease.request.retriable,
        )

    def _report(self, victim: Executor, used: int, limit: int) -> str:
        config = self._server.config
        labels = {one.pid: _label(one) for one in self._executors()}
        rows = [
            f"{pid}\t{size / _GB:.2f}\t{labels.get(pid, command)}"
            for size, pid, command in memory_usage.largest_processes()
        ]
        own = memory_usage.private_bytes(victim.pid) / _GB
        again = victim.lease is None or victim.lease.request.retriable
        return (
            f"{_label(victim)} (pid {victim.pid}) was killed due to the node running "
            f"low on memory. Memory on the node (IP: {config.node_ip}, ID: "
            f"{config.node_id}) was {used / _GB:.2f}GB used / {limit / _GB:.2f}GB "
            f"limit ({used / limit:.4f}), which exceeds the threshold of "
            f"{self.policy.threshold:g}. The process used {own:.2f}GB; it was chosen "
            f"as the newest one that may {'' if again else 'not '}be run again.\n"
            f"Top {len(rows)} memory users: PID\tMEM(GB)\tCOMMAND\n"
            + "\n".join(rows)
            + "\nTo go on: run fewer calls at once (a larger num_cpus, or memory=, for "
            "each), use smaller values, or a node with more memory. max_retries "
            "(tasks) and max_restarts with max_task_retries (actors) let calls run "
            "again. The setting memory_usage_threshold (RAY_memory_usage_threshold) "
            "moves the threshold; memory_monitor_refresh_ms=0 turns the monitor off."
        )


def _label(executor: Executor) -> str:
    """What an executor does, for people."""
    if executor.lease is None:
        return "an idle executor"
    label = executor.lease.request.label
    return label if executor.lease.request.fixed else f"task {label}"


def _folder_bytes(path: str) -> int:
    """What the files of the node store use of memory."""
    total = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                total += entry.stat().st_blocks * 512
    except OSError:
        pass  # a file or the folder went meanwhile
    return total
