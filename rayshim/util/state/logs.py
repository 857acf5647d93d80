"""Logs of the cluster: which there are, and what is in them.

``ray.util.state.list_logs`` and ``get_log``.
"""

from __future__ import annotations

import codecs
import itertools
import re
import time
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import msgspec

from rayshim._core import asking
from rayshim.adapters.raylet.log_reading import LogEntry, LogPiece, ReadLog
from rayshim.util.state.exception import RayStateApiException

__all__ = ["get_log", "list_logs"]

#: Seconds between looks at a log that is followed.
FOLLOW_S = 0.5
_ENTRIES = msgspec.msgpack.Decoder(list[LogEntry])
_PIECE = msgspec.msgpack.Decoder(LogPiece)
_ANSI = re.compile(r"\x1b(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")
_SUFFIXES = ("out", "err")

#: Beginning of a name, its end -> the group in which ``list_logs`` shows it.
_GROUPS = (
    ("worker-", ".out", "worker_out"),
    ("worker-", ".err", "worker_err"),
    ("job-driver-", "", "driver"),
    ("driver-", "", "driver"),
    ("node", "", "raylet"),
    ("head", "", "gcs_server"),
    ("dashboard", "", "dashboard"),
    ("autoscaler", "", "autoscaler"),
)


class LogPlace(NamedTuple):
    """A log file."""

    node_id: str
    name: str


def list_logs(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    glob_filter: str | None = None,
    timeout: int = 30,
) -> dict[str, list[str]]:
    """Names of log files of a node, by kind.

    Args:
        address: of the cluster; None: that of this process, else the newest here.
        node_id: hex id of the node; by default the head's node.
        node_ip: its address, instead.
        glob_filter: pattern of names, as in a shell.
        timeout: seconds that the answer may take.

    Returns:
        Kind ("worker_out", "worker_err", "raylet", "driver", ...) -> names.

    Raises:
        RayStateApiException: there is no such node, or it does not answer.
        ConnectionError: there is no such cluster.

    Example:
        >>> list_logs(glob_filter="worker-*")  # doctest: +SKIP
        {'worker_out': ['worker-...-ffffffff-4711.out'], 'worker_err': [...]}
    """
    with asking.control_of(address, timeout) as control:
        nodes = _nodes(control, node_id, node_ip) or _head_node(control)
        found = _list(control, nodes, glob_filter or "*", timeout)
    groups: dict[str, list[str]] = {}
    for place in found:
        groups.setdefault(_group_of(place.name), []).append(place.name)
    return groups


def get_log(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    filename: str | None = None,
    actor_id: str | None = None,
    task_id: str | None = None,
    pid: int | None = None,
    follow: bool = False,
    tail: int = -1,
    timeout: int = 30,
    suffix: str = "out",
    encoding: str | None = "utf-8",
    errors: str | None = "strict",
    submission_id: str | None = None,
    attempt_number: int = 0,
    _interval: float | None = None,
    filter_ansi_code: bool = False,
) -> Generator[Any, None, None]:
    """Read a log: of a file, an actor, a task, a process or a job.

    Args:
        address: of the cluster; None: that of this process, else the newest here.
        node_id: hex id of the node; may be left out if only one has the log.
        node_ip: its address, instead.
        filename: as :func:`list_logs` tells it.
        actor_id: hex id of an actor.
        task_id: hex id of a task: what it printed, and nothing else.
        pid: of an executor.
        follow: go on with what is written later, until the generator is closed.
        tail: begin with so many last lines; -1: with the first.
        timeout: seconds that each answer may take.
        suffix: "out" or "err": which output of an executor.
        encoding: of the text; None: give bytes.
        errors: what is done with bytes that are no text, as of ``bytes.decode``.
        submission_id: of a job.
        attempt_number: which run of the task, from 0.
        _interval: seconds between looks, with ``follow``.
        filter_ansi_code: take codes for colours out.

    Yields:
        Pieces of text; bytes without ``encoding``.

    Raises:
        RayStateApiException: there is no such log, or its node does not answer.
        ValueError: nothing, or too much, says which log is meant.

    Example:
        >>> for text in get_log(pid=4711, tail=10):  # doctest: +SKIP
        ...     print(text, end="")
    """
    given = [
        name
        for name, value in (
            ("filename", filename),
            ("actor_id", actor_id),
            ("task_id", task_id),
            ("pid", pid),
            ("submission_id", submission_id),
        )
        if value is not None
    ]
    if len(given) != 1:
        raise ValueError(
            "say which log with one of filename, actor_id, task_id, pid and "
            f"submission_id; got {', '.join(given) or 'none of them'}"
        )
    if suffix not in _SUFFIXES:
        raise ValueError(f"suffix is 'out' or 'err', not {suffix!r}")
    interval_s = FOLLOW_S if _interval is None else _interval
    with asking.control_of(address, timeout) as control:
        reader = _Reader(control, timeout)
        if task_id is not None:
            source = reader.task(
                task_id.lower(), attempt_number, suffix, tail, follow, interval_s
            )
        else:
            nodes = _nodes(control, node_id, node_ip)
            if actor_id is not None:
                nodes, pid = _process_of_actor(control, actor_id.lower())
            pattern = filename or ""
            if pid is not None:
                pattern = f"worker-*-{int(pid)}.{suffix}"
            elif submission_id is not None:
                pattern = f"job-driver-{submission_id}.log"
            place = _find(control, nodes, pattern, timeout, is_name=bool(filename))
            source = reader.file(place, tail, follow, interval_s)
        yield from _decoded(source, encoding, errors, filter_ansi_code)


def node_of_list(address: str | None = None, timeout: int = 30) -> str:
    """Hex id of the node whose logs :func:`list_logs` lists by default.

    Args:
        address: of the cluster.
        timeout: seconds that the answer may take.
    """
    with asking.control_of(address, timeout) as control:
        return _head_node(control)[0]


def find_log(control: asking.Control, node_id: str, filename: str) -> LogPlace:
    """Check a node and the name of one of its logs.

    Raises:
        RayStateApiException: there is no such node, or it has no such log.
    """
    nodes = _nodes(control, node_id or None, None)
    return _find(control, nodes, filename, 30.0, is_name=True)


def _decoded(
    pieces: Iterator[bytes],
    encoding: str | None,
    errors: str | None,
    filter_ansi_code: bool,
) -> Iterator[Any]:
    if encoding is None:
        yield from pieces
        return
    # A character may lie in two pieces.
    decoder = codecs.getincrementaldecoder(encoding)(errors or "strict")
    for data in itertools.chain(pieces, [b""]):
        text = decoder.decode(data, final=not data)
        if filter_ansi_code:
            text = _ANSI.sub("", text)
        if text:
            yield text


class _Reader:
    """Reads files of nodes, piece by piece."""

    def __init__(self, control: asking.Control, limit_s: float) -> None:
        self._control = control
        self._limit_s = limit_s

    def file(
        self, place: LogPlace, tail: int, follow: bool, interval_s: float
    ) -> Iterator[bytes]:
        """A file from its begin, or its last lines."""
        piece = self._read(place, ReadLog(place.name, tail=tail))
        # What is written meanwhile is not read, unless it is followed.
        end = piece.size_bytes
        while True:
            if piece.data:
                yield piece.data
            if piece.is_rotated:
                piece = self._read(place, ReadLog(place.name))
                continue
            if not follow and piece.offset >= end:
                return
            if not piece.data:
                time.sleep(interval_s)
            piece = self._read(
                place, ReadLog(place.name, piece.offset, inode=piece.inode)
            )

    def task(
        self,
        task_id: str,
        attempt: int,
        suffix: str,
        tail: int,
        follow: bool,
        interval_s: float,
    ) -> Iterator[bytes]:
        """What one call printed."""
        question = ReadLog(task_id=task_id, attempt=attempt, suffix=suffix)
        seen = 0
        while True:
            data = b"".join(self._task_pieces(question))
            if tail >= 0 and not seen:
                lines = data.splitlines(keepends=True)
                shown = b"".join(lines[max(0, len(lines) - tail) :])
            else:
                shown = data[seen:]
            seen = max(seen, len(data))
            if shown:
                yield shown
            if not follow:
                return
            time.sleep(interval_s)

    def _task_pieces(self, question: ReadLog) -> Iterator[bytes]:
        heard = asking.ask(
            self._control,
            "read_log",
            msgspec.msgpack.encode(question),
            limit_s=self._limit_s,
        )
        for answer in heard.answers:
            for name, offset, size in _PIECE.decode(answer.payload).ranges:
                place = LogPlace(answer.node_id, name)
                while size > 0:
                    piece = self._read(place, ReadLog(name, offset, size))
                    if not piece.data:
                        break
                    yield piece.data
                    offset, size = piece.offset, size - len(piece.data)

    def _read(self, place: LogPlace, question: ReadLog) -> LogPiece:
        heard = asking.ask(
            self._control,
            "read_log",
            msgspec.msgpack.encode(question),
            node_ids=[place.node_id],
            limit_s=self._limit_s,
        )
        if not heard.answers:
            why = "; ".join(heard.silent) or f"node {place.node_id[:12]} is gone"
            raise RayStateApiException(f"cannot read {place.name}: {why}")
        return _PIECE.decode(heard.answers[0].payload)


# Which node, which file.


def _nodes(
    control: asking.Control, node_id: str | None, node_ip: str | None
) -> list[str]:
    """Hex ids of the nodes that are meant; empty: all.

    Raises:
        RayStateApiException: there is no such node.
    """
    if not node_id and not node_ip:
        return []
    rows = [row for row in control.ask("nodes") if row["Alive"]]
    if node_id:
        found = [row for row in rows if row["NodeID"] == node_id.lower()]
    else:
        found = [row for row in rows if row["NodeManagerAddress"] == node_ip]
    if not found:
        known = ", ".join(
            f"{row['NodeID'][:12]} ({row['NodeManagerAddress']})" for row in rows
        )
        raise RayStateApiException(
            f"no live node is called {node_id or node_ip}; there are: {known or 'none'}"
        )
    return [row["NodeID"] for row in found]


def _head_node(control: asking.Control) -> list[str]:
    rows = [row for row in control.ask("node_table") if row["alive"]]
    rows.sort(key=lambda row: not row["is_head_node"])
    return [row["node_id"] for row in rows[:1]]


def _list(
    control: asking.Control, nodes: list[str], pattern: str, limit_s: float
) -> list[LogPlace]:
    heard = asking.ask(
        control,
        "list_logs",
        msgspec.msgpack.encode({"pattern": pattern}),
        node_ids=nodes,
        limit_s=limit_s,
    )
    if heard.silent and not heard.answers:
        raise RayStateApiException(f"cannot list logs: {'; '.join(heard.silent)}")
    found = [
        (entry.changed_s, LogPlace(answer.node_id, entry.name))
        for answer in heard.answers
        for entry in _ENTRIES.decode(answer.payload)
    ]
    return [place for _, place in sorted(found, reverse=True)]


def _find(
    control: asking.Control,
    nodes: list[str],
    pattern: str,
    limit_s: float,
    *,
    is_name: bool,
) -> LogPlace:
    """The one file that is meant: of several executors with a pid, the last one.

    Raises:
        RayStateApiException: there is none, or several nodes have one.
    """
    glob = re.sub(r"([*?[])", r"[\1]", pattern) if is_name else pattern
    found = _list(control, nodes, glob, limit_s)
    if not found:
        where = f"node {nodes[0][:12]} has" if len(nodes) == 1 else "there is"
        raise RayStateApiException(
            f"{where} no log file {pattern!r}; list_logs() tells what there is"
        )
    having = sorted({place.node_id[:12] for place in found})
    if len(having) > 1:
        raise RayStateApiException(
            f"several nodes have a log {pattern!r}: {', '.join(having)}; say which one "
            "with node_id"
        )
    return found[0]


def _process_of_actor(control: asking.Control, actor_id: str) -> tuple[list[str], int]:
    for row in control.ask("state", {"kind": "actors"}):
        if row["actor_id"] == actor_id:
            if not row["pid"]:
                raise RayStateApiException(
                    f"actor {actor_id} is {row['state']} and has no process yet"
                )
            return [row["node_id"]], int(row["pid"])
    raise RayStateApiException(f"there is no actor with id {actor_id!r}")


def _group_of(name: str) -> str:
    plain = re.sub(r"\.\d+$", "", name)
    for begin, end, group in _GROUPS:
        if plain.startswith(begin) and plain.endswith(end):
            return group
    return "internal"
