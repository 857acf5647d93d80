"""The records of jobs in the cluster's key-value store.

One JSON object for each job: what :class:`JobInfo` has, and what only the cluster
needs. They survive the dashboard and a restart of the head. A record is written by the
dashboard until the job's supervisor runs, then by the supervisor, and by the dashboard
again only once the supervisor is dead: never by two at a time.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from rayshim.jobs.info import DriverInfo, JobDetails, JobInfo, JobStatus, JobType

#: ``ask(method, payload)`` -> answer of the control service.
Ask = Callable[[str, Any], Any]

#: Of the store, and of the supervisors' names.
NAMESPACE = "_rayshim_jobs"
_JOB, _DRIVER, _PROGRAM = "job:", "driver:", "program:"


@dataclass
class Record:
    """A submitted job, as the store has it.

    Args:
        submission_id: its name.
        info: what clients may see.
        label_selector: of the node that it runs on.
        is_stopping: somebody asked for its end.
    """

    submission_id: str
    info: JobInfo
    label_selector: dict[str, str] = field(default_factory=dict)
    is_stopping: bool = False

    @property
    def actor_name(self) -> str:
        """Name of its supervisor, in the namespace of all."""
        return supervisor_name(self.submission_id)

    @property
    def log_name(self) -> str:
        """Name of its log file in the folder of its node."""
        return log_name(self.submission_id)

    def changed(self, status: JobStatus, **values: Any) -> Record:
        """The record after a change; the message goes with the status.

        Args:
            status: the new one.
            **values: of :class:`JobInfo`.
        """
        values.setdefault("message", None)
        if status.is_terminal():
            values.setdefault("end_time", now_ms())
        info = dataclasses.replace(self.info, status=status, **values)
        return dataclasses.replace(self, info=info)


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def supervisor_name(submission_id: str) -> str:
    """Name of a job's supervisor.

    Example:
        >>> supervisor_name("raysubmit_1")
        '_rayshim_job_raysubmit_1'
    """
    return f"_rayshim_job_{submission_id}"


def log_name(submission_id: str) -> str:
    """Name of a job's log file.

    Example:
        >>> log_name("raysubmit_1")
        'job-driver-raysubmit_1.log'
    """
    return f"job-driver-{quote(submission_id, safe='')}.log"


class Records:
    """Reads and writes them.

    Args:
        ask: the control service.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def add(self, record: Record) -> bool:
        """Writes a new one; False, and nothing written, if its name is taken."""
        return bool(self._put(record, overwrite=False))

    def put(self, record: Record) -> None:
        """Writes one anew."""
        self._put(record, overwrite=True)

    def get(self, submission_id: str) -> Record | None:
        """The record of a name."""
        data = self._ask("kv_get", self._key(_JOB + submission_id))
        return None if data is None else _decode(submission_id, data)

    def all(self) -> list[Record]:
        """All of them, the oldest first."""
        names = self._ask("kv_list", {"namespace": NAMESPACE, "prefix": _JOB})
        found = [self.get(_text(name).removeprefix(_JOB)) for name in names]
        return [record for record in found if record is not None]

    def remove(self, submission_id: str) -> None:
        """Forgets one."""
        for kind in (_PROGRAM, _JOB):
            self._ask("kv_del", self._key(kind + submission_id))

    def set_program(self, submission_id: str, program: DriverInfo) -> None:
        """Says which program that has connected is that of a submitted job.

        Args:
            submission_id: of the job; empty: of none, and it is not to be listed.
            program: with the hex id of its connection.
        """
        key = self._key(_DRIVER + program.id)
        self._ask("kv_put", {**key, "value": submission_id, "overwrite": True})
        if submission_id:
            value = json.dumps(dataclasses.asdict(program))
            key = self._key(_PROGRAM + submission_id)
            self._ask("kv_put", {**key, "value": value, "overwrite": True})

    def program(self, submission_id: str) -> DriverInfo | None:
        """The program of a submitted job that connected last."""
        data = self._ask("kv_get", self._key(_PROGRAM + submission_id))
        return None if data is None else DriverInfo(**json.loads(data))

    def owner(self, job_id: str) -> str | None:
        """Submission id of the job that a program with a hex job id belongs to.

        Returns:
            An empty text of a program that is not to be listed, None of one that
            belongs to no job.
        """
        data = self._ask("kv_get", self._key(_DRIVER + job_id))
        return None if data is None else _text(data)

    def programs(self) -> set[str]:
        """Hex job ids of all programs of which :meth:`owner` knows something."""
        names = self._ask("kv_list", {"namespace": NAMESPACE, "prefix": _DRIVER})
        return {_text(name).removeprefix(_DRIVER) for name in names}

    def _put(self, record: Record, *, overwrite: bool) -> Any:
        values = record.info.to_json()
        values["label_selector"] = record.label_selector
        values["is_stopping"] = record.is_stopping
        key = self._key(_JOB + record.submission_id)
        value = json.dumps(values)
        return self._ask("kv_put", {**key, "value": value, "overwrite": overwrite})

    def _key(self, key: str) -> dict[str, Any]:
        return {"namespace": NAMESPACE, "key": key}


def details_of(record: Record, program: DriverInfo | None = None) -> JobDetails:
    """What a client gets to see of a record.

    Args:
        record: of the job.
        program: of it, once that has connected.
    """
    names = {one.name for one in dataclasses.fields(JobDetails)}
    values = {
        one.name: getattr(record.info, one.name)
        for one in dataclasses.fields(record.info)
        if one.name in names
    }
    values["metadata"] = values["metadata"] or {}
    values["runtime_env"] = values["runtime_env"] or {}
    return JobDetails(
        type=JobType.SUBMISSION,
        submission_id=record.submission_id,
        job_id=None if program is None else program.id,
        driver_info=program,
        **values,
    )


def _decode(submission_id: str, data: bytes | str) -> Record:
    values = json.loads(data)
    return Record(
        submission_id,
        JobInfo.from_json(values),
        values.get("label_selector") or {},
        bool(values.get("is_stopping")),
    )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
