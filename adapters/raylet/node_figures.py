"""The question ``node_figures``: what a node uses now, who uses it, and who waits.

For pages that people look at: nothing is measured, and this is not imported, before
somebody asks. Counters of processor time are told as they are; rates are made of two
answers by whoever asks, so that several who ask do not disturb each other.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from rayshim.adapters.raylet import memory_usage
from rayshim.lineage import explain
from rayshim.lineage.resources import to_amounts

if TYPE_CHECKING:
    from rayshim.adapters.raylet.server import NodeServer

#: Leases that one answer lists; the numbers of all are told beside them.
MAX_LEASES = 2000


async def answer(server: NodeServer, payload: bytes) -> bytes:
    """MessagePack of a map with the keys of :func:`_known` and :func:`_measured`."""
    known = _known(server)
    pids = {row["pid"]: row for row in known["executors"] if row["pid"]}
    config = server.config
    measured = await asyncio.to_thread(_measured, pids, config.session_dir)
    return msgspec.msgpack.encode({**known, **measured})


def _known(server: NodeServer) -> dict[str, Any]:
    """What the event loop knows."""
    raylet, store, now = server.raylet, server.store, server.now()
    leases = explain.lease_rows(raylet, now, server.backlogs)
    states: dict[str, int] = {}
    for row in leases:
        states[row["state"]] = states.get(row["state"], 0) + 1
    labels = {row["pid"]: row["label"] for row in leases if row["pid"]}
    executors = explain.executor_rows(raylet, now)
    for row in executors:
        row["label"] = labels.get(row["pid"], "")
    events = server._event_files  # made by the first call that ends
    # Those that wait come first: they are what people look for.
    leases.sort(key=lambda row: row["state"] == "GRANTED")
    return {
        "leases": leases[:MAX_LEASES],
        "lease_states": states,
        "executors": executors,
        "total": to_amounts(raylet.resources.total),
        "available": to_amounts(raylet.resources.available),
        "store_used_bytes": store.used_bytes,
        "store_limit_bytes": store.limit_bytes,
        "spilled_bytes": store.spilled_bytes,
        "spilled_count": len(store.spilled),
        "peers": len(server.peers),
        "tasks_ended": events.ended if events is not None else 0,
    }


def _measured(pids: dict[int, dict[str, Any]], folder: str) -> dict[str, Any]:
    """What the kernel knows; puts memory and processor time into the rows.

    Runs in a thread: each process costs some 100 us.
    """
    for pid, row in pids.items():
        row.update(_process(pid))
    used_bytes, total_bytes = memory_usage.machine_memory()
    times = psutil.cpu_times()
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    disk = psutil.disk_usage(folder)
    load = os.getloadavg() if hasattr(os, "getloadavg") else (0.0, 0.0, 0.0)
    return {
        "raylet": {"pid": os.getpid(), **_process(os.getpid())},
        "memory_used_bytes": used_bytes,
        "memory_total_bytes": total_bytes,
        "cpu_count": psutil.cpu_count() or 1,
        # Time as a guest is in that of users already.
        "cpu_busy_s": sum(times[:4]) + sum(times[4:8]) - idle_s,
        "cpu_total_s": sum(times[:8]),
        "load": list(load),
        "disk_used_bytes": disk.used,
        "disk_total_bytes": disk.total,
        "at_s": time.time(),
    }


def _process(pid: int) -> dict[str, Any]:
    """Memory and processor time of a process; empty if it has ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            memory, times = process.memory_info(), process.cpu_times()
            return {
                "rss_bytes": memory.rss,
                "shared_bytes": getattr(memory, "shared", 0),
                "cpu_s": times.user + times.system,
                "threads": process.num_threads(),
            }
    except (psutil.Error, OSError):
        return {}
