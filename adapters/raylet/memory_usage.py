"""How much memory the machine, its container and its processes use.

Read from ``/proc`` and the cgroup's files, which costs some 50 us; elsewhere psutil is
asked.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
#: Processes that a report names.
SHOWN = 10
#: Files of a cgroup: its limit, its usage, what of it the kernel gives back at need.
_CGROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def cgroup_folders(root: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Folders that may hold the memory limit of this process, version 2 first."""
    folders = [root]
    try:
        lines = (_PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folders.insert(0, root / path.lstrip("/"))
        elif "memory" in controllers.split(","):
            folders += [root / "memory" / path.lstrip("/"), root / "memory"]
    return folders


def cgroup_memory(folders: list[Path]) -> tuple[int, int] | None:
    """(used, limit) of the first folder with a limit, bytes."""
    for folder in folders:
        for limit_name, usage_name, cache_name in _CGROUPS:
            try:
                limit = int((folder / limit_name).read_text())
                used = int((folder / usage_name).read_text())
                stat = (folder / "memory.stat").read_text().split()
            except (OSError, ValueError):  # "max" is no number
                continue
            cache = dict(zip(stat[::2], stat[1::2], strict=False)).get(cache_name, 0)
            return max(0, used - int(cache)), limit
    return None


def machine_memory() -> tuple[int, int]:
    """(used, total) of the machine, bytes; what the kernel can free is not used."""
    try:
        text = (_PROC / "meminfo").read_text()
    except OSError:
        import psutil

        memory = psutil.virtual_memory()
        return memory.total - memory.available, memory.total
    values = dict(line.split(":", 1) for line in text.splitlines())
    total = 1024 * int(values["MemTotal"].split()[0])
    return total - 1024 * int(values["MemAvailable"].split()[0]), total


def node_memory(folders: list[Path]) -> tuple[int, int]:
    """(used, limit): of the container where that limits more than the machine."""
    used, total = machine_memory()
    inside = cgroup_memory(folders)
    if inside is not None and inside[1] < total:
        return inside
    return used, total


def private_bytes(pid: int) -> int:
    """What a process has for itself, without files and shared memory; 0 if gone."""
    try:
        fields = (_PROC / str(pid) / "statm").read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES


def largest_processes() -> list[tuple[int, int, str]]:
    """(bytes, pid, command) of the processes that use most, largest first."""
    found = []
    for entry in os.listdir(_PROC):
        if entry.isdigit():
            found.append((private_bytes(int(entry)), int(entry)))
    found.sort(reverse=True)
    return [(size, pid, _command(pid)) for size, pid in found[:SHOWN]]


def _command(pid: int) -> str:
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return "?"
    text = raw.replace(b"\0", b" ").decode(errors="replace").strip()
    return text if len(text) <= 80 else text[:77] + "..."


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
