"""A browser shows the token once, and gets a cookie."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from rayshim.dashboard.context import DashboardContext

#: Requests that bring the token in another way than the guard looks for.
PUBLIC = (("GET", "/login"), ("HEAD", "/login"), ("POST", "/login"))

_STYLE = (
    "body{font:16px system-ui,sans-serif;margin:15vh auto;max-width:34rem;"
    "padding:0 1rem}input{font:inherit;width:100%;padding:.4rem;margin:.5rem 0}"
    "button{font:inherit;padding:.4rem 1rem}code{background:#8882;padding:.1rem .3rem}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<title>rayshim: who are you?</title><style>{style}</style>
<h1>rayshim</h1><p>{text}</p>
<form method="post" action="/login">
<input type="hidden" name="next" value="{next}">
<label>Token <input type="password" name="token" autocomplete="off" autofocus></label>
<button>Show the dashboard</button></form>
<p>On the head's host, <code>rayshim get-auth-token</code> shows it. A link
<code>/login?token=TOKEN</code> brings it along.</p></html>
"""
_ONWARD = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="refresh" content="0;url={next}"><title>rayshim</title>
<a href="{next}">The dashboard</a></html>
"""


def routes(context: DashboardContext) -> list[Route]:
    """``/login`` and ``/logout``."""
    token = context.found.token.hex()

    async def login(request: Request) -> Response:
        fields = parse_qs(request.url.query)
        if request.method == "POST":
            fields = parse_qs((await request.body()).decode("utf-8", "replace"))
        shown = fields.get("token", [""])[-1].strip()
        onward = safe_path(fields.get("next", ["/"])[-1])
        if not hmac.compare_digest(shown.encode(), token.encode()):
            text = "This is not the token of the cluster." if shown else ""
            return _page(onward, text)
        answer: Response = RedirectResponse(onward, 303)
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A strict cookie does not go along when another site began the journey.
            answer = HTMLResponse(_ONWARD.format(next=onward))
        request.app.state.cookies.set(answer)
        return answer

    async def logout(request: Request) -> Response:
        answer = RedirectResponse("/login", 303)
        request.app.state.cookies.remove(answer)
        return answer

    return [
        Route("/login", login, methods=["GET", "POST"]),
        Route("/logout", logout, methods=["POST"]),
    ]


def page_for_unknown(path: str, headers: Headers) -> Response | None:
    """The form, for those who see it: programs hear what they lack."""
    if "text/html" in headers.get("accept", "") and not path.startswith("/api/"):
        return _page(safe_path(path), "")
    return None


def safe_path(text: str) -> str:
    """A path of this host to go to; ``/`` for anything else.

    Example:
        >>> safe_path("/tasks"), safe_path("//evil.example/"), safe_path("\\\\x")
        ('/tasks', '/', '/')
    """
    is_own = text.startswith("/") and not text.startswith("//")
    if not is_own or "\\" in text or not text.isprintable():
        return "/"
    return quote(text, safe="/?&=%-._~")


def _page(onward: str, text: str) -> Response:
    text = text or "This dashboard runs programs: it needs the token of its cluster."
    onward = onward.replace("&", "&amp;").replace('"', "&quot;")
    page = _PAGE.format(style=_STYLE, text=text, next=onward)
    return HTMLResponse(page, 401, headers=_HEADERS)
