"""Jobs by the client: their states, records and logs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator

import pytest

import ray
from ray.job_submission import (
    JobDetails,
    JobErrorType,
    JobInfo,
    JobStatus,
    JobSubmissionClient,
    JobType,
)
from tools.job_parts import Jobs


@pytest.fixture(scope="module")
def jobs(shared_cluster, backend) -> Iterator[Jobs]:
    shared_cluster.stop()
    context = ray.init(
        num_cpus=2, include_dashboard=True, logging_level="ERROR", log_to_driver=False
    )
    client = JobSubmissionClient(f"http://{context.dashboard_url}")
    yield Jobs(client, backend)
    ray.shutdown()


def test_dashboard_url_is_host_and_port(jobs):
    address = jobs.client.get_address()

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
    assert int(jobs.client.get_version()) >= 4


def test_job_that_succeeds(jobs):
    before_ms = time.time() * 1000

    info = jobs.run("echo hello")

    assert info.status == JobStatus.SUCCEEDED
    assert info.type is JobType.SUBMISSION
    assert info.message == "Job finished successfully."
    assert info.driver_exit_code == 0
    assert info.error_type is None
    assert info.entrypoint == "echo hello"
    assert before_ms - 1000 <= info.start_time <= info.end_time
    assert re.fullmatch(r"[0-9a-f]{56}", info.driver_node_id)


def test_submission_id_is_made_up(jobs):
    job = jobs.client.submit_job(entrypoint="true")

    assert re.fullmatch(r"raysubmit_[A-Za-z0-9]{16}", job)
    jobs.wait(job)


def test_logs_have_the_entrypoint_and_the_output(jobs):
    info = jobs.run("echo to-out; echo to-err >&2")

    log = jobs.log(info)

    assert "Running entrypoint for job" in log
    assert "to-out\n" in log
    assert "to-err\n" in log


def test_job_that_fails(jobs):
    info = jobs.run("echo its-last-words; exit 3")

    assert info.status == JobStatus.FAILED
    assert info.driver_exit_code == 3
    assert info.error_type == "JOB_ENTRYPOINT_COMMAND_ERROR"
    assert "failed with exit code 3, last available logs" in info.message
    assert "its-last-words" in info.message


def test_job_that_a_signal_ends(jobs):
    info = jobs.run("kill -9 $$")

    assert info.status == JobStatus.FAILED
    assert info.driver_exit_code == -9


def test_command_that_does_not_exist(jobs):
    info = jobs.run("no_such_command_here")

    assert info.status == JobStatus.FAILED
    assert info.driver_exit_code == 127
    assert "not found" in jobs.log(info)


def test_running_job_and_its_stop(jobs):
    job = jobs.client.submit_job(entrypoint="sleep 100")
    jobs.wait(job, "RUNNING")
    running = jobs.client.get_job_info(job)

    assert running.message == "Job is currently running."
    assert running.end_time is None
    assert jobs.client.stop_job(job) is True
    assert jobs.wait(job) == "STOPPED"
    assert jobs.client.get_job_info(job).message == "Job was intentionally stopped."


def test_stop_asks_before_it_kills(jobs, tmp_path):
    ready, heard = tmp_path / "ready", tmp_path / "heard"
    job = jobs.client.submit_job(
        entrypoint=f"trap 'touch {heard}; exit 0' TERM; touch {ready}; "
        "while true; do sleep 0.05; done"
    )
    deadline = time.monotonic() + 30
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)

    jobs.client.stop_job(job)

    assert jobs.wait(job) == "STOPPED"
    assert heard.exists()


def test_stop_kills_what_does_not_listen(jobs, tmp_path):
    ready = tmp_path / "ready"
    job = jobs.client.submit_job(
        entrypoint=f"trap '' TERM; touch {ready}; while true; do sleep 0.05; done",
        runtime_env={"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "1"}},
    )
    deadline = time.monotonic() + 30
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)

    jobs.client.stop_job(job)

    assert jobs.wait(job) == "STOPPED"


def test_stop_of_a_job_that_has_ended(jobs):
    info = jobs.run("true")

    assert jobs.client.stop_job(info.submission_id) is False


def test_own_submission_id_and_metadata(jobs):
    info = jobs.run("true", submission_id="my-own-id", metadata={"owner": "me"})

    assert info.submission_id == "my-own-id"
    assert info.metadata == {"owner": "me"}


def test_submission_id_is_used_once(jobs):
    jobs.run("true", submission_id="once")

    with pytest.raises(RuntimeError, match="already exists"):
        jobs.client.submit_job(entrypoint="true", submission_id="once")


def test_job_id_is_an_older_name(jobs):
    info = jobs.run("true", job_id="older-name")

    assert info.submission_id == "older-name"


@pytest.mark.parametrize(
    "method", ["get_job_info", "get_job_status", "get_job_logs", "stop_job"]
)
def test_unknown_job(jobs, method):
    with pytest.raises(RuntimeError, match=r"404.*nothing-like-it does not exist"):
        getattr(jobs.client, method)("nothing-like-it")


def test_delete_of_a_job_that_has_ended(jobs):
    info = jobs.run("true")

    assert jobs.client.delete_job(info.submission_id) is True
    with pytest.raises(RuntimeError, match="404"):
        jobs.client.get_job_info(info.submission_id)


def test_delete_of_a_running_job(jobs):
    job = jobs.client.submit_job(entrypoint="sleep 100")
    jobs.wait(job, "RUNNING")

    with pytest.raises(RuntimeError, match="non-terminal state RUNNING"):
        jobs.client.delete_job(job)

    jobs.client.stop_job(job)
    jobs.wait(job)


def test_list_has_drivers_and_submitted_jobs(jobs):
    info = jobs.run("true")

    found = jobs.client.list_jobs()

    assert info.submission_id in [one.submission_id for one in found]
    drivers = [one for one in found if one.type is JobType.DRIVER]
    own = ray.get_runtime_context().get_job_id()
    assert own in [one.job_id for one in drivers]
    assert {one.submission_id for one in drivers} == {None}


def test_driver_is_no_job_to_stop(jobs):
    own = ray.get_runtime_context().get_job_id()

    info = jobs.client.get_job_info(own)

    assert info.type is JobType.DRIVER
    assert info.status == JobStatus.RUNNING
    assert info.driver_info.id == own
    with pytest.raises(RuntimeError, match="Can only stop submission type jobs"):
        jobs.client.stop_job(own)


def test_tail_gives_all_and_ends_with_the_job(jobs):
    job = jobs.client.submit_job(
        entrypoint="for i in one two three; do echo $i; sleep 0.1; done"
    )

    async def read() -> str:
        return "".join([text async for text in jobs.client.tail_job_logs(job)])

    text = asyncio.run(read())

    assert re.search("one\n(.*\n)?two\nthree\n", text)
    assert jobs.wait(job) == "SUCCEEDED"


def test_resources_that_no_node_has(jobs):
    job = jobs.client.submit_job(
        entrypoint="true", entrypoint_resources={"unobtainable": 1}
    )

    info = jobs.client.get_job_info(job)

    assert info.status == JobStatus.PENDING
    assert info.message.startswith("Job has not started yet. It may be waiting for")
    assert jobs.client.get_job_logs(job) == ""
    jobs.client.stop_job(job)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"entrypoint": 5}, "entrypoint must be a string, got <class 'int'>"),
        ({"metadata": {"a": 1}}, "metadata values must be strings"),
        ({"entrypoint_num_cpus": "x"}, "entrypoint_num_cpus must be a number"),
        ({"entrypoint_resources": {"a": "b"}}, "entrypoint_resources values must be"),
        ({"entrypoint_label_selector": {"a": 5}}, "entrypoint_label_selector values"),
        ({"runtime_env": {"env_vars": {"a": 1}}}, "env_vars"),
    ],
)
def test_wrong_types(jobs, options, text):
    with pytest.raises(TypeError, match=re.escape(text)):
        jobs.client.submit_job(**{"entrypoint": "true", **options})


def test_folder_that_does_not_exist(jobs):
    with pytest.raises(ValueError, match="/no/such/folder"):
        jobs.client.submit_job(
            entrypoint="true", runtime_env={"working_dir": "/no/such/folder"}
        )


def test_metadata_of_the_client(jobs):
    client = JobSubmissionClient(jobs.client.get_address(), metadata={"team": "blue"})

    job = client.submit_job(entrypoint="true", metadata={"run": "1"})

    jobs.wait(job)
    assert client.get_job_info(job).metadata == {"run": "1", "team": "blue"}


def test_address_where_nobody_answers():
    with pytest.raises(ConnectionError, match="Failed to connect to Ray at address"):
        JobSubmissionClient("http://127.0.0.1:9")


@pytest.mark.parametrize("name", ["cookies", "headers", "metadata"])
def test_options_of_the_client_are_dicts(name):
    with pytest.raises(TypeError, match=f"{name} must be a dict, got <class 'int'>"):
        JobSubmissionClient("http://127.0.0.1:9", **{name: 5})


def test_states_and_records_are_plain():
    assert str(JobStatus.RUNNING) == "RUNNING"
    assert JobStatus("FAILED").is_terminal()
    assert not JobStatus.PENDING.is_terminal()
    assert JobErrorType.JOB_SUPERVISOR_ACTOR_DIED == "JOB_SUPERVISOR_ACTOR_DIED"
    info = JobInfo(status=JobStatus.RUNNING, entrypoint="e", runtime_env={"a": 1})
    assert info.message == "Job is currently running."
    assert JobInfo.from_json(info.to_json()) == info
    details = JobDetails(type="DRIVER", status="RUNNING", entrypoint="e")
    assert (details.type, details.status) == (JobType.DRIVER, JobStatus.RUNNING)
