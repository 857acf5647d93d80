"""The fork server gives executors a clean start and a sure end."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node_process import is_alive, wait_until
from rayshim.adapters.processes.lifeline import close_descriptors

HERE = str(Path(__file__).resolve().parent)


def report(config: dict[str, Any]) -> None:
    """Entry: prints what the process looks like, then leaves or waits."""
    import numpy.random as numpy_random

    # The test run's capture is inherited.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    facts = {
        "worker_id": config["worker_id"],
        "extra": config["extra"],
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "stdin": os.readlink("/proc/self/fd/0"),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "sigterm": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "random": random.random(),
        "numpy": numpy_random.rand(),
        "env": os.environ.get("GIVEN", ""),
        "omp": os.environ.get("OMP_NUM_THREADS", ""),
    }
    print(json.dumps(facts), flush=True)
    verb = config["worker_id"]
    if verb == "77":
        sys.exit(7)
    if verb == "88":
        raise RuntimeError("went wrong")
    if verb != "00":
        time.sleep(60)


PARENT = """
import json, os, socket, sys
from rayshim.adapters.processes import forkserver

pid, sock = forkserver.start(json.loads(sys.argv[2]))
lifeline = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(lifeline, [str(pid).encode()], [sock.fileno()])
sock.close()
lifeline.recv(1)
os.waitpid(pid, 0)
"""


class Server:
    """A fork server and the node process's end of its socket."""

    def __init__(self) -> None:
        config = {
            "preload": ["numpy.random", "no_such_module"],
            "sys_path": [HERE],
            "executor_entry": "test_forkserver:report",
            "executor": {"extra": 5},
        }
        # From a process of its own: what other tests imported here (Arrow's threads)
        # must not be forked, as it never is in a node.
        here, there = socket.socketpair()
        self._parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(there.fileno()), json.dumps(config)],
            pass_fds=[there.fileno()],
        )
        there.close()
        here.settimeout(20)
        text, (descriptor, *_), _, _ = socket.recv_fds(here, 64, 1)
        self.pid = int(text)
        self._lifeline = here
        self.sock = socket.socket(fileno=descriptor)
        self.sock.settimeout(20)
        self.pipes: list[int] = []

    def end(self) -> None:
        """Let the fork server and its parent end."""
        self.sock.close()
        self._lifeline.close()
        self._parent.wait(20)

    def send(self, **record: Any) -> None:
        self.sock.send(json.dumps(record).encode())

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        data, ancillary, _, _ = self.sock.recvmsg(1 << 17, socket.CMSG_SPACE(8))
        descriptors = array("i")
        for _, _, content in ancillary:
            descriptors.frombytes(content)
        self.pipes += descriptors
        return json.loads(data), list(descriptors)

    def fork(self, worker_id: str, **options: Any) -> tuple[dict[str, Any], int, int]:
        """What the executor printed, and its two pipes."""
        self.send(fork=worker_id, **options)
        record, descriptors = self.receive()
        while "exited" in record:  # an earlier one that has ended meanwhile
            record, descriptors = self.receive()
        assert record.get("forked") == worker_id, record
        out, err = descriptors
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([out, err], [], [], 20)
            assert out in ready, os.read(err, 1 << 16).decode()
            chunk = os.read(out, 1 << 16)
            assert chunk, os.read(err, 1 << 16).decode()  # it died
            line += chunk
        facts = json.loads(line)
        assert facts["pid"] == record["pid"]
        return facts, out, err


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.end()
    for descriptor in one.pipes:
        os.close(descriptor)


def test_an_executor_starts_clean(server: Server) -> None:
    facts, _, _ = server.fork("00", env={"GIVEN": "yes"})
    assert facts["worker_id"] == "00"
    assert facts["extra"] == 5
    assert facts["group"] == facts["pid"]
    assert facts["stdin"] == "/dev/null"
    assert facts["descriptors"] == [0, 1, 2]
    assert facts["sigint"] and facts["sigterm"]
    assert facts["env"] == "yes"
    assert facts["omp"] == os.environ.get("OMP_NUM_THREADS", "1")


def test_executors_draw_different_numbers(server: Server) -> None:
    first, _, _ = server.fork("00")
    second, _, _ = server.fork("00")
    assert first["random"] != second["random"]
    assert first["numpy"] != second["numpy"]


@pytest.mark.parametrize(("worker_id", "code"), [("00", 0), ("77", 7), ("88", 1)])
def test_an_exit_is_reported_with_its_code(
    server: Server, worker_id: str, code: int
) -> None:
    facts, _, err = server.fork(worker_id)
    record, _ = server.receive()
    assert record["exited"] == facts["pid"]
    assert os.waitstatus_to_exitcode(record["status"]) == code
    text = os.read(err, 1 << 16).decode()
    assert ("went wrong" in text) == (worker_id == "88")


def test_a_killed_executor_is_reported(server: Server) -> None:
    facts, _, _ = server.fork("11")
    server.send(kill=facts["pid"])
    record, _ = server.receive()
    assert record["exited"] == facts["pid"]
    assert os.waitstatus_to_exitcode(record["status"]) == -signal.SIGKILL


def test_a_process_of_somebody_else_is_not_killed(server: Server) -> None:
    server.send(kill=os.getpid())
    server.fork("00")


@pytest.mark.parametrize("how", ["end", "close", "terminate", "kill"])
def test_executors_do_not_outlive_the_fork_server(server: Server, how: str) -> None:
    facts, _, _ = server.fork("11")
    if how == "end":
        server.send(end=True)
    elif how == "close":
        server.sock.close()
    else:
        number = signal.SIGTERM if how == "terminate" else signal.SIGKILL
        os.kill(server.pid, number)
    wait_until(lambda: not is_alive(server.pid), "the end of the fork server")
    wait_until(lambda: not is_alive(facts["pid"]), "the end of the executor")


def test_descriptors_are_closed_but_for_the_kept() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        close_descriptors({write})
        os.write(
            write, json.dumps(sorted(map(int, os.listdir("/proc/self/fd")))).encode()
        )
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        left = json.loads(file.read())
    os.waitpid(pid, 0)
    assert [one for one in left if one > 2 and one != 3] in ([write], [])
