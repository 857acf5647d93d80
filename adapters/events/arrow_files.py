"""Event files in Arrow's IPC format: full spools become these.

``calls-NNNNNN.arrow`` has what ended, ``cluster-NNNNNN.arrow`` what changed, one row
for each event; the columns are in :mod:`.records`. Any Arrow library reads them.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayshim.adapters.events import records, spool

#: Kind of event -> its columns.
COLUMNS = {"calls": records.CALL_COLUMNS, "cluster": records.CLUSTER_COLUMNS}
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
    rows: dict[str, list[records.Row]] = {"calls": [], "cluster": []}
    for kind, payload in spool.read(path):
        read = records.call_rows if kind == "calls" else records.cluster_rows
        rows[kind] += read(payload)
    made = []
    for kind, found in rows.items():
        if found:
            target = path.with_name(f"{kind}-{path.stem}.arrow")
            _write(target, found, COLUMNS[kind])
            made.append(target)
    path.unlink(missing_ok=True)
    return made


def _write(path: Path, rows: Sequence[records.Row], columns: Mapping[str, str]) -> None:
    import pyarrow as pa
    from pyarrow import ipc

    arrays: dict[str, Any] = {}
    for name, kind in columns.items():
        values = [row.get(name) for row in rows]
        if name in records.JSON_COLUMNS:
            values = [json.dumps(value) for value in values]
        array = pa.array(values, pa.type_for_alias(kind or "string"))
        arrays[name] = array.dictionary_encode() if name in _REPEATED else array
    table = pa.table(arrays)
    part = path.with_suffix(".part")
    options = ipc.IpcWriteOptions(compression="zstd")
    with (
        os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file,
        ipc.new_file(file, table.schema, options=options) as writer,
    ):
        writer.write_table(table)
    part.rename(path)


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
