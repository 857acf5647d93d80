"""Reads the logs of jobs, wherever their nodes are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rayshim._core import asking
from rayshim.adapters.raylet.log_reading import MAX_PIECE_BYTES, LogPiece, ReadLog
from rayshim.jobs.records import Ask, Record

#: Seconds that a node may take for one piece.
LIMIT_S = 10.0
#: Bytes of a log that are given as one text: its end.
MAX_TEXT_BYTES = 64 << 20


class _Control:
    def __init__(self, ask: Ask) -> None:
        self.ask: Any = ask


def read_piece(ask: Ask, record: Record, offset: int) -> bytes:
    """What a job's log has from an offset on, at most a mebibyte; empty at its end.

    Raises:
        ConnectionError: its node does not answer, or is dead, and the log with it.
    """
    node = record.info.driver_node_id
    if not node:
        return b""  # it has not begun
    return _read(ask, record, node, offset).data


def _read(ask: Ask, record: Record, node: str, offset: int) -> LogPiece:
    question = ReadLog(record.log_name, offset, MAX_PIECE_BYTES)
    heard = asking.ask(
        _Control(ask),
        "read_log",
        msgspec.msgpack.encode(question),
        node_ids=[node],
        limit_s=LIMIT_S,
    )
    if not heard.answers:
        why = (
            "; ".join(heard.silent) or f"node {node[:12]} is gone, and its logs with it"
        )
        if "FileNotFoundError" in why:
            return LogPiece()
        raise ConnectionError(
            f"the log of job {record.submission_id} cannot be read: {why}"
        )
    return msgspec.msgpack.decode(heard.answers[0].payload, type=LogPiece)


def pieces(ask: Ask, record: Record) -> Iterator[bytes]:
    """The log as it is now, piece by piece; of a very long one its end."""
    node = record.info.driver_node_id
    if not node:
        return
    piece = _read(ask, record, node, 0)
    offset = len(piece.data)
    if piece.size_bytes > MAX_TEXT_BYTES:
        offset = piece.size_bytes - MAX_TEXT_BYTES
    else:
        yield piece.data
    while data := read_piece(ask, record, offset):
        offset += len(data)
        yield data
