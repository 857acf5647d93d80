"""Logs, stacks and breakpoints of a session, by function, command and route."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rayshim
from rayshim._core import current
from rayshim._core.clusters import find_cluster
from rayshim.util.state.exception import RayStateApiException
from rayshim.util.state.logs import get_log, list_logs

pytestmark = pytest.mark.slow


@rayshim.remote
def talk(*lines: str) -> tuple[int, str]:
    for line in lines:
        print(line)
        print("err " + line, file=sys.stderr)
    return os.getpid(), rayshim.get_runtime_context().get_task_id()


@rayshim.remote
class Talker:
    def say(self, *lines: str) -> int:
        print(*lines, sep="\n")
        return os.getpid()


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    rayshim.init(
        num_cpus=2,
        log_to_driver=False,
        _system_config={"rotation_max_bytes": 4000, "rotation_backup_count": 2},
    )
    assert current.peer is not None
    # Others of this user may run sessions on this host.
    os.environ["RAYSHIM_ADDRESS"] = f"local:{current.peer.session}"
    yield
    del os.environ["RAYSHIM_ADDRESS"]
    rayshim.shutdown()


def command(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    code = "from rayshim.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        **options,
    )


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def text(**which: Any) -> str:
    return "".join(get_log(**which))


def test_each_task_has_its_own_lines() -> None:
    told = rayshim.get([talk.remote(f"line {n}") for n in range(4)])
    for number, (_, task_id) in enumerate(told):
        wait_until(lambda task_id=task_id: text(task_id=task_id, suffix="err"))
        assert text(task_id=task_id) == f"line {number}\n"
        assert text(task_id=task_id, suffix="err") == f"err line {number}\n"


def test_lines_of_calls_that_overlap_are_told_apart() -> None:
    @rayshim.remote
    class Both:
        async def say(self, name: str) -> str:
            import asyncio

            print(name, 1)
            await asyncio.sleep(0.05)
            print(name, 2)
            return rayshim.get_runtime_context().get_task_id()

    both = Both.remote()
    one, two = rayshim.get([both.say.remote("one"), both.say.remote("two")])
    wait_until(lambda: text(task_id=two).count("\n") == 2)
    assert text(task_id=one) == "one 1\none 2\n"
    assert text(task_id=two) == "two 1\ntwo 2\n"


def test_a_line_without_an_end_is_the_tasks() -> None:
    @rayshim.remote
    def mumble() -> str:
        print("no end", end="")
        return rayshim.get_runtime_context().get_task_id()

    first, second = rayshim.get([mumble.remote(), mumble.remote()])
    rayshim.get([talk.remote("x") for _ in range(4)])  # on the same executors
    wait_until(lambda: "no end" in text(task_id=first))
    wait_until(lambda: "no end" in text(task_id=second))
    assert text(task_id=first).strip() == "no end"


def test_actors_have_their_file() -> None:
    talker = Talker.remote()
    pid = rayshim.get(talker.say.remote("a", "b"))
    wait_until(lambda: text(pid=pid) == "a\nb\n" if list_logs() else False)
    actor_id = talker._actor_id.hex()
    assert text(actor_id=actor_id, tail=1) == "b\n"
    done = command("logs", "actor", "--id", actor_id)
    assert (done.returncode, done.stdout) == (0, "a\nb\n"), done.stderr
    done = command("logs", "worker", "--pid", str(pid), "--tail", "1")
    assert done.stdout == "b\n"


def test_lines_that_come_later_are_followed() -> None:
    talker = Talker.remote()
    pid = rayshim.get(talker.say.remote("first"))
    wait_until(lambda: list_logs(glob_filter=f"*-{pid}.out"))
    follower = get_log(pid=pid, follow=True, _interval=0.05)
    assert next(follower) == "first\n"
    rayshim.get(talker.say.remote("second"))
    assert next(follower) == "second\n"
    follower.close()


def test_a_follower_goes_on_in_the_next_file() -> None:
    talker = Talker.remote()
    pid = rayshim.get(talker.say.remote("begin"))
    wait_until(lambda: list_logs(glob_filter=f"*-{pid}.out"))
    follower = get_log(pid=pid, follow=True, _interval=0.02)
    seen = next(follower)
    lines = [f"line {number:03}" for number in range(1200)]  # more than one file
    for begin in range(0, 1200, 100):
        rayshim.get(talker.say.remote(*lines[begin : begin + 100]))
        while lines[begin + 99] not in seen:
            seen += next(follower)
    assert seen.splitlines() == ["begin", *lines]
    names = list_logs(glob_filter=f"*-{pid}.out*")["worker_out"]
    assert len(names) == 3  # the file, and two before it
    follower.close()


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ({"filename": "nope"}, "no log file 'nope'"),
        ({"filename": "../token"}, r"no log file '\.\./token'"),
        ({"filename": "node.log", "node_id": "ff" * 28}, "no live node"),
        ({"actor_id": "ab" * 16}, "no actor with id"),
        ({"pid": 1}, "no log file"),
        ({"submission_id": "nope"}, "no log file 'job-driver-nope.log'"),
    ],
)
def test_what_is_not_there_is_named(which: dict[str, Any], message: str) -> None:
    with pytest.raises(RayStateApiException, match=message):
        text(**which)


@pytest.mark.parametrize(
    "which", [{}, {"pid": 1, "filename": "x"}, {"pid": 1, "suffix": "log"}]
)
def test_it_must_be_clear_which_log_is_meant(which: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"say which log|suffix is"):
        text(**which)


def test_bytes_that_are_no_text() -> None:
    @rayshim.remote
    def raw() -> int:
        os.write(1, b"\xff\xfe\n")
        return os.getpid()

    pid = rayshim.get(raw.options(num_cpus=0).remote())
    wait_until(lambda: list_logs(glob_filter=f"*-{pid}.out"))
    wait_until(lambda: b"\xff" in b"".join(get_log(pid=pid, encoding=None)))
    with pytest.raises(UnicodeDecodeError):
        text(pid=pid)
    assert "\ufffd" in text(pid=pid, errors="replace")


def test_colours_can_be_taken_out() -> None:
    _, task_id = rayshim.get(talk.remote("\x1b[31mred\x1b[0m"))
    wait_until(lambda: text(task_id=task_id))
    assert text(task_id=task_id, filter_ansi_code=True) == "red\n"


def test_logs_are_listed_by_command() -> None:
    done = command("logs")
    assert done.returncode == 0, done.stderr
    assert "raylet:\n- node" in done.stdout
    groups = json.loads(command("logs", "node*", "--format", "json").stdout)
    assert list(groups) == ["raylet"]
    assert command("logs", "nothing-is-called-so").returncode == 1
    assert command("logs", "actor").returncode == 2


def test_the_only_file_that_matches_is_printed() -> None:
    pid, _ = rayshim.get(talk.remote("printed"))
    wait_until(lambda: text(pid=pid))
    done = command("logs", f"worker-*-{pid}.out", "--tail", "1")
    assert done.stdout.endswith("printed\n")


def test_stacks_show_what_calls_do() -> None:
    @rayshim.remote
    class Gate:
        def __init__(self) -> None:
            self.open = threading.Event()

        def ready(self) -> int:
            return os.getpid()

        def wait_here(self) -> None:
            self.open.wait()

        def go(self) -> None:
            self.open.set()

    gate = Gate.options(max_concurrency=3).remote()
    pid = rayshim.get(gate.ready.remote())
    ref = gate.wait_here.remote()
    shown = ""
    deadline = time.monotonic() + 20
    while "in wait_here" not in shown and time.monotonic() < deadline:
        shown = command("stack", "--pid", str(pid)).stdout
    assert "in wait_here" in shown and "runs Gate.wait_here (task " in shown
    rayshim.get([gate.go.remote(), ref])
    assert command("stack", "--pid", "1").returncode == 1


def test_a_breakpoint_is_found_and_debugged() -> None:
    @rayshim.remote
    def stops(value: int) -> int:
        from rayshim.util import rpdb

        rpdb.set_trace()
        value += 1
        return value

    ref = stops.remote(4)
    assert current.peer is not None
    peer = current.peer
    wait_until(lambda: peer.request("kv_list", {"namespace": "_rayshim_debug"}))
    done = command("debug", "-v", input="0\np value\nvalue = 100\nc\nq\n")
    assert done.returncode == 0, done.stderr
    assert "0: stops at " in done.stdout and "(Pdb) 4\n" in done.stdout
    assert rayshim.get(ref) == 101
    assert not peer.request("kv_list", {"namespace": "_rayshim_debug"})


def test_editors_debuggers_are_refused() -> None:
    from rayshim.util import debugpy

    with pytest.raises(NotImplementedError, match=r"rpdb\.set_trace"):
        debugpy.set_trace()


def visit(path: str, **query: str) -> tuple[int, str]:
    """What the dashboard answers."""
    found = find_cluster()
    address = f"{found.dashboard_url}{path}?{urllib.parse.urlencode(query)}"
    headers = {"Authorization": f"Bearer {found.token.hex()}"}
    request = urllib.request.Request(address, None, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_routes_list_and_read() -> None:
    _, task_id = rayshim.get(talk.remote("by route"))
    wait_until(lambda: text(task_id=task_id))
    listed = json.loads(visit("/api/v0/logs", glob="node*")[1])
    assert listed["result"] and list(listed["data"]["result"]) == ["raylet"]
    assert visit("/api/v0/logs/file", task_id=task_id) == (200, "by route\n")


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 400),
        ({"pid": "x"}, 400),
        ({"filename": "../token"}, 404),
        ({"filename": "nope"}, 404),
        ({"filename": "node.log", "node_id": "zz"}, 404),
    ],
)
def test_routes_refuse_by_name(query: dict[str, str], status: int) -> None:
    for path in ("/api/v0/logs/file", "/api/v0/logs/stream", "/api/logs/follow"):
        told, answer = visit(path, **query)
        assert told == status, path
        assert json.loads(answer)["msg"]


def test_browsers_get_new_lines_as_events() -> None:
    talker = Talker.remote()
    pid = rayshim.get(talker.say.remote("one", "two"))
    wait_until(lambda: list_logs(glob_filter=f"*-{pid}.out"))
    found = find_cluster()
    request = urllib.request.Request(
        f"{found.dashboard_url}/api/logs/follow?pid={pid}&lines=1",
        None,
        {"Authorization": f"Bearer {found.token.hex()}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in answer if line.startswith(b"data:"))
        assert next(lines) == b'data: ["two"]\n'
        rayshim.get(talker.say.remote("three"))
        assert next(lines) == b'data: ["three"]\n'


def test_metrics_of_all_nodes_are_one_text() -> None:
    status, shown = visit("/metrics")
    assert status == 200
    assert "ray_node_cpu_count{" in shown and shown.count("# TYPE ray_tasks ") <= 1
    (entry,) = json.loads(visit("/api/prometheus/sd")[1])
    assert len(entry["targets"]) == 1
    assert json.loads(visit("/api/grafana/dashboard.json")[1])["panels"]


def test_output_does_not_wait_for_a_full_buffer() -> None:
    program = (
        "import rayshim, time\n"
        "rayshim.init(num_cpus=1, include_dashboard=False)\n"
        "@rayshim.remote\n"
        "class A:\n"
        "    def say(self): print('words')\n"
        "a = A.remote(); rayshim.get(a.say.remote())\n"
        "rayshim.kill(a); time.sleep(0.5)\n"
    )
    left_out = ("PYTHONUNBUFFERED", "RAYSHIM_ADDRESS")
    env = {key: value for key, value in os.environ.items() if key not in left_out}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env
    )
    assert "words" in done.stdout, done.stderr
