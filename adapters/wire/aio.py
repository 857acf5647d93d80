"""The asyncio side of the direct channels: framing, authentication, batching.

The server proves nothing and reads nothing beyond the fixed-size answer before
the other side has shown that it knows the token (:mod:`.auth`); after that each
frame is checked against the schema. A peer that sends anything else is dropped.

Writes of one loop iteration leave in one system call.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from rayshim.adapters.wire import address as addresses
from rayshim.adapters.wire import auth
from rayshim.adapters.wire.codec import DECODER, ENCODER, Message

if TYPE_CHECKING:
    from rayshim.adapters.wire.tls import Credentials

logger = logging.getLogger(__name__)

#: A longer frame is an attack or a bug: values of this size travel in segments.
MAX_FRAME_BYTES = 1 << 30
#: Seconds that a connecting side may take to prove the token.
HANDSHAKE_LIMIT_S = 10.0

MessageHandler = Callable[["Connection", Message], None]
CloseHandler = Callable[["Connection"], None]


class Connection(asyncio.Protocol):
    """One channel.

    Args:
        token: The cluster's token.
        on_message: Called with each message, in order, on the loop.
        on_close: Called once, after the last message, if the handshake succeeded.
        is_server: Which side of the handshake to play.
    """

    def __init__(
        self,
        token: bytes,
        on_message: MessageHandler,
        on_close: CloseHandler,
        *,
        is_server: bool,
    ) -> None:
        self._token = token
        self._on_message = on_message
        self._on_close = on_close
        self._is_server = is_server
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._out: list[bytes] = []
        #: Bytes of the record that the handshake waits for; 0 once it is done.
        self._awaited = auth.ANSWER_BYTES if is_server else auth.CHALLENGE_BYTES
        self._proof = b""
        self._limit: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        #: Done when the other side is proved; fails when it is not.
        self.authenticated: asyncio.Future[None] = self._loop.create_future()
        #: What the user of the connection knows about the peer.
        self.peer: Any = None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def send(self, message: Message) -> None:
        """Sends a message with the next batch; dropped if the peer is gone."""
        if self._transport is not None:
            self.send_encoded(ENCODER.encode(message))

    def send_encoded(self, data: bytes) -> None:
        """The same for a message that goes to many and was encoded once."""
        if self._transport is None:
            return
        out = self._out
        if not out:
            self._loop.call_soon(self.flush)
        out.append(len(data).to_bytes(4, "little"))
        out.append(data)

    def flush(self) -> None:
        """Writes the batch now."""
        if self._out and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def close(self) -> None:
        """Closes after what was sent is written."""
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the handshake."""
        # The streams of a socket are Transports; asyncio's signature is wider.
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            addresses.tune(sock)
        self._limit = self._loop.call_later(HANDSHAKE_LIMIT_S, self._handshake_late)
        if self._is_server:
            self._proof = auth.challenge()
            self._transport.write(self._proof)

    def data_received(self, data: bytes) -> None:
        """Splits frames and hands their messages over."""
        if self._buffer:
            data = self._buffer + data
        if self._awaited:
            rest = self._handshake(data)
            if rest is None:
                return
            data = rest
        position, end = 0, len(data)
        view = memoryview(data)
        try:
            while end - position >= 4:
                size = int.from_bytes(view[position : position + 4], "little")
                if size > MAX_FRAME_BYTES:
                    raise msgspec.DecodeError(f"a frame of {size} bytes")
                stop = position + 4 + size
                if stop > end:
                    break
                message = DECODER.decode(view[position + 4 : stop])
                position = stop
                self._on_message(self, message)
        except msgspec.DecodeError as error:
            logger.warning("dropped a peer that broke the protocol: %s", error)
            self._abort()
            return
        self._buffer = data[position:] if position else data

    def connection_lost(self, exc: Exception | None) -> None:
        """Reports the end of the peer."""
        self._transport = None
        self._out.clear()
        if self._limit is not None:
            self._limit.cancel()
        if self._awaited:
            if not self.authenticated.done():
                self.authenticated.set_exception(
                    auth.HandshakeError("the other side closed during the handshake")
                )
                # Servers do not await it; without this asyncio would complain.
                self.authenticated.exception()
            return
        self._on_close(self)

    def _handshake(self, data: bytes) -> bytes | None:
        """What follows the handshake, or None while it goes on."""
        assert self._transport is not None
        while self._awaited:
            if len(data) < self._awaited:
                self._buffer = data
                return None
            record, data = data[: self._awaited], data[self._awaited :]
            try:
                self._take(record)
            except auth.HandshakeError as error:
                logger.warning("%s", error)
                self.authenticated.set_exception(error)
                self.authenticated.exception()
                self._abort()
                return None
        self._buffer = b""
        if self._limit is not None:
            self._limit.cancel()
        self.authenticated.set_result(None)
        return data

    def _take(self, record: bytes) -> None:
        assert self._transport is not None
        if self._is_server:
            self._transport.write(auth.verify(self._token, self._proof, record))
            self._awaited = 0
        elif self._awaited == auth.CHALLENGE_BYTES:
            reply, self._proof = auth.answer(self._token, record)
            self._transport.write(reply)
            self._awaited = auth.DIGEST_BYTES
        else:
            if not hmac.compare_digest(record, self._proof):
                raise auth.HandshakeError("the server does not know the token")
            self._awaited = 0

    def _handshake_late(self) -> None:
        if self._awaited:
            self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def serve(
    sock: socket.socket,
    token: bytes,
    on_message: MessageHandler,
    on_close: CloseHandler,
    credentials: Credentials | None = None,
) -> asyncio.Server:
    """Accepts channels on a bound stream socket, unix or TCP.

    Args:
        sock: it listens from now on.
        token: the cluster's.
        on_message: see :class:`Connection`.
        on_close: see :class:`Connection`.
        credentials: for TLS on TCP.
    """
    loop = asyncio.get_running_loop()

    def factory() -> Connection:
        return Connection(token, on_message, on_close, is_server=True)

    if sock.family == socket.AF_UNIX:
        return await loop.create_unix_server(factory, sock=sock, backlog=1024)
    if credentials is None:
        return await loop.create_server(factory, sock=sock, backlog=1024)
    from rayshim.adapters.wire import tls

    return await loop.create_server(
        factory,
        sock=sock,
        backlog=1024,
        ssl=tls.server_context(credentials),
        ssl_handshake_timeout=HANDSHAKE_LIMIT_S,
    )


async def connect(
    address: str,
    token: bytes,
    on_message: MessageHandler,
    on_close: CloseHandler,
    *,
    timeout_s: float = 10.0,
    home: str = "",
    sockets_dir: str = "",
    credentials: Credentials | None = None,
) -> Connection:
    """Opens a channel and proves the token.

    Args:
        address: of the process.
        token: the cluster's.
        on_message: see :class:`Connection`.
        on_close: see :class:`Connection`.
        timeout_s: for the connection, and again for the handshake.
        home: first 8 hex digits of this process's node, whose other processes are
            reached by the unix sockets in ``sockets_dir``.
        sockets_dir: see ``home``.
        credentials: for TLS on TCP.

    Raises:
        HandshakeError: one of the sides does not know the token.
        TimeoutError: the server did not answer in time.
        OSError: nobody listens.
    """
    loop = asyncio.get_running_loop()

    def factory() -> Connection:
        return Connection(token, on_message, on_close, is_server=False)

    path = addresses.socket_path(address, home, sockets_dir)
    async with asyncio.timeout(timeout_s):
        if path:
            _, connection = await loop.create_unix_connection(factory, path)
        else:
            place = addresses.parse_tcp(address)
            options: dict[str, Any] = {}
            if credentials is not None:
                from rayshim.adapters.wire import tls

                options["ssl"] = tls.client_context(credentials)
                options["server_hostname"] = credentials.name or place.host
            _, connection = await loop.create_connection(
                factory, place.host, place.port, **options
            )
    async with asyncio.timeout(timeout_s):
        await connection.authenticated
    return connection
