"""A node process for tests, with what a driver says to it."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import fake_wire
from rayshim.adapters.wire import messages as wire

TESTS = Path(__file__).resolve().parent
DEADLINE_S = 20.0


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of ``condition``."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"{what} did not happen in {DEADLINE_S} s")


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] not in "ZX"


class NodeProcess:
    """Starts a node as a driver does; a context manager."""

    def __init__(self, token: bytes | None = None, **overrides: Any) -> None:
        self.session = f"s{os.getpid()}-{secrets.token_hex(4)}"
        self.root = tempfile.mkdtemp(prefix="rt")
        self.session_dir = Path(self.root, self.session)
        self.store_dir = Path(f"/dev/shm/rayshim-test-{self.session}")
        (self.session_dir / "sockets").mkdir(mode=0o700, parents=True)
        self.store_dir.mkdir(mode=0o700)
        self.token = token or secrets.token_bytes(32)
        self.token_path = self.session_dir / "token"
        self.token_path.write_text(self.token.hex())
        self.token_path.chmod(0o600)
        life_read, self.lifeline = os.pipe()
        ready_read, ready_write = os.pipe()
        self.job_id = secrets.token_bytes(4)
        config = {
            "session": self.session,
            "session_dir": str(self.session_dir),
            "store_dir": str(self.store_dir),
            "node_id": secrets.token_hex(28),
            "token_path": str(self.token_path),
            "resources": {"CPU": 2.0, "memory": 1e9, "object_store_memory": 1e8},
            "labels": {},
            "prestart": 2,
            "preload": ["fake_executor"],
            "executor_entry": "fake_executor:main",
            "lifeline_fd": life_read,
            "ready_fd": ready_write,
            "sys_path": [str(TESTS)],
            "namespace": "test",
            "job_id": self.job_id.hex(),
            "settings": {"dask": "off"},
            **overrides,
        }
        self.node_id = str(config["node_id"])
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from rayshim.adapters.raylet.main import main; main()",
            ],
            stdin=subprocess.PIPE,
            pass_fds=(life_read, ready_write),
            start_new_session=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(config).encode())
        self.process.stdin.close()
        os.close(life_read)
        os.close(ready_write)
        with os.fdopen(ready_read) as file:
            self.ready = json.loads(file.readline() or "{}")
        self.ready_s = time.monotonic() - self.started_s
        self.address = self.ready.get("address", "")

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close_lifeline()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.rmtree(self.store_dir, ignore_errors=True)

    def close_lifeline(self) -> None:
        """What the driver's end does."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def peer(self, role: str = "driver", job_id: bytes | None = None) -> Peer:
        """A connected driver (or another role)."""
        return Peer(self, role, self.job_id if job_id is None else job_id)


class Peer:
    """A driver's view of the raylet."""

    def __init__(self, node: NodeProcess, role: str, job_id: bytes) -> None:
        self.node = node
        self.job_id = job_id
        self.address = f"unix:/nowhere/{secrets.token_hex(4)}"
        #: The node process, or its head.
        self.channel = fake_wire.Channel.connect(node.address, node.token)
        hello = wire.Hello(role, secrets.token_bytes(28), self.address, 1, job_id)
        self.channel.send(hello)
        self._numbers = itertools.count(1 << 32)
        #: Makes this peer's short lease ids unique on the node.
        self._prefix = secrets.token_bytes(8)
        #: Messages that came while something else was awaited.
        self.others: list[Any] = []

    def close(self) -> None:
        """Closes the channel."""
        self.channel.close()

    def send(self, message: Any) -> None:
        """Sends one message now."""
        if hasattr(message, "lease_id"):
            message.lease_id = self._prefix + message.lease_id
        self.channel.send(message)

    def lease_id(self, name: bytes) -> bytes:
        """The id under which the raylet knows a lease of this peer."""
        return self._prefix + name

    def expect(self, kind: type, timeout_s: float | None = None) -> Any:
        """The next message of a kind; others are kept in ``others``."""
        return self.expect_one_of(kind, timeout_s=timeout_s)

    def expect_one_of(self, *kind: type, timeout_s: float | None = None) -> Any:
        """The next message of some kinds; others are kept in ``others``."""
        for index, message in enumerate(self.others):
            if isinstance(message, kind):
                return self.others.pop(index)
        while True:
            message = self.channel.receive(timeout_s)
            assert message is not None, "the raylet closed the channel"
            if hasattr(message, "lease_id"):
                message.lease_id = message.lease_id.removeprefix(self._prefix)
            if isinstance(message, kind):
                return message
            self.others.append(message)

    def request(self, method: str, **payload: Any) -> Any:
        """The value of a control request, or the Response on an error."""
        number = next(self._numbers)
        skipped: list[Any] = []
        body = msgspec.msgpack.encode(payload)
        self.channel.send(wire.Request(number, method, body))
        while (answer := self.expect(wire.Response)).request_id != number:
            skipped.append(answer)
        self.others += skipped
        return answer if answer.error else msgspec.msgpack.decode(answer.payload)

    def ask(self, lease_id: bytes, **options: Any) -> None:
        """Sends a RequestLease."""
        values: dict[str, Any] = {
            "job_id": self.job_id,
            "label": "f",
            "resources": {"CPU": 1.0},
            "env_vars": {},
            "backlog": 0,
            **options,
        }
        self.send(wire.RequestLease(lease_id, **values))

    def lease(self, lease_id: bytes, **options: Any) -> wire.LeaseGranted:
        """Asks for a lease and waits for the grant."""
        self.ask(lease_id, **options)
        granted: wire.LeaseGranted = self.expect(wire.LeaseGranted)
        assert granted.lease_id == lease_id
        return granted

    def open(self, granted: Any) -> fake_wire.Channel:
        """A channel to an executor."""
        channel = fake_wire.Channel.connect(granted.address, self.node.token)
        channel.send(wire.Hello("driver", b"", self.address, 1, self.job_id))
        return channel


def spec(method: str, name: str = "f") -> wire.TaskSpec:
    """A call for the fake executor."""
    return wire.TaskSpec(
        secrets.token_bytes(24), b"", method, b"", [], [], [], 1, name, 0
    )


def call(channel: fake_wire.Channel, method: str, name: str = "f") -> bytes:
    """Runs one call."""
    channel.send(wire.PushTasks([spec(method, name)]))
    results = channel.receive()
    assert results is not None
    return bytes(results.results[0].values[0].data)
