"""Asks an application without a socket between."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote


@dataclass
class Answer:
    """What an application answered."""

    status_code: int
    headers: dict[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


class AsgiClient:
    """Asks an ASGI application in an event loop of its own; a context manager.

    Args:
        app: it.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._runner = asyncio.Runner()

    def __enter__(self) -> AsgiClient:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._runner.close()

    def get(self, address: str, headers: dict[str, str] | None = None) -> Answer:
        """The answer to a GET."""
        return self._runner.run(self._ask(address, headers or {}))

    async def _ask(self, address: str, headers: dict[str, str]) -> Answer:
        path, _, query = address.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8265),
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        begin, *rest = sent
        content = b"".join(one.get("body", b"") for one in rest)
        found = {k.decode(): v.decode() for k, v in begin["headers"]}
        return Answer(begin["status"], found, content)
