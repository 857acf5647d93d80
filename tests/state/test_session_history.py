"""What a session did is there when it is over: lists, timelines, replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rayshim.cli.main import main

pytestmark = pytest.mark.slow

PROGRAM = """
import sys, time
import rayshim as ray
ray.init(num_cpus=2, log_to_driver=False, _temp_dir=sys.argv[1])

@ray.remote
def work(x):
    return x

@ray.remote
def broken():
    raise ValueError("no luck")

@ray.remote
class Thing:
    def use(self):
        return 1

thing = Thing.remote()
ray.get([work.remote(i) for i in range(5)] + [thing.use.remote()])
try:
    ray.get(broken.remote())
except ValueError:
    pass
ray.shutdown()
"""


def run_program(folder: Path, **settings: str) -> None:
    environment = {**os.environ, "RAYSHIM_HISTORY_SESSIONS": "2", **settings}
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        check=True,
        env=environment,
        timeout=60,
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="h-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def past() -> Iterator[Path]:
    """A folder with one session that is over."""
    with tempfile.TemporaryDirectory(prefix="h-") as name:
        run_program(Path(name))
        yield Path(name)


def rayshim(past: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--temp-dir", str(past)])


def listed(past: Path, resource: str, *more: str) -> list[dict[str, Any]]:
    result = rayshim(
        past, "list", resource, "--session", "last", "--format", "json", *more
    )
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.output)
    return rows


def test_tasks(past: Path) -> None:
    rows = listed(past, "tasks")
    names = sorted(row["name"] for row in rows)
    assert names == ["Thing.__init__", "Thing.use", "broken", *["work"] * 5]
    assert {row["state"] for row in rows if row["name"] != "broken"} == {"FINISHED"}


def test_filters_and_limit(past: Path) -> None:
    rows = listed(past, "tasks", "--filter", "state=FAILED", "--detail")
    assert [row["error_type"] for row in rows] == ["TASK_EXECUTION_EXCEPTION"]
    assert "no luck" in rows[0]["error_message"]
    assert len(listed(past, "tasks", "--limit", "2")) == 2


def test_actors_nodes_and_jobs(past: Path) -> None:
    assert [row["class_name"] for row in listed(past, "actors")] == ["Thing"]
    assert [row["state"] for row in listed(past, "nodes")] == ["ALIVE"]
    assert [row["status"] for row in listed(past, "jobs")] == ["SUCCEEDED"]


def test_resource_of_which_nothing_is_written(past: Path) -> None:
    result = rayshim(past, "list", "objects", "--session", "last")
    assert result.exit_code == 1
    assert "nothing is written of objects" in result.output


def test_timeline(past: Path, tmp_path: Path) -> None:
    target = tmp_path / "timeline.json"
    result = rayshim(past, "timeline", "--session", "last", "-o", str(target))
    assert result.exit_code == 0, result.output
    bars = [one for one in json.loads(target.read_text()) if one["ph"] == "X"]
    assert len(bars) == 8


def test_replay_of_a_moment(past: Path) -> None:
    result = rayshim(past, "replay", "last", "--until", "+0s", "--format", "json")
    assert result.exit_code == 0, result.output
    early = json.loads(result.output)
    result = rayshim(past, "replay", "last", "--format", "json")
    late = json.loads(result.output)
    assert len(early["tasks"]) < len(late["tasks"]) == 8
    assert [row["state"] for row in late["actors"]] == ["ALIVE"]


def test_replay_of_a_file(past: Path) -> None:
    folder = next((past / f"rayshim-{os.getuid()}" / "history").iterdir()) / "events"
    path = next(folder.glob("*.spool"))
    result = rayshim(past, "replay", str(path))
    assert result.exit_code == 0, result.output
    assert "FINISHED: 7" in result.output


def test_replay_until_what_is_no_moment(past: Path) -> None:
    result = rayshim(past, "replay", "last", "--until", "soon")
    assert result.exit_code == 2
    assert "is no moment" in result.output


def test_session_that_is_not_there(past: Path) -> None:
    result = rayshim(past, "replay", "nothing")
    assert result.exit_code == 1
    assert "no session 'nothing'" in result.output


def test_so_many_are_kept(folder: Path) -> None:
    for _ in range(3):
        run_program(folder)
    assert len(list((folder / f"rayshim-{os.getuid()}" / "history").iterdir())) == 2


def test_nothing_is_kept_where_that_is_turned_off(folder: Path) -> None:
    run_program(folder, RAYSHIM_HISTORY_SESSIONS="0")
    assert not (folder / f"rayshim-{os.getuid()}" / "history").exists()


def test_full_files_are_arrow_files(folder: Path) -> None:
    from rayshim.adapters.events import history, reading

    run_program(folder, RAYSHIM_EVENT_FILE_BYTES="300")
    root = folder / f"rayshim-{os.getuid()}"
    parts = history.find(root, "last")
    events = reading.read(part.events for part in parts)
    assert len(events.calls) == 8
