"""What the machine of a node does: processor, memory, disk, network, processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from rayshim.adapters.metrics.families import Families

_MEGABYTE = 1e6


class MachineMeter:
    """Measures when it is asked; rates are since the last time.

    Thread safety: one call at a time.
    """

    def __init__(self, folder: str) -> None:
        #: Whose disk is shown.
        self._folder = folder
        self._processes: dict[int, psutil.Process] = {}
        #: Name of a counter -> (when, value).
        self._last: dict[str, tuple[float, float]] = {}
        psutil.cpu_percent(None)

    def measure(
        self, into: Families, *, pids: dict[int, str], labels: dict[str, str]
    ) -> None:
        """Look at the machine and at processes.

        Args:
            into: takes the values.
            pids: process id -> what it is called.
            labels: of all values.
        """
        self._memory(into, labels)
        self._disk(into, labels)
        self._network(into, labels)
        self._components(into, pids, labels)

    def _memory(self, into: Families, labels: dict[str, str]) -> None:
        gauge = into.gauge
        memory = psutil.virtual_memory()
        gauge(
            "node_cpu_utilization",
            "Total CPU usage on a node, in percent",
            psutil.cpu_percent(None),
            **labels,
        )
        gauge(
            "node_cpu_count",
            "Number of CPUs of a node",
            psutil.cpu_count() or 0,
            **labels,
        )
        gauge("node_mem_used", "Memory in use, in bytes", memory.used, **labels)
        gauge(
            "node_mem_available",
            "Memory available, in bytes",
            memory.available,
            **labels,
        )
        gauge("node_mem_total", "All memory, in bytes", memory.total, **labels)
        gauge(
            "node_mem_shared_bytes",
            "Shared memory in use, in bytes",
            getattr(memory, "shared", 0),
            **labels,
        )

    def _disk(self, into: Families, labels: dict[str, str]) -> None:
        usage = psutil.disk_usage(self._folder)
        gauge = into.gauge
        gauge("node_disk_usage", "Disk space in use, in bytes", usage.used, **labels)
        gauge(
            "node_disk_free", "Disk space that is free, in bytes", usage.free, **labels
        )
        gauge(
            "node_disk_utilization_percentage",
            "Disk space in use, in percent",
            usage.percent,
            **labels,
        )
        io = psutil.disk_io_counters()
        if io is None:
            return
        for word, size, count in (
            ("read", io.read_bytes, io.read_count),
            ("write", io.write_bytes, io.write_count),
        ):
            gauge(
                f"node_disk_io_{word}", f"Bytes of disk {word}s", float(size), **labels
            )
            gauge(
                f"node_disk_io_{word}_count",
                f"Number of disk {word}s",
                float(count),
                **labels,
            )
            gauge(
                f"node_disk_io_{word}_speed",
                f"Disk {word} speed, in bytes/s",
                self._rate(f"disk-{word}", size),
                **labels,
            )
            gauge(
                f"node_disk_{word}_iops",
                f"Disk {word}s a second",
                self._rate(f"disk-{word}-count", count),
                **labels,
            )

    def _network(self, into: Families, labels: dict[str, str]) -> None:
        net = psutil.net_io_counters()
        if net is None:
            return
        gauge = into.gauge
        gauge("node_network_sent", "Bytes sent", float(net.bytes_sent), **labels)
        gauge(
            "node_network_received", "Bytes received", float(net.bytes_recv), **labels
        )
        gauge(
            "node_network_send_speed",
            "Sending speed, in bytes/s",
            self._rate("sent", net.bytes_sent),
            **labels,
        )
        gauge(
            "node_network_receive_speed",
            "Receiving speed, in bytes/s",
            self._rate("received", net.bytes_recv),
            **labels,
        )

    def _rate(self, name: str, value: float) -> float:
        now = time.monotonic()
        before = self._last.get(name)
        self._last[name] = (now, value)
        if before is None or now <= before[0]:
            return 0.0
        return max(0.0, (value - before[1]) / (now - before[0]))

    def _components(
        self, into: Families, pids: dict[int, str], labels: dict[str, str]
    ) -> None:
        """One line for each process; executors of one name are added up."""
        totals: dict[tuple[str, str], list[float]] = {}
        for pid, name in pids.items():
            found = self._look_at(pid)
            if found is None:
                continue
            shown_pid = "" if name.startswith("ray::") else str(pid)
            sums = totals.setdefault((name, shown_pid), [0.0] * len(found))
            for place, value in enumerate(found):
                sums[place] += value
        self._processes = {
            pid: process for pid, process in self._processes.items() if pid in pids
        }
        for (name, pid_text), values in totals.items():
            about = {**labels, "Component": name, "pid": pid_text}
            cpu, rss, shared, uss, descriptors = values
            gauge = into.gauge
            gauge("component_cpu_percentage", "CPU use, in percent", cpu, **about)
            gauge("component_rss_bytes", "Resident memory, in bytes", rss, **about)
            gauge(
                "component_rss_mb", "Resident memory, in MB", rss / _MEGABYTE, **about
            )
            gauge("component_shared_bytes", "Shared memory, in bytes", shared, **about)
            gauge("component_uss_bytes", "Memory of its own, in bytes", uss, **about)
            gauge(
                "component_uss_mb", "Memory of its own, in MB", uss / _MEGABYTE, **about
            )
            gauge("component_num_fds", "Open files and sockets", descriptors, **about)

    def _look_at(self, pid: int) -> list[float] | None:
        try:
            process = self._processes.get(pid)
            if process is None:
                process = self._processes[pid] = psutil.Process(pid)
            with process.oneshot():
                memory = process.memory_info()
                shared = float(getattr(memory, "shared", 0))
                return [
                    process.cpu_percent(None),
                    float(memory.rss),
                    shared,
                    # What is resident and not shared: to ask the kernel for the exact
                    # amount takes it milliseconds for each process.
                    float(memory.rss) - shared,
                    float(process.num_fds()),
                ]
        except (psutil.Error, OSError):
            self._processes.pop(pid, None)
            return None
