"""Pages from templates: every value is escaped, no page holds code or style.

So the policy of :data:`POLICY` can forbid both, and a task that is named like a script
stays a name, even if a template forgot about it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayshim.dashboard import texts

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request
    from starlette.responses import Response

HERE = Path(__file__).parent
#: What a page may load and do; all of it from here.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
#: Sent by the script that refreshes a page: only what changes is wanted.
PART = "x-part"
#: The pages in the order of the menu: path, name.
MENU = (
    ("/", "Overview"),
    ("/nodes", "Nodes"),
    ("/leases", "Leases"),
    ("/actors", "Actors"),
    ("/tasks", "Tasks"),
    ("/timeline", "Timeline"),
    ("/objects", "Objects"),
    ("/logs", "Logs"),
    ("/jobs", "Jobs"),
    ("/placement-groups", "Placement groups"),
    ("/charts", "Metrics"),
    ("/dask", "Dask"),
    ("/settings", "Settings"),
)


class Renderer:
    """Makes answers of templates."""

    def page(
        self,
        request: Request,
        template: str,
        values: Mapping[str, Any],
        *,
        status: int = 200,
    ) -> Response:
        """The page, or its part that changes; 204 if that did not change.

        Args:
            request: that is answered.
            template: name of a file.
            values: for it.
            status: of the answer.
        """
        from starlette.responses import Response

        is_part = PART in request.headers
        body = (
            environment()
            .get_template(template)
            .render(
                {
                    "layout": "part.html" if is_part else "layout.html",
                    "menu": MENU,
                    "path": request.url.path,
                    "address": _address(request),
                    **values,
                }
            )
        )
        content = body.encode("utf-8", "backslashreplace")
        headers = dict(HEADERS)
        if is_part:
            mark = hashlib.blake2b(content, digest_size=12).hexdigest()
            if status == 200 and request.headers[PART] == mark:
                return Response(status_code=204, headers=headers)
            headers[PART] = mark
        return Response(content, status, headers, "text/html; charset=utf-8")


def _address(request: Request) -> str:
    path, query = request.url.path, request.url.query
    return f"{path}?{query}" if query else path


@functools.cache
def environment() -> Environment:
    """The templates with their filters; compiled at their first use.

    Raises:
        ImportError: Jinja2 is missing.
    """
    from jinja2 import Environment, FileSystemLoader

    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(texts.FILTERS)
    made.globals["percent"] = texts.percent
    return made
