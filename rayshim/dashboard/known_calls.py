"""Rows of calls for pages that are read every few seconds.

What nodes remember of ended calls are batches that do not change: each is decoded once
for as long as its node remembers it. Of ten thousand calls a refresh decodes what has
been added since the last one.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from rayshim._core import asking
from rayshim.adapters.events import records
from rayshim.lineage import task_events
from rayshim.util.state import sources

Row = dict[str, Any]


#: Ended calls that nodes are asked for, the newest. All of them may be a hundred
#: thousand, and no table has use for so many.
MAX_ENDED = 10_000


class _Newest:
    """A control service that is asked for the newest calls, not for all.

    Args:
        control: that is asked.
        limit_s: seconds that processes may take.
    """

    def __init__(self, control: asking.Control, limit_s: float) -> None:
        self._control = control
        self._payload = msgspec.msgpack.encode((limit_s, MAX_ENDED))

    def ask(self, method: str, payload: Any = None) -> Any:
        """Its answer to one request."""
        if method == "ask" and payload["method"] == "calls":
            payload = {**payload, "method": "newest_calls", "payload": self._payload}
        return self._control.ask(method, payload)


class KnownCalls:
    """Joins what is said of calls, as ``list_tasks`` does.

    Thread safety: any thread may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Batch -> (whether its owner tells it, its rows).
        self._batches: dict[bytes, tuple[bool, list[Row]]] = {}

    def read(
        self, control: asking.Control, limit_s: float
    ) -> tuple[list[Row], list[str]]:
        """A row for each attempt at the newest calls, and who kept silent.

        The rows of ended calls are shared with later answers.

        Args:
            control: of the cluster.
            limit_s: seconds that those who are asked may take.
        """
        told: list[bytes] = []

        def take(batch: bytes) -> list[Row]:
            told.append(batch)
            return []

        known = sources.calls(_Newest(control, limit_s), limit_s, take)
        with self._lock:
            self._batches = {batch: self._rows_of(batch) for batch in told}
            rows = self._joined(known.live)
        return sources.with_constructors(control, rows), known.silent

    def _rows_of(self, batch: bytes) -> tuple[bool, list[Row]]:
        found = self._batches.get(batch)
        if found is None:
            ended = records.call_rows(batch)
            by_owner = bool(ended) and ended[0]["role"] == "owner"
            found = by_owner, task_events.joined(ended, [])
        return found

    def _joined(self, live: list[Row]) -> list[Row]:
        found: dict[tuple[str, int], Row] = {}
        by_owners: set[tuple[str, int]] = set()
        for by_owner, rows in self._batches.values():
            for row in rows:
                key = (row["task_id"], row["attempt_number"])
                # Of two ends that of the executor counts (lineage/task_events.py).
                if key not in found or key in by_owners:
                    found[key] = row
                    by_owners.discard(key)
                    if by_owner:
                        by_owners.add(key)
        for row in task_events.joined([], live):
            found.setdefault((row["task_id"], row["attempt_number"]), row)
        return list(found.values())
