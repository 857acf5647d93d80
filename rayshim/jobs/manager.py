"""Submits, stops, deletes and lists jobs, for a cluster seen from beside it.

All of it blocks; the dashboard calls it in threads. What happened to a job whose
supervisor died is found out when somebody looks, so that nothing has to watch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rayshim.jobs import drivers
from rayshim.jobs.info import JobDetails, JobErrorType, JobInfo, JobStatus, JobType
from rayshim.jobs.records import (
    NAMESPACE,
    Ask,
    Record,
    Records,
    details_of,
    now_ms,
)
from rayshim.jobs.requests import JobRequest

logger = logging.getLogger(__name__)

#: Seconds that a job may wait for its resources and its environment; Ray's.
START_LIMIT_VARIABLE, START_LIMIT_S = "RAY_JOB_START_TIMEOUT_SECONDS", 900.0
#: Seconds for a supervisor to hear that it should stop, or to be seen dead.
ANSWER_LIMIT_S = 10.0
#: Seconds between looks at what has to change soon.
LOOK_S = 0.02
#: Seconds after which a job without any supervisor counts as one that has none.
REGISTERED_S = 15.0


class NoSuchJob(LookupError):
    """There is no job of that name."""


class JobRefused(RuntimeError):
    """The cluster refused what was asked of a job, as its status does not allow it."""


class JobManager:
    """The jobs of one cluster.

    Args:
        ask: its control service.
        driver: ``rayshim`` with a session in the cluster, opened at the first call;
            None: jobs are only looked at.
        address: of the cluster, for ``init(address=...)`` in jobs.
        http_address: ``http://HOST:PORT`` of the dashboard.
    """

    def __init__(
        self,
        ask: Ask,
        driver: Callable[[], ModuleType] | None = None,
        *,
        address: str = "",
        http_address: str = "",
    ) -> None:
        self.ask = ask
        self._driver = driver
        self._address = address
        self._http_address = http_address
        self.records = Records(ask)
        self._lock = threading.Lock()

    # -- what changes ------------------------------------------------------------

    def submit(self, request: JobRequest) -> str:
        """Has a job run.

        Returns:
            Its submission id.

        Raises:
            ValueError: the name is taken.
            RuntimeError: the cluster refused; the text says why.
        """
        from rayshim._core.runtime_env_upload import prepare

        name = request.name()
        environment = prepare(request.runtime_env or {}, self.ask)
        info = JobInfo(
            JobStatus.PENDING,
            request.entrypoint,
            start_time=now_ms(),
            metadata=dict(request.metadata or {}),
            runtime_env=environment,
            entrypoint_num_cpus=request.entrypoint_num_cpus,
            entrypoint_num_gpus=request.entrypoint_num_gpus,
            entrypoint_memory=request.entrypoint_memory,
            entrypoint_resources=request.entrypoint_resources,
            driver_agent_http_address=self._http_address or None,
        )
        record = Record(name, info, dict(request.entrypoint_label_selector or {}))
        if not self.records.add(record):
            raise ValueError(
                f"Job with submission_id {name} already exists. Please use a "
                "different submission_id."
            )
        try:
            self._start(record, request)
        except BaseException as error:
            self.records.put(
                record.changed(
                    JobStatus.FAILED,
                    message=f"the job's supervisor could not be made: {error}",
                    error_type=JobErrorType.JOB_SUPERVISOR_ACTOR_START_FAILURE.value,
                )
            )
            raise
        return name

    def _start(self, record: Record, request: JobRequest) -> None:
        from rayshim.jobs.supervisor import JobSupervisor

        options: dict[str, Any] = {
            "name": record.actor_name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "num_cpus": request.entrypoint_num_cpus or 0,
            "num_gpus": request.entrypoint_num_gpus or 0,
            "max_restarts": 0,
            "runtime_env": record.info.runtime_env or None,
        }
        if request.entrypoint_memory:
            options["memory"] = request.entrypoint_memory
        if request.entrypoint_resources:
            options["resources"] = request.entrypoint_resources
        if request.entrypoint_label_selector:
            options["label_selector"] = request.entrypoint_label_selector
        ray = self._session()
        if not request.holds_resources:
            strategy = self._on_head_node()
            if strategy is not None:
                options["scheduling_strategy"] = strategy
        supervisor = ray.remote(JobSupervisor).options(**options)
        supervisor.remote(
            record.submission_id, self._address, not request.holds_resources
        )

    def _session(self) -> ModuleType:
        assert self._driver is not None, "this manager only looks at jobs"
        return self._driver()

    def _on_head_node(self) -> Any:
        """Programs that need nothing run beside the head, as in Ray, if they may."""
        from rayshim.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        rows = [row for row in self.ask("node_table", None) if row["alive"]]
        heads = [row["node_id"] for row in rows if row["is_head_node"]]
        if len(rows) < 2 or not heads:
            return None
        return NodeAffinitySchedulingStrategy(heads[0], soft=True)

    def stop(self, name: str) -> bool:
        """Ends a job; False if it has ended already.

        Args:
            name: its submission id, or hex job id.
        """
        record = self._submitted(name, "stop")
        if record.info.status.is_terminal():
            return False
        if record.info.status is JobStatus.PENDING:
            # Its supervisor may not be there yet, or just begin.
            record.is_stopping = True
            self.records.put(record)
        if not self._tell_supervisor(record):
            self._kill(record)
        return True

    def _tell_supervisor(self, record: Record) -> bool:
        """Whether the supervisor runs and heard that it should stop."""
        row = self._supervisors().get(record.actor_name)
        if row is None or row["state"] != "ALIVE":
            return False
        ray = self._session()
        try:
            supervisor = ray.get_actor(record.actor_name, NAMESPACE)
            ray.get(supervisor.stop.remote(), timeout=ANSWER_LIMIT_S)
        except (ValueError, ray.exceptions.RayError):
            return self._look_at(record).info.status.is_terminal()
        return True

    def _kill(self, record: Record, **values: Any) -> None:
        """Ends a job that has not begun; ``values`` as of ``Record.changed``."""
        values.setdefault("status", JobStatus.STOPPED)
        ray = self._session()
        try:
            ray.kill(ray.get_actor(record.actor_name, NAMESPACE))
        except ValueError:
            pass  # it died meanwhile
        deadline_s = time.monotonic() + ANSWER_LIMIT_S
        while time.monotonic() < deadline_s:
            row = self._supervisors().get(record.actor_name)
            if row is None or row["state"] == "DEAD":
                break
            time.sleep(LOOK_S)
        known = self.records.get(record.submission_id)
        if known is not None and not known.info.status.is_terminal():
            self.records.put(known.changed(**values))

    def delete(self, name: str) -> bool:
        """Forgets a job that has ended; its log stays.

        Raises:
            JobRefused: it has not ended.
        """
        record = self._submitted(name, "delete")
        if not record.info.status.is_terminal():
            raise JobRefused(
                f"Attempted to delete job '{record.submission_id}', but it is in a "
                f"non-terminal state {record.info.status}. Stop it first."
            )
        self.records.remove(record.submission_id)
        return True

    # -- what is known -----------------------------------------------------------

    def record(self, name: str) -> Record:
        """The record of a submitted job, brought up to date.

        Args:
            name: its submission id, or the hex job id of its program.

        Raises:
            NoSuchJob: there is none.
        """
        record = self.records.get(name)
        if record is None:
            owner = self.records.owner(name)
            record = self.records.get(owner) if owner else None
        if record is None:
            raise NoSuchJob(f"Job {name} does not exist")
        return self._look_at(record)

    def details(self, name: str) -> JobDetails:
        """What is known of a job, of whichever type.

        Args:
            name: its submission id, or hex job id.

        Raises:
            NoSuchJob: there is none.
        """
        try:
            record = self.record(name)
        except NoSuchJob:
            for one in drivers.details(self.ask, only=name):
                return one
            raise
        return details_of(record, self.records.program(record.submission_id))

    def all(self) -> list[JobDetails]:
        """All jobs of the cluster, the oldest first."""
        found, supervisors = [], None
        for record in self.records.all():
            if not record.info.status.is_terminal():
                supervisors = supervisors or self._supervisors()
                record = self._look_at(record, supervisors)
            program = self.records.program(record.submission_id)
            found.append(details_of(record, program))
        known = self.records.programs()
        found += [
            one for one in drivers.details(self.ask) if (one.job_id or "") not in known
        ]
        return sorted(found, key=lambda one: one.start_time or 0)

    def _submitted(self, name: str, verb: str) -> Record:
        try:
            return self.record(name)
        except NoSuchJob:
            if drivers.details(self.ask, only=name):
                text = f"Can only {verb} submission type jobs"
                raise ValueError(text) from None
            raise

    # -- what happened -----------------------------------------------------------

    def _supervisors(self) -> dict[str, dict[str, Any]]:
        """Name -> row of the newest supervisor of that name."""
        rows = self.ask("state", {"kind": "actors"})
        return {row["name"]: row for row in rows if row["ray_namespace"] == NAMESPACE}

    def _look_at(
        self, record: Record, supervisors: dict[str, dict[str, Any]] | None = None
    ) -> Record:
        """The record, changed if its supervisor is dead or waits for too long."""
        if record.info.status.is_terminal():
            return record
        rows = self._supervisors() if supervisors is None else supervisors
        row = rows.get(record.actor_name)
        waited_s = (now_ms() - (record.info.start_time or 0)) / 1000
        if row is None and waited_s < REGISTERED_S:
            return record  # it is being registered
        with self._lock:
            # The supervisor may have written how it ended just before it died.
            known = self.records.get(record.submission_id)
            if known is None or known.info.status.is_terminal():
                return known or record
            if row is None or row["state"] == "DEAD":
                ended = _after_death(known, row)
                self.records.put(ended)
                return ended
        is_late = waited_s > _start_limit_s() and self._driver is not None
        if known.info.status is JobStatus.PENDING and is_late:
            self._kill(
                known,
                status=JobStatus.FAILED,
                message=(
                    "Job supervisor actor failed to start within "
                    f"{_start_limit_s():g} seconds. The cluster may lack what it needs "
                    "(rayshim why says what), or its runtime environment takes longer "
                    f"to set up: then raise {START_LIMIT_VARIABLE}."
                ),
                error_type=JobErrorType.JOB_SUPERVISOR_ACTOR_START_TIMEOUT.value,
            )
            return self.records.get(record.submission_id) or known
        return known


def _after_death(record: Record, row: dict[str, Any] | None) -> Record:
    if record.is_stopping:
        return record.changed(JobStatus.STOPPED)
    cause = (row or {}).get("death_cause") or "the cluster knows no such actor any more"
    text = f"Job supervisor actor died: {cause}"
    kind = JobErrorType.JOB_SUPERVISOR_ACTOR_DIED
    if record.info.status is JobStatus.PENDING:
        if "runtime_env" in cause or "RuntimeEnvSetupError" in cause:
            text = f"runtime_env setup failed: {cause}"
            kind = JobErrorType.RUNTIME_ENV_SETUP_FAILURE
        else:
            text = f"Job supervisor actor could not be started: {cause}"
            kind = JobErrorType.JOB_SUPERVISOR_ACTOR_START_FAILURE
    return record.changed(JobStatus.FAILED, message=text, error_type=kind.value)


def _start_limit_s() -> float:
    return float(os.environ.get(START_LIMIT_VARIABLE) or START_LIMIT_S)


def as_json(details: JobDetails) -> dict[str, Any]:
    """Plain values, as the REST interface gives them."""
    values = details.dict()
    values["type"] = JobType(details.type).value
    values["status"] = details.status.value
    return values
