"""What is known of a job: its status, and the records that clients get."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Self

#: Status -> what is said of it when nothing better is known; as Ray says it.
_MESSAGES = {
    "PENDING": "Job has not started yet. It may be waiting for {what}.",
    "RUNNING": "Job is currently running.",
    "STOPPED": "Job was intentionally stopped.",
    "SUCCEEDED": "Job finished successfully.",
    "FAILED": "Job failed.",
}
_RESOURCES = "resources (CPUs, GPUs, memory, custom resources) to become available"
_ENVIRONMENT = "the runtime environment to be set up"


class JobStatus(StrEnum):
    """Where a job stands.

    Example:
        >>> JobStatus.RUNNING.is_terminal(), str(JobStatus.FAILED)
        (False, 'FAILED')
    """

    #: Waits for resources, or for its runtime environment.
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    #: By :meth:`JobSubmissionClient.stop_job`.
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    def is_terminal(self) -> bool:
        """Whether it will not change any more."""
        return self.value in ("STOPPED", "SUCCEEDED", "FAILED")


class JobType(str, Enum):  # noqa: UP042 - str() as Ray has it
    """How a job came to be."""

    #: Submitted: its command runs in the cluster.
    SUBMISSION = "SUBMISSION"
    #: A program that connected by ``init``.
    DRIVER = "DRIVER"


class JobErrorType(str, Enum):  # noqa: UP042 - as above
    """Why a job failed."""

    RUNTIME_ENV_SETUP_FAILURE = "RUNTIME_ENV_SETUP_FAILURE"
    JOB_SUPERVISOR_ACTOR_START_TIMEOUT = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"
    JOB_SUPERVISOR_ACTOR_START_FAILURE = "JOB_SUPERVISOR_ACTOR_START_FAILURE"
    JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE = "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE"
    JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE = "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE"
    JOB_SUPERVISOR_ACTOR_DIED = "JOB_SUPERVISOR_ACTOR_DIED"
    JOB_ENTRYPOINT_COMMAND_START_ERROR = "JOB_ENTRYPOINT_COMMAND_START_ERROR"
    JOB_ENTRYPOINT_COMMAND_ERROR = "JOB_ENTRYPOINT_COMMAND_ERROR"


@dataclass
class JobInfo:
    """The record of a submitted job.

    Args:
        status: where it stands.
        entrypoint: its command.
        message: what is to be said of that; chosen if None.
        error_type: of one that failed, a :class:`JobErrorType`.
        start_time, end_time: milliseconds since 1970.
        metadata: text -> text, as submitted.
        runtime_env: as submitted.
        entrypoint_num_cpus, entrypoint_num_gpus: that the command holds.
        entrypoint_memory: in bytes.
        entrypoint_resources: name -> amount.
        driver_agent_http_address: of the dashboard, which answers for its node.
        driver_node_id: hex id of the node that the command runs on.
        driver_exit_code: of the command; negative: the signal that ended it.

    Example:
        >>> JobInfo(JobStatus.RUNNING, "python train.py").message
        'Job is currently running.'
    """

    status: JobStatus
    entrypoint: str
    message: str | None = None
    error_type: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    metadata: dict[str, str] | None = None
    runtime_env: dict[str, Any] | None = None
    entrypoint_num_cpus: int | float | None = None
    entrypoint_num_gpus: int | float | None = None
    entrypoint_memory: int | None = None
    entrypoint_resources: dict[str, float] | None = None
    driver_agent_http_address: str | None = None
    driver_node_id: str | None = None
    driver_exit_code: int | None = None

    def __post_init__(self) -> None:
        self.status = JobStatus(self.status)
        if isinstance(self.error_type, JobErrorType):
            self.error_type = self.error_type.value
        if self.message is None:
            what = []
            if self._needs_something():
                what.append(_RESOURCES)
            if self.runtime_env:
                what.append(_ENVIRONMENT)
            text = " or ".join(what) or _RESOURCES
            self.message = _MESSAGES[self.status.value].format(what=text)

    def _needs_something(self) -> bool:
        return any(
            (
                self.entrypoint_num_cpus,
                self.entrypoint_num_gpus,
                self.entrypoint_memory,
                self.entrypoint_resources,
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; the runtime environment as ``runtime_env_json``.

        Example:
            >>> JobInfo(JobStatus.FAILED, "false").to_json()["status"]
            'FAILED'
        """
        values = dataclasses.asdict(self)
        values["status"] = self.status.value
        environment = values.pop("runtime_env")
        if environment is not None:
            values["runtime_env_json"] = json.dumps(environment)
        return values

    @classmethod
    def from_json(cls, json_dict: dict[str, Any]) -> Self:
        """The record of plain values, as :meth:`to_json` gives them.

        Args:
            json_dict: names that are not known are left out.
        """
        values = dict(json_dict)
        text = values.pop("runtime_env_json", None)
        if text:
            values["runtime_env"] = json.loads(text)
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: values[name] for name in values if name in names})


@dataclass(kw_only=True)
class DriverInfo:
    """The process of a job's program.

    Args:
        id: hex id of the job.
        node_ip_address: of its node.
        pid: its process id, as text.
    """

    id: str
    node_ip_address: str
    pid: str


@dataclass(kw_only=True)
class JobDetails:
    """What is known of a job, submitted or not.

    Args:
        type: submitted, or a program that connected.
        job_id: hex id of its program's connection; None before that.
        submission_id: None of one that was not submitted.
        driver_info: the program's process.
        status, entrypoint, message, error_type, start_time, end_time, metadata,
            runtime_env, driver_agent_http_address, driver_node_id, driver_exit_code:
            as of :class:`JobInfo`.
    """

    type: JobType
    job_id: str | None = None
    submission_id: str | None = None
    driver_info: DriverInfo | None = None
    status: JobStatus
    entrypoint: str
    message: str | None = None
    error_type: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    metadata: dict[str, str] | None = None
    runtime_env: dict[str, Any] | None = None
    driver_agent_http_address: str | None = None
    driver_node_id: str | None = None
    driver_exit_code: int | None = None

    def __post_init__(self) -> None:
        self.type = JobType(self.type)
        self.status = JobStatus(self.status)
        info: Any = self.driver_info
        if isinstance(info, Mapping):
            self.driver_info = DriverInfo(**info)

    def dict(self) -> dict[str, Any]:
        """The values by name.

        Example:
            >>> JobDetails(type="DRIVER", status="RUNNING", entrypoint="a").dict()[
            ...     "status"
            ... ]
            <JobStatus.RUNNING: 'RUNNING'>
        """
        return dataclasses.asdict(self)

    def model_dump(self) -> dict[str, Any]:  # type: ignore[valid-type]
        """As :meth:`dict`, under the name of newer versions of pydantic."""
        return dataclasses.asdict(self)
