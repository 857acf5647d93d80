"""Pages about log files: which there are, and one of them, followed live."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rayshim.dashboard import tables
from rayshim.dashboard.figures import or_nothing
from rayshim.dashboard.reading import Missing, Reader, Unanswered
from rayshim.dashboard.site import Page, Site
from rayshim.dashboard.tables import Column

if TYPE_CHECKING:
    from starlette.requests import Request

#: Seconds that a node may take to answer.
LIMIT_S = 5.0
#: Bytes of a file's end that a page begins with.
SHOWN_BYTES = 256 << 10
#: Name of an executor's file: its id, its job, its pid.
_EXECUTOR = re.compile(r"worker-([0-9a-f]+)-([0-9a-f]+)-(\d+)\.")

LOG_COLUMNS = (
    Column("name", "File", is_searched=True),
    Column("kind", "Kind", is_choice=True),
    Column("pid", "Pid", is_number=True, is_searched=True),
    Column("label", "Process runs", is_searched=True),
    Column("node_id", "Node", is_choice=True),
    Column("size_bytes", "Size", is_number=True),
    Column("changed_ms", "Changed", is_number=True),
)


async def list_logs(
    reader: Reader, node_id: str = ""
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Files of logs, and the nodes that do not answer with why.

    Raises:
        Unanswered: the head does not answer.
    """
    import msgspec

    told = await reader.ask(
        "ask",
        {
            "method": "list_logs",
            "payload": msgspec.msgpack.encode({"pattern": "*"}),
            "node_ids": [node_id] if node_id else [],
            "limit_s": LIMIT_S,
        },
    )
    rows: list[dict[str, Any]] = []
    silent = []
    for one in told:
        if one["error"]:
            silent.append((one["node_id"], one["error"]))
            continue
        for name, size_bytes, changed_s in msgspec.msgpack.decode(one["payload"]):
            rows.append(
                {
                    "node_id": one["node_id"],
                    "name": name,
                    "shown": name,
                    "kind": _kind(name),
                    "size_bytes": size_bytes,
                    "changed_ms": changed_s * 1000,
                }
            )
    return rows, silent


def _kind(name: str) -> str:
    """The kind of a file, whether it was rotated or not.

    Example:
        >>> _kind("worker-00ff.err"), _kind("worker-00ff.out.2"), _kind("raylet.log")
        ('err', 'out', 'log')
    """
    for part in reversed(name.split(".")):
        if not part.isdigit():
            return part if "." in name else ""
    return ""


async def logs(request: Request, site: Site) -> dict[str, Any]:
    """The table of files."""
    (rows, silent), figures = await asyncio.gather(
        list_logs(site.reader), or_nothing(site.figures)
    )
    workers = {
        executor["worker_id"]: executor["label"]
        for one in figures.values()
        for executor in one.get("executors", ())
    }
    for row in rows:
        match = _EXECUTOR.match(row["name"])
        if match:
            row["pid"] = int(match[3])
            row["shown"] = row["name"].replace(match[1], f"{match[1][:12]}…", 1)
            row["label"] = workers.get(match[1], "")
    table = tables.cut(
        rows,
        LOG_COLUMNS,
        dict(request.query_params),
        path="/logs",
        sort="changed_ms",
        is_descending=True,
    )
    return {"table": table, "silent": silent}


async def read_piece(
    reader: Reader, node_id: str, name: str, **where: int
) -> dict[str, Any]:
    """A part of a file: ``data``, ``offset`` (of the next), ``size_bytes``, ``inode``.

    Args:
        reader: of the dashboard.
        node_id: hex.
        name: of the file.
        where: ``offset``, ``size_bytes``, ``inode``.

    Raises:
        Unanswered: the node, or the head, does not answer.
        Missing: there is no such file or node.
    """
    import msgspec

    told = await reader.ask(
        "ask",
        {
            "method": "read_log",
            "payload": msgspec.msgpack.encode({"name": name, **where}),
            "node_ids": [node_id],
            "limit_s": LIMIT_S,
        },
        fresh_s=0.0,
    )
    if not told:
        raise Missing(f"No node {node_id[:80]} is alive in this cluster.")
    error = told[0]["error"]
    if error.startswith(("FileNotFoundError", "ValueError")):
        raise Missing(error.partition(": ")[2])
    if error:
        raise Unanswered(f"the log {name[:200]}", error)
    fields = ("data", "offset", "size_bytes", "inode", "is_rotated")
    piece = msgspec.msgpack.decode(told[0]["payload"])
    return piece if isinstance(piece, dict) else dict(zip(fields, piece, strict=False))


async def log(request: Request, site: Site) -> dict[str, Any]:
    """The end of a file; a script asks for what comes after it."""
    node_id, name = request.path_params["node_id"], request.path_params["name"]
    # The size first: only the end of a long file is shown.
    head = await read_piece(site.reader, node_id, name, offset=0, size_bytes=0)
    begin = max(0, head["size_bytes"] - SHOWN_BYTES)
    piece = await read_piece(
        site.reader, node_id, name, offset=begin, size_bytes=SHOWN_BYTES
    )
    text = _text(piece["data"])
    if begin:
        # From the begin of a line on.
        text = text.partition("\n")[2] or text
    source = f"/logs/{quote(node_id, safe='')}/{quote(name, safe='')}/tail"
    return {
        "title": name,
        "node_id": node_id,
        "text": text,
        "offset": piece["offset"],
        "cut_bytes": begin,
        "inode": piece.get("inode", 0),
        "source": source,
    }


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\r\n", "\n")


async def tail(
    site: Site, node_id: str, name: str, query: Mapping[str, str]
) -> dict[str, Any]:
    """What a file has from an offset on, as the script wants it.

    Args:
        site: of the dashboard.
        node_id: hex.
        name: of the file.
        query: ``offset``, and ``inode`` of the file that was read before.

    Raises:
        Unanswered: the node does not answer.
        Missing: there is no such file.
    """
    piece = await read_piece(
        site.reader,
        node_id,
        name,
        offset=_whole(query.get("offset")),
        inode=_whole(query.get("inode")),
    )
    data, offset = piece["data"], piece["offset"]
    # A character that is not there as a whole waits for its rest.
    cut = _unfinished(data)
    is_end = offset >= piece["size_bytes"]
    if cut and cut < len(data):
        data, offset = data[:-cut], offset - cut
    if piece.get("is_rotated"):
        return {"text": _text(data), "offset": 0, "inode": 0, "more": False}
    return {
        "text": _text(data),
        "offset": offset,
        "inode": piece.get("inode", 0),
        "more": bool(data) and not is_end,
    }


def _unfinished(data: bytes) -> int:
    """Bytes at the end that begin a character in UTF-8 without ending it.

    Example:
        >>> _unfinished("é".encode()[:1]), _unfinished("é".encode())
        (1, 0)
    """
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
    return 0


def _whole(text: str | None) -> int:
    try:
        return min(max(0, int(text or 0)), 1 << 62)
    except ValueError:
        return 0


PAGES = (
    Page("/logs", "Logs", "logs.html", logs, 5),
    Page("/logs/{node_id}/{name}", "Log", "log.html", log, 0),
)
