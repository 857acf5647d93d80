"""The autoscaler's way to the control service, over restarts of the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rayshim.adapters.wire.address import make, place_of
from rayshim.adapters.wire.oneshot import OneShot
from rayshim.adapters.wire.tls import Credentials
from rayshim.lineage.demand import Demand

_Value = TypeVar("_Value")

#: Seconds for one answer.
LIMIT_S = 5.0


class Control(Protocol):
    """The control service as the autoscaler sees it; ``ConnectionError`` while away."""

    def demand(self) -> Demand:
        """What is lacking, and what each node does."""

    def drain(self, node_id: str, reason: str) -> bool:
        """Has a node leave if it is idle; False if there is no such node."""

    def drain_notes(self) -> Mapping[str, str]:
        """Node id -> what its drain waits for, or why it was refused."""

    def report(self, report: Mapping[str, Any]) -> None:
        """Tells what will not be, so that drivers and ``explain`` can say so."""


def head_address(host: str, port: int) -> str:
    """The address of a head (``tcp:...``) of which a host and a port are known.

    Args:
        host: name, or IP address; a name is looked up at each connection.
        port: of the head (``rayshim start --head --port``).

    Example:
        >>> head_address("demo-scheduler.ray.svc", 6379)
        'tcp:demo-scheduler.ray.svc:6379/head/head'
    """
    return make(host, port, "head", "head")


def read_token(path: Path) -> bytes:
    """The token of a cluster in a file, such as a mounted Secret.

    Raises:
        ValueError: it cannot be read, or holds none.
    """
    from rayshim._core.clusters import read_token as read

    return read(path)


class HeadControl:
    """The head of a cluster, asked over its channel.

    Args:
        address: of the head (``tcp:...``); the name of its host is looked up at each
            connection, since a head that was restarted may be elsewhere.
        token: the cluster's.
        tls: for TLS; None: what this process's environment says.
        limit_s: seconds for one answer.

    Raises:
        ValueError: the files for TLS cannot be used.

    Thread safety: one thread at a time.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        *,
        tls: Credentials | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        if tls is not None:
            tls.check()
        self._address = address
        self._token = token
        self._tls = tls
        self._limit_s = limit_s
        self._link: OneShot | None = None

    def demand(self) -> Demand:
        """See :class:`Control`."""
        return Demand.from_json(self._ask("demand"))

    def drain(self, node_id: str, reason: str) -> bool:
        """See :class:`Control`."""
        order = {"node_id": node_id, "reason": reason, "is_refusable": True}
        return bool(self._ask("drain_node", order))

    def drain_notes(self) -> dict[str, str]:
        """See :class:`Control`."""
        rows = self._ask("node_table")
        return {row["node_id"]: row["drain_note"] for row in rows if row["alive"]}

    def report(self, report: Mapping[str, Any]) -> None:
        """See :class:`Control`."""
        self._ask("autoscaler_report", report)

    def close(self) -> None:
        """Ends the connection; the next question opens another one."""
        link, self._link = self._link, None
        if link is not None:
            link.__exit__()

    def _ask(self, method: str, payload: Any = None) -> Any:
        return self._retried(lambda link: link.ask(method, payload))

    def _retried(self, ask: Callable[[OneShot], _Value]) -> _Value:
        """Asks again on a new connection if the old one is of an earlier head."""
        had_link = self._link is not None
        try:
            return self._try(ask)
        except ConnectionError:
            if not had_link:
                raise
        return self._try(ask)

    def _try(self, ask: Callable[[OneShot], _Value]) -> _Value:
        if self._link is None:
            try:
                self._link = OneShot(
                    self._address, self._token, self._limit_s, self._tls
                )
            except ConnectionError as error:
                raise ConnectionError(
                    f"the head at {place_of(self._address)} does not answer: {error}"
                ) from error
        try:
            return ask(self._link)
        except OSError as error:
            self.close()
            if isinstance(error, ConnectionError):
                raise
            raise ConnectionError(
                f"the head at {place_of(self._address)} does not answer: {error}"
            ) from error
