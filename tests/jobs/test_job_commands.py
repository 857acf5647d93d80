"""Jobs from a shell: ``rayshim job`` and ``curl``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rayshim
from job_client import wait_for
from rayshim.job_submission import JobSubmissionClient

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-c", "from rayshim.cli.main import main; main()", "job"]
Run = Callable[..., str]


@pytest.fixture(scope="module")
def client() -> Iterator[JobSubmissionClient]:
    rayshim.init(num_cpus=1, logging_level="error", log_to_driver=False)
    yield JobSubmissionClient()
    rayshim.shutdown()


@pytest.fixture
def run(client: JobSubmissionClient) -> Run:
    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [*COMMAND, *words],
            capture_output=True,
            text=True,
            timeout=50,
            env={**os.environ, "RAY_API_SERVER_ADDRESS": client.get_address()},
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_submit_follows_the_job_and_succeeds(run: Run) -> None:
    text = run("submit", "--submission-id", "one", "--", "echo", "hello there")

    assert "Job 'one' submitted successfully" in text
    assert "\nhello there\n" in text
    assert "Job 'one' succeeded" in text


def test_options_of_the_program_need_two_dashes(run: Run) -> None:
    text = run("submit", "python", "train.py", "--epochs", "3", code=2)

    assert "No such option '--epochs'" in text and "put -- before that" in text


def test_submit_fails_as_the_job_does(run: Run) -> None:
    text = run("submit", "--", "sh", "-c", "echo last words; exit 7", code=1)

    assert "failed with exit code 7" in text
    assert "last words" in text


def test_job_by_all_verbs(run: Run) -> None:
    text = run("submit", "--no-wait", "--submission-id", "two", "--", "sleep", "1000")
    assert "rayshim job logs two" in text

    assert "Status for job 'two'" in run("status", "two")
    assert "was stopped" in run("stop", "two")
    assert "Running entrypoint for job two: sleep 1000" in run("logs", "two")
    assert "Running entrypoint" in run("logs", "--follow", "two")
    rows = json.loads(run("list", "--format", "json"))
    assert "two" in [row["submission_id"] for row in rows]
    assert "JobDetails(" in run("list")
    assert "two" in run("list", "--format", "table")
    assert "deleted successfully" in run("delete", "two")
    assert "404" in run("status", "two", code=1)


def test_environment_from_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("from the folder\n")
    env = tmp_path / "env.yaml"
    env.write_text("env_vars: {WHO: me}\n")

    text = run(
        "submit",
        "--runtime-env",
        str(env),
        "--working-dir",
        str(tmp_path),
        "--metadata-json",
        '{"a": "b"}',
        "--",
        "sh",
        "-c",
        "cat own.txt; echo I am $WHO",
    )

    assert "from the folder\n" in text
    assert "I am me\n" in text


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "--entrypoint-resources", "x", "--", "true"),
        ("submit", "--metadata-json", "[]", "--", "true"),
        ("submit", "--runtime-env", "/no/such/file", "--", "true"),
        ("submit",),
        ("nonsense",),
    ],
)
def test_wrong_use_is_two(run: Run, words: tuple[str, ...]) -> None:
    run(*words, code=2)


def test_nobody_answers() -> None:
    done = subprocess.run(
        [*COMMAND, "list", "--address", "http://127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert done.returncode == 1
    assert "Failed to connect to Ray at address: http://127.0.0.1:9" in done.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_job_by_curl(client: JobSubmissionClient) -> None:
    context = rayshim.init(ignore_reinit_error=True)
    token = Path(context["session_dir"], "token").read_text().strip()
    url = client.get_address()

    def curl(*words: str) -> str:
        return subprocess.run(
            ["curl", "--silent", "--show-error", "--max-time", "30", *words],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    proof = ("--header", f"Authorization: Bearer {token}")
    job = {"entrypoint": "echo from curl", "metadata": {"by": "curl"}}
    answer = curl(*proof, "--data", json.dumps(job), f"{url}/api/jobs/")
    name = json.loads(answer)["submission_id"]
    wait_for(client, name)

    assert json.loads(curl(*proof, f"{url}/api/version"))["version"] == "4"
    info = json.loads(curl(*proof, f"{url}/api/jobs/{name}"))
    assert (info["status"], info["metadata"]) == ("SUCCEEDED", {"by": "curl"})
    logs = json.loads(curl(*proof, f"{url}/api/jobs/{name}/logs"))["logs"]
    assert logs.endswith("\nfrom curl\n")
    assert curl(*proof, f"{url}/api/jobs/{name}/logs/tail") == logs
    stop = curl(*proof, "--request", "POST", f"{url}/api/jobs/{name}/stop")
    assert json.loads(stop) == {"stopped": False}
    delete = curl(*proof, "--request", "DELETE", f"{url}/api/jobs/{name}")
    assert json.loads(delete) == {"deleted": True}
    assert name in curl(*proof, f"{url}/api/jobs/{name}")
    assert "Authorization" in curl(f"{url}/api/jobs/")
    assert "no JSON" in curl(*proof, "--data", "{", f"{url}/api/jobs/")
    assert "a job has no x" in curl(*proof, "--data", '{"x": 1}', f"{url}/api/jobs/")
