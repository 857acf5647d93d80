"""Logs of the cluster: which there are, and what is in them.

``ray.util.state.list_logs`` and ``get_log``.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Generator, Iterator
from typing import Any

from rayshim._core import asking
from rayshim.util.state import log_sources

__all__ = ["get_log", "list_logs"]

#: Seconds between looks at a log that is followed.
FOLLOW_S = 0.5
_ANSI = re.compile(r"\x1b(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")


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
        return log_sources.grouped(
            control, node_id, node_ip, glob_filter or "*", timeout
        )


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
    which = log_sources.Which(
        node_id,
        node_ip,
        filename,
        actor_id,
        task_id,
        pid,
        submission_id,
        attempt_number,
        suffix,
    )
    interval_s = FOLLOW_S if _interval is None else _interval
    with asking.control_of(address, timeout) as control:
        reader = log_sources.Reader(control, timeout)
        if task_id is not None:
            source = reader.task(which, tail, follow, interval_s)
        else:
            place = log_sources.locate(control, which, timeout)
            source = reader.file(place, tail, follow, interval_s)
        yield from _decoded(source, encoding, errors, filter_ansi_code)


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
