"""A few questions to the control service, from a process that has no reactor (yet)."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim.adapters.wire import address as addresses
from rayshim.adapters.wire import auth
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.codec import DECODER, ENCODER

if TYPE_CHECKING:
    from rayshim.adapters.wire.tls import Credentials

#: Seconds that connecting, and each answer, may take.
LIMIT_S = 10.0


class OneShot:
    """A blocking connection; use it as a context manager.

    Args:
        address: of the control service (``tcp:...`` or ``unix:...``).
        token: the cluster's.
        limit_s: seconds for connecting and for each answer.
        credentials: for TLS; None: those of this process's environment, if any.

    Raises:
        ConnectionError: nobody answers, or not with this token.
    """

    def __init__(
        self,
        address: str,
        token: bytes,
        limit_s: float = LIMIT_S,
        credentials: Credentials | None = None,
    ) -> None:
        self._address = address
        self._count = 0
        try:
            self._sock = _connect(address, limit_s, credentials)
        except OSError as error:
            raise ConnectionError(f"no cluster answers at {address}: {error}") from None
        try:
            auth.connect(self._sock, token)
            name = f"tool:{os.getpid()}-{os.urandom(4).hex()}"
            self._send(m.Hello("tool", b"", name, os.getpid(), b""))
        except OSError as error:
            self._sock.close()
            raise ConnectionError(f"no cluster answers at {address}: {error}") from None

    def __enter__(self) -> OneShot:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._sock.close()

    def ask(self, method: str, payload: Any = None) -> Any:
        """The control service's answer.

        Raises:
            RuntimeError: the service refused; the text says why.
            ConnectionError: the connection ended.
        """
        self._count += 1
        self._send(m.Request(self._count, method, msgspec.msgpack.encode(payload)))
        while True:
            message = self._receive()
            if isinstance(message, m.Response) and message.request_id == self._count:
                answer = msgspec.msgpack.decode(message.payload)
                if message.error:
                    raise RuntimeError(f"{method}: {message.error}: {answer}")
                return answer

    def _send(self, message: Any) -> None:
        data = ENCODER.encode(message)
        self._sock.sendall(len(data).to_bytes(4, "little") + data)

    def _receive(self) -> Any:
        size = int.from_bytes(self._exactly(4), "little")
        return DECODER.decode(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                chunk = self._sock.recv(size - len(data))
            except TimeoutError:
                raise ConnectionError(
                    f"the cluster at {self._address} did not answer in time"
                ) from None
            if not chunk:
                raise ConnectionError(f"the cluster at {self._address} is gone")
            data += chunk
        return data


def _connect(
    address: str, limit_s: float, credentials: Credentials | None
) -> socket.socket:
    path = addresses.socket_path(address, "", "")
    if not path:
        host, port = addresses.parse_tcp(address)[:2]
        plain = socket.create_connection((host, port), limit_s)
        from rayshim.adapters.wire import tls

        credentials = credentials or tls.of_environment()
        return plain if credentials is None else tls.connect(plain, credentials)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(limit_s)
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock
