"""Finds the sessions and clusters of this user on this host, and those elsewhere.

Each session on this host has a ``cluster.json`` in its folder, which only this user can
read: the address of its control service and its token. A cluster on another host is
known by ``host:port`` and a token that the user has brought along.

Example:
    >>> find_cluster("auto")  # doctest: +SKIP
    Found(address='127.0.0.1:6379', ...)
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import NamedTuple

from rayshim._core import session_folders

#: Where the user says which cluster is meant; the first that is set counts.
ADDRESS_VARIABLES = ("RAYSHIM_ADDRESS", "RAY_ADDRESS")
#: A token that ``rayshim get-auth-token --generate`` keeps for all clusters.
USER_TOKEN = ".rayshim/auth_token"
#: Bytes of a token at least; fewer could be guessed.
MIN_TOKEN_BYTES = 16
#: Where Ray's programs connect by default (``ray://host``).
CLIENT_PORT = 10001
#: What started a session, in the order in which "auto" takes them.
RANKS = ("start", "cluster", "init")


class Found(NamedTuple):
    """A session or cluster that can be asked and joined."""

    #: ``HOST:PORT``, as users write it; ``local:SESSION`` of a session of ``init()``.
    address: str
    #: Of the process with the control service (``tcp:...`` or ``unix:...``).
    head_address: str
    token: bytes
    #: Folder of the session of that process; empty if it is on another host.
    session_dir: str = ""
    #: ``http://HOST:PORT``; empty if it is not known.
    dashboard_url: str = ""
    #: Of that process; 0 if it is on another host.
    pid: int = 0
    #: "init", "cluster" or "start" (see ``NodeConfig.origin``); empty: elsewhere.
    origin: str = ""
    #: TCP port of ``ray://``; 0: none of its own.
    client_port: int = 0

    @property
    def is_local(self) -> bool:
        """Whether it is a session on one node, which has no TCP address."""
        return self.address.startswith("local:")


def running(temp_dir: str | None = None) -> list[Found]:
    """All sessions and clusters of this user on this host, the newest first.

    Args:
        temp_dir: where sessions are, if not in the usual folder.
    """
    found: list[tuple[float, Found]] = []
    roots = session_folders.known_roots(temp_dir)
    for path in (path for root in roots for path in root.glob("*/cluster.json")):
        try:
            facts = json.loads(path.read_text())
            age = path.stat().st_mtime
            if os.path.exists(f"/proc/{facts['pid']}"):
                found.append((age, _found(facts, path.parent)))
        except (OSError, ValueError, KeyError):
            continue  # it ends or starts right now
    return [one for _, one in sorted(found, key=lambda pair: pair[0], reverse=True)]


def _found(facts: dict[str, object], folder: Path) -> Found:
    http = str(facts.get("http_address") or "")
    return Found(
        str(facts["address"]),
        str(facts["head_address"]),
        bytes.fromhex(str(facts["token"])),
        str(folder),
        str(facts.get("dashboard_url") or (f"http://{http}" if http else "")),
        int(str(facts["pid"])),
        _origin(facts.get("origin")),
        int(str(facts.get("client_port") or 0)),
    )


def _origin(told: object) -> str:
    return told if isinstance(told, str) and told in RANKS else "cluster"


def find_cluster(address: str | None = None, temp_dir: str | None = None) -> Found:
    """The session or cluster of an address.

    Args:
        address: "host:port" or "ray://host:port" of a cluster, "http://host:port" of
            its dashboard, "local:SESSION" of a session of ``init()``; "auto": the
            newest one of this user on this host, clusters of ``rayshim start`` first,
            sessions of ``init()`` last;
            None: what RAYSHIM_ADDRESS or RAY_ADDRESS says, else as "auto".
        temp_dir: where sessions are, if not in the usual folder.

    Raises:
        ConnectionError: there is none, or its token is not known here.
        ValueError: the token that the environment names is none.
    """
    if address is None or address == "auto":
        address = address_from_environment() or "auto"
    known = running(temp_dir)
    if address == "auto":
        if known:
            return min(known, key=lambda one: RANKS.index(one.origin))
        raise ConnectionError(
            "Could not find any running Ray instance (address='auto'): no session or "
            "cluster of this user runs on this host. Start one with `rayshim start "
            "--head`, or name one with RAY_ADDRESS=host:port; `init()` without an "
            "address starts a session of its own."
        )
    if address.startswith(("http://", "https://")):
        return _by_dashboard(address.rstrip("/"), known)
    place = address.removeprefix("ray://").rstrip("/")
    if address.startswith("ray://") and ":" not in place.rpartition("]")[2]:
        place = f"{place}:{CLIENT_PORT}"
    for one in known:
        if is_place_of(place, one):
            return one
    token = token_from_environment()
    if token is not None and not place.startswith("local:"):
        return Found(place, f"tcp:{place}/head/head", token)
    raise ConnectionError(
        f"address={address!r}: no cluster of this user runs there on this host. For "
        "one on another host, set RAYSHIM_TOKEN (hex) or RAYSHIM_TOKEN_PATH to its "
        "token (`rayshim get-auth-token` shows it there). " + _what_runs(known)
    )


def _what_runs(known: list[Found]) -> str:
    """For those who gave a wrong address."""
    clusters = [one.address for one in known if not one.is_local]
    if clusters:
        return f"Running on this host: {', '.join(clusters)}."
    return "No cluster runs on this host: `rayshim start --head` starts one."


def find_started(temp_dir: str | None = None) -> Found | None:
    """The newest cluster that ``rayshim start --head`` has started on this host."""
    for one in running(temp_dir):
        if one.origin == "start":
            return one
    return None


def _by_dashboard(url: str, known: list[Found]) -> Found:
    place = url.partition("://")[2]
    for one in known:
        if one.dashboard_url and _is_same_place(
            place, one.dashboard_url.partition("://")[2]
        ):
            return one
    token = token_from_environment()
    if token is None:
        raise ConnectionError(
            f"address={url!r}: no session of this user on this host has a dashboard "
            "there. For one on another host, set RAYSHIM_TOKEN (hex) or "
            "RAYSHIM_TOKEN_PATH to its token."
        )
    return Found(place, "", token, dashboard_url=url)


def address_from_environment() -> str:
    """The address that RAYSHIM_ADDRESS or RAY_ADDRESS names; empty if none does."""
    for name in ADDRESS_VARIABLES:
        if os.environ.get(name):
            return os.environ[name]
    return ""


def is_place_of(place: str, found: Found) -> bool:
    """Whether ``HOST:PORT`` or ``local:SESSION``, as users write it, means a cluster.

    Example:
        >>> is_place_of("localhost:6379", Found("127.0.0.1:6379", "", b""))
        True
    """
    if place == found.address:
        return True
    if found.is_local:
        return False
    if _is_same_place(place, found.address):
        return True
    host = found.address.rpartition(":")[0]
    return bool(found.client_port) and _is_same_place(
        place, f"{host}:{found.client_port}"
    )


def _is_same_place(asked: str, known: str) -> bool:
    """Whether two ``HOST:PORT`` are one, whichever name of the host is used."""
    if asked == known:
        return True
    host, _, port = asked.rpartition(":")
    known_host, _, known_port = known.rpartition(":")
    if port != known_port or not host:
        return False
    try:
        found = socket.getaddrinfo(host.strip("[]"), None)
    except (OSError, UnicodeError):
        return False
    return known_host.strip("[]") in {str(one[4][0]) for one in found}


def token_from_environment() -> bytes | None:
    """The token that the user has brought along, None without one.

    RAYSHIM_TOKEN holds it as hex, RAYSHIM_TOKEN_PATH names a file with it; else it is
    in ``~/.rayshim/auth_token``.

    Raises:
        ValueError: what is there is no token.
    """
    text = os.environ.get("RAYSHIM_TOKEN")
    if text:
        return parse_token(text, "RAYSHIM_TOKEN")
    path = os.environ.get("RAYSHIM_TOKEN_PATH")
    if path:
        return read_token(Path(path))
    usual = user_token_path()
    return read_token(usual) if usual.exists() else None


def user_token_path() -> Path:
    """Where a token of this user for all clusters is kept, if there is one."""
    return Path(os.path.expanduser("~")) / USER_TOKEN


def read_token(path: Path) -> bytes:
    """The token in a file.

    Raises:
        ValueError: it cannot be read, or holds none.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"the token file {path} cannot be read: {error}") from None
    return parse_token(text, str(path))


def parse_token(text: str, where: str) -> bytes:
    """A token from its hex digits.

    Args:
        text: hex digits, with white space around them.
        where: names their place in the error.

    Raises:
        ValueError: they are none, or too few to keep anybody out.
    """
    try:
        token = bytes.fromhex(text.strip())
    except ValueError:
        token = b""
    if len(token) < MIN_TOKEN_BYTES:
        raise ValueError(
            f"{where} holds no token: that is at least {2 * MIN_TOKEN_BYTES} hex "
            "digits, such as `rayshim get-auth-token --generate` makes"
        )
    return token
