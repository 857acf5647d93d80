"""The process of a cluster's head: the control service, and no executors."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from rayshim.adapters.journal.journal import open_journal
from rayshim.adapters.raylet import cluster_file
from rayshim.adapters.raylet.channels import ChannelServer
from rayshim.adapters.raylet.control import ControlService
from rayshim.adapters.raylet.head_state import HeadState

if TYPE_CHECKING:
    from rayshim.adapters.http.endpoint import HttpEndpoint
    from rayshim.adapters.raylet.channels import Peer
    from rayshim.adapters.raylet.config import NodeConfig


#: Seconds in which nodes and peers may come back to a head that was restarted.
REJOIN_S = 3.0
#: Seconds between looks at who is back.
LOOK_S = 0.05


class HeadServer(ChannelServer):
    """Channels to nodes and peers, and the control service.

    Args:
        config: What the starting process said.
        on_end: Called with a reason when the process has to leave.
    """

    def __init__(self, config: NodeConfig, on_end: Callable[[str], None]) -> None:
        super().__init__(config, on_end)
        self.control = ControlService(self)
        self._handlers.update(self.control.handlers())
        settings = config.settings
        cluster = settings.get("cluster_name") or config.session
        journal = open_journal(
            settings.get("journal_url", ""), folder=config.session_dir, cluster=cluster
        )
        grace_s = float(settings.get("head_rejoin_s", REJOIN_S))
        self._state = HeadState(self.control, journal, grace_s)
        self._recovery_ends = 0.0
        self._http: HttpEndpoint | None = None

    async def start(self, *listeners: socket.socket | None) -> None:
        """Takes up the journal, serves bound sockets, and says where."""
        is_back = self._state.restore()
        self.control.keep_journal(self._state)
        self._open_http()
        cluster_file.write(self.config, self.control.http_address)
        await self.listen(*listeners)
        self.control.start()
        if is_back:
            self._recovery_ends = self.now() + self._state.grace_s
            self._look_for_all()

    async def stop(self, timeout_s: float, reason: str = "its end") -> None:
        """Listens no more; nodes and peers notice that the head is gone."""
        self.control.stop()
        self.end_events(self.control)
        if self._http is not None:
            self._http.stop()
        self.stop_listening()
        self._state.close()

    def _open_http(self) -> None:
        """Listens for HTTP, too, unless the settings say no."""
        config = self.config
        port = int(config.settings.get("http_port", 0))
        if port < 0:
            return
        from rayshim.adapters.http import endpoint

        listener = endpoint.bind(config.listen_ip, port)
        if listener is None:
            return
        more = str(config.settings.get("http_hosts", "")).split(",")
        self._http = endpoint.HttpEndpoint(
            listener,
            lambda: self.control.demand.answer(),
            token=config.token().hex(),
            hosts=[config.node_ip, *(name.strip() for name in more)],
        )
        self._http.start()
        address = endpoint.address_of(listener, config.node_ip)
        self.control.http_address = address

    def _look_for_all(self) -> None:
        """Ends the recovery when all are back, or its time is over."""
        if self._state.is_complete() or self.now() >= self._recovery_ends:
            self._state.finish()
        else:
            self.loop.call_later(LOOK_S, self._look_for_all)

    def peer_came(self, peer: Peer) -> None:
        """A peer said hello."""
        self.control.peer_came(peer)

    def peer_left(self, peer: Peer) -> None:
        """A peer's channel is at its end."""
        self.control.peer_left(peer)
