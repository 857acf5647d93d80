"""The REST interface of jobs, as Ray's."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import (
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

import rayshim
from rayshim.adapters.http.answers import Json
from rayshim.dashboard.context import DashboardContext
from rayshim.jobs import job_logs
from rayshim.jobs.manager import JobManager, JobRefused, NoSuchJob, as_json
from rayshim.jobs.records import Record
from rayshim.jobs.requests import JobRequest

#: Of the interface, which Ray's clients ask for.
API_VERSION = "4"
#: Seconds between looks at a log that grows.
TAIL_LOOK_S = 0.1
#: Bytes of one piece of a package on its way to the head.
PIECE_BYTES = 1 << 20
PROTOCOL = "gcs"

_Answer = Callable[[Request], Awaitable[Response]]


def routes(context: DashboardContext) -> list[BaseRoute]:
    """The routes of jobs and of the packages that they bring along.

    Args:
        context: of the cluster.
    """
    found = context.found
    manager = JobManager(
        context.ask_now,
        context.driver,
        address=found.address,
        http_address=found.dashboard_url,
    )
    context.jobs = manager
    one = "/api/jobs/{name}"
    jobs = _Jobs(manager)
    packages = _Packages(context)
    return [
        Route("/api/version", _version(context), methods=["GET"]),
        Route("/api/jobs/", jobs.submit, methods=["POST"]),
        Route("/api/jobs/", jobs.list, methods=["GET"]),
        Route(one, jobs.get, methods=["GET"]),
        Route(one, jobs.delete, methods=["DELETE"]),
        Route(f"{one}/stop", jobs.stop, methods=["POST"]),
        Route(f"{one}/logs", jobs.logs, methods=["GET"]),
        Route(f"{one}/logs/tail", jobs.tail, methods=["GET"]),
        WebSocketRoute(f"{one}/logs/tail", jobs.tail_socket),
        Route("/api/packages/{protocol}/{name}", packages.has, methods=["GET"]),
        Route("/api/packages/{protocol}/{name}", packages.put, methods=["PUT"]),
    ]


def _version(context: DashboardContext) -> _Answer:
    async def version(request: Request) -> Response:
        return Json(
            {
                "version": API_VERSION,
                "ray_version": rayshim.__version__,
                "ray_commit": rayshim.__commit__,
                "session_name": os.path.basename(context.found.session_dir),
            }
        )

    return version


class _Jobs:
    """Answers requests about jobs."""

    def __init__(self, manager: JobManager) -> None:
        self._manager = manager

    async def submit(self, request: Request) -> Response:
        try:
            wanted = JobRequest.from_json(_values(await request.body()))
            name = await asyncio.to_thread(self._manager.submit, wanted)
        except (
            TypeError,
            ValueError,
            NotImplementedError,
        ) as error:
            return _text(400, f"{error}")
        return Json({"job_id": name, "submission_id": name})

    async def list(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._manager.all)
        return Json([as_json(one) for one in found])

    async def get(self, request: Request) -> Response:
        return await self._about(
            lambda name: Json(as_json(self._manager.details(name))), request
        )

    async def delete(self, request: Request) -> Response:
        return await self._about(
            lambda name: Json({"deleted": self._manager.delete(name)}), request
        )

    async def stop(self, request: Request) -> Response:
        return await self._about(
            lambda name: Json({"stopped": self._manager.stop(name)}), request
        )

    async def logs(self, request: Request) -> Response:
        def read(name: str) -> Response:
            record = self._manager.record(name)
            data = b"".join(job_logs.pieces(self._manager.ask, record))
            return Json({"logs": data.decode("utf-8", "replace")})

        return await self._about(read, request)

    async def tail(self, request: Request) -> Response:
        """The log as it grows, until the job has ended; for HTTP clients."""
        name = request.path_params["name"]

        def find(name: str) -> Response:
            self._manager.record(name)
            return Response()

        checked = await self._about(find, request)
        if checked.status_code != 200:
            return checked
        return StreamingResponse(
            self._lines(name), media_type="text/plain; charset=utf-8"
        )

    async def tail_socket(self, socket: WebSocket) -> None:
        """The same as a web socket, as Ray's client asks for it."""
        name = socket.path_params["name"]
        try:
            await asyncio.to_thread(self._manager.record, name)
        except NoSuchJob:
            await socket.close(1008)
            return
        await socket.accept()
        try:
            async for text in self._lines(name):
                await socket.send_text(text)
            await socket.close(1000)
        except WebSocketDisconnect:
            pass  # it has seen enough

    async def _lines(self, name: str) -> AsyncIterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offset = 0
        while True:
            record, data = await asyncio.to_thread(self._piece, name, offset)
            if data:
                offset += len(data)
                text = decoder.decode(data)
                if text:
                    yield text
            elif record is None or record.info.status.is_terminal():
                return
            else:
                await asyncio.sleep(TAIL_LOOK_S)

    def _piece(self, name: str, offset: int) -> tuple[Record | None, bytes]:
        """Status before text: when it has ended, all of the text is there."""
        try:
            record = self._manager.record(name)
        except NoSuchJob:
            return None, b""  # it was deleted meanwhile
        return record, job_logs.read_piece(self._manager.ask, record, offset)

    async def _about(
        self, answer: Callable[[str], Response], request: Request
    ) -> Response:
        try:
            return await asyncio.to_thread(answer, request.path_params["name"])
        except NoSuchJob as error:
            return _text(404, str(error))
        except JobRefused as error:
            return _text(409, str(error))
        except ValueError as error:
            return _text(400, str(error))


def _values(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise ValueError(f"the body is no JSON: {error}") from None


class _Packages:
    """Answers requests about files that jobs bring along."""

    def __init__(self, context: DashboardContext) -> None:
        self._context = context

    async def has(self, request: Request) -> Response:
        try:
            size = await self._context.ask("package_size", self._name(request))
        except (ValueError, RuntimeError) as error:
            return _text(404, str(error))
        if size < 0:
            uri = f"{PROTOCOL}://{request.path_params['name']}"
            return _text(404, f"Package {uri} does not exist")
        return Response(status_code=200)

    async def put(self, request: Request) -> Response:
        try:
            name = self._name(request)["name"]
            await self._take(name, request)
        except (ValueError, RuntimeError) as error:
            return _text(400, str(error))
        return Response(status_code=200)

    async def _take(self, name: str, request: Request) -> None:
        upload, offset, held = os.urandom(8).hex(), 0, b""

        async def pass_on(data: bytes, is_last: bool) -> None:
            piece = {
                "name": name,
                "upload": upload,
                "offset": offset,
                "data": data,
                "is_last": is_last,
            }
            await self._context.ask("package_put", piece)

        async for chunk in request.stream():
            held += chunk
            while len(held) > PIECE_BYTES:
                await pass_on(held[:PIECE_BYTES], False)
                offset += PIECE_BYTES
                held = held[PIECE_BYTES:]
        await pass_on(held, True)

    def _name(self, request: Request) -> dict[str, Any]:
        if request.path_params["protocol"] != PROTOCOL:
            raise ValueError(f"packages of jobs are kept as {PROTOCOL}://NAME only")
        return {"name": request.path_params["name"]}


def _text(status: int, text: str) -> Response:
    return PlainTextResponse(text, status)
