"""Submits jobs to a cluster, and looks after them: Ray's ``ray.job_submission``.

Example:
    >>> from rayshim.job_submission import JobSubmissionClient
    >>> client = JobSubmissionClient("http://127.0.0.1:8265")  # doctest: +SKIP
    >>> job = client.submit_job(entrypoint="python train.py")  # doctest: +SKIP
    >>> client.get_job_status(job)  # doctest: +SKIP
    <JobStatus.RUNNING: 'RUNNING'>
"""

from __future__ import annotations

from rayshim.job_submission.client import JobSubmissionClient
from rayshim.jobs.info import (
    DriverInfo,
    JobDetails,
    JobErrorType,
    JobInfo,
    JobStatus,
    JobType,
)

__all__ = [
    "DriverInfo",
    "JobDetails",
    "JobErrorType",
    "JobInfo",
    "JobStatus",
    "JobSubmissionClient",
    "JobType",
]
