"""The sessions and clusters of this user on this host, and a way to ask them.

A cluster is found by its ``cluster.json``, a session on one node by its token and the
socket of its node process; both lie in a folder that only this user can read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rayshim._core import session_folders


class Place(NamedTuple):
    """A control service that can be asked."""

    #: ``HOST:PORT`` of a cluster, else the name of the session.
    name: str
    address: str
    token: bytes


class NothingRuns(Exception):
    """There is no session or cluster to ask."""


def places(address: str, temp_dir: str | None) -> list[Place]:
    """The control services to ask, newest first.

    Args:
        address: ``HOST:PORT`` of a cluster; empty: all of this user on this host.
        temp_dir: where sessions are, if not in the usual folder.

    Raises:
        NothingRuns: there is none, or no token for it.
    """
    if address:
        from rayshim._core.attached import find

        try:
            found = find(address, temp_dir)
        except (ConnectionError, OSError, ValueError) as error:
            raise NothingRuns(str(error)) from None
        return [Place(found.address, found.head_address, found.token)]
    try:
        root = session_folders.session_root(temp_dir)
    except (OSError, ValueError) as error:
        raise NothingRuns(str(error)) from None
    folders = sorted(root.glob("s*-*"), key=_started_s, reverse=True)
    all_places = [place for folder in folders for place in _of_folder(folder)]
    if not all_places:
        raise NothingRuns(
            f"no session or cluster of this user runs on this host (looked in {root}); "
            "for a cluster on another host give --address HOST:PORT, and its token in "
            "RAYSHIM_TOKEN or RAYSHIM_TOKEN_PATH"
        )
    return all_places


def _started_s(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0  # it ends right now


def _of_folder(folder: Path) -> Iterator[Place]:
    try:
        if (folder / "cluster.json").exists():
            facts = json.loads((folder / "cluster.json").read_text())
            if os.path.exists(f"/proc/{facts['pid']}"):
                token = bytes.fromhex(facts["token"])
                yield Place(facts["address"], facts["head_address"], token)
            return
        token = bytes.fromhex((folder / "token").read_text().strip())
        for path in folder.glob("sockets/node-*.sock"):
            yield Place(folder.name, f"unix:{path}", token)
    except (OSError, ValueError, KeyError):
        return  # it ends or starts right now
