"""A cluster made by `rayshim start`, in a folder of its own, and drivers of it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).with_name("rayshim"))
LIMIT_S = 60.0
#: What is around a driver's script: `ray`, and `tell` for what the test hears.
PRELUDE = """
import json, os, sys, time
import rayshim as ray
QUIET = dict(log_to_driver=False, logging_level="ERROR")
def tell(**facts):
    print("FACTS" + json.dumps(facts), flush=True)
"""


def wait_until(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """The first true value of a condition."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return value


def free_port() -> int:
    """A TCP port of loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Host:
    """Where commands and drivers run: a folder for temporary files, and a way in.

    Args:
        folder: the host's /tmp, as far as rayshim sees.
        prefix: words before each command (``nsenter ...``).
        files: where its files are seen from here.
    """

    def __init__(
        self, folder: str, prefix: tuple[str, ...] = (), files: str = ""
    ) -> None:
        self.folder = folder
        self.prefix = prefix
        self.files = files
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RAY_", "RAYSHIM_"))
        }
        self.env |= {"TMPDIR": folder, "HOME": folder}

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the `rayshim` command until it ends."""
        return subprocess.run(
            [*self.prefix, COMMAND, *arguments],
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def ok(self, *arguments: str, **env: str) -> str:
        """The output of a command that has to succeed."""
        done = self.run(*arguments, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def head(self, *more: str) -> str:
        """Start a head with two CPUs at a free port; its address."""
        address = f"127.0.0.1:{free_port()}"
        port = address.rpartition(":")[2]
        self.ok("start", "--head", "--port", port, "--num-cpus=2", *more)
        return address

    def driver(self, script: str, *arguments: str, **env: str) -> Any:
        """Start a driver; talk to it with :func:`hear` and :func:`say`."""
        code = PRELUDE + textwrap.dedent(script)
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-c", code, *arguments],
            env={**self.env, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def drive(self, script: str, *arguments: str, **env: str) -> dict[str, Any]:
        """What a driver told that ran to its end."""
        process = self.driver(script, *arguments, **env)
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        for line in out.splitlines():
            if line.startswith("FACTS"):
                found: dict[str, Any] = json.loads(line[5:])
                return found
        raise AssertionError(f"the driver told nothing:\n{out}\n{err}")

    def status(self) -> dict[str, Any]:
        """What `rayshim status` says."""
        facts: dict[str, Any] = json.loads(self.ok("status", "--format", "json"))
        return facts

    def processes(self) -> list[int]:
        """The processes whose files are in this host's folder."""
        found = []
        mark = f"TMPDIR={self.folder}".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def left(self) -> list[str]:
        """Session folders, notes and stores that are still there."""
        root = Path(f"{self.files}{self.folder}", f"rayshim-{os.getuid()}")
        names = [path.name for path in root.iterdir()] if root.is_dir() else []
        names = [name for name in names if name != "history"]
        sessions = [name for name in names if name.startswith("s")]
        stores = Path(f"{self.files}/dev/shm").iterdir()
        return names + [
            path.name for path in stores if any(one in path.name for one in sessions)
        ]


def hear(process: Any) -> dict[str, Any]:
    """The next facts of a driver."""
    while line := process.stdout.readline():
        if line.startswith("FACTS"):
            found: dict[str, Any] = json.loads(line[5:])
            return found
    raise AssertionError(f"the driver ended: {process.stderr.read()}")


def say(process: Any) -> None:
    """Let a driver go on that waits for a line."""
    process.stdin.write("\n")
    process.stdin.flush()


@contextmanager
def a_host(prefix: tuple[str, ...] = ()) -> Iterator[Host]:
    """A host, on which nothing may be left."""
    folder = tempfile.mkdtemp(prefix="rc", dir="/tmp")
    host = Host(folder, prefix)
    try:
        yield host
        host.ok("stop")
        assert host.left() == []
        wait_until(lambda: not host.processes())
    finally:
        host.run("stop", "--force")
        shutil.rmtree(folder, ignore_errors=True)
