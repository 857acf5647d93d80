"""Bodies of requests up to a limit, which depends on what is asked for."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayshim.adapters.http.guard import refuse


class BodyLimit:
    """Refuses requests whose body is larger than they may have.

    Args:
        app: what answers them.
        limit_bytes: the limit of a path.
    """

    def __init__(self, app: ASGIApp, limit_bytes: Callable[[str], int]) -> None:
        self._app = app
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or has the app do it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._limit_bytes(scope["path"])
        text = f"the body is larger than {limit} bytes"
        said = Headers(scope=scope).get("content-length", "0")
        if not said.isdigit() or int(said) > limit:
            await refuse(413, text)(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(413, text)
            return message

        await self._app(scope, counted, send)
