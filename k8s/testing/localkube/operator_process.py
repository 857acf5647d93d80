"""The dask-kubernetes operator, as it is released, as a process of this machine."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rayshim.k8s.testing.localkube.containers import Container, ContainerHost

#: Kinds that it watches before it acts on anything.
WATCHED = frozenset(
    "daskclusters daskworkergroups daskjobs daskautoscalers services pods".split()
)
#: Seconds to come up on a busy machine.
START_S = 60.0
#: Who it is to the API server.
USER = "system:serviceaccount:dask-operator:dask-kubernetes-operator"


class OperatorProcess:
    """Runs ``kopf run ... dask_kubernetes.operator.controller`` in all namespaces.

    Args:
        host: below which its process is.
        folder: for its files; the log is ``operator.log`` there.
        environment: with KUBECONFIG of :data:`USER`, and the cluster's DNS.
        watches: the kinds that it watches so far, of this start.
    """

    def __init__(
        self,
        host: ContainerHost,
        folder: Path,
        environment: Mapping[str, str],
        watches: Callable[[], frozenset[str]],
    ) -> None:
        self._host = host
        self._folder = folder
        self._environment = environment
        self._watches = watches
        self._container: Container | None = None
        self.log = folder / "operator.log"

    @property
    def is_running(self) -> bool:
        """Whether its process is there."""
        return self._container is not None and not self._container.has_ended

    def start(self) -> None:
        """Start the process; :meth:`wait_ready` says when it works."""
        argv = [sys.executable, "-m", "kopf", "run", "--standalone", "-A"]
        argv += ["-m", "dask_kubernetes.operator.controller"]
        home = self._folder / "operator"
        home.mkdir(exist_ok=True)
        own = {"HOME": str(home), "TMPDIR": str(home)}
        environment = {**self._environment, **own}
        self._container = self._host.run(argv, environment, home, self.log)

    async def wait_ready(self) -> None:
        """Wait until it watches all that it acts on.

        Raises:
            RuntimeError: it ended, or does not come up; with its last words.
        """
        assert self._container is not None, "start it first"
        deadline = time.monotonic() + START_S
        while not self._watches() >= WATCHED:
            if self._container.has_ended or time.monotonic() > deadline:
                how = "ended" if self._container.has_ended else "does not watch"
                missing = ", ".join(sorted(WATCHED - self._watches()))
                raise RuntimeError(
                    f"the dask operator {how} after it began to watch all but "
                    f"{missing}; it said last: {self.last_words()}"
                )
            await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """Kill it, as if its machine were lost."""
        if self._container is not None:
            await self._container.stop(0)

    def last_words(self, size_bytes: int = 2000) -> str:
        """The end of its log."""
        try:
            return self.log.read_bytes()[-size_bytes:].decode(errors="replace")
        except OSError:
            return ""
