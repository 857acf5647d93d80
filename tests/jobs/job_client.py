"""A client of jobs, and waits for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from rayshim.job_submission import JobDetails, JobSubmissionClient

LIMIT_S = 40.0


def wait_for(
    client: JobSubmissionClient, job: str, *states: str, may_be_away: bool = False
) -> JobDetails:
    """What is known of a job once it is in one of some states.

    Args:
        client: of its cluster.
        job: submission id.
        *states: by default, those of an end.
        may_be_away: whether the dashboard may be.
    """
    deadline_s = time.monotonic() + LIMIT_S
    wanted = states or ("SUCCEEDED", "FAILED", "STOPPED")
    while True:
        try:
            info = client.get_job_info(job)
            if info.status.value in wanted:
                return info
            last: Any = info
        except (ConnectionError, RuntimeError) as error:
            if not may_be_away:
                raise
            last = error
        assert time.monotonic() < deadline_s, last
        time.sleep(0.02)


def until(condition: Callable[[], object]) -> None:
    """Waits for a condition."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
