"""Figures of the last minutes, for charts; taken only while somebody looks.

A sample is taken every :data:`PERIOD_S` from the first page that is seen until
:data:`WATCHED_S` after the last one. What is kept is bounded, and gone with the
process: for more, there is Prometheus.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Any

from rayshim.dashboard.figures import Figures
from rayshim.dashboard.reading import Reader, Unanswered

logger = logging.getLogger(__name__)

#: Seconds between samples.
PERIOD_S = 5.0
#: Seconds after the last page that was seen for which samples are taken.
WATCHED_S = 300.0
#: Samples that are kept: one hour.
MAX_SAMPLES = 720


class Samples:
    """A bounded ring of samples.

    Args:
        reader: of the dashboard.
        figures: of the nodes.
    """

    def __init__(self, reader: Reader, figures: Figures) -> None:
        self._reader = reader
        self._figures = figures
        #: Oldest first: ``at_s``, what the cluster does, ``nodes`` with what they do.
        self.ring: deque[dict[str, Any]] = deque(maxlen=MAX_SAMPLES)
        self._seen_s = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def seen(self) -> None:
        """Somebody looks at a page."""
        self._seen_s = time.monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_watched(self) -> bool:
        """Whether somebody has looked lately."""
        return time.monotonic() - self._seen_s < WATCHED_S

    async def _run(self) -> None:
        while self.is_watched:
            try:
                await self.take()
            except Unanswered as error:
                logger.debug("no sample: %s", error)
            await asyncio.sleep(PERIOD_S)

    async def take(self) -> dict[str, Any]:
        """Takes one sample and returns it.

        Raises:
            Unanswered: the head does not answer.
        """
        figures = await self._figures.read()
        sample: dict[str, Any] = {"at_s": time.time(), "nodes": {}}
        sums = dict.fromkeys(
            ("store", "spilled", "memory", "memory_total", "granted", "waiting"), 0.0
        )
        cpus = busy = finished = 0.0
        used_cpus = total_cpus = 0.0
        for node_id, one in figures.items():
            if one.get("error"):
                continue
            states = one.get("lease_states", {})
            sums["granted"] += states.get("GRANTED", 0)
            sums["waiting"] += sum(states.values()) - states.get("GRANTED", 0)
            sums["store"] += one.get("store_used_bytes", 0)
            sums["spilled"] += one.get("spilled_bytes", 0)
            sums["memory"] += one.get("memory_used_bytes", 0)
            sums["memory_total"] += one.get("memory_total_bytes", 0)
            finished += one.get("tasks_ended", 0)
            total = one.get("total", {}).get("CPU", 0.0)
            total_cpus += total
            used_cpus += total - one.get("available", {}).get("CPU", 0.0)
            percent = one.get("cpu_percent")
            if percent is not None:
                cpus += one.get("cpu_count", 1)
                busy += percent * one.get("cpu_count", 1)
            sample["nodes"][node_id] = {
                "cpu": percent,
                "memory": one.get("memory_used_bytes"),
                "store": one.get("store_used_bytes"),
            }
        sample.update(sums)
        sample["cpu"] = busy / cpus if cpus else None
        sample["used_cpus"], sample["total_cpus"] = used_cpus, total_cpus
        sample["tasks_ended"] = finished
        sample["tasks_per_s"] = self._task_rate(sample)
        self.ring.append(sample)
        return sample

    def _task_rate(self, sample: dict[str, Any]) -> float | None:
        if not self.ring:
            return None
        before = self.ring[-1]
        span_s = sample["at_s"] - before["at_s"]
        ended = sample["tasks_ended"] - before["tasks_ended"]
        # A node that left took its count along.
        return ended / span_s if span_s > 0 and ended >= 0 else None

    def series(self, key: str, *, node_id: str = "") -> list[tuple[float, float]]:
        """(time in seconds, value) of one figure, oldest first."""
        found = []
        for sample in self.ring:
            of = sample["nodes"].get(node_id, {}) if node_id else sample
            value = of.get(key)
            if value is not None:
                found.append((sample["at_s"], float(value)))
        return found
