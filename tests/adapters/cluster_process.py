"""A head and nodes as processes, for tests."""

from __future__ import annotations

import contextlib
from typing import Any

from node_process import NodeProcess, Peer, wait_until

LOOPBACK = "127.0.0.1"


class ClusterProcesses:
    """A head; a context manager that ends all it started."""

    def __init__(self, **settings: Any) -> None:
        self._stack = contextlib.ExitStack()
        self._settings = {"dask": "off", **settings}
        self.head = self._start_head(None, 0)
        self._observer: Peer | None = None

    def _start_head(self, token: bytes | None, port: int) -> NodeProcess:
        return self._stack.enter_context(
            NodeProcess(
                token,
                with_raylet=False,
                listen_ip=LOOPBACK,
                port=port,
                resources={},
                settings=self._settings,
                job_id="",
            )
        )

    def restart_head(self, port: int) -> None:
        """SIGKILL, and a new one at the same place."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None
        self.head.process.kill()
        self.head.process.wait()
        self.head = self._start_head(self.head.token, port)

    def __enter__(self) -> ClusterProcesses:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._observer is not None:
            self._observer.close()
        self._stack.close()

    @property
    def observer(self) -> Peer:
        """A tool's channel to the head."""
        if self._observer is None:
            self._observer = self.head.peer("tool", b"")
        return self._observer

    def add(self, cpus: float = 1.0, **options: Any) -> NodeProcess:
        """A node that has joined."""
        resources = {"CPU": cpus, "memory": 1e9, "object_store_memory": 1e8}
        resources.update(options.pop("resources", {}))
        node = self._stack.enter_context(
            NodeProcess(
                self.head.token,
                resources=resources,
                head_address=self.head.address,
                listen_ip=LOOPBACK,
                settings=self._settings,
                prestart=1,
                job_id="",
                **options,
            )
        )
        self.wait_alive(node, True)
        return node

    def row(self, node: NodeProcess) -> dict[str, Any]:
        """The head's row of a node; empty while it knows none."""
        for row in self.observer.request("nodes"):
            if row["NodeID"] == node.node_id:
                return dict(row)
        return {}

    def wait_alive(self, node: NodeProcess, is_alive: bool) -> dict[str, Any]:
        """Waits until the head sees a node as alive or dead."""

        def seen() -> dict[str, Any]:
            row = self.row(node)
            return row if row and row["Alive"] is is_alive else {}

        state = "joining" if is_alive else "death"
        return dict(wait_until(seen, f"the {state} of a node"))

    def wait_free(self, **amounts: float) -> None:
        """Waits until the cluster has free what it should have."""
        wait_until(
            lambda: (
                amounts.items() <= self.observer.request("available_resources").items()
            ),
            f"free resources {amounts}",
        )

    def wait_lacks(self, name: str) -> None:
        """Waits until nothing of a resource is free."""
        wait_until(
            lambda: name not in self.observer.request("available_resources"),
            f"the use of all {name}",
        )
