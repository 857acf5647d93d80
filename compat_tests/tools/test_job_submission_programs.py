"""Jobs that are programs: what they get from their job, and how they end."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ray
from ray.job_submission import JobSubmissionClient
from tools.job_parts import Jobs


@pytest.fixture(scope="module")
def jobs(shared_cluster, backend) -> Iterator[Jobs]:
    shared_cluster.stop()
    context = ray.init(
        num_cpus=2,
        resources={"special": 1},
        include_dashboard=True,
        logging_level="ERROR",
        log_to_driver=False,
    )
    client = JobSubmissionClient(f"http://{context.dashboard_url}")
    yield Jobs(client, backend)
    ray.shutdown()


@pytest.fixture
def program(tmp_path):
    def write(text: str, name: str = "program.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def told(log: str) -> dict:
    """What a program printed as JSON, behind a mark."""
    return json.loads(log.partition("TOLD ")[2].splitlines()[0])


def test_program_joins_the_cluster_of_its_job(jobs, program):
    path = program("""
        import json, ray
        ray.init()
        @ray.remote
        def add(a, b):
            return a + b
        job = ray.get_runtime_context().get_job_id()
        print("TOLD", json.dumps([job, ray.get(add.remote(1, 2)),
              ray.cluster_resources().get("special")]))
    """)

    info = jobs.run(jobs.python(path))

    job_id, result, special = told(jobs.log(info))
    assert (result, special) == (3, 1)
    assert info.job_id == job_id
    assert info.driver_info.id == job_id
    assert jobs.client.get_job_info(job_id).submission_id == info.submission_id
    assert job_id != ray.get_runtime_context().get_job_id()


def test_environment_of_the_job_reaches_program_and_tasks(jobs, program):
    path = program("""
        import json, os, ray
        ray.init()
        @ray.remote
        def look():
            return os.environ.get("WHO")
        print("TOLD", json.dumps([os.environ.get("WHO"), ray.get(look.remote())]))
    """)

    info = jobs.run(jobs.python(path), runtime_env={"env_vars": {"WHO": "me"}})

    assert told(jobs.log(info)) == ["me", "me"]
    assert info.runtime_env == {"env_vars": {"WHO": "me"}}


def test_working_dir_is_uploaded(jobs, program):
    folder = program("VALUE = 42\n", "my_own_module.py").parent
    path = program("""
        import json, os, ray
        import my_own_module
        ray.init()
        @ray.remote
        def look():
            import my_own_module
            return my_own_module.VALUE
        print("TOLD", json.dumps([my_own_module.VALUE, ray.get(look.remote()),
              os.getcwd()]))
    """)

    info = jobs.run(jobs.python(path.name), runtime_env={"working_dir": str(folder)})

    here, there, cwd = told(jobs.log(info))
    assert (here, there) == (42, 42)
    assert cwd != str(folder)
    assert info.runtime_env["working_dir"].startswith("gcs://_ray_pkg_")


def test_environment_of_init_is_added(jobs, program):
    path = program("""
        import json, os, ray
        ray.init(runtime_env={"env_vars": {"MORE": "b"}})
        @ray.remote
        def look():
            return [os.environ.get("OF_JOB"), os.environ.get("MORE")]
        print("TOLD", json.dumps(ray.get(look.remote())))
    """)

    info = jobs.run(jobs.python(path), runtime_env={"env_vars": {"OF_JOB": "a"}})

    assert told(jobs.log(info)) == ["a", "b"]


def test_environments_that_contradict_each_other(jobs, program):
    path = program("""
        import ray
        ray.init(runtime_env={"env_vars": {"SAME": "b"}})
    """)

    info = jobs.run(jobs.python(path), runtime_env={"env_vars": {"SAME": "a"}})

    assert info.status == "FAILED"
    assert "Failed to merge" in jobs.log(info)


def test_error_of_the_program_is_in_the_message(jobs, program):
    info = jobs.run(jobs.python(program("raise KeyError('its own fault')")))

    assert info.status == "FAILED"
    assert info.driver_exit_code == 1
    assert "its own fault" in info.message


def test_entrypoint_holds_its_resources(jobs, tmp_path):
    job = jobs.client.submit_job(
        entrypoint="sleep 100",
        entrypoint_num_cpus=1,
        entrypoint_resources={"special": 1},
    )
    jobs.wait(job, "RUNNING")
    deadline = time.monotonic() + 20
    while ray.available_resources().get("special", 0) != 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)

    free = ray.available_resources()

    assert free.get("CPU", 0) == 1
    jobs.client.stop_job(job)
    jobs.wait(job)
    while ray.available_resources().get("special", 0) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_job_without_resources_runs_on_a_busy_node(jobs):
    @ray.remote(num_cpus=2)
    class Hog:
        def ping(self):
            return 1

    hog = Hog.remote()
    ray.get(hog.ping.remote())

    info = jobs.run("true")

    assert info.status == "SUCCEEDED"
    ray.kill(hog)


def test_detached_actor_outlives_its_job(jobs, program):
    path = program("""
        import ray
        ray.init(namespace="of-jobs")
        @ray.remote(num_cpus=0)
        class Keeper:
            def value(self):
                return 7
        keeper = Keeper.options(name="kept", lifetime="detached").remote()
        ray.get(keeper.value.remote())
    """)

    info = jobs.run(jobs.python(path))

    assert info.status == "SUCCEEDED"
    keeper = ray.get_actor("kept", namespace="of-jobs")
    assert ray.get(keeper.value.remote()) == 7
    ray.kill(keeper)


def test_stop_ends_what_the_program_has_started(jobs, program, tmp_path):
    pid_file = tmp_path / "pid"
    path = program(f"""
        import subprocess, time
        child = subprocess.Popen(["sleep", "1000"])
        open({str(pid_file)!r} + ".new", "w").write(str(child.pid))
        import os
        os.rename({str(pid_file)!r} + ".new", {str(pid_file)!r})
        time.sleep(1000)
    """)
    job = jobs.client.submit_job(entrypoint=f"{sys.executable} {path}")
    deadline = time.monotonic() + 30
    while not pid_file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)

    jobs.client.stop_job(job)
    jobs.wait(job)

    pid = pid_file.read_text()
    while (
        subprocess.run(["kill", "-0", pid], stderr=subprocess.DEVNULL).returncode == 0
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_several_jobs_at_once(jobs):
    names = [
        jobs.client.submit_job(entrypoint=f"echo number-{number}")
        for number in range(4)
    ]

    assert [jobs.wait(name) for name in names] == ["SUCCEEDED"] * 4
    for number, name in enumerate(names):
        assert f"number-{number}\n" in jobs.client.get_job_logs(name)
