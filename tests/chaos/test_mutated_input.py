"""Mutated handshakes, frames and tickets: no crash, no hang, nothing unpickled.

``RAYSHIM_MUTATIONS`` sets the count of inputs of each test (default 50,000).
"""

from __future__ import annotations

import os
import pickle
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import rayshim as ray
from rayshim._core import current
from rayshim.adapters.wire import auth, codec
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import node_messages as n

COUNT = int(os.environ.get("RAYSHIM_MUTATIONS", "50000"))
#: What an authenticated peer may rightly do, and what would end the session.
_ORDERS = (n.LeaveCluster, n.JobEnded, n.RelayToExecutor, m.Interrupt)


class Canary:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


@pytest.fixture
def session() -> Iterator[None]:
    """A small session."""
    ray.init(num_cpus=1, log_to_driver=False)
    yield
    ray.shutdown()


def target() -> tuple[str, bytes]:
    """Socket of the node process, and the token."""
    peer = current.require_peer()
    token = (Path(peer.session_dir) / "token").read_text()
    return peer.raylet_address.removeprefix("unix:"), bytes.fromhex(token)


def mutate(data: bytes, rand: random.Random) -> bytes:
    """Flip, cut, repeat, insert or replace."""
    out = bytearray(data)
    for _ in range(rand.randint(1, 4)):
        kind = rand.randrange(6)
        place = rand.randrange(len(out) + 1)
        if kind == 0 and out:
            out[rand.randrange(len(out))] ^= 1 << rand.randrange(8)
        elif kind == 1:
            del out[place:]
        elif kind == 2:
            out[place:place] = rand.randbytes(rand.randint(1, 16))
        elif kind == 3:
            end = min(len(out), place + rand.randint(1, 16))
            out[place:place] = out[place:end] * rand.randint(1, 3)
        elif kind == 4 and out:
            out[rand.randrange(len(out))] = rand.choice((0, 0x7F, 0x80, 0xC0, 0xFF))
        else:
            del out[place : place + rand.randint(1, 8)]
    return bytes(out)


def connect(path: str) -> socket.socket:
    """A connection that does not wait for ever."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(path)
    return sock


def samples(canary: bytes) -> list[bytes]:
    """One encoded message of each type that a peer may send, with a canary inside."""
    texts: dict[type, Any] = {
        bytes: canary,
        str: "unix:/nowhere",
        int: 7,
        float: 1.0,
        bool: True,
    }
    out = []
    for kind in codec.Message.__args__:  # type: ignore[attr-defined]
        if kind not in _ORDERS:
            out.append(codec.ENCODER.encode(_filled(kind, texts)))
    return out


def _filled(kind: Any, texts: dict[type, Any]) -> Any:
    import msgspec

    values = []
    for field in msgspec.structs.fields(kind):
        values.append(_value(field.type, texts))
    return kind(*values)


def _value(kind: Any, texts: dict[type, Any]) -> Any:
    import types
    import typing

    import msgspec

    if kind in texts:
        return texts[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _filled(kind, texts)
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is list:
        return [_value(arguments[0], texts)]
    if origin is dict:
        return {_value(arguments[0], texts): _value(arguments[1], texts)}
    if origin is tuple:
        return tuple(_value(one, texts) for one in arguments if one is not ...)
    if origin in (typing.Union, types.UnionType):
        return _value(arguments[0], texts)
    raise AssertionError(f"a field of {kind} has no sample")


@ray.remote
def echo(value: int) -> int:
    """Shows that the session lives."""
    return value


def test_mutated_handshakes(
    session: None, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    path, token = target()
    canary = pickle.dumps(Canary(tmp_path / "unpickled"))
    rand = random.Random(1)
    node = psutil.Process().children()[0]
    begun = time.monotonic()
    refused = 0
    for number in range(COUNT):
        sock = connect(path)
        try:
            challenge = _receive(sock, auth.CHALLENGE_BYTES)
            reply, proof = auth.answer(rand.randbytes(32), challenge)
            kind = number % 4
            if kind == 0:
                reply = mutate(reply, rand)
            elif kind == 1:
                reply = struct.pack("<I", len(canary)) + canary
            elif kind == 2:
                right, _ = auth.answer(token, challenge)
                reply = mutate(right, rand)
                if reply[: auth.ANSWER_BYTES] == right:
                    reply = b""
            sock.sendall(reply)
            if number % 3 == 0:
                sock.shutdown(socket.SHUT_WR)
                left = sock.recv(4096)
                refused += proof not in left and not left
        except (ConnectionError, BrokenPipeError):
            refused += 1
        finally:
            sock.close()
        if number % 5_000 == 0:
            assert ray.get(echo.remote(number), timeout=30) == number
    assert ray.get(echo.remote(1), timeout=30) == 1
    assert not (tmp_path / "unpickled").exists()
    took = time.monotonic() - begun
    figure(f"{COUNT} handshakes in {took:.0f} s; node has {node.num_fds()} descriptors")
    assert node.num_fds() < 200


def barrage(
    path: str,
    token: bytes,
    hello: Callable[[int], m.Hello],
    bases: list[bytes],
    rand: random.Random,
    count: int,
) -> tuple[int, int]:
    """Send mutated frames after right handshakes; how many, over how many channels."""
    sent = connections = 0
    while sent < count:
        sock = connect(path)
        connections += 1
        try:
            auth.connect(sock, token)
            _send(sock, codec.ENCODER.encode(hello(connections)))
            for _ in range(20):
                sent += 1
                frame = rand.choice(bases)
                if rand.random() < 0.8:
                    frame = mutate(frame, rand)
                _send(sock, frame)
        except (ConnectionError, BrokenPipeError, TimeoutError):
            pass
        finally:
            sock.close()
        if connections % 250 == 0:
            assert ray.get(echo.remote(sent), timeout=30) == sent
    assert ray.get(echo.remote(1), timeout=30) == 1
    return sent, connections


def test_mutated_frames(
    session: None, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    path, token = target()
    canary = pickle.dumps(Canary(tmp_path / "unpickled"))
    rand = random.Random(2)
    begun = time.monotonic()

    def hello(number: int) -> m.Hello:
        name = f"unix:/fuzz-{number}"
        return m.Hello("remote", rand.randbytes(28), name, 1, b"\x09\0\0\0")

    sent, connections = barrage(path, token, hello, samples(canary), rand, COUNT)
    assert not (tmp_path / "unpickled").exists()
    took = time.monotonic() - begun
    figure(f"{sent} frames over {connections} connections in {took:.0f} s")


def test_mutated_frames_to_a_driver(
    session: None, figure: Callable[[str], None]
) -> None:
    """Before the proof of the token nothing is looked at; after it, schemas hold."""
    _, token = target()
    rand = random.Random(3)
    bases = [codec.ENCODER.encode(one) for one in _to_peers()]

    def hello(number: int) -> m.Hello:
        return m.Hello("executor", rand.randbytes(28), f"unix:/f{number}", 1, b"x")

    path = current.require_peer().socket_path
    sent, _ = barrage(path, token, hello, bases, rand, COUNT // 2)
    figure(f"{sent} frames to the driver")


def _to_peers() -> list[Any]:
    some = os.urandom(28)
    value = m.Payload(m.PICKLE, pickle.dumps(1))
    return [
        m.Results([m.Result(some[:24], [value])], 0.1),
        m.Objects([some], [value]),
        m.Fetch([some]),
        m.Borrow([some]),
        m.BorrowAck([some], [1], []),
        m.Release([some], [1]),
        m.StreamItem(some[:24], 1, value),
        m.StolenTasks([some[:24]]),
        m.FreeSegments(["no-such-file"]),
        m.LeaseGranted(some[:16], "unix:/nowhere", some, 1, {"CPU": 1.0}, []),
        m.LeaseLost(some[:16], "why", 1),
        m.ObjectsLost([some], ["x"]),
        m.CopiesMade([some], "ab"),
    ]


def _send(sock: socket.socket, frame: bytes) -> None:
    sock.sendall(len(frame).to_bytes(4, "little") + frame)


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise ConnectionError("closed")
        data += chunk
    return data
