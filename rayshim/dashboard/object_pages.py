"""The page about values: what lies in memory, who holds it, where it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rayshim.dashboard import tables
from rayshim.dashboard.cluster_pages import node_rows
from rayshim.dashboard.site import Page, Site
from rayshim.dashboard.tables import Column

if TYPE_CHECKING:
    from starlette.requests import Request

#: Rows of each sum.
SHOWN = 20

OBJECT_COLUMNS = (
    Column("object_id", "Object", is_searched=True),
    Column("object_size", "Size", is_number=True),
    Column("reference_type", "Held as", is_choice=True),
    Column("task_status", "Its call", is_choice=True),
    Column("call_site", "Made at", is_searched=True),
    Column("type", "Holder", is_choice=True),
    Column("ip", "Address", is_choice=True),
    Column("pid", "Pid", is_number=True, is_searched=True),
)


async def objects(request: Request, site: Site) -> dict[str, Any]:
    """The table of values, and sums by call site and by holder."""
    reader = site.reader
    found, problems = await reader.together(
        objects=reader.all_rows("objects"),
        nodes=node_rows(site),
    )
    if found["objects"] is None:
        raise problems[0]
    rows, silent = found["objects"]
    table = tables.cut(
        rows,
        OBJECT_COLUMNS,
        dict(request.query_params),
        path="/objects",
        sort="object_size",
        is_descending=True,
    )
    return {
        "problems": problems,
        "table": table,
        "silent": silent,
        "nodes": [row for row in found["nodes"] or () if row["alive"]],
        "by_site": summed(rows, ("call_site",)),
        "by_holder": summed(rows, ("type", "ip", "pid")),
    }


def summed(
    rows: Sequence[dict[str, Any]], keys: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Number and bytes of the values that are alike in some columns, largest first.

    A value that several hold counts once in each sum.

    Example:
        >>> rows = [{"object_id": "a", "object_size": 5, "pid": 1}] * 2
        >>> summed(rows, ("pid",))
        [{'pid': 1, 'count': 1, 'bytes': 5.0}]
    """
    sums: dict[tuple[Any, ...], dict[str, Any]] = {}
    seen: set[tuple[Any, ...]] = set()
    for row in rows:
        group = tuple(row.get(key) for key in keys)
        mark = (*group, row.get("object_id"))
        if mark in seen:
            continue
        seen.add(mark)
        found = sums.setdefault(
            group, {**dict(zip(keys, group, strict=True)), "count": 0, "bytes": 0.0}
        )
        found["count"] += 1
        size = row.get("object_size")
        # -1: it is not known yet.
        found["bytes"] += size if isinstance(size, int | float) and size > 0 else 0
    largest = sorted(sums.values(), key=lambda one: (-one["bytes"], -one["count"]))
    return largest[:SHOWN]


PAGES = (Page("/objects", "Objects and memory", "objects.html", objects, 5),)
