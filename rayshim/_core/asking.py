"""Asks the control service, and through it nodes and processes, from any process.

Inside a session the session's own channel is used; else a connection is made to the
cluster that is found (:mod:`rayshim._core.clusters`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from rayshim.adapters.wire import ask_messages as messages

#: Seconds that the control service may take longer than those whom it asks.
GRACE_S = 2.0


class Control(Protocol):
    """Something that asks the control service."""

    def ask(self, method: str, payload: Any = None) -> Any:
        """Its answer to one request."""


class Answer(NamedTuple):
    """What one node, or one process on it, answered."""

    #: Hex.
    node_id: str
    payload: bytes
    worker_id: bytes = b""
    pid: int = 0
    role: str = "node"
    address: str = ""
    job_id: bytes = b""


class Heard(NamedTuple):
    """All answers to a question, and who gave none."""

    answers: list[Answer]
    #: For each of them one line with who it is and why.
    silent: list[str]


class _Session:
    """The session of this process as a :class:`Control`."""

    def __init__(self, peer: Any, limit_s: float) -> None:
        self._peer = peer
        self._limit_s = limit_s

    def ask(self, method: str, payload: Any = None) -> Any:
        return self._peer.request(method, payload, timeout_s=self._limit_s)


@contextlib.contextmanager
def control_of(address: str | None = None, limit_s: float = 30.0) -> Iterator[Control]:
    """The control service of a cluster.

    Args:
        address: as for ``find_cluster``; None: the session of this process, else as
            the environment says, else the newest of this user on this host.
        limit_s: seconds that each answer may take.

    Raises:
        ConnectionError: there is no such cluster, or it does not answer.
    """
    from rayshim._core import current

    if current.peer is not None and not current.peer.ended and not address:
        yield _Session(current.peer, limit_s + GRACE_S)
        return
    from rayshim._core.clusters import find_cluster
    from rayshim.adapters.wire.oneshot import OneShot

    found = find_cluster(address or None)
    if not found.head_address:
        raise ConnectionError(
            f"the cluster behind {found.dashboard_url} can only be asked at the "
            "address of its head (host:port)"
        )
    with OneShot(found.head_address, found.token, limit_s + GRACE_S) as control:
        yield control


def ask(
    control: Control,
    method: str,
    payload: bytes = b"",
    *,
    to: str = "nodes",
    node_ids: Sequence[str] = (),
    workers: Sequence[bytes] = (),
    limit_s: float = 5.0,
) -> Heard:
    """Asks nodes or processes one question.

    Args:
        control: as :func:`control_of` gives it.
        method: which question, in the table of those who are asked.
        payload: as they expect it.
        to: "nodes", or "processes", "drivers" or "executors" of nodes.
        node_ids: hex ids; empty: all live nodes.
        workers: only processes with these ids; empty: all.
        limit_s: seconds that each may take.
    """
    wanted = messages.AskAll(
        method, payload, to, list(node_ids), list(workers), limit_s
    )
    told = control.ask("ask", msgspec.structs.asdict(wanted))
    heard = Heard([], [])
    for node in msgspec.convert(told, list[messages.NodeTold]):
        if node.error:
            heard.silent.append(f"node {node.node_id[:12]}: {node.error}")
        elif to == "nodes":
            heard.answers.append(Answer(node.node_id, node.payload))
        else:
            _add_processes(heard, node)
    return heard


def _add_processes(heard: Heard, node: messages.NodeTold) -> None:
    for one in _PROCESSES.decode(node.payload):
        if one.error:
            heard.silent.append(
                f"{one.role} pid {one.pid} on node {node.node_id[:12]}: {one.error}"
            )
            continue
        heard.answers.append(
            Answer(
                node.node_id,
                one.payload,
                one.worker_id,
                one.pid,
                one.role,
                one.address,
                one.job_id,
            )
        )


_PROCESSES = msgspec.msgpack.Decoder(list[messages.ProcessTold])
