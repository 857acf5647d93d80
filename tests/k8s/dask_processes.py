"""A scheduler and workers of Dask as processes, as in the pods of a platform."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rayshim.adapters.wire.tls import Credentials

#: Seconds for what a busy machine does slowly.
LIMIT_S = 30.0


def wait_until(
    condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S
) -> Any:
    """The condition's value once it is true."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:g} s"
        time.sleep(0.02)
    return found


class DaskProcesses:
    """A scheduler at a port of its own, and workers that were started by name."""

    def __init__(self, folder: Path, tls: Credentials | None = None) -> None:
        self._folder = folder
        self._tls = tls
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.scheme = "tls" if tls else "tcp"
        self.address = f"{self.scheme}://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.start_scheduler()

    def start_scheduler(self) -> None:
        where = ["--host=127.0.0.1", f"--port={self.port}"]
        self._start("scheduler", "scheduler", *where, "--no-dashboard")

    def start_worker(self, name: str, resources: str, nthreads: int = 1) -> None:
        self._start(
            name,
            "worker",
            self.address,
            f"--name={name}",
            f"--nthreads={nthreads}",
            f"--resources={resources}",
            "--host=127.0.0.1",
            "--no-nanny",
            "--no-dashboard",
            f"--local-directory={self._folder}",
        )

    def _start(self, name: str, kind: str, *arguments: str) -> None:
        tls = []
        if self._tls:
            files = (("ca-file", self._tls.ca), ("cert", self._tls.cert))
            files = (*files, ("key", self._tls.key))
            tls = [f"--tls-{what}={path}" for what, path in files]
            tls += ["--protocol=tls"]
        with (self._folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "dask", kind, *arguments, *tls],
                stdout=log,
                stderr=log,
                # A worker pins others for seconds else; none of that is needed here.
                env={**os.environ, "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "0"},
            )

    def end(self, name: str, number: int = signal.SIGKILL) -> int:
        process = self.processes.pop(name)
        process.send_signal(number)
        return process.wait(LIMIT_S)

    def close(self) -> None:
        for name in list(self.processes):
            self.end(name)
