"""A session and the way to its dashboard."""

from __future__ import annotations

import http.client
import os
import re
import time
from pathlib import Path
from typing import Any

import psutil
from starlette.routing import Mount

import rayshim
from rayshim._core.clusters import Found
from rayshim.dashboard.app import routes
from rayshim.dashboard.context import DashboardContext

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


def all_paths() -> list[str]:
    """A path of every endpoint that the route tables have, and of none."""
    found = DashboardContext(Found("127.0.0.1:1", "tcp:127.0.0.1:1/head/head", b"t"))
    paths = ["/nothing-here", "/api/nothing-here"]
    for route in routes(found):
        path = str(getattr(route, "path", ""))
        path += "/style.css" if isinstance(route, Mount) else ""
        paths.append(re.sub(r"\{[^}]*\}", "something", path))
    return sorted(set(paths))


class Dashboard:
    """A dashboard of a session of this process, or of a child.

    Args:
        address: ``HOST:PORT``.
        folder: of the session.
    """

    def __init__(self, address: str, folder: str) -> None:
        self.address = address
        self.folder = Path(folder)
        self.token = (self.folder / "token").read_text().strip()
        self.port = int(self.address.rpartition(":")[2])

    def ask(
        self,
        method: str,
        path: str,
        *,
        token: str | None = "",
        body: bytes | None = None,
        **headers: str,
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, content and headers of the answer; ``token`` "": the right one."""
        if token is not None:
            headers["authorization"] = f"Bearer {token or self.token}"
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            names = {name.replace("_", "-"): one for name, one in headers.items()}
            connection.request(method, path, body=body, headers=names)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, answer.read(), found
        finally:
            connection.close()

    def process(self) -> psutil.Process | None:
        """Its process, if it runs."""
        for one in psutil.Process(os.getpid()).children(recursive=True):
            try:
                if "rayshim.dashboard.__main__" in " ".join(one.cmdline()):
                    return one
            except psutil.NoSuchProcess:
                continue
        return None


def start(**options: Any) -> Dashboard:
    """A session with a dashboard.

    Args:
        **options: of ``init``.
    """
    options = {"num_cpus": 1, "logging_level": "error", **options}
    context = rayshim.init(**options)
    return Dashboard(context.dashboard_url, context["session_dir"])


def wait_until(condition: Any, limit_s: float = 20.0) -> None:
    """Waits for a condition."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
