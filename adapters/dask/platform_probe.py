"""Work that drills lay on a platform of Dask (see ``rayshim.k8s.drill_probes``).

Dask brings no task to a group by a label, so tasks name the workers that the group has;
its scheduler remembers nothing over a restart, so there is no state to find again.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from distributed import Client, get_worker
from distributed.client import Future

from rayshim.adapters.dask.certificates import security_of
from rayshim.adapters.dask.probe_answer import Answer
from rayshim.adapters.wire.tls import Credentials
from rayshim.lineage.demand import Demand

#: Seconds of one piece, bytes of its result, and how many results are held.
PIECE_S, PIECE_BYTES, HELD = 0.5, 200_000, 64
#: Seconds for a connection.
LIMIT_S = 10.0


class Demanding(Protocol):
    """What is asked which workers there are."""

    def demand(self) -> Demand:
        """See :class:`~rayshim.adapters.dask.platform_link.DaskLink`."""


class DaskProbe:
    """A client of the scheduler, with tasks on the workers of a group.

    Args:
        address: "HOST:PORT" of the scheduler.
        link: to it.
        tls: files for TLS; None without.
    """

    keeps_state = False

    def __init__(
        self, address: str, link: Demanding, tls: Credentials | None = None
    ) -> None:
        self._address = f"{'tls' if tls else 'tcp'}://{address}"
        self._link = link
        self._security = security_of(tls)
        self._client: Client | None = None
        self._group = ""
        self._resources: dict[str, float] = {}
        self._width = self._begun = 0
        self._open: list[Future[Any]] = []
        self._held: deque[tuple[int, Future[Any]]] = deque(maxlen=HELD)
        self._nodes: set[str] = set()
        self._asked: Future[Any] | None = None
        self._count = 0

    def begin_work(
        self, group: str, resources: Mapping[str, float], width: int
    ) -> None:
        """See ``Probe``."""
        self._group = group
        self._resources = {k: v for k, v in resources.items() if k != "CPU"}
        self._width = min(width, HELD)
        self.step()

    def step(self) -> frozenset[str]:
        """See ``Probe``."""
        for future in [one for one in self._open if one.status != "pending"]:
            self._open.remove(future)
            where = future.result(timeout=LIMIT_S)[0]
            self._nodes.add(where)
        while len(self._open) < self._width:
            options = self._placed()
            if options is None:
                break
            future = self._joined().submit(
                _piece(), self._begun, PIECE_S, PIECE_BYTES, pure=False, **options
            )
            self._open.append(future)
            self._held.append((self._begun, future))
            self._begun += 1
        return frozenset(self._nodes)

    def finish_work(self, limit_s: float) -> int:
        """See ``Probe``."""
        self._width = 0
        deadline = time.monotonic() + limit_s
        for number, future in self._held:
            left_s = max(0.1, deadline - time.monotonic())
            result = future.result(timeout=left_s)[1]
            if result != number.to_bytes(8, "little") * (PIECE_BYTES // 8):
                raise ValueError(f"the result of piece {number} is not what it was")
        return self._begun

    def begin_actor(self, group: str, *, is_detached: bool) -> None:
        """See ``Probe``; what answers is a task, as actors end with their worker."""
        self._group, self._resources = group, {}

    def ask(self) -> Answer | None:
        """See ``Probe``."""
        if self._asked is None:
            options = self._placed()
            if options is None:
                return None
            self._asked = self._joined().submit(_where(), pure=False, **options)
        if self._asked.status == "pending":
            return None
        asked, self._asked = self._asked, None
        if asked.status != "finished":
            return None  # its worker went; the next one goes to another
        self._count += 1
        return Answer(self._count, *asked.result(timeout=LIMIT_S))

    def leave(self) -> None:
        """See ``Probe``."""
        self._open, self._asked = [], None
        self._held.clear()
        client, self._client = self._client, None
        if client is not None:
            client.close(timeout=LIMIT_S)  # type: ignore[no-untyped-call]

    def ask_anew(self) -> Answer | None:
        """See ``Probe``."""
        try:
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline:
                if (found := self.ask()) is not None:
                    return found
                time.sleep(0.02)
            return None
        finally:
            self.leave()

    def end(self) -> None:
        """See ``Probe``."""
        self.leave()

    def _placed(self) -> dict[str, Any] | None:
        """Where tasks of the group may go; None while it has no worker."""
        found = self._link.demand()
        names = [one.node_id for one in found.nodes if one.group == self._group]
        if not names:
            return None
        # With other workers allowed, a task outlives all those that are named.
        placed: dict[str, Any] = {"workers": names, "allow_other_workers": True}
        return {**placed, "resources": self._resources or None}

    def _joined(self) -> Client:
        if self._client is None:
            try:
                self._client = Client(  # type: ignore[no-untyped-call]
                    self._address,
                    security=self._security,
                    set_as_default=False,
                    timeout=LIMIT_S,
                )
            except OSError as error:
                raise ConnectionError(
                    f"the head at {self._address} does not answer: {error}"
                ) from error
        return self._client


def _piece() -> Any:
    """A piece of work; local, so that it travels by value."""

    def piece(number: int, seconds: float, size_bytes: int) -> tuple[str, bytes]:
        time.sleep(seconds)
        where = str(get_worker().address)
        return where, number.to_bytes(8, "little") * (size_bytes // 8)

    return piece


def _where() -> Any:
    """Who answers; local, so that it travels by value."""

    def where() -> tuple[str, str]:
        address = str(get_worker().address)
        return address, f"{address}:{os.getpid()}"

    return where
