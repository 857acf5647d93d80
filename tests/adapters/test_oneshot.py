"""A question to a cluster that refuses it leaves no socket behind."""

from __future__ import annotations

import socket
import threading

import psutil
import pytest

from rayshim.adapters.wire.oneshot import OneShot


def sockets() -> int:
    return len(psutil.Process().net_connections("all"))


def test_a_refused_handshake_closes_the_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def hang_up() -> None:
            listener.accept()[0].close()

        other = threading.Thread(target=hang_up)
        before = sockets()
        other.start()
        with pytest.raises(ConnectionError, match="no cluster answers at") as caught:
            OneShot(f"tcp:127.0.0.1:{port}/head/head", b"x" * 32)
        other.join()
        # The traceback keeps the object, so that only a close frees the socket.
        assert caught.value is not None and sockets() == before


@pytest.mark.parametrize("address", ["tcp:127.0.0.1:1/head/head", "unix:/no/such"])
def test_nobody_there_is_said(address: str) -> None:
    before = sockets()
    with pytest.raises(ConnectionError, match="no cluster answers at"):
        OneShot(address, b"x" * 32)
    assert sockets() == before
