"""Who may ask: those who have the cluster's token, under a name that is the head's.

The token alone would not do. A page of another site, open in a browser of the head's
host, may send requests there with credentials that the browser has; its ``Origin``
tells, and its ``Host`` when the site's name was made to point at this host. Both are
checked for every request, whatever its method and path.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

#: Of every answer.
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Guard:
    """Lets requests through that prove the token.

    Args:
        app: what answers them.
        token: the cluster's, as hex.
        hosts: names (``HOST:PORT``) that the head may be called by, in lower case.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Collection[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or has the app do it."""
        if scope["type"] != "http":
            # There are no sockets; the server sends no lifespan.
            raise RuntimeError(f"unexpected {scope['type']} request")
        refusal = self._refusal(Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal(scope, receive, send)

    def _refusal(self, headers: Headers) -> JSONResponse | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            return refuse(
                403,
                f"this host is not called {', '.join(hosts) or 'by an empty name'} "
                f"(but {names}); add other names to the setting http_hosts",
            )
        for origin in headers.getlist("origin"):
            if _place(origin) not in self._hosts:
                return refuse(403, f"pages of {origin} may not ask this host")
        if not self._is_known(headers.getlist("authorization")):
            answer = refuse(
                401,
                "this needs the header 'Authorization: Bearer TOKEN' with the token of "
                "the cluster, which is in cluster.json in the head's session folder",
            )
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        return None

    def _is_known(self, values: list[str]) -> bool:
        if len(values) != 1:
            return False
        scheme, _, token = values[0].partition(" ")
        is_same = hmac.compare_digest(token.strip().encode(), self._token)
        return scheme.lower() == "bearer" and is_same


def _place(origin: str) -> str:
    """``HOST:PORT`` of an origin; empty if it is none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def refuse(status: int, text: str) -> JSONResponse:
    """An answer that says why there is none."""
    return JSONResponse({"error": text}, status, headers=HEADERS)
