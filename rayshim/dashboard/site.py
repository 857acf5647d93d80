"""What a page is: an address, a template, and what it reads of the cluster."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rayshim.dashboard.figures import Figures
from rayshim.dashboard.reading import Context, Missing, Reader, Unanswered
from rayshim.dashboard.rendering import Renderer
from rayshim.dashboard.samples import Samples

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

logger = logging.getLogger(__name__)

#: Seconds between refreshes of a page that somebody sees.
REFRESH_S = 2


class Site:
    """What all pages share; one for each dashboard process.

    Args:
        context: of the process.
    """

    def __init__(self, context: Context) -> None:
        self.context: Any = context
        self.reader = Reader(context)
        self.figures = Figures(self.reader)
        self.samples = Samples(self.reader, self.figures)
        self.renderer = Renderer()

    def setting(self, name: str, default: Any) -> Any:
        """A setting of the head."""
        return (getattr(self.context, "settings", None) or {}).get(name, default)


#: Gives a page's values: ``title``, ``problems`` and what its template needs.
Build = Callable[["Request", Site], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    """One page.

    Args:
        path: its address, as routes are written.
        title: above it, unless its values have one.
        template: name of a file.
        build: reads what it shows.
        refresh_s: seconds between refreshes; 0: it stays as it is.
    """

    path: str
    title: str
    template: str
    build: Build
    refresh_s: float = REFRESH_S

    def route(self, site: Site) -> Route:
        """The route that answers with this page."""
        from starlette.routing import Route

        async def answer(request: Request) -> Response:
            return await self.answer(request, site)

        return Route(self.path, answer, methods=["GET"])

    async def answer(self, request: Request, site: Site) -> Response:
        """The page, or one that says what is wrong."""
        values: dict[str, Any] = {"title": self.title, "refresh_s": self.refresh_s}
        template, status = self.template, 200
        try:
            site.samples.seen()
            values.update(await site.reader.sure(lambda: self.build(request, site)))
        except Unanswered as error:
            logger.info("page %s: %s", request.url.path, error)
            template, status = "error.html", 503
            values["problems"] = [error]
            values["message"] = "The cluster does not say what belongs here."
            values["remedy"] = (
                "Its head may be gone or too busy; `rayshim status` and the log of "
                "the head say more. This page asks again by itself."
            )
        except Missing as error:
            template, status = "error.html", 404
            values["message"] = str(error)
            values["remedy"] = (
                "It may have ended and been forgotten, or be of another cluster."
            )
        return site.renderer.page(request, template, values, status=status)
