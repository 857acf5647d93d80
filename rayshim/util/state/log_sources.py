"""Which log is meant, and how it is read: for functions, commands and pages alike."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from rayshim._core import asking
from rayshim.adapters.raylet.log_reading import LogEntry, LogPiece, ReadLog
from rayshim.util.state.exception import RayStateApiException

_ENTRIES = msgspec.msgpack.Decoder(list[LogEntry])
_PIECE = msgspec.msgpack.Decoder(LogPiece)
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


class Position(NamedTuple):
    """Where reading a log goes on."""

    place: LogPlace
    offset: int
    inode: int


@dataclasses.dataclass(frozen=True, slots=True)
class Which:
    """Which log is meant, as parameters of ``get_log`` say it.

    Raises:
        ValueError: nothing, or too much, says it.
    """

    node_id: str | None = None
    node_ip: str | None = None
    filename: str | None = None
    actor_id: str | None = None
    task_id: str | None = None
    pid: int | None = None
    submission_id: str | None = None
    attempt_number: int = 0
    suffix: str = "out"

    def __post_init__(self) -> None:
        names = ("filename", "actor_id", "task_id", "pid", "submission_id")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "say which log with one of filename, actor_id, task_id, pid and "
                f"submission_id; got {', '.join(given) or 'none of them'}"
            )
        if self.suffix not in _SUFFIXES:
            raise ValueError(f"suffix is 'out' or 'err', not {self.suffix!r}")


def grouped(
    control: asking.Control,
    node_id: str | None,
    node_ip: str | None,
    pattern: str,
    limit_s: float,
) -> dict[str, list[str]]:
    """Names of log files of a node, by kind; of the head's node by default."""
    nodes = _nodes(control, node_id, node_ip) or _head_node(control)
    groups: dict[str, list[str]] = {}
    for place in _list(control, nodes, pattern, limit_s):
        groups.setdefault(_group_of(place.name), []).append(place.name)
    return groups


def default_node(control: asking.Control) -> str:
    """Hex id of the node whose logs are listed by default."""
    return _head_node(control)[0]


def locate(control: asking.Control, which: Which, limit_s: float) -> LogPlace:
    """The file that is meant, if it is not about a task.

    Raises:
        RayStateApiException: there is none, or several nodes have one.
    """
    nodes = _nodes(control, which.node_id, which.node_ip)
    pid = which.pid
    if which.actor_id is not None:
        nodes, pid = _process_of_actor(control, which.actor_id.lower())
    pattern = which.filename or ""
    if pid is not None:
        pattern = f"worker-*-{int(pid)}.{which.suffix}"
    elif which.submission_id is not None:
        pattern = f"job-driver-{which.submission_id}.log"
    is_name = which.filename is not None
    return _find(control, nodes, pattern, limit_s, is_name=is_name)


class Reader:
    """Reads files of nodes, piece by piece."""

    def __init__(self, control: asking.Control, limit_s: float) -> None:
        self._control = control
        self._limit_s = limit_s
        #: Behind what was read last of a file.
        self.at: Position | None = None

    def file(
        self, place: LogPlace, tail: int, follow: bool, interval_s: float
    ) -> Iterator[bytes]:
        """A file from its begin, or its last lines."""
        piece = self._read(place, ReadLog(place.name, tail=tail))
        # What is written meanwhile is not read, unless it is followed.
        end = piece.size_bytes
        while True:
            self.at = Position(place, piece.offset, piece.inode)
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
        self, which: Which, tail: int, follow: bool, interval_s: float
    ) -> Iterator[bytes]:
        """What one call printed."""
        question = ReadLog(
            task_id=(which.task_id or "").lower(),
            attempt=which.attempt_number,
            suffix=which.suffix,
        )
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
