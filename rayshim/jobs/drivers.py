"""The programs that have connected to a cluster: jobs that nobody submitted."""

from __future__ import annotations

from typing import Any

import msgspec

from rayshim._core import asking
from rayshim.jobs.info import DriverInfo, JobDetails, JobStatus, JobType
from rayshim.jobs.records import Ask

#: Seconds in which programs say what they are; one that is stopped does not.
LIMIT_S = 2.0


class _Control:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def ask(self, method: str, payload: Any = None) -> Any:
        return self._ask(method, payload)


def details(ask: Ask, only: str = "") -> list[JobDetails]:
    """Those that are connected, and those that were, as far as they are remembered.

    Args:
        ask: the control service.
        only: hex job id, if no other is wanted.
    """
    rows = ask("state_rows", {"kind": "jobs"})
    rows = [row for row in rows if not only or row["job_id"] == only]
    about = _processes(ask) if any(not row["end_time"] for row in rows) else {}
    return [_details(row, about.get(row["job_id"], {})) for row in rows]


def _details(row: dict[str, Any], process: dict[str, Any]) -> JobDetails:
    return JobDetails(
        type=JobType.DRIVER,
        job_id=row["job_id"],
        driver_info=DriverInfo(
            id=row["job_id"],
            node_ip_address=process.get("node_ip") or "",
            pid=str(row["pid"]),
        ),
        status=JobStatus(row["status"]),
        entrypoint=process.get("entrypoint") or "",
        start_time=row["start_time"],
        end_time=row["end_time"],
        metadata={},
        runtime_env=process.get("runtime_env") or {},
    )


def _processes(ask: Ask) -> dict[str, dict[str, Any]]:
    """Hex job id -> what its program says of itself."""
    heard = asking.ask(_Control(ask), "about_process", to="drivers", limit_s=LIMIT_S)
    return {
        answer.job_id.hex(): msgspec.msgpack.decode(answer.payload)
        for answer in heard.answers
    }
