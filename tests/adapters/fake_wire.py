"""Blocking channels for tests."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from typing import Any

from rayshim.adapters.wire import auth
from rayshim.adapters.wire.address import parse_tcp
from rayshim.adapters.wire.codec import DECODER, ENCODER

TIMEOUT_S = 20.0


class Channel:
    """A proved channel; ``receive`` waits for one message."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""

    @classmethod
    def connect(cls, address: str, token: bytes) -> Channel:
        """The connecting side."""
        if address.startswith("tcp:"):
            sock = socket.create_connection(parse_tcp(address)[:2], TIMEOUT_S)
        else:
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(TIMEOUT_S)
        try:
            if not address.startswith("tcp:"):
                sock.connect(address.removeprefix("unix:"))
            auth.connect(sock, token)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    @classmethod
    def accept(cls, listener: socket.socket, token: bytes) -> Channel:
        """The listening side."""
        sock, _ = listener.accept()
        sock.settimeout(TIMEOUT_S)
        auth.accept(sock, token)
        return cls(sock)

    def fileno(self) -> int:
        """For select."""
        return self.sock.fileno()

    def close(self) -> None:
        """Closes the socket."""
        self.sock.close()

    def send(self, message: Any) -> None:
        """Sends one message now."""
        data = ENCODER.encode(message)
        self.sock.sendall(len(data).to_bytes(4, "little") + data)

    def receive(self, timeout_s: float | None = None) -> Any:
        """The next message, or None at the end of the channel."""
        self.sock.settimeout(TIMEOUT_S if timeout_s is None else timeout_s)
        while True:
            if len(self.buffer) >= 4:
                end = 4 + int.from_bytes(self.buffer[:4], "little")
                if len(self.buffer) >= end:
                    frame, self.buffer = self.buffer[4:end], self.buffer[end:]
                    return DECODER.decode(frame)
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self.buffer += data


def listen(path: str) -> socket.socket:
    """A listening unix socket."""
    listener = socket.socket(socket.AF_UNIX)
    old = os.umask(0o177)
    listener.bind(path)
    os.umask(old)
    listener.listen(16)
    return listener


def wait(things: Sequence[Any]) -> list[Any]:
    """Those that can be read, at least one."""
    for one in things:
        if isinstance(one, Channel) and one.buffer:
            return [one]
    poll = select.poll()
    by_descriptor = {one.fileno(): one for one in things}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll()]
