"""The geometry of charts: points of lines, and bars of a timeline.

Numbers only; what is text goes through the templates, which escape it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayshim.dashboard.texts import took

#: Size of a small chart in its own units.
WIDTH, HEIGHT = 300, 74
#: Size of the timeline: of one lane, of what is left for names, of the whole.
LANE, LABELS, TIMELINE = 20, 190, 1200
#: Bars that a timeline may have; more are joined.
MAX_BARS = 2500
#: Width from which on a bar says what it is, and leads there.
NAMED = 3.0
#: Lanes that it may have.
MAX_LANES = 64
#: Functions that have a colour of their own; the others share the last one.
COLOURS = 12


@dataclass(frozen=True, slots=True)
class Line:
    """A small chart."""

    #: Attribute ``points`` of the line and of the area below it.
    line: str
    area: str
    newest: float | None
    top: float
    span_s: float


def line(points: Sequence[tuple[float, float]], top: float | None = None) -> Line:
    """The chart of a series.

    Args:
        points: (time in seconds, value), oldest first.
        top: value at the upper edge; None: a little above the largest.

    Example:
        >>> line([(0.0, 0.0), (10.0, 5.0)], top=10.0).line
        '0,73 300,37'
    """
    if not points:
        return Line("", "", None, top or 1.0, 0.0)
    largest = max(value for _, value in points)
    top = top if top is not None else (largest * 1.15 or 1.0)
    top = max(top, largest, 1e-9)
    begin, end = points[0][0], points[-1][0]
    span_s = end - begin
    drawn = []
    for at_s, value in points:
        x = WIDTH * (at_s - begin) / span_s if span_s else WIDTH
        y = (HEIGHT - 1) - (HEIGHT - 2) * max(0.0, value) / top
        drawn.append(f"{x:.4g},{y:.4g}")
    text = " ".join(drawn)
    last_x = WIDTH
    first_x = 0 if span_s else WIDTH
    area = f"{first_x},{HEIGHT} {text} {last_x},{HEIGHT}"
    return Line(text, area, points[-1][1], top, span_s)


@dataclass(slots=True)
class Bar:
    """Calls of one function, one after another, on one executor."""

    x: float
    width: float
    colour: int
    name: str
    #: Of the call, if it is one.
    task_id: str
    count: int
    begin_ms: float
    end_ms: float
    is_failed: bool = False

    @property
    def style(self) -> str:
        """Its class."""
        return "failed" if self.is_failed else f"k{self.colour}"

    @property
    def title(self) -> str:
        """What it is."""
        shown = took((self.end_ms - self.begin_ms) / 1000)
        return f"{self.name}, {shown}{', failed' if self.is_failed else ''}"


@dataclass(slots=True)
class Lane:
    """One executor."""

    name: str
    pid: int | None
    node_id: str
    y: int
    bars: list[Bar] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Timeline:
    """A picture of what ran where, and when."""

    lanes: list[Lane]
    #: (x, milliseconds since the beginning).
    ticks: list[tuple[float, float]]
    #: (colour, name, calls), most first.
    legend: list[tuple[int, str, int]]
    begin_ms: float
    end_ms: float
    height: int
    #: Executors that are left out.
    left_out: int
    calls: int


def timeline(
    rows: Sequence[Mapping[str, Any]],
    *,
    begin_ms: float,
    end_ms: float,
    now_ms: float,
) -> Timeline:
    """The picture of rows of ``list_tasks(detail=True)``.

    Args:
        rows: with ``start_time_ms``, ``end_time_ms`` (None while it runs),
            ``worker_id``, ``worker_pid``, ``node_id``, ``name``, ``state``.
        begin_ms: of what is shown, milliseconds since 1970.
        end_ms: likewise.
        now_ms: where calls that run end.
    """
    shown = []
    counts: dict[str, int] = {}
    for row in rows:
        start = row.get("start_time_ms")
        if not start:
            continue
        end = row.get("end_time_ms") or now_ms
        if end < begin_ms or start > end_ms:
            continue
        name = str(row.get("func_or_class_name") or row.get("name") or "?")
        counts[name] = counts.get(name, 0) + 1
        shown.append((start, end, name, _lane_key(row), row))
    shown.sort(key=lambda one: one[0])
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    colours = {
        name: min(place, COLOURS - 1) for place, (name, _) in enumerate(by_count)
    }
    lanes: dict[tuple[str, str], Lane] = {}
    left_out: set[tuple[str, str]] = set()
    width = TIMELINE - LABELS - 24
    scale = width / max(1e-9, end_ms - begin_ms)
    # Bars so narrow that they cannot be told apart become one.
    lane_count = min(MAX_LANES, len({key for _, _, _, key, _ in shown}) or 1)
    grain = max(1.0, lane_count * width / MAX_BARS)
    for start, end, name, key, row in shown:
        lane = lanes.get(key)
        if lane is None:
            if len(lanes) == MAX_LANES:
                left_out.add(key)
                continue
            pid = row.get("worker_pid")
            label = f"pid {pid}" if pid else key[1][:8] or "?"
            y = len(lanes) * LANE
            lane = lanes[key] = Lane(label, pid, key[0], y)
        _draw(
            lane, start, end, name, row, colours[name], begin_ms, end_ms, scale, grain
        )
    return Timeline(
        list(lanes.values()),
        _ticks(begin_ms, end_ms, scale),
        [(colours[name], name, count) for name, count in by_count[:40]],
        begin_ms,
        end_ms,
        len(lanes) * LANE + 24,
        len(left_out),
        len(shown),
    )


def _lane_key(row: Mapping[str, Any]) -> tuple[str, str]:
    worker = row.get("worker_id") or row.get("worker_pid") or ""
    return str(row.get("node_id") or ""), str(worker)


def _draw(
    lane: Lane,
    start: float,
    end: float,
    name: str,
    row: Mapping[str, Any],
    colour: int,
    begin_ms: float,
    end_ms: float,
    scale: float,
    grain: float,
) -> None:
    x = LABELS + (max(start, begin_ms) - begin_ms) * scale
    right = LABELS + (min(end, end_ms) - begin_ms) * scale
    is_failed = row.get("state") == "FAILED"
    last = lane.bars[-1] if lane.bars else None
    if last is not None and right - last.x < grain:
        # The one that takes most of a joined bar names it.
        last.count += 1
        last.width = max(last.width, round(right - last.x, 2))
        last.end_ms = max(last.end_ms, end)
        last.is_failed = last.is_failed or is_failed
        last.task_id = ""
        return
    if (
        last is not None
        and last.colour == colour
        and last.name == name
        and not (last.is_failed or is_failed)
        and right - x < grain
        and x - (last.x + last.width) < grain / 2
        and last.width < 8 * grain
    ):
        last.count += 1
        last.width = max(last.width, round(right - last.x, 2))
        last.end_ms = max(last.end_ms, end)
        last.task_id = ""
        return
    width = max(0.8, round(right - x, 2))
    lane.bars.append(
        Bar(
            round(x, 2),
            width,
            colour,
            name,
            str(row.get("task_id") or "") if width >= NAMED else "",
            1,
            start,
            end,
            is_failed,
        )
    )


def _ticks(begin_ms: float, end_ms: float, scale: float) -> list[tuple[float, float]]:
    span = end_ms - begin_ms
    if span <= 0:
        return []
    step = 1.0
    for candidate in _STEPS_MS:
        step = candidate
        if span / step <= 10:
            break
    count = int(span / step) + 1
    return [
        (round(LABELS + place * step * scale, 1), place * step)
        for place in range(min(count, 200))
    ]


#: Spans between the ticks of a timeline, in milliseconds.
_STEPS_MS = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4),
    *(3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 144e5, 432e5, 864e5),
)
