"""Starts Dask when it is time, and tells who asks where it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayshim.adapters.raylet.groups import Deferred
from rayshim.adapters.wire import messages as wire

if TYPE_CHECKING:
    from rayshim.adapters.raylet.channels import ChannelServer, Peer

logger = logging.getLogger(__name__)


class EngineService:
    """Dask's scheduler and worker in the node process's loop.

    Args:
        server: The process of the control service.
        respond: ``respond(peer, request_id, value=...)`` answers a request.
    """

    def __init__(self, server: ChannelServer, respond: Callable[..., None]) -> None:
        self._server = server
        self._respond = respond
        self._task: asyncio.Task[None] | None = None
        #: Requests that wait for the address.
        self._waiters: list[tuple[Peer, int]] = []
        #: Address of the Dask scheduler once it runs.
        self.address = ""
        #: Of Dask's own dashboard; empty without one.
        self.dashboard_url = ""
        self._error = ""
        #: Called with the scheduler's lease tasks once it runs, in a head.
        self.on_tasks: Callable[[Any], None] = lambda tasks: None

    def start(self) -> None:
        """Starts Dask unless that was done."""
        if self._task is None:
            self._task = self._server.loop.create_task(self._start())

    def wait(self, peer: Peer, message: wire.Request) -> str:
        """The scheduler's address; starts Dask if need be, and answers later.

        Raises:
            ValueError: Dask could not start.
        """
        if self._error:
            raise ValueError(self._error)
        if self.address:
            return self.address
        self.start()
        self._waiters.append((peer, message.request_id))
        raise Deferred

    async def _start(self) -> None:
        from rayshim.adapters.dask.engine import start

        try:
            engine = await start(self._server.config)
            self.address, self.dashboard_url = engine.address, engine.dashboard_url
            if engine.tasks is not None:
                self.on_tasks(engine.tasks)
        except Exception as error:
            # Leases work without it: this must not end the node.
            logger.exception("Dask could not start")
            self._error = f"Dask could not start: {type(error).__name__}: {error}"
        waiters, self._waiters = self._waiters, []
        for peer, request_id in waiters:
            if self._error:
                failure = ("RuntimeError", self._error)
                self._respond(peer, request_id, error=failure)
            else:
                self._respond(peer, request_id, value=self.address)
