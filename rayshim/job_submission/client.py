"""The client of the dashboard's interface for jobs."""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import tempfile
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from rayshim.job_submission.finding import find_dashboard
from rayshim.job_submission.link import DashboardLink
from rayshim.jobs.info import JobDetails, JobStatus
from rayshim.jobs.requests import JobRequest

#: Bytes of an upload that are kept in memory, before a file is used.
SPOOL_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16


class JobSubmissionClient:
    """Submits jobs to a cluster, and looks after them.

    Args:
        address: ``http://HOST:PORT`` of the dashboard, or an address of the cluster as
            ``init`` takes it; None: the session of this process, else what RAY_ADDRESS
            says, else the newest cluster of this user on this host.
        create_cluster_if_needed: accepted as in Ray; no cluster is made.
        cookies: sent with each request.
        metadata: of all jobs; what a job has itself is overridden by it, as in Ray.
        headers: sent with each request. Without an ``Authorization`` the token of the
            cluster is sent, if it is known: of clusters on this host, or in
            RAYSHIM_TOKEN, RAYSHIM_TOKEN_PATH or RAY_AUTH_TOKEN.
        verify: whether certificates are checked; or the file, or folder, of those that
            are trusted.

    Raises:
        ConnectionError: nobody answers there.
        RuntimeError: the dashboard refused, for want of the right token perhaps.

    Example:
        >>> client = JobSubmissionClient("http://127.0.0.1:8265")  # doctest: +SKIP
        >>> client.submit_job(entrypoint="echo hello")  # doctest: +SKIP
        'raysubmit_4LamXRuQpYdSMg7J'
    """

    def __init__(
        self,
        address: str | None = None,
        create_cluster_if_needed: bool = False,
        cookies: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        headers: dict[str, Any] | None = None,
        verify: str | bool | None = True,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            raise TypeError(
                f"JobSubmissionClient(): {', '.join(kwargs)} belongs to clusters that "
                "other programs manage, which are not supported; leave it out"
            )
        if address is not None and not isinstance(address, str):
            raise TypeError(f"address must be a string, got {type(address)}")
        if not isinstance(create_cluster_if_needed, bool):
            raise TypeError(
                "create_cluster_if_needed must be a bool, got "
                f"{type(create_cluster_if_needed)}"
            )
        for name, value in (
            ("cookies", cookies),
            ("metadata", metadata),
            ("headers", headers),
        ):
            if value is not None and not isinstance(value, dict):
                raise TypeError(f"{name} must be a dict, got {type(value)}")
        if not isinstance(verify, (str, bool)):
            raise TypeError(f"verify must be a str or bool, got {type(verify)}")
        place = find_dashboard(address)
        self._metadata = dict(metadata or {})
        self._address = place.url
        sent = {name: str(value) for name, value in (headers or {}).items()}
        names = {name.lower() for name in sent}
        if place.token and "authorization" not in names:
            sent["Authorization"] = f"Bearer {place.token}"
        if cookies:
            sent["Cookie"] = "; ".join(f"{key}={one}" for key, one in cookies.items())
        self._link = DashboardLink(place.url, sent, verify)
        self._version = self._check_version()

    def _check_version(self) -> str:
        answer = self._link.ask("GET", "/api/version")
        if answer.status == 404:
            raise RuntimeError(
                f"Jobs API is not supported on the Ray cluster at {self._address}: "
                "what answers there is no dashboard"
            )
        return str(answer.json()["version"])

    def get_address(self) -> str:
        """``http://HOST:PORT`` of the dashboard."""
        return self._address

    def get_version(self) -> str:
        """The version of the interface."""
        return self._version

    # -- jobs --------------------------------------------------------------------

    def submit_job(
        self,
        *,
        entrypoint: str,
        job_id: str | None = None,
        runtime_env: dict[str, Any] | None = None,
        metadata: dict[str, str] | None = None,
        submission_id: str | None = None,
        entrypoint_num_cpus: int | float | None = None,
        entrypoint_num_gpus: int | float | None = None,
        entrypoint_memory: int | None = None,
        entrypoint_resources: dict[str, float] | None = None,
        entrypoint_label_selector: dict[str, str] | None = None,
    ) -> str:
        """Has a command run in the cluster; does not wait for it.

        Args:
            entrypoint: the command, for the shell.
            job_id: an older name of ``submission_id``.
            runtime_env: of the command and of the program that it starts. Folders that
                it names are uploaded.
            metadata: text -> text, kept with the job.
            submission_id: its name; one is made up by default.
            entrypoint_num_cpus, entrypoint_num_gpus: that the command itself holds,
                beside what its program asks for; 0.
            entrypoint_memory: in bytes; 0.
            entrypoint_resources: name -> amount.
            entrypoint_label_selector: of the node that it runs on.

        Returns:
            The submission id.

        Raises:
            TypeError, ValueError: a parameter is not what it has to be.
            RuntimeError: the name is taken, or the cluster refused.
        """
        from rayshim._core.runtime_env_upload import prepare

        if runtime_env is not None and hasattr(runtime_env, "to_dict"):
            runtime_env = runtime_env.to_dict()
        request = JobRequest(
            entrypoint=entrypoint,
            submission_id=submission_id,
            job_id=job_id,
            runtime_env=runtime_env or {},
            metadata={**(metadata or {}), **self._metadata},
            entrypoint_num_cpus=entrypoint_num_cpus,
            entrypoint_num_gpus=entrypoint_num_gpus,
            entrypoint_memory=entrypoint_memory,
            entrypoint_resources=entrypoint_resources,
            entrypoint_label_selector=entrypoint_label_selector,
        )
        environment = request.runtime_env or {}
        _check_environment(environment)
        values = {
            name: value
            for name, value in vars_of(request).items()
            if value is not None and name != "job_id"
        }
        if job_id and not submission_id:
            values["submission_id"] = job_id
        values["runtime_env"] = prepare(environment, self._ask_packages())
        answer = self._link.ask("POST", "/api/jobs/", content=values).json()
        return str(answer["submission_id"])

    def stop_job(self, job_id: str) -> bool:
        """Asks a job to end, and ends it after a while; does not wait for that.

        Args:
            job_id: its submission id, or the hex job id of its program.

        Returns:
            False if it had ended already.

        Raises:
            RuntimeError: there is no such job, or it was not submitted.
        """
        return bool(self._link.ask("POST", f"{_path(job_id)}/stop").json()["stopped"])

    def delete_job(self, job_id: str) -> bool:
        """Forgets a job that has ended; its log stays on its node.

        Args:
            job_id: its submission id.

        Raises:
            RuntimeError: there is no such job, or it has not ended.
        """
        return bool(self._link.ask("DELETE", _path(job_id)).json()["deleted"])

    def get_job_info(self, job_id: str) -> JobDetails:
        """What is known of a job.

        Args:
            job_id: its submission id, or the hex job id of its program.

        Raises:
            RuntimeError: there is no such job.
        """
        return JobDetails(**self._link.ask("GET", _path(job_id)).json())

    def list_jobs(self) -> list[JobDetails]:
        """All jobs of the cluster, those that have ended, too, the oldest first."""
        rows = self._link.ask("GET", "/api/jobs/").json()
        return [JobDetails(**row) for row in rows]

    def get_job_status(self, job_id: str) -> JobStatus:
        """Where a job stands.

        Args:
            job_id: its submission id, or the hex job id of its program.

        Raises:
            RuntimeError: there is no such job.
        """
        return self.get_job_info(job_id).status

    def get_job_logs(self, job_id: str) -> str:
        """What a job has printed so far.

        Args:
            job_id: its submission id, or the hex job id of its program.

        Raises:
            RuntimeError: there is no such job, or its node is gone.
        """
        return str(self._link.ask("GET", f"{_path(job_id)}/logs").json()["logs"])

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        """What a job prints, as it comes; ends with the job.

        Args:
            job_id: its submission id, or the hex job id of its program.

        Raises:
            RuntimeError: there is no such job.

        Example:
            >>> async for text in client.tail_job_logs(job):  # doctest: +SKIP
            ...     print(text, end="")
        """
        path = f"{_path(job_id)}/logs/tail"
        answer = await asyncio.to_thread(self._link.stream, path)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while data := await asyncio.to_thread(answer.read1, _PIECE_BYTES):
                text = decoder.decode(data)
                if text:
                    yield text
        finally:
            answer.close()

    # -- files -------------------------------------------------------------------

    def _ask_packages(self) -> Any:
        """What :func:`prepare` asks the control service, asked over HTTP."""
        files: dict[str, Any] = {}

        def ask(method: str, payload: Any) -> Any:
            name = payload["name"]
            path = f"/api/packages/gcs/{quote(name)}"
            if method == "package_size":
                answer = self._link.ask("GET", path)
                if answer.status == 404:
                    return -1
                answer.check()
                return 1
            file = files.setdefault(
                payload["upload"], tempfile.SpooledTemporaryFile(SPOOL_BYTES)
            )
            file.seek(payload["offset"])
            file.write(payload["data"])
            if payload["is_last"]:
                size_bytes = file.tell()
                file.seek(0)
                with files.pop(payload["upload"]):
                    self._link.ask("PUT", path, body=(file, size_bytes)).check()
            return True

        return ask


def _path(job_id: str) -> str:
    if not isinstance(job_id, str):
        raise TypeError(f"job_id must be a string, got {type(job_id)}")
    return f"/api/jobs/{quote(job_id, safe='')}"


def vars_of(request: JobRequest) -> dict[str, Any]:
    """The fields of a request by name."""
    return {
        field.name: getattr(request, field.name)
        for field in dataclasses.fields(request)
    }


def _check_environment(environment: dict[str, Any]) -> None:
    from rayshim._core.runtime_env_merge import runtime_env_fields

    hook = environment.get("worker_process_setup_hook")
    if hook is not None and not isinstance(hook, str):
        raise ValueError(
            f"Invalid type {type(hook)} for `worker_process_setup_hook`. A job's is "
            "the name of a function (module.name); a function itself may be given to "
            "init() in the job's program."
        )
    runtime_env_fields(environment)
