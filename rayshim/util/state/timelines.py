"""Timelines of a running cluster, in Chrome's trace format."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from rayshim._core import asking
from rayshim.lineage import task_events
from rayshim.util.state import sources

#: Seconds that a node or process may take to answer.
ANSWER_LIMIT_S = 5.0


def timeline(
    filename: str | os.PathLike[str] | None, address: str | None = None
) -> Any:
    """The calls of a cluster; see ``ray.timeline``.

    Args:
        filename: where to write them; None: they are returned.
        address: as for ``ray.util.state``.
    """
    with asking.control_of(address) as control:
        known = sources.calls(control, ANSWER_LIMIT_S)
        ips = {
            row["node_id"]: row["node_ip"]
            for row in control.ask("state_rows", {"kind": "nodes"})
        }
    over = {(row["task_id"], row["attempt_number"]) for row in known.ended}
    running = [
        {**row, "node_ip": ips.get(row["node_id"], "")}
        for row in known.live
        if row["start_s"] and (row["task_id"], row["attempt_number"]) not in over
    ]
    events = task_events.timeline(known.ended, running, time.time())
    return events if filename is None else write(events, filename)


def write(events: list[dict[str, Any]], filename: str | os.PathLike[str]) -> None:
    """Writes trace events for Chrome (chrome://tracing) or Perfetto."""
    Path(filename).write_text(json.dumps(events))
