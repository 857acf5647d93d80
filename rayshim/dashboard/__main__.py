"""The process of the dashboard; ``adapters/raylet/dashboard_door.py`` starts it.

It reads one JSON object from its standard input, serves at the socket that it was
given, and ends when the pipe of the head closes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import threading
from typing import Any


def main() -> None:
    """Serves until the head ends. Does not return."""
    facts = json.loads(sys.stdin.buffer.read())
    lifeline = int(facts["lifeline_fd"])
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    logging.basicConfig(
        level=facts["settings"].get("log_level", "WARNING"),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    status = 1
    try:
        asyncio.run(_serve(facts))
        status = 0
    except BaseException:
        logging.exception("the dashboard ends")
    finally:
        # Threads may wait for a head that is gone.
        os._exit(status)


def _end_with(lifeline: int) -> None:
    """Ends this process as soon as the head's is gone."""
    try:
        while os.read(lifeline, 1):
            pass
    finally:
        os._exit(0)


async def _serve(facts: dict[str, Any]) -> None:
    from rayshim._core.clusters import Found
    from rayshim.adapters.http.app import HttpServer
    from rayshim.dashboard.app import make_app, names_of
    from rayshim.dashboard.context import DashboardContext

    listener = socket.socket(fileno=int(facts["listen_fd"]))
    settings = facts["settings"]
    found = Found(
        facts["address"],
        facts["head_address"],
        bytes.fromhex(facts["token"]),
        facts["session_dir"],
        facts["dashboard_url"],
        int(facts["pid"]),
        facts["origin"],
        int(facts["client_port"]),
    )
    more = [name.strip() for name in str(settings.get("http_hosts", "")).split(",")]
    hosts = names_of(listener, facts["node_ip"], *more)
    app = make_app(DashboardContext(found, settings), hosts, listener.getsockname()[1])
    await HttpServer(app, with_websockets=True).serve(listener)


if __name__ == "__main__":
    main()
