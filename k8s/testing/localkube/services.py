"""Services: from selectors to names, and forwarding where ports differ."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.addresses import Addresses
from rayshim.k8s.testing.localkube.connection import Informer, Key, Reconciler, key_of
from rayshim.k8s.testing.localkube.dns import DOMAIN, Dns

logger = logging.getLogger(__name__)

_ALL: Key = ("", "")
#: One of the kinds of a Service that needs something outside of the cluster.
_UNSUPPORTED = ("ExternalName",)


class Services:
    """Keeps the names of all Services.

    A Service's name leads to its ready pods. If a port differs from its targetPort, the
    name leads to an address of its own, from which connections are forwarded. A Service
    without ready pods leads to where nobody listens; a headless one has no name then.

    Args:
        services: all Services.
        pods: all pods.
        dns: where the names go.
        addresses: for Services that forward.
    """

    def __init__(
        self, services: Informer, pods: Informer, dns: Dns, addresses: Addresses
    ) -> None:
        self._services = services
        self._pods = pods
        self._dns = dns
        self._addresses = addresses
        self._loop = Reconciler("services", self._write)
        #: Key of a Service -> its forwarder.
        self._forwarders: dict[Key, Forwarder] = {}
        for informer in (services, pods):
            informer.listeners.append(lambda kind, made: self._loop.add(_ALL))

    async def run(self) -> None:
        """Keep the names until cancelled."""
        try:
            await self._loop.run()
        finally:
            for one in self._forwarders.values():
                await one.close()

    async def _write(self, key: Key) -> None:
        names: list[tuple[str, str]] = []
        for key in [
            key for key in self._forwarders if key not in self._services.objects
        ]:
            forwarder = self._forwarders.pop(key)
            await forwarder.close()
            self._addresses.give_back(forwarder.address)
        for service in list(self._services.objects.values()):
            names += await self._names_of(service)
        self._dns.write(names)

    async def _names_of(self, service: Object) -> list[tuple[str, str]]:
        spec, (namespace, name) = service["spec"], key_of(service)
        full = f"{name}.{namespace}.{DOMAIN}"
        if spec.get("type") in _UNSUPPORTED:
            logger.warning("Service %s: type ExternalName has no name here", full)
            return []
        pods = endpoints(service, list(self._pods.objects.values()))
        addresses = [pod["status"]["podIP"] for pod in pods]
        is_headless = spec.get("clusterIP") == "None"
        names = [
            (f"{pod['spec']['hostname']}.{full}", pod["status"]["podIP"])
            for pod in pods
            if pod["spec"].get("hostname") and pod["spec"].get("subdomain") == name
        ]
        ports = {} if is_headless else forwarded_ports(spec, pods)
        if ports:
            address = await self._forward(key_of(service), ports, pods)
            return [*names, (full, address)]
        if not addresses and not is_headless:
            addresses = [self._addresses.nowhere]
        return names + [(full, address) for address in addresses]

    async def _forward(
        self, key: Key, ports: dict[int, int | str], pods: list[Object]
    ) -> str:
        forwarder = self._forwarders.get(key)
        if forwarder is None:
            forwarder = Forwarder(self._addresses.take())
            self._forwarders[key] = forwarder
        targets = {
            port: [
                (pod["status"]["podIP"], number)
                for pod in pods
                if (number := port_number(pod, target)) is not None
            ]
            for port, target in ports.items()
        }
        await forwarder.set(targets)
        return forwarder.address


def endpoints(service: Object, pods: list[Object]) -> list[Object]:
    """The pods behind a Service, in the order of their names."""
    spec, namespace = service["spec"], service["metadata"].get("namespace")
    selector = spec.get("selector") or {}
    found = []
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        status = pod.get("status") or {}
        if (
            selector
            and pod["metadata"].get("namespace") == namespace
            and all(labels.get(key) == value for key, value in selector.items())
            and status.get("podIP")
            and status.get("phase") not in ("Succeeded", "Failed")
            and (
                spec.get("publishNotReadyAddresses")
                or (is_ready(pod) and not pod["metadata"].get("deletionTimestamp"))
            )
        ):
            found.append(pod)
    return sorted(found, key=key_of)


def is_ready(pod: Object) -> bool:
    """Whether the pod has the condition Ready."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def forwarded_ports(spec: Object, pods: list[Object]) -> dict[int, int | str]:
    """All TCP ports -> targets, if one of them is another one in a pod; else none.

    Args:
        spec: of the Service.
        pods: behind it.
    """
    ports = {
        one["port"]: one.get("targetPort", one["port"])
        for one in spec.get("ports") or ()
        if one.get("protocol", "TCP") == "TCP"
    }
    differ = any(
        port_number(pod, target) not in (port, None)
        for pod in pods
        for port, target in ports.items()
    )
    return ports if differ else {}


def port_number(pod: Object, target: int | str) -> int | None:
    """The number of a port of a pod's containers; None: no container has the name."""
    if isinstance(target, int):
        return target
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == target:
                return int(port["containerPort"])
    return int(target) if target.isdigit() else None


class Forwarder:
    """Takes connections at an address and carries them on to pods in turn."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._servers: dict[int, asyncio.Server] = {}
        self._targets: dict[int, list[tuple[str, int]]] = {}
        self._turn = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    async def set(self, targets: dict[int, list[tuple[str, int]]]) -> None:
        """Set port -> (address, port) of pods; a port without pods is closed."""
        self._targets = targets
        for port in [port for port in self._servers if not targets.get(port)]:
            self._servers.pop(port).close()
        for port, pods in targets.items():
            if pods and port not in self._servers:

                def serve(
                    reader: asyncio.StreamReader,
                    writer: asyncio.StreamWriter,
                    port: int = port,
                ) -> None:
                    task = asyncio.create_task(self._carry(port, reader, writer))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

                self._servers[port] = await asyncio.start_server(
                    serve, self.address, port
                )

    async def close(self) -> None:
        """End all connections."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        pods = self._targets.get(port)
        onward: asyncio.StreamWriter | None = None
        try:
            if pods:
                place = pods[next(self._turn) % len(pods)]
                back, onward = await asyncio.open_connection(*place)
                await asyncio.gather(_copy(reader, onward), _copy(back, writer))
        except OSError:
            pass  # the one who connected sees the connection end
        finally:
            for one in (writer, onward):
                if one is not None:
                    one.close()
                    with contextlib.suppress(OSError):
                        await one.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
