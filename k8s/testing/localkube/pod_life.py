"""One pod on its node: volumes, containers, status, end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.addresses import Addresses
from rayshim.k8s.testing.localkube.connection import (
    AGAIN_S,
    FAILURES,
    Connection,
    Informer,
    Refused,
    cancelled,
    key_of,
)
from rayshim.k8s.testing.localkube.container_life import ContainerLife, State, now
from rayshim.k8s.testing.localkube.containers import ContainerHost
from rayshim.k8s.testing.localkube.dns import Dns
from rayshim.k8s.testing.localkube.pod_environment import PATH, command_of
from rayshim.k8s.testing.localkube.volumes import NotStartable, TokenOf, Volumes

logger = logging.getLogger(__name__)

#: Seconds after which what a pod lacks is looked for again.
LACKING_S = 0.5

#: (path, token, namespace): writes a kubeconfig.
WriteKubeconfig = Callable[[Path, str, str], object]


@dataclass(frozen=True, slots=True)
class Machine:
    """What all pods use."""

    connection: Connection
    pods: Informer
    nodes: Informer
    host: ContainerHost
    session: aiohttp.ClientSession
    addresses: Addresses
    dns: Dns
    folder: Path
    token_of: TokenOf
    write_kubeconfig: WriteKubeconfig


class PodLife:
    """Runs a pod from when it is bound until it is gone.

    Args:
        pod: as the API server has it.
        number: of the pod on this machine; names its folder.
        machine: what it uses.
    """

    def __init__(self, pod: Object, number: int, machine: Machine) -> None:
        self.pod = pod
        self._machine = machine
        self._folder = machine.folder / "p" / str(number)
        self._address = machine.addresses.take()
        self._containers: list[ContainerLife] = []
        self._init: list[ContainerLife] = []
        self._phase = "Pending"
        self._is_initialized = False
        #: Why its containers cannot be made.
        self._lacks: NotStartable | None = None
        self._started_at = now()
        self._news = asyncio.Event()
        self._living: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        meta = pod["metadata"]
        self._logs = machine.folder / "logs" / f"{meta['namespace']}_{meta['name']}"
        self._number = number

    def start(self) -> None:
        """Begin to run."""
        self._telling = asyncio.create_task(self._tell())
        self._living = asyncio.create_task(self._live())

    def end(self, grace_s: float, *, is_forgotten: bool = False) -> None:
        """End it in the background.

        Args:
            grace_s: seconds that its processes have; 0 kills them.
            is_forgotten: the API server has no such pod any more.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(grace_s, is_forgotten))
        elif grace_s == 0:
            self.kill()

    async def wait_ended(self) -> None:
        """Wait until nothing is left of it, after :meth:`end`."""
        assert self._ending is not None
        await asyncio.shield(self._ending)

    def kill(self, container: str = "") -> None:
        """Kill the processes of its containers, or of one of them.

        Raises:
            LookupError: no such container runs.
        """
        found = [
            one.running
            for one in [*self._init, *self._containers]
            if container in ("", one.state.name)
            and one.running is not None
            and not one.running.has_ended
        ]
        if container and not found:
            raise LookupError(
                f"no container {container} of pod {self.pod['metadata']['name']} runs"
            )
        for one in found:
            one.kill()

    # -- life --------------------------------------------------------------------

    async def _live(self) -> None:
        while True:
            try:
                await self._run()
            except NotStartable as error:
                self._lacks = error
                self._news.set()
                await asyncio.sleep(LACKING_S)
            except FAILURES as error:
                logger.info("pod %s: %s", self.pod["metadata"]["name"], error)
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def _run(self) -> None:
        """Run all containers.

        Raises:
            NotStartable: something is lacking; nothing was started.
        """
        pod: Object = {
            **self.pod,
            "status": {**(self.pod.get("status") or {}), "podIP": self._address},
        }
        spec = pod["spec"]
        _check(spec)
        machine = self._machine
        volumes = Volumes(
            pod,
            self._folder,
            machine.folder / "claims",
            machine.connection,
            machine.token_of,
        )
        await volumes.make()
        base = await self._base_environment(pod)
        allocatable = self._allocatable()
        policy = spec.get("restartPolicy", "Always")
        listed = [
            *((one, True) for one in spec.get("initContainers") or ()),
            *((one, False) for one in spec["containers"]),
        ]
        lives: list[tuple[ContainerLife, bool]] = []
        commands = []
        for place, (container, is_init) in enumerate(listed):
            folder = self._folder / str(place)
            # Whoever names no container wants the log of the first that is none of
            # those that only prepare.
            order = place + (len(listed) if is_init else 0)
            own = {"TMPDIR": str(folder / "t"), "HOME": str(folder / "w")}
            commands.append(
                await command_of(pod, container, volumes, {**base, **own}, allocatable)
            )
            if is_init:
                restart = "Never" if policy == "Never" else "OnFailure"
            else:
                restart = policy
            life = ContainerLife(
                pod,
                container,
                restart,
                host=machine.host,
                session=machine.session,
                folder=folder,
                log=self._logs / f"{self._number}_{order}_{container['name']}.log",
                told=self._news.set,
            )
            life.check()
            lives.append((life, is_init))
        self._logs.mkdir(parents=True, exist_ok=True)
        self._init = [life for life, is_init in lives if is_init]
        self._containers = [life for life, is_init in lives if not is_init]
        self._lacks = None
        count = len(self._init)
        for life, command in zip(self._init, commands[:count], strict=True):
            await life.run(command)
            if life.state.exit_code:
                self._phase = "Failed"
                self._news.set()
                return
        self._is_initialized = True
        self._news.set()
        async with asyncio.TaskGroup() as group:
            for life, command in zip(self._containers, commands[count:], strict=True):
                group.create_task(life.run(command))
        codes = [life.state.exit_code for life in self._containers]
        self._phase = "Failed" if any(codes) else "Succeeded"
        self._news.set()

    async def _base_environment(self, pod: Object) -> dict[str, str]:
        meta, spec = pod["metadata"], pod["spec"]
        namespace = meta["namespace"]
        base = {
            "PATH": PATH,
            "LANG": "C.UTF-8",
            "HOSTNAME": spec.get("hostname") or meta["name"],
            "PYTHONUNBUFFERED": "1",
            **self._machine.dns.environment(namespace),
        }
        if spec.get("automountServiceAccountToken") is not False:
            account = spec.get("serviceAccountName") or "default"
            token = await self._machine.token_of(namespace, account)
            path = self._folder / "kubeconfig"
            self._folder.mkdir(parents=True, exist_ok=True)
            self._machine.write_kubeconfig(path, token, namespace)
            base["KUBECONFIG"] = str(path)
        return base

    def _allocatable(self) -> Mapping[str, str]:
        node = self._machine.nodes.get(("", self.pod["spec"]["nodeName"]))
        found: Mapping[str, str] = (node or {}).get("status", {}).get("allocatable", {})
        return found

    async def _end(self, grace_s: float, is_forgotten: bool) -> None:
        lives = [*self._init, *self._containers]
        async with asyncio.TaskGroup() as group:
            for life in lives:
                group.create_task(life.stop(grace_s))
        for task in (self._living, self._telling):
            if task is not None:
                await cancelled([task])
        if not is_forgotten:
            await self._forget()
        await asyncio.to_thread(shutil.rmtree, self._folder, True)
        self._machine.addresses.give_back(self._address)

    async def _forget(self) -> None:
        """Tell the API server that the pod is gone."""
        meta = self.pod["metadata"]
        while True:
            try:
                if lives := self._containers:
                    await self._machine.connection.patch(
                        "Pod",
                        key_of(self.pod),
                        {
                            "metadata": {"uid": meta["uid"]},
                            "status": {
                                "containerStatuses": [
                                    one.state.to_object() for one in lives
                                ]
                            },
                        },
                        "status",
                    )
                await self._machine.connection.delete(
                    "Pod", key_of(self.pod), uid=meta["uid"], grace_s=0
                )
                return
            except FAILURES as error:
                if isinstance(error, Refused) and error.status in (404, 409, 422):
                    return  # it is another one by now
                logger.info("pod %s: %s", meta["name"], error)
                await asyncio.sleep(AGAIN_S)

    # -- status ------------------------------------------------------------------

    async def _tell(self) -> None:
        """Keep the pod's status in the API server as it is here."""
        self._news.set()
        while True:
            await self._news.wait()
            self._news.clear()
            current = self._machine.pods.get(key_of(self.pod))
            if current is None or (
                current["metadata"]["uid"] != self.pod["metadata"]["uid"]
            ):
                continue
            try:
                self._machine.pods.remember(
                    await self._machine.connection.patch(
                        "Pod",
                        key_of(self.pod),
                        {"status": self._status(current)},
                        "status",
                    )
                )
            except FAILURES as error:
                logger.info("pod %s: %s", self.pod["metadata"]["name"], error)
                self._news.set()
                await asyncio.sleep(AGAIN_S)

    def _status(self, current: Object) -> Object:
        states = [life.state for life in self._containers] or [
            self._waiting(one) for one in self.pod["spec"]["containers"]
        ]
        phase = self._phase
        if phase == "Pending" and any(
            "waiting" not in one.current or one.restarts for one in states
        ):
            phase = "Running"
        is_ready = all(one.is_ready for one in states) and phase == "Running"
        status: Object = {
            "phase": phase,
            "startTime": self._started_at,
            "hostIP": "127.0.0.1",
            "podIP": self._address,
            "podIPs": [{"ip": self._address}],
            "containerStatuses": [one.to_object() for one in states],
            "conditions": self._conditions(current, is_ready),
        }
        if self._init:
            status["initContainerStatuses"] = [
                one.state.to_object() for one in self._init
            ]
        return status

    def _waiting(self, container: Object) -> State:
        state = State(container["name"], container.get("image", ""))
        if self._lacks is not None:
            state.current = {
                "waiting": {
                    "reason": self._lacks.reason,
                    "message": str(self._lacks),
                }
            }
        return state

    def _conditions(self, current: Object, is_ready: bool) -> list[Object]:
        old = {
            one["type"]: one
            for one in (current.get("status") or {}).get("conditions") or ()
        }
        mine = {
            "Initialized": self._is_initialized,
            "ContainersReady": is_ready,
            "Ready": is_ready,
        }
        for kind, value in mine.items():
            word = "True" if value else "False"
            if old.get(kind, {}).get("status") != word:
                old[kind] = {
                    "type": kind,
                    "status": word,
                    "lastTransitionTime": now(),
                }
                if not value and kind != "Initialized":
                    old[kind]["reason"] = "ContainersNotReady"
        return list(old.values())


def _check(spec: Object) -> None:
    """Refuse what would run otherwise than it says.

    Raises:
        NotStartable: names the field.
    """
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy"):
            raise NotStartable(
                f"initContainers: {container['name']} has a restartPolicy (a sidecar), "
                "which the local cluster does not support; make it a container"
            )
    for container in spec["containers"]:
        if (container.get("lifecycle") or {}).get("postStart"):
            raise NotStartable(
                f"container {container['name']}: lifecycle.postStart is not supported "
                "by the local cluster"
            )
    if spec.get("hostNetwork"):
        raise NotStartable("hostNetwork is not supported by the local cluster")


def log_of(folder: Path, namespace: str, pod: str, container: str, part: str) -> bytes:
    """The newest log of a container.

    Args:
        folder: of the cluster.
        namespace: of the pod.
        pod: name.
        container: name; empty: the pod's first.
        part: ".log", or ".previous" for the run before.
    """
    found: list[tuple[int, int, Path]] = []
    for path in (folder / "logs" / f"{namespace}_{pod}").glob(f"*{part}"):
        number, order, name = path.stem.split("_", 2)
        if container in ("", name):
            found.append((-int(number), int(order), path))
    with contextlib.suppress(OSError):
        for _, _, path in sorted(found)[:1]:
            return path.read_bytes()
    return b""
