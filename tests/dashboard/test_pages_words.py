"""What tables and charts are made of, without a cluster or a browser."""

from __future__ import annotations

import doctest
from types import ModuleType
from typing import Any

import pytest

from rayshim.dashboard import (
    log_pages,
    object_pages,
    plots,
    reading,
    tables,
    texts,
    work_pages,
)
from rayshim.dashboard.tables import Column

MODULES = (log_pages, object_pages, plots, reading, tables, texts, work_pages)
COLUMNS = (
    Column("name", "Name", is_searched=True),
    Column("state", "State", is_choice=True),
    Column("size", "Size", is_number=True),
)
ROWS = [
    {"name": f"row{n}", "state": "EVEN" if n % 2 == 0 else "ODD", "size": n % 10}
    for n in range(120)
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples_in_docstrings_are_true(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def shown(**parameters: str) -> tables.Table:
    return tables.cut(ROWS, COLUMNS, parameters, path="/rows")


def test_a_page_is_a_part_of_the_rows_that_match() -> None:
    table = shown(state="ODD", sort="size", order="desc", page="2", rows="25")

    assert [row["size"] for row in table.rows[:3]] == [5, 5, 5]
    assert (table.first, table.last, table.matched, table.total) == (26, 50, 60, 120)
    assert table.pages == 3


@pytest.mark.parametrize("page", ["0", "-3", "99", "x", "9" * 40])
def test_pages_that_there_are_not_lead_to_one_that_there_is(page: str) -> None:
    table = shown(page=page, rows="7")

    assert table.rows and 1 <= table.page <= table.pages
    assert table.per_page == 50


def test_unknown_columns_and_values_are_ignored_or_match_nothing() -> None:
    assert shown(sort="__class__", secret="1").rows == ROWS[:50]
    assert shown(state="NONE").rows == []


def test_rows_of_different_kinds_can_be_sorted() -> None:
    rows = [{"size": value} for value in (3, None, "x", 1.5, "")]

    table = tables.cut(rows, COLUMNS, {"sort": "size"}, path="/")

    assert [row["size"] for row in table.rows] == [None, "", 1.5, 3, "x"]


def test_links_keep_what_is_chosen_and_quote_it() -> None:
    table = shown(state="ODD", q="a&b=<c>", sort="size")

    link = table.link(page=2)

    assert link == "/rows?state=ODD&q=a%26b%3D%3Cc%3E&sort=size&page=2"
    assert table.sort_link(COLUMNS[2]).endswith("sort=size&order=desc")


def test_counts_of_a_choice_are_those_that_choosing_it_would_show() -> None:
    table = shown(state="ODD", q="row1")

    assert dict(table.choices["state"]) == {"EVEN": 15, "ODD": 16}


def call(number: int, start: float, took_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "task_id": f"{number:048x}",
        "func_or_class_name": "f",
        "state": "FINISHED",
        "node_id": "n",
        "worker_id": "w",
        "worker_pid": 1,
        "start_time_ms": start,
        "end_time_ms": start + took_ms,
        **more,
    }


def test_a_timeline_has_a_lane_for_each_executor() -> None:
    rows = [call(1, 1000, 500), call(2, 1500, 500, worker_id="v", worker_pid=2)]

    picture = plots.timeline(rows, begin_ms=1000, end_ms=2000, now_ms=2000)

    assert [lane.name for lane in picture.lanes] == ["pid 1", "pid 2"]
    first, second = (lane.bars[0] for lane in picture.lanes)
    assert (first.x, first.task_id) == (plots.LABELS, f"{1:048x}")
    assert second.x == pytest.approx(first.x + first.width, abs=0.1)


def test_calls_too_short_to_be_seen_are_one_bar() -> None:
    rows = [call(n, 1000 + n / 100, 0.005) for n in range(10_000)]

    picture = plots.timeline(rows, begin_ms=1000, end_ms=2_000_000, now_ms=2000)

    assert picture.calls == 10_000
    assert len(picture.lanes[0].bars) == 1


def test_a_timeline_stays_small_whatever_there_is() -> None:
    rows = [
        call(
            n,
            1000 + n % 997 * 3,
            2,
            worker_id=f"w{n % 300}",
            func_or_class_name=f"f{n % 50}",
        )
        for n in range(6_000)
    ]

    picture = plots.timeline(rows, begin_ms=1000, end_ms=4000, now_ms=4000)

    assert len(picture.lanes) == plots.MAX_LANES
    assert picture.left_out == 300 - plots.MAX_LANES
    bars = sum(len(lane.bars) for lane in picture.lanes)
    assert bars <= 1.2 * plots.MAX_BARS
    assert max(bar.colour for lane in picture.lanes for bar in lane.bars) < 12


def test_what_runs_ends_now_and_what_waits_is_not_drawn() -> None:
    rows = [call(1, 1000, 0, end_time_ms=None), call(2, 0, 0, start_time_ms=None)]

    picture = plots.timeline(rows, begin_ms=1000, end_ms=3000, now_ms=3000)

    (bar,) = picture.lanes[0].bars
    assert bar.end_ms == 3000 and picture.calls == 1


def test_a_line_of_nothing_is_empty() -> None:
    assert plots.line([]).line == ""
    assert plots.line([(1.0, 2.0)]).newest == 2.0
