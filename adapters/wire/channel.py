"""One authenticated connection, and what waits to be sent on it."""

from __future__ import annotations

import hmac
import socket
from typing import TYPE_CHECKING, Any

from rayshim.adapters.wire import auth
from rayshim.adapters.wire.codec import ENCODER

if TYPE_CHECKING:
    from rayshim.adapters.wire.reactor import Reactor
    from rayshim.adapters.wire.tls import TlsStream

    #: What a channel reads and writes.
    Stream = socket.socket | TlsStream
else:
    Stream = socket.socket

#: Phases of a channel: the client waits for the challenge, then for the proof; the
#: server for the answer; then frames flow.
CHALLENGE, PROOF, ANSWER, OPEN = range(4)
#: Small messages that nobody waits for are gathered for this long.
FLUSH_S = 0.0005


class Channel:
    """One authenticated, ordered connection to another process.

    ``send`` never blocks: what the socket does not take waits in a buffer, so that
    two peers that write to each other cannot lock each other up.
    """

    __slots__ = (
        "_flush_armed",
        "_incoming",
        "_outgoing",
        "_phase",
        "_proof",
        "_queued",
        "_reactor",
        "_sent",
        "address",
        "closed",
        "context",
        "fd",
        "known",
        "role",
        "sock",
        "worker_id",
    )

    def __init__(self, reactor: Reactor, sock: Stream, address: str) -> None:
        self._reactor = reactor
        self.sock = sock
        self.fd = sock.fileno()
        #: Address of the other process; empty until its Hello.
        self.address = address
        self.role = ""
        self.worker_id = b""
        #: Whatever the peer keeps for this channel.
        self.context: Any = None
        #: Function keys that the other side has.
        self.known: set[bytes] = set()
        self.closed = False
        self._flush_armed = False
        self._incoming = b""
        self._outgoing = bytearray()
        self._queued = bytearray()
        self._phase = CHALLENGE
        self._proof = b""
        self._sent = b""

    def __repr__(self) -> str:
        return f"Channel({self.role or '?'} {self.address or '?'})"

    def queue(self, message: Any) -> None:
        """Encode a message for the next :meth:`flush` (under the lock)."""
        data = ENCODER.encode(message)
        self._queued += len(data).to_bytes(4, "little")
        self._queued += data

    def send(self, message: Any) -> None:
        """Encode and send a message, after those queued (under the lock)."""
        data = ENCODER.encode(message)
        if self._queued:
            self._queued += len(data).to_bytes(4, "little")
            self._queued += data
            self.flush()
        else:
            self._write(len(data).to_bytes(4, "little") + data)

    def flush(self) -> None:
        """Send what :meth:`queue` gathered (under the lock)."""
        if self._queued:
            data, self._queued = self._queued, bytearray()
            self._write(data)

    def _write(self, data: bytes | bytearray) -> None:
        if self.closed:
            return
        if self._outgoing or self._phase != OPEN:
            self._outgoing += data
            return
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the reader sees the end of the channel and reports it
        if sent < len(data):
            self._outgoing += memoryview(data)[sent:]
            self._reactor._watch_writable(self, True)

    def flush_soon(self) -> None:
        """Flush within a millisecond, or with the next :meth:`send`."""
        if not self._flush_armed:
            self._flush_armed = True
            self._reactor.call_later(FLUSH_S, self._flush_due)

    def _flush_due(self) -> None:
        self._flush_armed = False
        self.flush()

    def _drain(self) -> None:
        while self._outgoing:
            try:
                sent = self.sock.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:
                self._outgoing.clear()
                break
            del self._outgoing[:sent]
        self._reactor._watch_writable(self, False)

    def _shake_hands(self, token: bytes, stream: bytes) -> int:
        """Take the handshake's records off a stream; returns how many bytes."""
        if self._phase == CHALLENGE:
            if len(stream) < auth.CHALLENGE_BYTES:
                return 0
            reply, self._proof = auth.answer(token, stream[: auth.CHALLENGE_BYTES])
            self._send_record(reply)
            self._phase = PROOF
            return auth.CHALLENGE_BYTES + self._shake_hands(
                token, stream[auth.CHALLENGE_BYTES :]
            )
        if self._phase == PROOF:
            if len(stream) < auth.DIGEST_BYTES:
                return 0
            if not hmac.compare_digest(stream[: auth.DIGEST_BYTES], self._proof):
                raise auth.HandshakeError("the server does not know the token")
            self._phase = OPEN
            if self._outgoing:
                self._drain()
                if self._outgoing:
                    self._reactor._watch_writable(self, True)
            return auth.DIGEST_BYTES
        if len(stream) < auth.ANSWER_BYTES:
            return 0
        proof = auth.verify(token, self._sent, stream[: auth.ANSWER_BYTES])
        self._send_record(proof)
        self._phase = OPEN
        if self._outgoing:
            self._drain()
            if self._outgoing:
                self._reactor._watch_writable(self, True)
        return auth.ANSWER_BYTES

    def _send_record(self, record: bytes) -> None:
        try:
            self.sock.send(record)
        except OSError:
            raise auth.HandshakeError("the other side left in the handshake") from None
