"""What each node uses, with rates made of two looks at its counters."""

from __future__ import annotations

import time
from typing import Any

from rayshim.dashboard.reading import Reader, Unanswered

#: Seconds that nodes may take to answer.
LIMIT_S = 3.0
#: Seconds that must lie between two looks for a rate to mean something.
MIN_SPAN_S = 0.5


class Figures:
    """Asks nodes the question ``node_figures``.

    Args:
        reader: of the dashboard.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        #: What a counter is of -> (when, counter, rate that was shown last).
        self._last: dict[str, tuple[float, float, float | None]] = {}

    async def read(self) -> dict[str, dict[str, Any]]:
        """Id of a node -> its figures; ``error`` in place of them if it is silent.

        Raises:
            Unanswered: the head does not answer.
        """
        import msgspec

        told = await self._reader.ask(
            "ask", {"method": "node_figures", "limit_s": LIMIT_S}
        )
        found: dict[str, dict[str, Any]] = {}
        for one in told:
            if one["error"]:
                found[one["node_id"]] = {"error": one["error"]}
                continue
            payload = one["payload"]
            # Decoded once for all that show this answer.
            figures = one.get("decoded")
            if figures is None:
                figures = one["decoded"] = msgspec.msgpack.decode(payload)
                self._rates(one["node_id"], figures)
            found[one["node_id"]] = figures
        return found

    def _rates(self, node_id: str, figures: dict[str, Any]) -> None:
        now = float(figures.get("at_s") or time.time())
        total = figures.get("cpu_total_s")
        busy = figures.get("cpu_busy_s")
        if total and busy:
            spent = self._rate(f"{node_id} total", now, total)
            used = self._rate(f"{node_id} busy", now, busy)
            if spent and used is not None:
                figures["cpu_percent"] = min(100.0, 100.0 * used / spent)
        known = {f"{node_id} total", f"{node_id} busy"}
        processes = [*figures.get("executors", ()), figures.get("raylet") or {}]
        for row in processes:
            key = f"{node_id} {row.get('pid')}"
            known.add(key)
            if row.get("cpu_s") is not None:
                rate = self._rate(key, now, row["cpu_s"])
                row["cpu_percent"] = None if rate is None else 100.0 * rate
        for key in [k for k in self._last if k.startswith(f"{node_id} ")]:
            if key not in known:
                del self._last[key]

    def _rate(self, key: str, now: float, counter: float) -> float | None:
        before = self._last.get(key)
        if before is None:
            self._last[key] = (now, counter, None)
            return None
        span_s = now - before[0]
        if span_s < MIN_SPAN_S:
            return before[2]
        rate = max(0.0, (counter - before[1]) / span_s)
        self._last[key] = (now, counter, rate)
        return rate


async def or_nothing(figures: Figures) -> dict[str, dict[str, Any]]:
    """The figures, or none if nobody answers: where they only adorn a page."""
    try:
        return await figures.read()
    except Unanswered:
        return {}
