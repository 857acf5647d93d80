"""Who may ask: those who have the cluster's token, under a name that is the head's.

The token alone would not do. A page of another site, open in a browser of the head's
host, may send requests there with credentials that the browser has; its ``Origin``
tells, and its ``Host`` when the site's name was made to point at this host. Both are
checked for every request, whatever its method and path.

A browser may prove the token by a cookie instead (:mod:`.cookies`). What a request with
it may change, it changes only if its ``Origin`` says that a page of this host sent it.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayshim.adapters.http.answers import Json

if TYPE_CHECKING:
    from rayshim.adapters.http.cookies import Cookies

#: Of every answer.
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
#: Set in the scope of a request that proved the token, whose answer may take long.
KNOWN = "rayshim.known"
#: Methods that change nothing.
_SAFE = frozenset(("GET", "HEAD"))
#: Requests without proof that reach the application: those that bring it.
_Public = Collection[tuple[str, str]]


class Guard:
    """Lets requests through that prove the token.

    Args:
        app: what answers them.
        token: the cluster's, as hex.
        hosts: names (``HOST:PORT``) that the head may be called by, in lower case.
        cookies: makes and knows those of browsers; None: only the token counts.
        public: pairs of method and path that need no proof; they get it.
        on_unknown: makes the answer to a browser without proof, from the headers.
        headers: added to every answer that does not have them.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str,
        hosts: Collection[str],
        cookies: Cookies | None = None,
        public: _Public = (),
        on_unknown: Callable[[str, Headers], Response | None] | None = None,
        headers: Mapping[str, str] = HEADERS,
    ) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(hosts)
        self._cookies = cookies
        self._public = frozenset(public)
        self._on_unknown = on_unknown
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or has the app do it."""
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            # The server sends no lifespan.
            raise RuntimeError(f"unexpected {scope['type']} request")

        async def complete(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope, scope["method"])
        if refusal is None:
            scope[KNOWN] = True
            await self._app(scope, receive, complete)
        else:
            await refusal(scope, receive, complete)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        # As a change: browsers let any page open one, and always send its origin.
        if self._refusal(scope, "POST") is None:
            await self._app(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008})

    def _refusal(self, scope: Scope, method: str) -> Response | None:
        headers = Headers(scope=scope)
        if is_climbing(scope):
            return refuse(400, "this path climbs, or has bytes that no path here has")
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            return refuse(
                403,
                f"this host is not called {', '.join(hosts) or 'by an empty name'} "
                f"(but {names}); add other names to the setting http_hosts",
            )
        origins = headers.getlist("origin")
        for origin in origins:
            if _place(origin) not in self._hosts:
                return refuse(403, f"pages of {origin} may not ask this host")
        is_safe = method in _SAFE
        if (method, scope["path"]) in self._public and (is_safe or origins):
            return None
        if self._is_known(headers.getlist("authorization")):
            return None
        if self._cookies is not None and self._cookies.is_known(headers):
            if is_safe or origins:
                return None
            return refuse(
                403,
                f"a browser's {method} needs the header 'Origin' of this host; "
                "programs send 'Authorization: Bearer TOKEN'",
            )
        if self._on_unknown is not None and is_safe:
            page = self._on_unknown(scope["path"], headers)
            if page is not None:
                return page
        answer = refuse(
            401,
            "this needs the header 'Authorization: Bearer TOKEN' with the token of "
            "the cluster; `rayshim get-auth-token` on the head's host shows it",
        )
        answer.headers["www-authenticate"] = "Bearer"
        return answer

    def _is_known(self, values: list[str]) -> bool:
        if len(values) != 1:
            return False
        scheme, _, token = values[0].partition(" ")
        is_same = hmac.compare_digest(token.strip().encode(), self._token)
        return scheme.lower() == "bearer" and is_same


def is_climbing(scope: Scope) -> bool:
    """Whether a path leads upwards, or hides a separator, however it is written."""
    raw = scope.get("raw_path") or scope["path"].encode()
    path = raw.decode("latin-1")
    if re.search("%2f|%5c|%00", path, re.IGNORECASE):
        return True
    for _ in range(3):
        if "\\" in path or "\0" in path or ".." in path.split("/"):
            return True
        path = unquote(path)
    return False


def _place(origin: str) -> str:
    """``HOST:PORT`` of an origin; empty if it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def refuse(status: int, text: str) -> Json:
    """An answer that says why there is none."""
    return Json({"error": text}, status, headers=HEADERS)
