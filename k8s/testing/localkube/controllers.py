"""All that acts on objects of the API server, in one event loop of one thread."""

from __future__ import annotations

import asyncio
import base64
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.addresses import Addresses
from rayshim.k8s.testing.localkube.connection import (
    Connection,
    Informer,
    Reconciler,
    cancelled,
    key_of,
)
from rayshim.k8s.testing.localkube.containers import ContainerHost
from rayshim.k8s.testing.localkube.deployments import Deployments
from rayshim.k8s.testing.localkube.dns import Dns
from rayshim.k8s.testing.localkube.kubelet import Kubelet
from rayshim.k8s.testing.localkube.scheduling import Scheduler
from rayshim.k8s.testing.localkube.services import Services
from rayshim.k8s.testing.localkube.statefulsets import StatefulSets
from rayshim.k8s.testing.localkube.volumes import ClaimBinder, NotStartable

if TYPE_CHECKING:
    from rayshim.k8s.testing.localkube.apiserver import ApiServer
    from rayshim.k8s.testing.localkube.kueue_emulator import KueueEmulator

T = TypeVar("T")

_KINDS = (
    "Deployment",
    "Node",
    "PersistentVolumeClaim",
    "Pod",
    "ReplicaSet",
    "Service",
    "StatefulSet",
)
#: Seconds for one call from another thread.
CALL_S = 60.0


class Controllers:
    """Runs the controllers, the scheduler, the kubelet and the DNS.

    Args:
        api: the server.
        folder: of the cluster.
        kueue: the emulator that takes part; None: none does.
    """

    def __init__(self, api: ApiServer, folder: Path, kueue: KueueEmulator | None):
        self._api = api
        self._folder = folder
        self._kueue = kueue
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="localkube-controllers"
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._connection: Connection | None = None
        self._dns = Dns(folder)
        self._addresses: Addresses | None = None
        self.informers: dict[str, Informer] = {}
        self.kubelet: Kubelet | None = None
        #: Told at every change of an object that is watched here.
        self.changed = threading.Condition()
        #: Number of those changes.
        self.version = 0
        #: What ended a controller that must not end; empty: none has.
        self.failures: list[str] = []

    @property
    def dns(self) -> Dns:
        """The cluster's DNS."""
        return self._dns

    @property
    def host(self) -> ContainerHost:
        """Below which all processes of the cluster are."""
        assert self.kubelet is not None, "the cluster is not started"
        return self.kubelet.host

    def start(self) -> None:
        """Start all of it; returns when all objects are known."""
        self._thread.start()
        self.call(self._start)

    def stop(self) -> None:
        """End all of it."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        try:
            self.call(self._stop)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function in the loop, from another thread."""

        async def run() -> T:
            return await function(*args)

        future: Future[T] = asyncio.run_coroutine_threadsafe(run(), self._loop)
        return future.result(CALL_S)

    async def _start(self) -> None:
        # One thread, there from the beginning: a test that finds another one after
        # itself would take it for its own.
        self._loop.set_default_executor(ThreadPoolExecutor(1, "localkube-files"))
        await asyncio.to_thread(int)
        connection = Connection(
            self._api.url,
            self._api.admin_token,
            security_of(self._api.kubeconfig(self._folder / "controllers.yaml")),
        )
        self._connection = connection
        self._addresses = Addresses()
        kinds = [*_KINDS, *(self._kueue.kinds if self._kueue is not None else ())]
        self.informers = {kind: Informer(connection, kind) for kind in kinds}
        pods, nodes = self.informers["Pod"], self.informers["Node"]
        claims = self.informers["PersistentVolumeClaim"]
        self.kubelet = Kubelet(
            connection,
            pods,
            nodes,
            folder=self._folder,
            addresses=self._addresses,
            dns=self._dns,
            token_of=self._token_of,
            write_kubeconfig=self._write_kubeconfig,
        )
        await self.kubelet.start()
        binder = ClaimBinder(claims, self._folder / "claims", connection)
        binding = Reconciler("persistentvolumeclaim", binder.bind)
        claims.listeners.append(lambda kind, made: binding.add(key_of(made)))
        runners: list[Callable[[], Coroutine[Any, Any, None]]] = [
            binding.run,
            Deployments(
                connection,
                self.informers["Deployment"],
                self.informers["ReplicaSet"],
                pods,
            ).run,
            StatefulSets(connection, self.informers["StatefulSet"], pods, claims).run,
            Scheduler(connection, pods, nodes, claims).run,
            Services(self.informers["Service"], pods, self._dns, self._addresses).run,
        ]
        if self._kueue is not None:
            self._kueue.attach(connection, self.informers, self.call)
            runners.append(self._kueue.run)
        for informer in self.informers.values():
            informer.listeners.append(self._tell_change)
            runners.append(informer.run)
        for run in runners:
            task = asyncio.create_task(run())
            task.add_done_callback(self._has_ended)
            self._tasks.append(task)
        for informer in self.informers.values():
            await informer.is_synced.wait()

    async def _stop(self) -> None:
        await cancelled(self._tasks)
        try:
            if self.kubelet is not None:
                await self.kubelet.close()
        finally:
            if self._connection is not None:
                await self._connection.close()
            if self._addresses is not None:
                self._addresses.close()
            await self._loop.shutdown_default_executor()

    def _tell_change(self, kind: str, made: Object) -> None:
        with self.changed:
            self.version += 1
            self.changed.notify_all()

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(f"{task.get_coro()}: {error!r}")

    async def _token_of(self, namespace: str, account: str) -> str:
        assert self._connection is not None
        found = await self._connection.get("ServiceAccount", (namespace, account))
        if found is None and account != "default":
            raise NotStartable(
                f"error looking up service account {namespace}/{account}: "
                f'serviceaccount "{account}" not found'
            )
        return token_of(self._api, namespace, account)

    def _write_kubeconfig(self, path: Path, token: str, namespace: str) -> None:
        self._api.kubeconfig(path, token=token, namespace=namespace)


def token_of(api: ApiServer, namespace: str, account: str) -> str:
    """A token of a ServiceAccount."""
    return api.token(
        f"system:serviceaccount:{namespace}:{account}",
        (
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        ),
    )


def security_of(kubeconfig: Path) -> ssl.SSLContext | None:
    """How to talk to the server of a kubeconfig, if by https."""
    cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
    if not cluster["server"].startswith("https:"):
        return None
    if data := cluster.get("certificate-authority-data"):
        return ssl.create_default_context(cadata=base64.b64decode(data).decode())
    return ssl.create_default_context(cafile=cluster["certificate-authority"])
