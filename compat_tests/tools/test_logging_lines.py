"""Structured lines: ``init(logging_config=LoggingConfig(...))``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

import ray

PROGRAM = """
import logging, sys, time
import ray

ray.init(
    num_cpus=2,
    include_dashboard=False,
    logging_config=ray.LoggingConfig(
        encoding=sys.argv[1],
        log_level="INFO",
        additional_log_standard_attrs=["name"],
    ),
)
logging.getLogger("in_driver").info("driver says %s", "hello", extra={"own": 1})
logging.getLogger("in_driver").debug("nobody wants this")
logging.getLogger("in_driver").warning("mind this")

@ray.remote
def task():
    log = logging.getLogger("in_task")
    log.info("task says hello", extra={"deep": {"a": 1}})
    log.debug("nobody wants that")
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("task fails")
    print("plain words")
    return ray.get_runtime_context().get_task_id()

@ray.remote
class Actor:
    def method(self):
        logging.getLogger("in_actor").error("actor says hello")
        return ray.get_runtime_context().get_actor_id()

task_id = ray.get(task.options(name="nice").remote())
actor = Actor.options(name="named").remote()
actor_id = ray.get(actor.method.remote())
context = ray.get_runtime_context()
print("IDS", task_id, actor_id, context.get_job_id(), context.get_node_id())
time.sleep(2)
"""


@pytest.fixture(scope="module")
def output(backend, tmp_path_factory):
    """Runs the program with an encoding, once for each."""
    path = tmp_path_factory.mktemp("lines") / "program.py"
    path.write_text(PROGRAM)
    known = {}

    def run(encoding):
        if encoding not in known:
            options = ["-m", "rayshim"] if backend == "rayshim" else []
            done = subprocess.run(
                [sys.executable, *options, str(path), encoding],
                capture_output=True,
                text=True,
                timeout=55,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            assert done.returncode == 0, done.stderr
            known[encoding] = done.stdout + done.stderr
        return known[encoding]

    return run


@pytest.fixture
def records(output):
    """The JSON lines, by their message."""
    found = {}
    for line in output("JSON").splitlines():
        if line.startswith("{"):
            record = json.loads(line)
            found[record["message"]] = record
    return found


@pytest.fixture
def ids(output):
    line = re.search(r"IDS (\S+) (\S+) (\S+) (\S+)", output("JSON"))
    return dict(zip(("task", "actor", "job", "node"), line.groups(), strict=True))


def test_driver_lines_have_the_usual_fields(records):
    record = records["driver says hello"]
    assert record["levelname"] == "INFO"
    assert record["filename"] == "program.py"
    assert isinstance(record["lineno"], int)
    assert isinstance(record["process"], int)
    assert isinstance(record["timestamp_ns"], int)
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", record["asctime"])


def test_driver_lines_say_job_process_and_node(records, ids):
    record = records["driver says hello"]
    assert record["job_id"] == ids["job"]
    assert record["node_id"] == ids["node"]
    assert len(record["worker_id"]) == 56
    assert "task_id" not in record


def test_own_fields_are_there(records):
    assert records["driver says hello"]["own"] == 1
    assert records["task says hello"]["deep"] == {"a": 1}


def test_attributes_that_were_asked_for_are_there(records):
    assert records["driver says hello"]["name"] == "in_driver"
    assert records["task says hello"]["name"] == "in_task"


def test_lines_below_the_level_are_not_there(records):
    assert "nobody wants this" not in records
    assert "nobody wants that" not in records
    assert "mind this" in records


def test_task_lines_say_which_task(records, ids):
    record = records["task says hello"]
    assert record["task_id"] == ids["task"]
    assert record["task_name"] == "nice"
    assert record["task_func_name"].endswith(".task")
    assert record["job_id"] == ids["job"]
    assert "actor_id" not in record


def test_actor_lines_say_which_actor(records, ids):
    record = records["actor says hello"]
    assert record["actor_id"] == ids["actor"]
    assert record["actor_name"] == "named"
    assert record["task_name"] == "Actor.method"
    assert record["levelname"] == "ERROR"


def test_exceptions_are_in_the_line(records):
    assert "ZeroDivisionError" in records["task fails"]["exc_text"]


def test_lines_stand_alone_in_the_driver(output):
    assert "\nplain words\n" in "\n" + output("JSON")


def test_text_lines_have_fields_behind_the_message(output):
    line = next(x for x in output("TEXT").splitlines() if "task says hello" in x)
    assert re.search(r"INFO program\.py:\d+ -- task says hello ", line)
    assert " name=in_task " in line
    assert " task_name=nice " in line
    assert re.search(r" timestamp_ns=\d+$", line)


def test_text_lines_have_own_fields(output):
    line = next(x for x in output("TEXT").splitlines() if "driver says hello" in x)
    assert " own=1 " in line
    assert re.search(r" job_id=[0-9a-f]{8} ", line)


@pytest.mark.parametrize(
    "options",
    [{"encoding": "XML"}, {"additional_log_standard_attrs": ["nothing"]}],
    ids=["encoding", "attribute"],
)
def test_wrong_configurations_are_refused(options):
    with pytest.raises(ValueError):
        ray.LoggingConfig(**options)
