"""What the tests of submitted jobs share."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class Jobs:
    """A client, and waits for what its jobs do.

    Args:
        client: of a cluster's dashboard.
        backend: "ray" or "rayshim".
    """

    def __init__(self, client: Any, backend: str) -> None:
        self.client = client
        self._backend = backend

    def python(self, path: Any, *args: str) -> str:
        """A command that runs a program on the back end under test."""
        extra = ["-m", "rayshim"] if self._backend == "rayshim" else []
        return shlex.join([sys.executable, *extra, str(path), *args])

    def wait(self, job: str, *states: str, timeout_s: float = 40.0) -> str:
        """The status of a job once it is one of some; by default, those of an end."""
        deadline = time.monotonic() + timeout_s
        while (status := str(self.client.get_job_status(job))) not in (states or ENDED):
            assert time.monotonic() < deadline, f"{job} is {status}"
            time.sleep(0.02)
        return status

    def run(self, entrypoint: str, **options: Any) -> Any:
        """What is known of a job after its end."""
        job = self.client.submit_job(entrypoint=entrypoint, **options)
        self.wait(job)
        return self.client.get_job_info(job)

    def log(self, info: Any) -> str:
        """What a job printed."""
        return self.client.get_job_logs(info.submission_id)
