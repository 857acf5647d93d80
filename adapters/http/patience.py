"""Connections that answer for themselves: few at once, and none that only waits.

A connection costs the head a descriptor, and without descriptors it would lose its
cluster. Anybody on its host can open one, before any token is asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rayshim.adapters.http.guard import KNOWN

#: Connections at once that are kept, so that those beyond the limit hear why.
MAX_OPEN = 128
#: Seconds in which a connection has to bring the next request, and take its answer.
PATIENCE_S = 5.0


class PatientProtocol(H11Protocol):
    """Uvicorn's protocol, which waits for requests for ever by itself."""

    _timer: asyncio.TimerHandle | None = None
    _seen: Any = None

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        """A connection was accepted."""
        super().connection_made(transport)
        if len(self.connections) > MAX_OPEN:
            transport.abort()
            return
        self._timer = self.loop.call_later(PATIENCE_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is at its end."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """It goes on as a web socket, if the guard lets it."""
        if self._timer is not None:
            self._timer.cancel()
        super().handle_websocket_upgrade(event)

    def _look(self) -> None:
        if self.cycle is self._seen and not self._is_answering():
            # No request came since the last look, or its answer is not taken.
            self.transport.abort()
            return
        self._seen = self.cycle
        self._timer = self.loop.call_later(PATIENCE_S, self._look)

    def _is_answering(self) -> bool:
        """Whether somebody who proved the token waits for (the rest of) an answer."""
        cycle = self.cycle
        return (
            cycle is not None
            and not cycle.response_complete
            and bool(cycle.scope.get(KNOWN))
        )
