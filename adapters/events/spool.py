"""The newest events of a process: a file of MessagePack records, each with its length.

Appending costs no library and no conversion, and what was appended survives the
process. A full spool becomes an Arrow file (:mod:`.arrow_files`).

A record is ``[kind, payload]``: "calls" with an ``EventBatch``, "cluster" with a list
of ``ClusterEvent``. One that was cut off by the end of its process is left out,
and so is a damaged one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

logger = logging.getLogger(__name__)

#: How spools are called.
PATTERN = "*.spool"
_LENGTH_BYTES = 4


def append(file: BinaryIO, kind: str, payload: bytes) -> int:
    """Adds one record; returns its size in bytes."""
    record = msgspec.msgpack.encode((kind, payload))
    file.write(len(record).to_bytes(_LENGTH_BYTES, "little") + record)
    return len(record) + _LENGTH_BYTES


def read(path: Path) -> Iterator[tuple[str, bytes]]:
    """The records of a spool, whether it is still written or not."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return  # it has just become an Arrow file
    position = 0
    while position + _LENGTH_BYTES <= len(data):
        size = int.from_bytes(data[position : position + _LENGTH_BYTES], "little")
        begin = position + _LENGTH_BYTES
        position = begin + size
        if position > len(data):
            return
        try:
            kind, payload = msgspec.msgpack.decode(
                data[begin:position], type=tuple[str, bytes]
            )
        except msgspec.MsgspecError as error:
            logger.warning("a damaged record of %s is left out: %s", path, error)
            continue
        yield kind, payload
