"""The programs that have connected to a cluster: jobs that nobody submitted."""

from __future__ import annotations

from rayshim.jobs.info import DriverInfo, JobDetails, JobStatus, JobType
from rayshim.jobs.records import Ask


def drivers(ask: Ask) -> list[JobDetails]:
    """Those that are connected, and those that were, as far as they are remembered.

    Args:
        ask: the control service.
    """
    found = []
    for row in ask("state_rows", {"kind": "jobs"}):
        has_ended = bool(row.get("end_time"))
        found.append(
            JobDetails(
                type=JobType.DRIVER,
                job_id=row["job_id"],
                driver_info=DriverInfo(
                    id=row["job_id"],
                    node_ip_address=row.get("node_ip") or "",
                    pid=str(row.get("pid") or ""),
                ),
                status=JobStatus.SUCCEEDED if has_ended else JobStatus.RUNNING,
                entrypoint=row.get("entrypoint") or "",
                start_time=row.get("start_time"),
                end_time=row.get("end_time") or 0,
                metadata=row.get("metadata") or {},
                runtime_env=row.get("runtime_env") or {},
            )
        )
    return found
