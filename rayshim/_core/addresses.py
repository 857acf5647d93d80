"""The ``address`` of ``init``: which cluster it means, if any."""

from __future__ import annotations

import os
import re
import sys

from rayshim._core import session_folders

_PLACE = re.compile(r"\[?[\w.:-]+\]?:\d+|local:s\d+-[0-9a-f]{8}")
_CLIENT_PLACE = re.compile(r"\[?[\w.:-]+\]?(:\d+)?")


def cluster_address(address: str | None, temp_dir: str | None) -> str:
    """The cluster to join, or an empty string for a session of its own.

    Args:
        address: as given to ``init``. None and "auto" take RAYSHIM_ADDRESS or
            RAY_ADDRESS if that is set, then the newest cluster of this process
            (``cluster_utils``), then that of ``rayshim start`` on this host.
        temp_dir: where sessions are, if not in the usual folder.

    Raises:
        TypeError: it is no text.
        ValueError: it has another form.
    """
    if address is not None and not isinstance(address, str):
        raise TypeError(f"address must be text, not {type(address)}")
    if address is None or address == "auto":
        named = os.environ.get("RAYSHIM_ADDRESS") or os.environ.get("RAY_ADDRESS")
        # Several may run on this host.
        address = named or _cluster_of_this_process() or address
    if address is None:
        address = _started_here(temp_dir)
    if address in (None, "", "local"):
        return ""
    if address.startswith("ray://"):
        place = address.removeprefix("ray://").rstrip("/")
        if not _CLIENT_PLACE.fullmatch(place):
            raise ValueError(
                f"Invalid address format: {address!r}; expected 'ray://host:port'"
            )
        return address
    if "://" in address:
        raise ValueError(
            f"address={address!r}: programs connect with 'host:port' or "
            "'ray://host:port'; an http address is that of the dashboard, for jobs "
            "(JobSubmissionClient, `rayshim job submit`)"
        )
    if address != "auto" and not _PLACE.fullmatch(address):
        raise ValueError(
            f"Invalid address format: {address!r}; expected 'local', 'auto', "
            "'host:port' or 'ray://host:port'"
        )
    return address


def _cluster_of_this_process() -> str | None:
    """As in Ray, ``init()`` joins a cluster that runs already; here, the own one."""
    module = sys.modules.get("rayshim.cluster_utils")
    clusters = [one.address for one in module.running] if module is not None else []
    return clusters[-1] if clusters else None


def _started_here(temp_dir: str | None) -> str | None:
    """The newest cluster of ``rayshim start`` on this host.

    Its keeper has left a note; without one, this costs a look into one folder.
    """
    try:
        root = session_folders.session_root(temp_dir)
        if not any(name.startswith("keeper-") for name in os.listdir(root)):
            return None
    except (OSError, ValueError):
        return None  # said by what starts the session
    from rayshim._core.clusters import find_started

    found = find_started(temp_dir)
    if found is not None:
        return found.address
    return None
