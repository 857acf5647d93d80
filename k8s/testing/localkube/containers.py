"""Containers as processes: started, signalled and ended through one host process."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayshim.k8s.testing.localkube import container_host

_COMMAND = (sys.executable, "-I", "-S", container_host.__file__)
#: Seconds for the host process to end all containers and itself.
END_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended."""

    #: As a container runtime reports it: 128 + number for a signal.
    code: int
    #: Number of the signal that killed its first process; 0: none.
    signal: int
    #: Why it could not be started; empty: it was.
    error: str


class Container:
    """A running container.

    Attributes:
        pid: of its first process; 0 until it runs.
    """

    def __init__(self, host: ContainerHost, number: int) -> None:
        self._host = host
        self._number = number
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._started = asyncio.Event()
        self.pid = 0

    @property
    def has_ended(self) -> bool:
        """Whether none of its processes is left."""
        return self._ended.done()

    async def wait_started(self) -> bool:
        """Wait until its first process runs; False: it could not be started."""
        await self._started.wait()
        return self.pid != 0

    async def wait_ended(self) -> Ended:
        """Wait until none of its processes is left."""
        return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        """Send a signal to its first process alone."""
        self._host.tell({"op": "signal", "id": self._number, "signal": number})

    def kill(self) -> None:
        """Kill all its processes."""
        self._host.tell({"op": "kill", "id": self._number})

    async def stop(self, grace_s: float) -> Ended:
        """Ask its first process to end, and kill what is there after `grace_s`."""
        if grace_s > 0 and not self._ended.done():
            self.signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    return await self.wait_ended()
            except TimeoutError:
                pass
        self.kill()
        return await self.wait_ended()

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take over what the host says."""
        if "pid" in event:
            self.pid = event["pid"]
        elif not self._ended.done():
            self._ended.set_result(
                Ended(event["code"], event["signal"], event["error"])
            )
        self._started.set()


class ContainerHost:
    """The host process (see :mod:`container_host`), from one event loop."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*_COMMAND, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
                env={},
            )
        self._socket = ours
        self._numbers = itertools.count(1)
        self._containers: dict[int, Container] = {}
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def start(self) -> None:
        """Begin to listen to it."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._reading = asyncio.create_task(self._read(reader))

    async def close(self) -> None:
        """Kill all containers, and end the process."""
        if self._writer is not None:
            self._writer.close()
            await self._writer.wait_closed()
        else:
            self._socket.close()
        if self._reading is not None:
            await self._reading
        await asyncio.to_thread(self._reap)

    def _reap(self) -> None:
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise RuntimeError(
                f"the containers' host (pid {self._process.pid}) did not end within "
                f"{END_S:g} s and was killed; some process below it does not die"
            ) from None

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path
    ) -> Container:
        """Start a container.

        Args:
            argv: command line of its first process.
            env: all its environment variables.
            cwd: folder in which it starts.
            log: file to which its output is added.
        """
        number = next(self._numbers)
        container = Container(self, number)
        self._containers[number] = container
        self.tell(
            {
                "op": "run",
                "id": number,
                "argv": list(argv),
                "env": dict(env),
                "cwd": str(cwd),
                "log": str(log),
            }
        )
        return container

    def tell(self, request: Mapping[str, Any]) -> None:
        """Send a request."""
        assert self._writer is not None, "the host is not started"
        if not self._writer.is_closing():
            self._writer.write(json.dumps(request).encode() + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                event = json.loads(line)
                container = self._containers[event["id"]]
                container.hear(event)
                if container.has_ended:
                    del self._containers[event["id"]]
        except ConnectionError:
            pass
        for container in self._containers.values():
            container.hear({"code": 137, "signal": 9, "error": ""})
        self._containers.clear()
