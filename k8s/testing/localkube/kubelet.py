"""The kubelet of all nodes: pods that are bound become processes of this machine."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import aiohttp

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.addresses import Addresses
from rayshim.k8s.testing.localkube.connection import Connection, Informer, key_of
from rayshim.k8s.testing.localkube.containers import ContainerHost
from rayshim.k8s.testing.localkube.dns import Dns
from rayshim.k8s.testing.localkube.pod_life import (
    Machine,
    PodLife,
    WriteKubeconfig,
    log_of,
)
from rayshim.k8s.testing.localkube.volumes import TokenOf


class Kubelet:
    """Runs pods.

    Args:
        connection: to read what pods need, and to write their status.
        pods: all pods.
        nodes: all nodes.
        folder: of the cluster.
        addresses: where pods get theirs.
        dns: the cluster's.
        token_of: tokens of ServiceAccounts.
        write_kubeconfig: writes a kubeconfig for a token.
    """

    def __init__(
        self,
        connection: Connection,
        pods: Informer,
        nodes: Informer,
        *,
        folder: Path,
        addresses: Addresses,
        dns: Dns,
        token_of: TokenOf,
        write_kubeconfig: WriteKubeconfig,
    ) -> None:
        self._folder = folder
        self._pods = pods
        self._host = ContainerHost()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, ssl=False)
        )
        self._machine = Machine(
            connection,
            pods,
            nodes,
            self._host,
            self._session,
            addresses,
            dns,
            folder,
            token_of,
            write_kubeconfig,
        )
        self._numbers = itertools.count(1)
        #: UID of a pod -> its life.
        self._lives: dict[str, PodLife] = {}
        self._endings: set[asyncio.Task[None]] = set()
        pods.listeners.append(self._hear)

    @property
    def host(self) -> ContainerHost:
        """Below which all containers are."""
        return self._host

    async def start(self) -> None:
        """Start the process below which containers are."""
        await self._host.start()

    async def close(self) -> None:
        """Kill all pods; the API server is told nothing."""
        self._pods.listeners.remove(self._hear)
        for life in self._lives.values():
            life.end(0, is_forgotten=True)
        await asyncio.gather(*self._endings, return_exceptions=True)
        for life in list(self._lives.values()):
            await life.wait_ended()
        await self._host.close()
        await self._session.close()

    def kill_container(self, namespace: str, pod: str, container: str = "") -> None:
        """Kill all processes of a pod's container, or of all of them.

        Raises:
            LookupError: there is no such pod here.
        """
        for life in self._lives.values():
            if key_of(life.pod) == (namespace, pod):
                life.kill(container)
                return
        raise LookupError(f"no pod {pod} runs in namespace {namespace}")

    async def kill_node(self, node: str) -> None:
        """Kill all pods of a node, as if its machine were gone, and forget them."""
        found = [
            life
            for life in self._lives.values()
            if life.pod["spec"]["nodeName"] == node
        ]
        for life in found:
            life.end(0)
        for life in found:
            await life.wait_ended()
            self._lives.pop(life.pod["metadata"]["uid"], None)

    def log(
        self, namespace: str, pod: str, container: str = "", *, previous: bool = False
    ) -> bytes:
        """What a container has printed."""
        part = ".previous" if previous else ".log"
        return log_of(self._folder, namespace, pod, container, part)

    def _hear(self, kind: str, pod: Object) -> None:
        meta = pod["metadata"]
        life = self._lives.get(meta["uid"])
        if life is None:
            status = pod.get("status") or {}
            if (
                kind != "DELETED"
                and pod["spec"].get("nodeName")
                and status.get("phase") not in ("Succeeded", "Failed")
            ):
                life = PodLife(pod, next(self._numbers), self._machine)
                self._lives[meta["uid"]] = life
                life.start()
            else:
                if (
                    kind != "DELETED"
                    and meta.get("deletionTimestamp")
                    and pod["spec"].get("nodeName")
                ):
                    self._track(self._confirm(pod))
                return
        life.pod = pod
        if kind == "DELETED":
            # Nobody waits for its processes: it was deleted by force.
            self._end(life, 0, is_forgotten=True)
        elif meta.get("deletionTimestamp"):
            grace_s = meta.get("deletionGracePeriodSeconds")
            if grace_s is None:
                grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
            self._end(life, float(grace_s), is_forgotten=False)

    def _end(self, life: PodLife, grace_s: float, *, is_forgotten: bool) -> None:
        life.end(grace_s, is_forgotten=is_forgotten)
        self._track(self._forget(life))

    async def _forget(self, life: PodLife) -> None:
        await life.wait_ended()
        self._lives.pop(life.pod["metadata"]["uid"], None)

    async def _confirm(self, pod: Object) -> None:
        """Let a pod go that has no processes here."""
        await self._machine.connection.delete(
            "Pod", key_of(pod), uid=pod["metadata"]["uid"], grace_s=0
        )

    def _track(self, ending: object) -> None:
        assert asyncio.iscoroutine(ending)
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
