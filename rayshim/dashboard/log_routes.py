"""Logs over HTTP: Ray's routes to list and read them, and a stream of events.

``/api/v0/logs`` lists, ``/api/v0/logs/file`` reads, ``/api/v0/logs/stream`` goes on
with what is written; ``/api/logs/follow`` does so as server-sent events, for browsers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.concurrency import iterate_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from rayshim.adapters.http.answers import Json
from rayshim.adapters.raylet.log_reading import LogPiece, ReadLog
from rayshim.util.state import log_sources as state
from rayshim.util.state.exception import RayStateApiException

if TYPE_CHECKING:
    from rayshim.dashboard.context import DashboardContext

#: Logs that are followed at once; each holds a connection.
MAX_FOLLOWERS = 32
#: Seconds between looks at a log that is followed; without news, ever longer.
FOLLOW_S, MAX_FOLLOW_S = 0.3, 2.0
#: Lines that are given without a number.
DEFAULT_LINES = 1000
#: Seconds that a node may take to answer.
LIMIT_S = 30.0
_TEXT = "text/plain; charset=utf-8"
_PIECE = msgspec.msgpack.Decoder(LogPiece)
_MISTAKES = (RayStateApiException, ValueError, LookupError, ConnectionError)


class _Asker:
    """The context of the dashboard, as functions of ``util.state`` ask."""

    def __init__(self, context: DashboardContext) -> None:
        self._context = context

    def ask(self, method: str, payload: Any = None) -> Any:
        """The control service's answer."""
        return self._context.ask_now(method, payload)


def routes(context: DashboardContext) -> list[BaseRoute]:
    """The routes of logs.

    Args:
        context: of the cluster.
    """
    asker = _Asker(context)
    followers = asyncio.Semaphore(MAX_FOLLOWERS)

    async def list_logs(request: Request) -> Response:
        query = request.query_params

        def call() -> dict[str, list[str]]:
            return state.grouped(
                asker,
                query.get("node_id"),
                query.get("node_ip"),
                query.get("glob") or "*",
                _number(query.get("timeout"), 30),
            )

        try:
            groups = await asyncio.to_thread(call)
        except _MISTAKES as error:
            return _failed(error)
        return Json({"result": True, "msg": "", "data": {"result": groups}})

    async def read(request: Request) -> Response:
        query = request.query_params
        is_stream = request.url.path.endswith("/stream")
        reader = state.Reader(asker, LIMIT_S)

        def begin() -> tuple[Iterator[bytes], bytes]:
            which = _which(query)
            tail = _number(query.get("lines"), DEFAULT_LINES)
            if which.task_id is not None:
                source = reader.task(which, tail, False, FOLLOW_S)
            else:
                place = state.locate(asker, which, LIMIT_S)
                source = reader.file(place, tail, False, FOLLOW_S)
            return source, next(source, b"")

        try:
            source, first = await asyncio.to_thread(begin)
        except _MISTAKES as error:
            return _failed(error)
        if is_stream and followers.locked():
            return _busy()

        async def pieces() -> AsyncIterator[bytes]:
            yield first
            async for data in iterate_in_threadpool(source):
                yield data
            if is_stream and reader.at is not None:
                async with followers:
                    async for data in _follow(context, reader.at):
                        yield data

        return StreamingResponse(pieces(), media_type=_TEXT)

    async def follow(request: Request) -> Response:
        query = request.query_params
        try:
            place = await asyncio.to_thread(state.locate, asker, _which(query), LIMIT_S)
            tail = _number(query.get("lines"), DEFAULT_LINES)
            begin = await _read(context, place, ReadLog(place.name, tail=tail))
        except _MISTAKES as error:
            return _failed(error)
        if followers.locked():
            return _busy()

        async def events() -> AsyncIterator[bytes]:
            async with followers:
                rest = b""
                yield b"retry: 1000\n\n"
                at = state.Position(place, begin.offset, begin.inode)
                pieces = _follow(context, at, begin.data)
                async for data in pieces:
                    *lines, rest = (rest + data).split(b"\n")
                    if lines:
                        yield _event([line.decode(errors="replace") for line in lines])
                    elif not data:
                        yield b": still here\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return [
        Route("/api/v0/logs", list_logs, methods=["GET"]),
        Route("/api/v0/logs/file", read, methods=["GET"]),
        Route("/api/v0/logs/stream", read, methods=["GET"]),
        Route("/api/logs/follow", follow, methods=["GET"]),
    ]


def _event(lines: list[str]) -> bytes:
    """One event: a list of lines, so that no text can end it."""
    return f"data: {json.dumps(lines)}\n\n".encode()


def _which(query: QueryParams) -> state.Which:
    """Which log a query means.

    Raises:
        ValueError: nothing, or too much, says it.
    """
    return state.Which(
        node_id=query.get("node_id"),
        node_ip=query.get("node_ip"),
        filename=query.get("filename"),
        actor_id=query.get("actor_id"),
        task_id=query.get("task_id"),
        pid=_number(query.get("pid"), None),
        submission_id=query.get("submission_id"),
        attempt_number=_number(query.get("attempt_number"), 0),
        suffix=query.get("suffix") or "out",
    )


async def _follow(
    context: DashboardContext, at: state.Position, first: bytes = b""
) -> AsyncIterator[bytes]:
    """What is written to a log from a position on; empty when nothing was."""
    if first:
        yield first
    wait_s = FOLLOW_S
    while True:
        question = ReadLog(at.place.name, at.offset, inode=at.inode)
        piece = await _read(context, at.place, question)
        if piece.data:
            wait_s = FOLLOW_S
            yield piece.data
        if piece.is_rotated:
            at = state.Position(at.place, 0, 0)
            continue
        at = state.Position(at.place, piece.offset, piece.inode)
        if not piece.data:
            yield b""  # it tells whether anybody still reads
            await asyncio.sleep(wait_s)
            wait_s = min(MAX_FOLLOW_S, 1.5 * wait_s)


async def _read(
    context: DashboardContext, place: state.LogPlace, question: ReadLog
) -> LogPiece:
    told = await context.ask(
        "ask",
        {
            "method": "read_log",
            "payload": msgspec.msgpack.encode(question),
            "node_ids": [place.node_id],
        },
    )
    if not told:
        raise RayStateApiException(f"node {place.node_id[:12]} is gone")
    if told[0]["error"]:
        raise RayStateApiException(told[0]["error"])
    return _PIECE.decode(told[0]["payload"])


def _number(text: str | None, default: Any) -> Any:
    """A whole number of a query.

    Raises:
        ValueError: it is none.
    """
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number") from None


def _failed(error: Exception) -> Response:
    status = 400 if isinstance(error, ValueError) else 404
    if isinstance(error, ConnectionError):
        status = 503
    text = str(error)
    return Json({"result": False, "msg": text, "data": {}}, status)


def _busy() -> Response:
    text = f"{MAX_FOLLOWERS} logs are followed already; close one of those pages"
    return Json({"result": False, "msg": text, "data": {}}, 503)
