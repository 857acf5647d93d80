"""``list_logs`` and ``get_log``: which logs there are, and what is in them."""

from __future__ import annotations

import os
import sys
import time

import pytest

import ray
from ray.util.state import get_log, list_logs

#: The agents of real Ray come up long after the cluster.
pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def told(shared_cluster):
    """A cluster in which a task and an actor have printed; their ids."""
    shared_cluster.stop()
    ray.init(
        num_cpus=2,
        include_dashboard=True,
        logging_level="ERROR",
        log_to_driver=False,
    )

    @ray.remote
    def talk(number):
        print("out", number)
        print("err", number, file=sys.stderr)
        return os.getpid(), ray.get_runtime_context().get_task_id()

    @ray.remote
    class Talker:
        def say(self):
            print("one\ntwo\nthree")
            return os.getpid(), ray.get_runtime_context().get_actor_id()

    facts = {}
    talker = Talker.remote()
    facts["actor_pid"], facts["actor"] = ray.get(talker.say.remote())
    facts["pid"], facts["task"] = ray.get(talk.remote(7))
    node = ray.nodes()[0]
    facts["node"], facts["ip"] = node["NodeID"], node["NodeManagerAddress"]
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            if "out 7" in "".join(get_log(task_id=facts["task"])):
                break
        except Exception:
            pass  # the dashboard of real Ray takes a while
        time.sleep(0.1)
    yield facts
    del talker
    ray.shutdown()


def text(**which):
    return "".join(get_log(**which))


def test_logs_are_listed_by_kind(told):
    found = list_logs(node_id=told["node"])
    assert any(str(told["pid"]) in name for name in found["worker_out"])
    assert any(str(told["pid"]) in name for name in found["worker_err"])
    assert found["raylet"]


def test_names_say_worker_job_and_pid(told):
    names = list_logs(node_id=told["node"])["worker_out"]
    (name,) = [name for name in names if name.endswith(f"-{told['pid']}.out")]
    word, worker, job, _ = name.split("-")
    assert (word, len(worker), len(job)) == ("worker", 56, 8)


def test_a_pattern_chooses_names(told):
    found = list_logs(node_id=told["node"], glob_filter="*worker*out")
    assert list(found) == ["worker_out"]


def test_a_node_may_be_named_by_its_address(told):
    assert list_logs(node_ip=told["ip"])["worker_out"]


def test_a_task_has_its_own_lines(told):
    assert text(task_id=told["task"]) == "out 7\n"


def test_a_task_has_its_own_errors(told):
    assert "err 7\n" in text(task_id=told["task"], suffix="err")


def test_an_actor_has_its_lines(told):
    assert "one\ntwo\nthree\n" in text(actor_id=told["actor"])


def test_the_last_lines_of_an_actor(told):
    assert text(actor_id=told["actor"], tail=1) == "three\n"


def test_a_process_has_its_lines(told):
    assert "out 7\n" in text(pid=told["pid"], node_id=told["node"])


def test_a_file_has_its_lines(told):
    names = list_logs(node_id=told["node"])["worker_out"]
    (name,) = [name for name in names if str(told["actor_pid"]) in name]
    assert "three\n" in text(filename=name, node_id=told["node"])


def test_bytes_without_an_encoding(told):
    found = b"".join(get_log(task_id=told["task"], encoding=None))
    assert found == b"out 7\n"


def test_what_comes_later_is_followed(told):
    follower = get_log(pid=told["pid"], node_id=told["node"], follow=True)
    assert "out 7\n" in next(follower)
    follower.close()


@pytest.mark.parametrize(
    "which",
    [{"filename": "nothing.log"}, {"actor_id": "ab" * 16}],
    ids=["file", "actor"],
)
def test_what_is_not_there_is_an_error(told, which):
    with pytest.raises(Exception):  # noqa: B017 (their types differ)
        text(node_id=told["node"], **which)
