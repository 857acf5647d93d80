"""The routes of the pages; what each shows is in the modules by subject."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from rayshim.dashboard import (
    cluster_pages,
    job_pages,
    log_pages,
    object_pages,
    work_pages,
)
from rayshim.dashboard.reading import Context
from rayshim.dashboard.site import Page, Site

if TYPE_CHECKING:
    from starlette.routing import Route

PAGES: tuple[Page, ...] = (
    *cluster_pages.PAGES,
    *work_pages.PAGES,
    *object_pages.PAGES,
    *log_pages.PAGES,
    *job_pages.PAGES,
)
#: Context -> its site, which pages and their interface share.
_sites: WeakKeyDictionary[Context, Site] = WeakKeyDictionary()


def site_of(context: Context) -> Site:
    """The site of a context; made at the first call."""
    site = _sites.get(context)
    if site is None:
        site = _sites[context] = Site(context)
    return site


def routes(context: Context) -> list[Route]:
    """The routes of all pages.

    Args:
        context: of the dashboard's process.

    Example:
        >>> routes(context)[0].path  # doctest: +SKIP
        '/'
    """
    site = site_of(context)
    return [page.route(site) for page in PAGES]
