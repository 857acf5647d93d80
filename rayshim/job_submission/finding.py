"""Where the dashboard of a cluster is, and what proves that one may ask it."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import urlsplit

from rayshim._core import clusters

#: The dashboard's address, if the environment names it; Ray's name.
URL_VARIABLE = "RAY_API_SERVER_ADDRESS"
#: A token, as Ray's programs know it.
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
#: Seconds that a head may take to say where its dashboard is.
ASK_LIMIT_S = 10.0


class Place(NamedTuple):
    """A dashboard."""

    #: ``http://HOST:PORT``.
    url: str
    #: As hex; empty if none is known.
    token: str


def find_dashboard(address: str | None) -> Place:
    """The dashboard of an address.

    Args:
        address: ``http://HOST:PORT`` of the dashboard itself, or a cluster's address as
            ``init`` takes it; None: the session of this process, else as RAY_ADDRESS
            says, else the newest cluster of this user on this host. The environment's
            RAY_API_SERVER_ADDRESS comes before all of it.

    Raises:
        ConnectionError: there is no such cluster, or it has no dashboard.
        ValueError: the address is none.
    """
    address = os.environ.get(URL_VARIABLE) or address
    if address is None:
        own = _of_this_process()
        if own is not None:
            return own
    if address is None or address == "auto":
        address = clusters.address_from_environment() or "auto"
    if address.startswith(("http://", "https://")):
        return _at(address.rstrip("/"))
    if "://" in address and not address.startswith("ray://"):
        scheme = address.partition("://")[0]
        raise ValueError(
            f"address={address!r}: {scheme} is not known; give http://HOST:PORT of the "
            "dashboard, or HOST:PORT of the cluster"
        )
    found = clusters.find_cluster(address)
    url = found.dashboard_url or _asked(found)
    if not url:
        raise ConnectionError(
            f"the cluster at {found.address} has no dashboard, which takes jobs: start "
            "it without include_dashboard=False (setting dashboard_port)"
        )
    return Place(url, found.token.hex())


def _of_this_process() -> Place | None:
    from rayshim._core import session as sessions

    session = sessions.session
    if session is None or session.peer is None or not session.dashboard_url:
        return None
    try:
        token = (session.folder / "token").read_text().strip()
    except OSError:
        return None  # a driver without a node on its host
    return Place(f"http://{session.dashboard_url}", token)


def _at(url: str) -> Place:
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"{url!r} is no address of a dashboard: http://HOST:PORT")
    own = _of_this_process()
    if own is not None and own.url == url:
        return own
    known = os.environ.get(TOKEN_VARIABLE, "").strip()
    if parts.port is None:
        port = 443 if parts.scheme == "https" else 80
        host = parts.netloc
        place = f"{parts.scheme}://{host}:{port}"
    else:
        place = f"{parts.scheme}://{parts.netloc}"
    try:
        return Place(url, clusters.find_cluster(place).token.hex())
    except (ConnectionError, ValueError):
        return Place(url, known)  # headers or cookies may be what counts there


def _asked(found: clusters.Found) -> str:
    """Where the head of a cluster on another host says that its dashboard is."""
    from rayshim.adapters.wire.oneshot import OneShot

    with OneShot(found.head_address, found.token, ASK_LIMIT_S) as head:
        return str(head.ask("cluster_info").get("dashboard_url") or "")
