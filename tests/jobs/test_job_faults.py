"""Jobs whose dashboard, supervisor, node or head dies."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import rayshim
from job_client import is_gone, until, wait_for
from rayshim.cluster_utils import Cluster
from rayshim.job_submission import JobSubmissionClient

pytestmark = pytest.mark.slow


def new_cluster() -> Cluster:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "dashboard_port": port},
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = new_cluster()
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> JobSubmissionClient:
    return JobSubmissionClient(cluster.address)


def sleeper(pid_file: Path) -> str:
    """A command that says its process id, and sleeps."""
    return f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; sleep 1000"


def pid_in(path: Path) -> int:
    until(path.exists)
    return int(path.read_text())


def dashboard_process() -> psutil.Process:
    for one in psutil.Process(os.getpid()).children(recursive=True):
        if "rayshim.dashboard.__main__" in " ".join(one.cmdline()):
            return one
    raise AssertionError("no dashboard runs")


def test_job_outlives_the_dashboard(
    client: JobSubmissionClient, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    job = client.submit_job(
        entrypoint=f"while [ ! -e {go} ]; do sleep 0.05; done; echo went-on"
    )
    wait_for(client, job, "RUNNING")

    dashboard_process().send_signal(signal.SIGKILL)
    go.touch()

    info = wait_for(client, job, may_be_away=True)
    assert info.status == "SUCCEEDED"
    assert "went-on\n" in client.get_job_logs(job)


def test_death_of_the_supervisor_ends_the_job(
    cluster: Cluster, client: JobSubmissionClient, tmp_path: Path
) -> None:
    job = client.submit_job(entrypoint=sleeper(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    runner = psutil.Process(pid).parent()
    assert runner is not None
    supervisor = runner.parent()
    assert supervisor is not None

    supervisor.send_signal(signal.SIGKILL)

    info = wait_for(client, job)
    assert info.status == "FAILED"
    assert info.error_type == "JOB_SUPERVISOR_ACTOR_DIED"
    assert info.message is not None
    assert info.message.startswith("Job supervisor actor died: ")
    until(lambda: is_gone(pid))


def test_death_of_the_runner_ends_the_job(
    client: JobSubmissionClient, tmp_path: Path
) -> None:
    job = client.submit_job(entrypoint=sleeper(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    runner = psutil.Process(pid).parent()
    assert runner is not None

    runner.send_signal(signal.SIGKILL)

    info = wait_for(client, job)
    assert info.status == "FAILED"
    assert "was killed" in (info.message or "")
    until(lambda: is_gone(pid))


def test_death_of_the_node_ends_the_job(
    cluster: Cluster, client: JobSubmissionClient, tmp_path: Path
) -> None:
    node = cluster.add_node(num_cpus=1, resources={"there": 1})
    job = client.submit_job(
        entrypoint=sleeper(tmp_path / "pid"), entrypoint_resources={"there": 1}
    )
    pid = pid_in(tmp_path / "pid")
    assert wait_for(client, job, "RUNNING").driver_node_id == node.node_id

    cluster.remove_node(node, allow_graceful=False)

    info = wait_for(client, job)
    assert info.status == "FAILED"
    assert info.error_type == "JOB_SUPERVISOR_ACTOR_DIED"
    until(lambda: is_gone(pid))
    with pytest.raises(RuntimeError, match="cannot be read"):
        client.get_job_logs(job)


def test_job_that_waits_is_started_when_it_fits(
    cluster: Cluster, client: JobSubmissionClient
) -> None:
    job = client.submit_job(entrypoint="true", entrypoint_resources={"later": 1})
    assert client.get_job_status(job) == "PENDING"

    node = cluster.add_node(num_cpus=1, resources={"later": 1})

    assert wait_for(client, job).status == "SUCCEEDED"
    cluster.remove_node(node)


def test_job_that_waits_is_stopped_at_once(client: JobSubmissionClient) -> None:
    job = client.submit_job(entrypoint="true", entrypoint_resources={"never": 1})

    assert client.stop_job(job) is True

    assert client.get_job_status(job) == "STOPPED"


def test_environment_that_cannot_be_made(client: JobSubmissionClient) -> None:
    job = client.submit_job(
        entrypoint="true",
        runtime_env={"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"},
    )

    info = wait_for(client, job)

    assert info.status == "FAILED"
    assert info.error_type == "RUNTIME_ENV_SETUP_FAILURE"
    assert "runtime_env setup failed" in (info.message or "")


def test_names_of_the_cluster_lead_to_its_dashboard(
    cluster: Cluster, client: JobSubmissionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert JobSubmissionClient("auto").get_address() == client.get_address()
    monkeypatch.setenv("RAY_ADDRESS", str(cluster.address))
    assert JobSubmissionClient().get_address() == client.get_address()
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", client.get_address())
    assert JobSubmissionClient("other").get_address() == client.get_address()


def test_drivers_are_listed_without_that_of_the_dashboard(
    cluster: Cluster, client: JobSubmissionClient
) -> None:
    wait_for(client, client.submit_job(entrypoint="true"))
    with rayshim.init(cluster.address, log_to_driver=False):
        own = rayshim.get_runtime_context().get_job_id()
        running = [one for one in client.list_jobs() if one.status == "RUNNING"]

        assert [one.job_id for one in running] == [own]

    assert client.get_job_info(own).status == "SUCCEEDED"


def test_job_outlives_a_restart_of_the_head(tmp_path: Path) -> None:
    go = tmp_path / "go"
    # One of its own: processes that a test leaves in a shared one count as leaks.
    cluster = new_cluster()
    try:
        client = JobSubmissionClient(cluster.address)
        ended = client.submit_job(entrypoint="true")
        wait_for(client, ended)
        job = client.submit_job(
            entrypoint=f"while [ ! -e {go} ]; do sleep 0.05; done; echo went-on"
        )
        wait_for(client, job, "RUNNING")
        assert cluster.head_node is not None

        cluster.head_node.kill_gcs_server()
        go.touch()
        cluster.head_node.start_gcs_server()

        info = wait_for(client, job, may_be_away=True)
        assert info.status == "SUCCEEDED"
        assert client.get_job_status(ended) == "SUCCEEDED"
        again = client.submit_job(entrypoint="echo again")
        assert wait_for(client, again).status == "SUCCEEDED"
    finally:
        cluster.shutdown()
