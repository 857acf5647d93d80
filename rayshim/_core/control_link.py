"""The way to the control service of a cluster, which may restart.

In a session on one node the raylet's channel leads there as well, and this is not
used. In a cluster the head may die and come back: requests without an answer and what
was said meanwhile are sent again, and the actors of this process are registered anew.
Handling them twice is handling them once: each carries an id of its sender.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel, Stream

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

#: Seconds between attempts to reach a head that is gone.
RETRY_S = 0.1


class ControlLink:
    """Sends to the control service as a channel does, across its restarts."""

    def __init__(self, peer: Peer, address: str) -> None:
        self._peer = peer
        self.address = address
        self._channel: Channel | None = None
        #: Request id -> request or registration without an answer.
        self._unanswered: dict[int, Any] = {}
        #: What is to be said when the head is back.
        self._waiting: deque[Any] = deque()
        self._lost_s = 0.0
        self._gave_up = False

    @property
    def closed(self) -> bool:
        """True while the head is gone for longer than its grace time."""
        return self._gave_up

    def open(self) -> None:
        """Connect for the first time.

        Raises:
            ConnectionError: no control service answers a driver; an executor that
                starts while the head is away goes on without it.
        """
        try:
            self._channel = self._peer.connect(self.address)
        except ConnectionError:
            if self._peer.role == "driver":
                raise
            self.lost()
            return
        self._channel.role = "control"

    def is_channel(self, channel: Channel) -> bool:
        """Whether the control service is on the other end of a channel."""
        return channel is self._channel

    def send(self, message: Any) -> None:
        """Send now, or as soon as the head is back (under the lock)."""
        self._note(message)
        if self._channel is not None:
            self._channel.send(message)

    def queue(self, message: Any) -> None:
        """Send with the next flush (under the lock)."""
        self._note(message)
        if self._channel is not None:
            self._channel.queue(message)

    def flush_soon(self) -> None:
        """See :meth:`Channel.flush_soon`."""
        if self._channel is not None:
            self._channel.flush_soon()

    def flush(self) -> None:
        """See :meth:`Channel.flush`."""
        if self._channel is not None:
            self._channel.flush()

    def _note(self, message: Any) -> None:
        if isinstance(message, m.Request | m.RegisterActor):
            if message.request_id:  # else nobody waits, and the actors say it again
                self._unanswered[message.request_id] = message
        elif self._channel is None:
            self._waiting.append(message)

    def answered(self, request_id: int) -> None:
        """A request needs no repetition any more."""
        self._unanswered.pop(request_id, None)

    def lost(self) -> None:
        """The channel is at its end: try again until the head is back."""
        self._channel = None
        self._lost_s = time.monotonic()
        self._peer.reactor.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        if not self._peer.ended and self._channel is None:
            # A thread: a host that is gone may take seconds to show it.
            threading.Thread(
                target=self._reach, name="rayshim-head", daemon=True
            ).start()

    def _reach(self) -> None:
        peer = self._peer
        sock: Stream | None = None
        with contextlib.suppress(ConnectionError):
            sock = peer.reactor.open_socket(self.address)
        with peer.lock:
            if peer.ended or self._channel is not None:
                if sock is not None:
                    sock.close()
            elif sock is not None:
                self._reached(peer.connect(self.address, sock=sock))
            else:
                if time.monotonic() - self._lost_s > peer.settings.head_grace_s:
                    self._give_up()
                peer.reactor.call_later(RETRY_S, self._try_again)

    def _give_up(self) -> None:
        """Requests wait no more; a head that comes back all the same is welcome."""
        self._gave_up = True
        self._peer.fail_requests(*self.gone())
        self._unanswered.clear()

    def gone(self) -> tuple[str, str]:
        """Name and text of the error of requests that nobody will answer."""
        away_s = time.monotonic() - self._lost_s
        return "RaySystemError", (
            f"the head of the cluster ({self.address}) is gone for {away_s:.0f} s, "
            f"longer than the setting head_grace_s "
            f"({self._peer.settings.head_grace_s:g} s); restart it on its journal, or "
            "start another cluster"
        )

    def _reached(self, channel: Channel) -> None:
        peer = self._peer
        channel.role = "control"
        self._channel = channel
        self._gave_up = False
        for message in list(self._unanswered.values()):
            channel.queue(message)
        channel.flush()
        peer.actors.control_restored()
        while self._waiting and self._channel is channel:
            channel.send(self._waiting.popleft())
