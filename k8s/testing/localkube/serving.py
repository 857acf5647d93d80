"""The ASGI application: authentication, rights, faults, answers, watches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from rayshim.k8s.testing.localkube import discovery, faults
from rayshim.k8s.testing.localkube import statuses as refuse
from rayshim.k8s.testing.localkube.answering import JSON, Answer, Answerer
from rayshim.k8s.testing.localkube.authorizing import Call, User
from rayshim.k8s.testing.localkube.requests import Request, Target
from rayshim.k8s.testing.localkube.resources import Resource
from rayshim.k8s.testing.localkube.statuses import Refusal
from rayshim.k8s.testing.localkube.watching import Watch

Object = dict[str, Any]
logger = logging.getLogger(__name__)

#: Seconds after which the server ends a watch that names no limit.
WATCH_S: Final = 1800.0
_HEALTH: Final = frozenset({"/healthz", "/livez", "/readyz"})


class Application:
    """What the server does with a connection's requests.

    Args:
        answerer: answers requests about objects.
        wanted_faults: what is to fail.
        calls: each request about objects is added to it.
        abort: cuts the connection of a client's address.
    """

    def __init__(
        self,
        answerer: Answerer,
        wanted_faults: faults.Faults,
        calls: list[Call],
        abort: Callable[[Any], None],
    ) -> None:
        self._answerer = answerer
        self._faults = wanted_faults
        self._calls = calls
        self._abort = abort
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closing = False
        #: Those that wait for writes: kind -> one flag for each watch.
        self._waiting: dict[tuple[str, str], set[asyncio.Event]] = {}
        self._hanging: set[asyncio.Event] = set()
        answerer.store.listen(self._written)

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve in this loop from now on."""
        self._is_closing = False
        self._loop = loop

    def close(self) -> None:
        """End all watches, and what hangs; called in the loop."""
        self._is_closing = True
        self._loop = None
        for flags in [*self._waiting.values(), self._hanging]:
            for flag in flags:
                flag.set()

    @property
    def watches(self) -> int:
        """How many watches there are."""
        return sum(len(flags) for flags in self._waiting.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']} is not served here: http only")
        body = await _body(receive)
        headers = {
            k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]
        }
        query = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        try:
            found = await self._answer(scope, receive, query, headers, body)
        except Refusal as refusal:
            found = Answer.json(refusal.status(), refusal.code)
            if refusal.code in (429, 503):
                found.headers["Retry-After"] = "1"
        except Exception as error:
            logger.exception("%s %s", scope["method"], scope["path"])
            made = Refusal(500, "InternalError", f"Internal error occurred: {error!r}")
            found = Answer.json(made.status(), 500)
        if isinstance(found, Watch):
            await self._stream(found, query, receive, send)
        elif found is not None:
            await _send(found, send, with_body=scope["method"] != "HEAD")

    async def _answer(
        self,
        scope: Scope,
        receive: Receive,
        query: dict[str, str],
        headers: dict[str, str],
        body: bytes,
    ) -> Answer | Watch | None:
        # As the real server, with or without a slash at the end.
        path, method = scope["path"].rstrip("/") or "/", scope["method"]
        if path in _HEALTH:
            return Answer(b"ok", content_type="text/plain")
        if path == "/version":
            return Answer.json(discovery.VERSION)
        user = self._answerer.authenticator.user(headers.get("authorization", ""))
        target = Target.of(path)
        if target is None:
            return self._document(path)
        request = Request(method, target, query, headers, body)
        call = request.call(user.name)
        self._calls.append(call)
        how = self._faults.of(call)
        if how == "drop":
            self._abort(scope["client"])
            return None
        if how == "hang":
            await self._hang(receive)
            self._abort(scope["client"])
            return None
        if how is not None:
            raise faults.refusal(how)
        self._answerer.authorizer.check(user, call)
        if request.is_apply:
            self._check_apply(request, user, call)
        return self._answerer.answer(request, user)

    def _check_apply(self, request: Request, user: User, call: Call) -> None:
        """Applying what is not there yet needs the right to create it."""
        target = request.target
        store = self._answerer.store
        resource = store.registry.get(target.group, target.resource)
        if resource is None:
            return
        namespace = target.namespace if resource.is_namespaced else ""
        if store.peek(resource, (namespace, target.name)) is None:
            fields = (call.group, call.resource, call.subresource, call.namespace)
            creating = Call(call.user, "create", *fields, call.name)
            self._calls.append(creating)
            self._answerer.authorizer.check(user, creating)

    def _document(self, path: str) -> Answer:
        kinds = list(self._answerer.store.registry)
        found: Object | None = None
        match [part for part in path.split("/") if part]:
            case ["api"]:
                found = discovery.core_versions()
            case ["apis"]:
                found = discovery.groups(kinds)
            case ["api", version]:
                found = discovery.resources(kinds, "", version)
            case ["apis", group]:
                found = discovery.group(kinds, group)
            case ["apis", group, version]:
                found = discovery.resources(kinds, group, version)
            case ["openapi", "v2"]:
                found = discovery.openapi_v2(kinds)
            case ["openapi", "v3"]:
                found = discovery.openapi_v3_index(kinds)
            case ["openapi", "v3", *place]:
                found = discovery.openapi_v3(kinds, "/".join(place))
        if found is None:
            raise refuse.not_found_path()
        return Answer.json(found)

    async def _stream(
        self, watch: Watch, query: dict[str, str], receive: Receive, send: Send
    ) -> None:
        """Send a watch's lines as they come, until its time or its client is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + (float(query.get("timeoutSeconds") or 0) or WATCH_S)
        flag = asyncio.Event()
        flags = self._waiting.setdefault(watch.resource.key, set())
        flags.add(flag)
        gone = asyncio.ensure_future(_gone(receive, flag))
        try:
            await send(_start(200, JSON, {}))
            while True:
                flag.clear()
                lines = watch.take()
                if lines:
                    await send(_part(b"".join(lines)))
                left = end - loop.time()
                if watch.is_over or gone.done() or self._is_closing or left <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await flag.wait()
            if query.get("allowWatchBookmarks") == "true" and not watch.is_over:
                await send(_part(watch.bookmark()))
            await send({"type": "http.response.body", "body": b""})
        finally:
            flags.discard(flag)
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _hang(self, receive: Receive) -> None:
        flag = asyncio.Event()
        self._hanging.add(flag)
        gone = asyncio.ensure_future(_gone(receive, flag))
        try:
            if not self._is_closing:
                await flag.wait()
        finally:
            self._hanging.discard(flag)
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    def _written(self, resource: Resource) -> None:
        """Called with each write, from any thread."""
        loop = self._loop
        if loop is None:
            return
        with contextlib.suppress(RuntimeError):  # It has just been closed.
            loop.call_soon_threadsafe(self._wake, resource.key)

    def _wake(self, key: tuple[str, str]) -> None:
        for flag in self._waiting.get(key, ()):
            flag.set()


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _gone(receive: Receive, flag: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    flag.set()


def _start(code: int, content_type: str, headers: dict[str, str]) -> Any:
    listed = {"content-type": content_type, **headers}
    return {
        "type": "http.response.start",
        "status": code,
        "headers": [(k.lower().encode(), v.encode()) for k, v in listed.items()],
    }


def _part(body: bytes) -> Any:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _send(answer: Answer, send: Send, *, with_body: bool) -> None:
    headers = {**answer.headers, "content-length": str(len(answer.body))}
    await send(_start(answer.code, answer.content_type, headers))
    body = answer.body if with_body else b""
    await send({"type": "http.response.body", "body": body})
