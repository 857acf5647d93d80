"""Pages about jobs: all of them, and one with its output.

What changes something (submit, stop, delete) goes to Ray's REST routes, from a script
of the page: the guard lets only this dashboard's own pages do so, or who has the
token.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rayshim.dashboard import log_pages, tables
from rayshim.dashboard.reading import Missing, Reader
from rayshim.dashboard.site import Page, Site
from rayshim.dashboard.tables import Column

if TYPE_CHECKING:
    from starlette.requests import Request

JOB_COLUMNS = (
    Column("submission_id", "Job", is_searched=True),
    Column("job_id", "Number", is_searched=True),
    Column("status", "State", is_choice=True),
    Column("type", "Kind", is_choice=True),
    Column("entrypoint", "Command", is_searched=True),
    Column("start_time", "Began", is_number=True),
    Column("duration_s", "Took", is_number=True),
)
#: States in which a job does no more.
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


async def read_jobs(reader: Reader) -> list[dict[str, Any]]:
    """All jobs, those of programs that joined by themselves too.

    Raises:
        Unanswered: nobody answers.
    """
    rows, _ = await reader.all_rows("jobs")
    now_ms = time.time() * 1000
    for row in rows:
        row["status"] = _word(row.get("status"))
        row["type"] = _word(row.get("type"))
        start, end = row.get("start_time"), row.get("end_time")
        if start:
            is_over = end or row["status"] in _ENDED
            last = end or (None if is_over else now_ms)
            row["duration_s"] = (last - start) / 1000 if last else None
    return rows


def _word(value: Any) -> str:
    """The name of a state, be it text or of an enumeration."""
    return str(getattr(value, "value", value) or "")


async def jobs(request: Request, site: Site) -> dict[str, Any]:
    """The table of jobs, and a form for a new one."""
    rows = await read_jobs(site.reader)
    table = tables.cut(
        rows,
        JOB_COLUMNS,
        dict(request.query_params),
        path="/jobs",
        sort="start_time",
        is_descending=True,
    )
    return {"table": table}


async def job(request: Request, site: Site) -> dict[str, Any]:
    """One job."""
    wanted = request.path_params["job_id"]
    rows = [
        row
        for row in await read_jobs(site.reader)
        if wanted in (row.get("submission_id"), row.get("job_id"))
    ]
    if not rows:
        raise Missing(f"The cluster knows no job {wanted}.")
    row = rows[0]
    name = row.get("submission_id")
    return {
        "title": f"Job {name or row.get('job_id')}",
        "job": row,
        "source": f"/jobs/{quote(name, safe='')}/tail" if name else "",
    }


async def tail(site: Site, request: Request) -> dict[str, Any]:
    """What a job has printed from an offset on.

    Raises:
        Missing: there is no such job.
        Unanswered: its node does not answer.
    """
    from rayshim.jobs.records import log_name

    wanted = request.path_params["job_id"]
    for row in await read_jobs(site.reader):
        if row.get("submission_id") == wanted:
            break
    else:
        raise Missing(f"The cluster knows no submitted job {wanted}.")
    node_id = row.get("driver_node_id")
    if not node_id:
        return {"text": "", "offset": 0, "inode": 0, "more": False}
    try:
        return await log_pages.tail(
            site, node_id, log_name(wanted), request.query_params
        )
    except Missing:
        if row["status"] in _ENDED:
            raise
        # It has a node, and has not printed anything yet.
        return {"text": "", "offset": 0, "inode": 0, "more": False}


PAGES = (
    Page("/jobs", "Jobs", "jobs.html", jobs, 5),
    Page("/jobs/{job_id}", "Job", "job.html", job),
)
