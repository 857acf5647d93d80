"""One container of a pod: started, probed, and started again when it ends."""

from __future__ import annotations

import asyncio
import datetime
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.connection import cancelled
from rayshim.k8s.testing.localkube.containers import Container, ContainerHost, Ended
from rayshim.k8s.testing.localkube.pod_environment import Command
from rayshim.k8s.testing.localkube.probes import IMPATIENT_S, Probe, probe_of

#: Seconds before the second restart, doubled each time, and at most: a fiftieth of
#: Kubernetes' 10 and 300.
BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 6.0
#: Seconds that a container has to run for its back-off to begin anew (there: 600).
CALM_S = 12.0
SHM = Path("/dev/shm")


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class State:
    """What a pod's status says of a container."""

    name: str
    image: str
    is_ready: bool = False
    is_started: bool = False
    restarts: int = 0
    current: Object = field(
        default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}}
    )
    last: Object = field(default_factory=dict)
    pid: int = 0

    def to_object(self) -> Object:
        """As in ``containerStatuses``."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": "",
            "ready": self.is_ready,
            "started": self.is_started,
            "restartCount": self.restarts,
            "state": self.current,
            "lastState": self.last,
            "containerID": f"process://{self.pid}" if self.pid else "",
        }

    @property
    def exit_code(self) -> int | None:
        """Of a container that has ended; None: it runs or waits."""
        ended = self.current.get("terminated")
        return None if ended is None else int(ended["exitCode"])


class ContainerLife:
    """Runs a container as often as its pod's restartPolicy wants it.

    Args:
        pod: with its address.
        container: of it.
        policy: "Always", "OnFailure" or "Never".
        host: where its processes are.
        session: for probes.
        folder: of the container: what is written there goes with it.
        log: its output; that of the run before is beside it (``.previous``).
        told: called when the state has changed.
    """

    def __init__(
        self,
        pod: Object,
        container: Object,
        policy: str,
        *,
        host: ContainerHost,
        session: aiohttp.ClientSession,
        folder: Path,
        log: Path,
        told: Callable[[], None],
    ) -> None:
        self._pod = pod
        self._spec = container
        self._policy = policy
        self._host = host
        self._session = session
        self._folder = folder
        self._log = log
        self._told = told
        self.state = State(container["name"], container.get("image", ""))
        self.running: Container | None = None
        self._command: Command | None = None
        self._backoff_s = 0.0
        self._is_stopping = False

    def check(self) -> dict[str, Probe | None]:
        """Its probes.

        Raises:
            NotStartable: one is not supported.
        """
        return {
            kind: probe_of(self._spec, kind, self._pod, self._execute, self._session)
            for kind in ("startupProbe", "readinessProbe", "livenessProbe")
        }

    async def run(self, command: Command) -> None:
        """Run it until it is not to be started again."""
        self._command = command
        probes = self.check()
        while not self._is_stopping:
            began = time.monotonic()
            ended = await self._once(command, probes)
            is_done = self._policy == "Never" or (
                self._policy == "OnFailure" and ended.code == 0
            )
            if is_done or self._is_stopping:
                return
            if time.monotonic() - began >= CALM_S:
                self._backoff_s = 0.0
            await self._back_off()

    async def stop(self, grace_s: float) -> None:
        """End it: its preStop hook, SIGTERM, and after `grace_s` SIGKILL."""
        self._is_stopping = True
        container = self.running
        if container is None:
            return
        began = time.monotonic()
        hook = (self._spec.get("lifecycle") or {}).get("preStop")
        if hook and grace_s > 0 and not container.has_ended:
            tasks = [
                asyncio.create_task(self._pre_stop(hook, grace_s)),
                asyncio.create_task(container.wait_ended()),
            ]
            await asyncio.wait(
                tasks, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
            )
            await cancelled(tasks)
        await container.stop(max(grace_s - (time.monotonic() - began), 0))

    async def _pre_stop(self, hook: Object, grace_s: float) -> None:
        """Run a hook; whether it succeeds does not matter."""
        if "sleep" in hook:
            await asyncio.sleep(float(hook["sleep"]["seconds"]))
        elif "exec" in hook:
            await self._execute(hook["exec"]["command"], grace_s)
        else:
            probe = Probe(hook, self._pod, self._execute, self._session)
            await probe.passes()

    async def _once(self, command: Command, probes: dict[str, Probe | None]) -> Ended:
        """Run it once; all that it was is gone when this returns."""
        for name in ("t", "w"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        if self._log.exists():
            self._log.replace(self._log.with_suffix(".previous"))
        self._log.touch(mode=0o600)
        container = self._host.run(
            command.argv, command.env, self._folder / "w", self._log
        )
        self.running = container
        watcher: asyncio.Task[None] | None = None
        began = now()
        try:
            if await container.wait_started():
                self.state.pid = container.pid
                self.state.current = {"running": {"startedAt": began}}
                self.state.is_started = probes["startupProbe"] is None
                self.state.is_ready = (
                    self.state.is_started and probes["readinessProbe"] is None
                )
                self._told()
                watcher = asyncio.create_task(self._watch(container, probes))
            ended = await container.wait_ended()
        finally:
            if watcher is not None:
                await cancelled([watcher])
            if not container.has_ended:
                container.kill()
                await container.wait_ended()
            await asyncio.to_thread(remove_private, self._folder)
        self._has_ended(ended, began)
        return ended

    def _has_ended(self, ended: Ended, began: str) -> None:
        reason = "Completed" if ended.code == 0 else "Error"
        terminated: Object = {
            "exitCode": ended.code,
            "reason": reason,
            "startedAt": began,
            "finishedAt": now(),
        }
        if ended.signal:
            terminated["signal"] = ended.signal
        if ended.error:
            terminated |= {
                "exitCode": 128,
                "reason": "StartError",
                "message": f"failed to create containerd task: {ended.error}",
            }
        self.state.is_ready = self.state.is_started = False
        self.state.current = {"terminated": terminated}
        self._told()

    async def _back_off(self) -> None:
        self.state.last = self.state.current
        self.state.restarts += 1
        if self._backoff_s:
            meta = self._pod["metadata"]
            self.state.current = {
                "waiting": {
                    "reason": "CrashLoopBackOff",
                    "message": f"back-off {self._backoff_s:g}s restarting failed "
                    f"container={self.state.name} pod={meta['name']}_"
                    f"{meta.get('namespace', 'default')}({meta['uid']})",
                }
            }
            self._told()
            await asyncio.sleep(self._backoff_s)
        self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_S), LONGEST_BACKOFF_S)

    async def _watch(
        self, container: Container, probes: dict[str, Probe | None]
    ) -> None:
        """Probe a running container, and end it if it is dead."""
        startup = probes["startupProbe"]
        if startup is not None and not await self._has_started(startup):
            await self._end_dead(container)
            return
        looks: list[Coroutine[Any, Any, None]] = []
        if probes["readinessProbe"] is not None:
            looks.append(self._watch_ready(probes["readinessProbe"]))
        elif startup is not None:
            self._set_ready(True)
        if probes["livenessProbe"] is not None:
            looks.append(self._watch_alive(probes["livenessProbe"], container))
        async with asyncio.TaskGroup() as group:
            for one in looks:
                group.create_task(one)

    async def _has_started(self, probe: Probe) -> bool:
        """Whether the startup probe passes before it has failed for too long."""
        limit_s = probe.delay_s + probe.period_s * probe.failures
        deadline = time.monotonic() + limit_s
        while not await probe.passes():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(min(probe.period_s, IMPATIENT_S))
        self.state.is_started = True
        self._told()
        return True

    async def _watch_ready(self, probe: Probe) -> None:
        failed = 0
        while True:
            if await probe.passes():
                failed = 0
                self._set_ready(True)
            else:
                failed += 1
                if failed >= probe.failures:
                    self._set_ready(False)
            period_s = probe.period_s
            if not self.state.is_ready:
                period_s = min(period_s, IMPATIENT_S)
            await asyncio.sleep(period_s)

    async def _watch_alive(self, probe: Probe, container: Container) -> None:
        await asyncio.sleep(probe.delay_s)
        failed = 0
        while True:
            failed = 0 if await probe.passes() else failed + 1
            if failed >= probe.failures:
                await self._end_dead(container)
                return
            await asyncio.sleep(probe.period_s)

    async def _end_dead(self, container: Container) -> None:
        grace_s = self._pod["spec"].get("terminationGracePeriodSeconds", 30)
        await container.stop(float(grace_s))

    def _set_ready(self, is_ready: bool) -> None:
        if self.state.is_ready != is_ready:
            self.state.is_ready = is_ready
            self._told()

    async def _execute(self, argv: Sequence[str], limit_s: float) -> int:
        """Run a command beside the container's first process; its exit code."""
        assert self._command is not None
        log = self._folder / "exec.log"
        inside = self._command.inside(argv)
        env = self._command.env
        found = shutil.which(inside[0], path=env.get("PATH"))
        job = self._host.run(
            [found or inside[0], *inside[1:]], env, self._folder / "w", log
        )
        try:
            async with asyncio.timeout(limit_s):
                return (await job.wait_ended()).code
        except TimeoutError:
            return 124
        finally:
            if not job.has_ended:
                job.kill()
                await job.wait_ended()


def remove_private(folder: Path) -> None:
    """Remove what a container wrote, as its file system goes with it.

    Also what a rayshim node in it has in /dev/shm, which a container has for itself.
    """
    for session in folder.glob("t/rayshim-*/s*-*"):
        for store in SHM.glob(f"rayshim-{session.name}-*"):
            shutil.rmtree(store, ignore_errors=True)
    for name in ("t", "w"):
        shutil.rmtree(folder / name, ignore_errors=True)
