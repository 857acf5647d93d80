"""Submits a job, follows its log, and looks at what the cluster did.

    python examples/jobs_and_state.py

Starts a session, sends a small program to it with Ray's job client, prints its log
when it is over, then asks the state API what ran, and writes a timeline that Perfetto
and Chrome open.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import rayshim as ray
from rayshim.job_submission import JobStatus, JobSubmissionClient
from rayshim.util.state import list_actors, list_nodes, summarize_tasks

PROGRAM = """
import rayshim as ray

ray.init()

@ray.remote
def square(x):
    return x * x

print("sum of squares:", sum(ray.get([square.remote(i) for i in range(100)])))
"""


@ray.remote
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@ray.remote
class Keeper:
    def keep(self, value: int) -> int:
        return value


def submit(address: str) -> None:
    """Run the program as a job, and show what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(PROGRAM)
        client = JobSubmissionClient(address)
        job_id = client.submit_job(
            entrypoint="python program.py",
            runtime_env={"working_dir": folder},
            metadata={"example": "jobs_and_state"},
        )
        deadline = time.monotonic() + 60
        while not client.get_job_status(job_id).is_terminal():
            assert time.monotonic() < deadline, client.get_job_logs(job_id)
            time.sleep(0.1)
    log = client.get_job_logs(job_id)
    print(f"{job_id}:", *log.splitlines(), sep="\n  ")
    assert client.get_job_status(job_id) == JobStatus.SUCCEEDED
    assert "sum of squares: 328350" in log


def look() -> None:
    """What the state API knows of this program's own calls."""
    keeper = Keeper.remote()
    ray.get([nap.remote(0.01) for _ in range(20)] + [keeper.keep.remote(1)])
    deadline = time.monotonic() + 30
    while True:
        summary = summarize_tasks()["cluster"]["summary"]
        done = summary.get("nap", {}).get("state_counts", {}).get("FINISHED", 0)
        if done == 20:
            break
        assert time.monotonic() < deadline, summary
        time.sleep(0.1)
    print("finished naps:", done)
    print("nodes:", [node.state for node in list_nodes()])
    print("actors:", [actor.class_name for actor in list_actors() if actor.name == ""])


def main() -> None:
    context = ray.init(num_cpus=2)
    submit(f"http://{context.dashboard_url}")
    look()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "timeline.json")
        ray.timeline(str(path))
        events = json.loads(path.read_text())
    naps = [event for event in events if event.get("ph") == "X"]
    print("pieces of the timeline:", len(naps) >= 20)
    ray.shutdown()
    print("OK")


if __name__ == "__main__":
    main()
