"""The actor of a job: it holds the job's resources, and runs its command.

It needs nobody: whoever submitted the job may be gone, the dashboard may be restarted,
the head may be away. Its end, whatever its cause, ends the command
(:mod:`rayshim.jobs.runner`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from rayshim.jobs import runner
from rayshim.jobs.info import JobErrorType, JobStatus
from rayshim.jobs.inherited import CONFIG_VARIABLE, ID_VARIABLE
from rayshim.jobs.records import Record, Records

logger = logging.getLogger(__name__)

#: Seconds between the signal that asks a command to end and SIGKILL; Ray's names and
#: values, which a job's ``env_vars`` may set.
STOP_WAIT_VARIABLE, STOP_WAIT_S = "RAY_JOB_STOP_WAIT_TIME_S", 3.0
STOP_SIGNAL_VARIABLE = "RAY_JOB_STOP_SIGNAL"
#: Lines and characters of the log that the message of a failed job repeats.
LAST_LINES, LAST_CHARACTERS = 10, 20_000
#: Seconds for which a supervisor tries to write how its job ended.
RECORD_LIMIT_S = 3600.0


class JobSupervisor:
    """Runs the command of one job, from its constructor on.

    Args:
        submission_id: of the job, whose record has the rest.
        address: of the cluster, as ``init(address=...)`` takes it.
        is_bare: no resources are held: the command sees the node's GPUs, as any
            program there does.
    """

    def __init__(self, submission_id: str, address: str, is_bare: bool) -> None:
        self._id = submission_id
        self._address = address
        self._is_bare = is_bare
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._records = Records(_ask)
        threading.Thread(target=self._run, name="job", daemon=True).start()

    def stop(self) -> bool:
        """Asks the command to end, and ends it if it does not."""
        with self._lock:
            self._is_stopping = True
            self._send_stop()
        return True

    def ping(self) -> int:
        """The process id of this actor."""
        return os.getpid()

    def _send_stop(self) -> None:
        process = self._process
        if process is None or process.stdin is None:
            return
        name = os.environ.get(STOP_SIGNAL_VARIABLE, "SIGTERM")
        number = signal.SIGINT if name == "SIGINT" else signal.SIGTERM
        order = {"stop": int(number), "grace_s": _stop_wait_s()}
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            pass  # the command has ended

    def _run(self) -> None:
        try:
            record = self._records.get(self._id)
            if record is not None and not record.info.status.is_terminal():
                self._write(self._run_job(record))
        except Exception:
            logger.exception("job %s", self._id)
        finally:
            _leave()

    def _run_job(self, record: Record) -> Record:
        from rayshim._core.current import require_peer

        if record.is_stopping:
            return record.changed(JobStatus.STOPPED)
        peer = require_peer()
        record = record.changed(JobStatus.RUNNING, driver_node_id=peer.node_id)
        path = os.path.join(peer.session_dir, "logs", record.log_name)
        try:
            self._start(record, path)
        except OSError as error:
            return record.changed(
                JobStatus.FAILED,
                message=f"the job's command could not be started: {error}",
                error_type=JobErrorType.JOB_ENTRYPOINT_COMMAND_START_ERROR.value,
            )
        process = self._process
        assert process is not None and process.stdout is not None
        self._write(record)
        facts: dict[str, Any] = {}
        for line in process.stdout:
            facts.update(json.loads(line))
        process.wait()
        if "exit" not in facts and "pid" in facts:
            # The runner was killed, and could not take the command along.
            try:
                os.killpg(facts["pid"], signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        return self._outcome(record, facts, path)

    def _start(self, record: Record, path: str) -> None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        told, tell = os.pipe()
        try:
            os.write(
                log,
                f"Running entrypoint for job {record.submission_id}: "
                f"{record.info.entrypoint}\n".encode(),
            )
            process = subprocess.Popen(
                # Isolated: the environment and the folder are the job's.
                [
                    sys.executable,
                    "-I",
                    "-S",
                    os.path.abspath(runner.__file__),
                    str(tell),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(tell,),
                start_new_session=True,
                env=self._environment(record),
            )
        finally:
            os.close(log)
            os.close(tell)
        process.stdout = os.fdopen(told, "rb")
        assert process.stdin is not None
        with self._lock:
            self._process = process
            order = {"entrypoint": record.info.entrypoint}
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            if self._is_stopping:
                self._send_stop()

    def _environment(self, record: Record) -> dict[str, str]:
        from rayshim._core.current import require_peer

        peer = require_peer()
        env = dict(os.environ)
        if self._is_bare and not env.get("CUDA_VISIBLE_DEVICES"):
            env.pop("CUDA_VISIBLE_DEVICES", None)
        env.pop("RAYSHIM_ADDRESS", None)
        env["RAY_ADDRESS"] = self._address
        # Not the token itself: programs print their environment.
        env.pop("RAYSHIM_TOKEN", None)
        env["RAYSHIM_TOKEN_PATH"] = os.path.join(peer.session_dir, "token")
        env[ID_VARIABLE] = record.submission_id
        env[CONFIG_VARIABLE] = json.dumps(
            {
                "runtime_env": record.info.runtime_env or {},
                "metadata": {
                    "job_submission_id": record.submission_id,
                    "job_name": record.submission_id,
                    **(record.info.metadata or {}),
                },
            }
        )
        env.setdefault("PYTHONUNBUFFERED", "1")
        return env

    def _outcome(self, record: Record, facts: dict[str, Any], path: str) -> Record:
        code = facts.get("exit")
        if self._is_stopping:
            return record.changed(JobStatus.STOPPED)
        if code == 0:
            return record.changed(JobStatus.SUCCEEDED, driver_exit_code=0)
        kind = JobErrorType.JOB_ENTRYPOINT_COMMAND_ERROR
        if "error" in facts:
            kind = JobErrorType.JOB_ENTRYPOINT_COMMAND_START_ERROR
            text = f"the job's command could not be started: {facts['error']}"
        elif code is None:
            text = "the process that ran the job's command was killed"
        else:
            text = (
                f"Job entrypoint command failed with exit code {code}, last available "
                f"logs (truncated to {LAST_CHARACTERS:,} chars):\n{_last_lines(path)}"
            )
        return record.changed(
            JobStatus.FAILED,
            message=text,
            error_type=kind.value,
            driver_exit_code=code,
        )

    def _write(self, record: Record) -> None:
        """Writes the record; an end is worth waiting for a head that is away."""
        deadline_s = time.monotonic() + RECORD_LIMIT_S
        while True:
            try:
                self._records.put(record)
                return
            except Exception:
                is_final = record.info.status.is_terminal()
                if not is_final or time.monotonic() > deadline_s:
                    raise
                time.sleep(1.0)


def _stop_wait_s() -> float:
    """What the job says of it, if that is a time."""
    text = os.environ.get(STOP_WAIT_VARIABLE) or STOP_WAIT_S
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = math.nan
    if math.isnan(wait_s):
        logger.warning("%s is %r, which is no time", STOP_WAIT_VARIABLE, text)
        return STOP_WAIT_S
    return wait_s


def _ask(method: str, payload: Any) -> Any:
    from rayshim._core.current import require_peer

    return require_peer().request(method, payload)


def _leave() -> None:
    """Ends this actor; its job is over."""
    from rayshim._core.current import require_peer
    from rayshim.adapters.wire.messages import KillActor

    peer = require_peer()
    actor = peer.executor.actor if peer.executor is not None else None
    if actor is not None:
        with peer.lock:
            peer.control.send(KillActor(actor.actor_id, True))


def _last_lines(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * LAST_CHARACTERS))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "".join(text.splitlines(keepends=True)[-LAST_LINES:])[-LAST_CHARACTERS:]
