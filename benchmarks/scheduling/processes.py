"""Processes below this one and the memory that they hold, from ``/proc``."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def below(pid: int | None = None) -> dict[int, str]:
    """Process ids of all descendants -> their command lines."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it ended
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    waiting = [os.getpid() if pid is None else pid]
    while waiting:
        parent = waiting.pop()
        for child, of in parents.items():
            if of == parent:
                waiting.append(child)
                found[child] = command_line(child)
    return found


def command_line(pid: int) -> str:
    """The words of a process's command; empty if it is gone."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode(errors="replace")


def resident_mb(pid: int) -> float:
    """Resident memory, shared pages included, in MB; 0 if the process is gone."""
    return _field_kb(PROC / str(pid) / "status", "VmRSS:") / 1e3


def proportional_mb(pid: int) -> float:
    """Memory with each shared page divided by its users, in MB; 0 if it is gone."""
    return _field_kb(PROC / str(pid) / "smaps_rollup", "Pss:") / 1e3


def _field_kb(path: Path, name: str) -> float:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0.0
    for line in lines:
        if line.startswith(name):
            return int(line.split()[1]) * 1.024
    return 0.0
