"""Event files in Arrow's IPC format: full spools become these.

``calls-NNNNNN.arrow`` has what ended, ``cluster-NNNNNN.arrow`` what changed, one row
for each event; the columns are in :mod:`.records`. Any Arrow library reads them.
"""

from __future__ import annotations

import functools
import json
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from rayshim.adapters.events import records, spool

#: Kind of event -> its columns.
COLUMNS = {"calls": records.CALL_COLUMNS, "cluster": records.CLUSTER_COLUMNS}
#: Arrow's types of numbers -> those of Python's arrays.
_CODES = {"int8": "b", "int32": "i", "int64": "q", "float64": "d"}
#: Columns of few different values, which Arrow writes once.
_REPEATED = frozenset(
    (
        "name",
        "function",
        "state",
        "job_id",
        "node_id",
        "node_ip",
        "worker_id",
        "role",
        "resources",
        "env_vars",
        "error_type",
    )
)


def convert(path: Path) -> list[Path]:
    """Makes Arrow files of a spool, which goes.

    A file is renamed when it is whole, and the spool goes last: after a crash between
    the two its events are there twice, and readers drop what is double.

    Args:
        path: ``NNNNNN.spool``.

    Returns:
        The new files.
    """
    payloads: dict[str, list[bytes]] = {"calls": [], "cluster": []}
    for kind, payload in spool.read(path):
        payloads[kind].append(payload)
    made = []
    for kind, found in payloads.items():
        if found:
            is_calls = kind == "calls"
            columns = records.call_columns(found) if is_calls else _changes(found)
            target = path.with_name(f"{kind}-{path.stem}.arrow")
            _write(target, columns, COLUMNS[kind])
            made.append(target)
    path.unlink(missing_ok=True)
    return made


def _changes(payloads: Sequence[bytes]) -> dict[str, list[Any]]:
    rows = [row for payload in payloads for row in records.cluster_rows(payload)]
    return {
        name: [row.get(name, 0 if kind else "") for row in rows]
        for name, kind in records.CLUSTER_COLUMNS.items()
    }


def _write(
    path: Path, found: Mapping[str, list[Any]], columns: Mapping[str, str]
) -> None:
    import pyarrow as pa
    from pyarrow import ipc

    arrays = []
    for name, kind in columns.items():
        values = found[name]
        if name in records.JSON_COLUMNS:
            values = _as_json(values)
        column = _numbers(values, kind) if kind else _texts(values)
        arrays.append(column.dictionary_encode() if name in _REPEATED else column)
    table = pa.Table.from_arrays(arrays, names=list(columns))
    part = path.with_suffix(".part")
    options = ipc.IpcWriteOptions(compression="zstd")
    with (
        os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file,
        ipc.new_file(file, table.schema, options=options) as writer,
    ):
        writer.write_table(table)
    part.rename(path)


# pyarrow.array() would do, but imports pandas for its first list, if that is there.


def _numbers(values: Sequence[Any], kind: str) -> Any:
    """An Arrow array of a type of :data:`_CODES`."""
    import pyarrow as pa

    data = pa.py_buffer(array(_CODES[kind], values))
    return pa.Array.from_buffers(
        pa.type_for_alias(kind), len(values), [None, data], null_count=0
    )


def _texts(values: Sequence[str]) -> Any:
    """An Arrow array of texts."""
    import pyarrow as pa

    joined = "".join(values)
    sizes: Iterable[int] = map(len, values)
    if not joined.isascii():
        sizes = [len(value.encode()) for value in values]
    offsets = array("q", accumulate(sizes, initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(joined.encode())]
    texts = pa.Array.from_buffers(pa.large_string(), len(values), buffers, null_count=0)
    return texts.cast(pa.string())


def _as_json(values: Sequence[Any]) -> list[str]:
    """Values as text; one object, which many calls have in common, once."""
    texts: dict[int, str] = {}
    for value in {id(value): value for value in values}.values():
        texts[id(value)] = json.dumps(value)
    return [texts[id(value)] for value in values]


def read(path: Path) -> list[records.Row]:
    """The rows of one Arrow file."""
    import pyarrow as pa
    from pyarrow import ipc

    with pa.memory_map(str(path)) as source:
        rows: list[records.Row] = ipc.open_file(source).read_all().to_pylist()
    parse = functools.cache(json.loads)
    for name in records.JSON_COLUMNS:
        if rows and name in rows[0]:
            for row in rows:
                row[name] = parse(row[name])
    return rows
