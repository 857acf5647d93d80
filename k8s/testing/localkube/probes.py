"""Startup, readiness and liveness probes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp

from rayshim.k8s.api import Object
from rayshim.k8s.testing.localkube.services import port_number
from rayshim.k8s.testing.localkube.volumes import NotStartable

#: Seconds between two looks until a startup or readiness probe passes, at most: tests
#: have no time for the ten seconds that are usual.
IMPATIENT_S = 0.25
#: Seconds for an answer, at least: many pods share this machine.
TIMEOUT_S = 5.0
_KINDS = ("httpGet", "tcpSocket", "exec")

#: Runs a command in the container; its exit code.
Run = Callable[[Sequence[str], float], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe of a container."""

    spec: Object
    pod: Object
    run: Run
    session: aiohttp.ClientSession

    @property
    def period_s(self) -> float:
        """Seconds between two looks."""
        return float(self.spec.get("periodSeconds") or 10)

    @property
    def delay_s(self) -> float:
        """Seconds before the first look."""
        return float(self.spec.get("initialDelaySeconds") or 0)

    @property
    def failures(self) -> int:
        """How often it must fail in a row to count."""
        return int(self.spec.get("failureThreshold") or 3)

    async def passes(self) -> bool:
        """Whether it passes now."""
        limit_s = max(float(self.spec.get("timeoutSeconds") or 1), TIMEOUT_S)
        try:
            async with asyncio.timeout(limit_s):
                return await self._look(limit_s)
        except (OSError, TimeoutError, aiohttp.ClientError):
            return False

    async def _look(self, limit_s: float) -> bool:
        address = self.pod["status"]["podIP"]
        if get := self.spec.get("httpGet"):
            scheme = str(get.get("scheme") or "HTTP").lower()
            host = get.get("host") or address
            path = "/" + str(get.get("path") or "/").lstrip("/")
            url = f"{scheme}://{host}:{self._port(get['port'])}{path}"
            headers = {
                one["name"]: one["value"] for one in get.get("httpHeaders") or ()
            }
            async with self.session.get(
                url, headers=headers, allow_redirects=False
            ) as response:
                status = int(response.status)
                return 200 <= status < 400
        if connect := self.spec.get("tcpSocket"):
            host = connect.get("host") or address
            _, writer = await asyncio.open_connection(host, self._port(connect["port"]))
            writer.close()
            return True
        return await self.run(self.spec["exec"]["command"], limit_s) == 0

    def _port(self, port: int | str) -> int:
        number = port_number(self.pod, port)
        if number is None:
            raise OSError(f"no container has a port {port}")
        return number


def probe_of(
    container: Object,
    kind: str,
    pod: Object,
    run: Run,
    session: aiohttp.ClientSession,
) -> Probe | None:
    """A container's probe.

    Args:
        container: of the pod.
        kind: "startupProbe", "readinessProbe" or "livenessProbe".
        pod: with its address.
        run: for probes that are commands.
        session: for those that are requests.

    Raises:
        NotStartable: it is of a kind that is not supported.
    """
    spec = container.get(kind)
    if not spec:
        return None
    if not any(one in spec for one in _KINDS):
        raise NotStartable(
            f"{kind} of container {container['name']}: only {', '.join(_KINDS)} are "
            f"supported, not {', '.join(spec)}"
        )
    return Probe(spec, pod, run, session)
