"""Channels on real sockets: handshake, frames, waiting threads, timers, ends."""

from __future__ import annotations

import os
import pickle
import random
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rayshim.adapters.wire import auth, codec
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.reactor import Channel, Reactor

TOKEN = b"t" * 32
DEADLINE_S = 10.0


class Recorder:
    """A handler that keeps what it gets, and may answer."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.channels: list[Channel] = []
        self.closed_channels: list[Channel] = []
        self.answer: Callable[[Channel, Any], None] | None = None

    def handle(self, channel: Channel, message: Any) -> None:
        self.got.append(message)
        if channel not in self.channels:
            self.channels.append(channel)
        if self.answer is not None:
            self.answer(channel, message)

    def closed(self, channel: Channel) -> None:
        self.closed_channels.append(channel)


class Side:
    """A reactor with its handler."""

    def __init__(self, token: bytes = TOKEN) -> None:
        self.handler = Recorder()
        self.reactor = Reactor(token, self.handler)

    def send(self, channel: Channel, message: Any) -> None:
        with self.reactor.lock:
            channel.send(message)

    def wait_for(self, done: Callable[[], Any]) -> bool:
        return self.reactor.wait(done, time.monotonic() + DEADLINE_S)


def spin(*sides: Side, until: Callable[[], Any]) -> None:
    """Let several sides in one thread read in turn until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not until():
        assert time.monotonic() < deadline, "it did not happen in time"
        for side in sides:
            side.reactor.wait(until, time.monotonic() + 0.002)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s.sock")


@pytest.fixture
def make_side() -> Iterator[Callable[..., Side]]:
    sides: list[Side] = []

    def make(*, listens: str = "", token: bytes = TOKEN, background: bool = False):
        side = Side(token)
        sides.append(side)
        if listens:
            side.reactor.listen(listens)
        if background:
            side.reactor.start("test-io")
        return side

    yield make
    for side in sides:
        side.reactor.close()


@pytest.fixture
def server(make_side: Callable[..., Side], path: str) -> Side:
    """A listening side that reads in the background."""
    return make_side(listens=path, background=True)


@pytest.fixture
def client(make_side: Callable[..., Side]) -> Side:
    """A side without a thread of its own: the test leads."""
    return make_side()


def note(text: str = "x", payload: bytes = b"") -> m.Publish:
    return m.Publish(text, payload)


def raw(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(DEADLINE_S)
    sock.connect(path)
    return sock


def frame(message: Any) -> bytes:
    data: bytes = codec.ENCODER.encode(message)
    return len(data).to_bytes(4, "little") + data


def at_end(sock: socket.socket) -> bool:
    """Whether the other side closes, whatever it sent before."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


# The handshake.


def test_a_listening_socket_is_for_its_user_alone(server: Side, path: str) -> None:
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_frames_sent_at_once_follow_the_handshake(
    server: Side, client: Side, path: str
) -> None:
    channel = client.reactor.connect(f"unix:{path}")
    client.send(channel, note("first"))
    client.send(channel, note("second"))
    server.handler.answer = lambda channel, message: channel.send(message)
    assert client.wait_for(lambda: len(client.handler.got) == 2)
    assert [message.topic for message in client.handler.got] == ["first", "second"]


def test_tcp_works_alike(server: Side, client: Side) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = listener.accept()
        with sock:
            auth.accept(sock, TOKEN)
            sock.sendall(frame(note("hello")))
            at_end(sock)

    thread = threading.Thread(target=serve)
    thread.start()
    port = listener.getsockname()[1]
    channel = client.reactor.connect(f"tcp:127.0.0.1:{port}")
    assert client.wait_for(lambda: client.handler.got)
    client.reactor.close_channel(channel)
    thread.join()
    listener.close()


def test_two_sides_may_connect_to_each_other_at_once(
    make_side: Callable[..., Side], tmp_path: Path
) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    sides = [make_side(listens=one) for one in paths]
    for side, other in zip(sides, reversed(paths), strict=True):
        side.send(side.reactor.connect(f"unix:{other}"), note(other))
    spin(*sides, until=lambda: all(side.handler.got for side in sides))
    assert [side.handler.got[0].topic for side in sides] == paths


def test_nobody_at_the_address_is_a_connection_error(client: Side, path: str) -> None:
    with pytest.raises(ConnectionError, match=path):
        client.reactor.connect(f"unix:{path}")


def test_a_server_without_the_token_is_left(
    make_side: Callable[..., Side], client: Side, path: str
) -> None:
    make_side(listens=path, token=b"other" * 8, background=True)
    channel = client.reactor.connect(f"unix:{path}")
    client.send(channel, note("secret"))
    assert client.wait_for(lambda: channel.closed)
    assert client.handler.closed_channels == [channel]


def test_a_client_without_the_token_is_refused_before_its_frames(
    make_side: Callable[..., Side], server: Side, path: str
) -> None:
    stranger = make_side(token=b"other" * 8)
    channel = stranger.reactor.connect(f"unix:{path}")
    stranger.send(channel, note("let me in"))
    assert stranger.wait_for(lambda: channel.closed)
    assert server.handler.got == []


def test_frames_behind_a_wrong_answer_are_not_decoded(
    server: Side, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    decoder = type("Decoder", (), {"decode": lambda self, data: decoded.append(data)})
    monkeypatch.setattr("rayshim.adapters.wire.reactor.DECODER", decoder())
    with raw(path) as sock:
        sock.sendall(bytes(auth.ANSWER_BYTES) + frame(note()))
        assert at_end(sock)
    assert decoded == []
    assert server.handler.got == []


@pytest.mark.parametrize("cut", [1, 31, 63])
def test_an_answer_may_arrive_in_pieces(server: Side, path: str, cut: int) -> None:
    with raw(path) as sock:
        reply, _ = auth.answer(TOKEN, sock.recv(auth.CHALLENGE_BYTES))
        everything = reply + frame(note("whole"))
        sock.sendall(everything[:cut])
        time.sleep(0.01)  # not for an event: any pause makes two reads likely
        sock.sendall(everything[cut:])
        wait_until(lambda: server.handler.got)
    assert server.handler.got[0].topic == "whole"


def test_an_end_during_the_handshake_is_quiet(server: Side, path: str) -> None:
    with raw(path) as sock:
        sock.sendall(b"abc")
    wait_until(lambda: server.handler.closed_channels)
    assert_serves(server, path)


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.001)


def assert_serves(server: Side, path: str) -> None:
    """The background thread still does its work."""
    before = len(server.handler.got)
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        sock.sendall(frame(note("alive")))
        wait_until(lambda: len(server.handler.got) > before)


# Frames.


class Bomb:
    """Whoever unpickles this leaves a trace."""

    went_off = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Bomb, "went_off", True)


def sample_frames() -> list[bytes]:
    payload = m.Payload(
        m.SEGMENT,
        b"d",
        [b"b"],
        [m.Nested(b"i", "o", 3)],
        m.Segment("n", 9, "h", "c", [0, 1]),
    )
    spec = m.TaskSpec(
        b"t" * 24, b"f", "", b"a", [b"x"], [m.Dependency(b"i", 0, "", payload)],
        [m.Nested(b"i", "o")], 1, "name", 0,
    )  # fmt: skip
    lease = m.BindLease(b"l", b"j", "ns", {"CPU": 1.0}, [0], {"A": "b"})
    return [
        codec.ENCODER.encode(message)
        for message in (
            m.Hello("driver", b"w" * 28, "unix:/x", 7, b"job1"),
            m.RegisterFunction(b"k", pickle.dumps(Bomb()), "f"),
            m.PushTasks([spec, spec]),
            m.Results([m.Result(b"t", [payload], [b"i"])], 0.5),
            m.StreamItem(b"t", 3, payload),
            m.BorrowAck([b"i"], [1], [b"u"]),
            lease,
            m.CreateActor(
                b"a" * 16, 0, lease, b"blob", "C", spec, "", 1, {"g": 2}, "o"
            ),
            m.ActorUpdate(b"a", "ALIVE", 0, "unix:/y", "", payload, 5, ""),
            m.Request(1, "kv_put", b"\x80"),
        )
    ]  # fmt: skip


def mutate(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(4)
        place = rng.randrange(len(changed)) if changed else 0
        if kind == 0 and changed:
            changed[place] = rng.randrange(256)
        elif kind == 1:
            changed[place:place] = rng.randbytes(rng.randint(1, 8))
        elif kind == 2:
            del changed[place : place + rng.randint(1, 8)]
        else:
            changed = changed[:place]
    return bytes(changed)


def is_message(data: bytes) -> bool:
    try:
        codec.DECODER.decode(data)
    except Exception:
        return False
    return True


def refuse(server: Side, path: str, data: bytes) -> None:
    """A frame that is no message ends its channel and goes no further."""
    before = len(server.handler.got)
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        sock.sendall(len(data).to_bytes(4, "little") + data)
        assert at_end(sock)
    assert len(server.handler.got) == before


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xc1",
        b"\x90",
        b"\x91\xff",
        b"\x92\xcd\xff\xff\xc0",
        b"\xdf\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x00",
        b"\x91" * 5000,
        pickle.dumps(Bomb()),
        codec.ENCODER.encode(note()) + b"\x00",
        codec.ENCODER.encode(["not a tag"]),
        codec.ENCODER.encode([14, [b"i"], ["text"], []]),
    ],
    ids=lambda data: repr(data[:8]),
)
def test_a_malformed_frame_ends_the_channel(
    server: Side, path: str, data: bytes
) -> None:
    refuse(server, path, data)
    assert_serves(server, path)


def run_mutations(server: Side, path: str, count: int, seed: int) -> None:
    rng, samples = random.Random(seed), sample_frames()
    refused = 0
    for _ in range(count):
        data = mutate(rng, rng.choice(samples))
        if not is_message(data):
            refuse(server, path, data)
            refused += 1
    assert refused > count / 4
    assert_serves(server, path)
    assert not Bomb.went_off


def test_mutated_frames_end_their_channels(server: Side, path: str) -> None:
    run_mutations(server, path, 100, 1)


@pytest.mark.slow
def test_thousands_of_mutated_frames_end_their_channels(
    server: Side, path: str
) -> None:
    run_mutations(server, path, 6000, 2)


def test_a_frame_that_is_too_long_is_refused_by_its_length(
    server: Side, path: str
) -> None:
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        sock.sendall((1 << 31).to_bytes(4, "little") + b"x")
        assert at_end(sock)
    assert_serves(server, path)


def test_a_good_frame_before_a_bad_one_is_handled(server: Side, path: str) -> None:
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        sock.sendall(frame(note("good")) + b"\x01\x00\x00\x00\xc1" + frame(note("bad")))
        assert at_end(sock)
    assert [message.topic for message in server.handler.got] == ["good"]


def test_many_frames_in_one_read_keep_their_order(server: Side, path: str) -> None:
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        sock.sendall(b"".join(frame(note(str(i))) for i in range(2000)))
        wait_until(lambda: len(server.handler.got) == 2000)
    assert [one.topic for one in server.handler.got] == [str(i) for i in range(2000)]


def test_a_frame_may_arrive_byte_by_byte(server: Side, path: str) -> None:
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        for byte in frame(note("slow")) + frame(note("er")):
            sock.sendall(bytes([byte]))
        wait_until(lambda: len(server.handler.got) == 2)
    assert [message.topic for message in server.handler.got] == ["slow", "er"]


def test_queued_messages_leave_with_the_next_send(
    server: Side, client: Side, path: str
) -> None:
    channel = client.reactor.connect(f"unix:{path}")
    with client.reactor.lock:
        channel.queue(note("1"))
        channel.queue(note("2"))
        channel.send(note("3"))
    server.handler.answer = lambda channel, message: channel.send(message)
    assert client.wait_for(lambda: len(client.handler.got) == 3)
    assert [message.topic for message in client.handler.got] == ["1", "2", "3"]


def test_queued_messages_leave_soon(server: Side, client: Side, path: str) -> None:
    channel = client.reactor.connect(f"unix:{path}")
    server.handler.answer = lambda channel, message: channel.send(message)
    with client.reactor.lock:
        channel.queue(note("1"))
        channel.flush_soon()
        channel.flush_soon()
    assert client.wait_for(lambda: client.handler.got)


def test_a_large_frame_arrives_whole(server: Side, client: Side, path: str) -> None:
    channel = client.reactor.connect(f"unix:{path}")
    payload = os.urandom(1 << 16) * 128
    client.send(channel, note("large", payload))
    client.send(channel, note("small"))
    spin(client, until=lambda: len(server.handler.got) == 2)
    assert server.handler.got[0].payload == payload


def test_full_buffers_both_ways_lock_nobody_up(
    make_side: Callable[..., Side], path: str
) -> None:
    """Each side sends far more than a socket holds before it reads anything."""
    left, right = make_side(listens=path), make_side()
    channel = right.reactor.connect(f"unix:{path}")
    right.send(channel, note("hello"))
    spin(left, right, until=lambda: left.handler.got)
    block = bytes(1 << 18)
    for _ in range(40):
        left.send(left.handler.channels[0], note("l", block))
        right.send(channel, note("r", block))
    assert left.reactor.has_unsent() and right.reactor.has_unsent()
    spin(
        left,
        right,
        until=lambda: len(left.handler.got) == 41 and len(right.handler.got) == 40,
    )
    assert not left.reactor.has_unsent() and not right.reactor.has_unsent()


def test_sending_never_blocks(server: Side, path: str) -> None:
    """The other side does not read at all."""
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        sock.sendall(frame(note()))
        wait_until(lambda: server.handler.channels)
        begun = time.monotonic()
        for _ in range(20):
            server.send(server.handler.channels[0], note("x", bytes(1 << 20)))
        assert time.monotonic() - begun < 1.0
        assert server.reactor.has_unsent()


# The end of a channel.


def test_what_was_sent_before_the_end_is_handled_first(server: Side, path: str) -> None:
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        sock.sendall(frame(note("last words")))
    wait_until(lambda: server.handler.closed_channels)
    assert [message.topic for message in server.handler.got] == ["last words"]


def test_an_end_is_told_once(server: Side, client: Side, path: str) -> None:
    channel = client.reactor.connect(f"unix:{path}")
    client.send(channel, note())
    spin(client, until=lambda: server.handler.got)
    client.reactor.close_channel(channel)
    client.reactor.close_channel(channel)
    wait_until(lambda: server.handler.closed_channels)
    assert client.handler.closed_channels == [channel]
    assert len(server.handler.closed_channels) == 1


def test_sending_on_an_ended_channel_is_ignored(
    server: Side, client: Side, path: str
) -> None:
    channel = client.reactor.connect(f"unix:{path}")
    client.reactor.close_channel(channel)
    client.send(channel, note())
    with client.reactor.lock:
        channel.queue(note())
        channel.flush()


def test_half_a_frame_at_the_end_is_dropped(server: Side, path: str) -> None:
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        sock.sendall(frame(note("cut off"))[:-1])
    wait_until(lambda: server.handler.closed_channels)
    assert server.handler.got == []


def test_closing_sends_what_is_queued(
    server: Side, make_side: Callable[..., Side], path: str
) -> None:
    side = Side()
    channel = side.reactor.connect(f"unix:{path}")
    side.send(channel, note("first"))
    spin(side, until=lambda: server.handler.got)
    with side.reactor.lock:
        channel.queue(note("farewell"))
    side.reactor.close()
    wait_until(lambda: len(server.handler.got) == 2)
    assert side.handler.closed_channels == [], "nobody is told at the very end"


# Waiting threads and timers.


def test_a_deadline_is_kept(client: Side) -> None:
    begun = time.monotonic()
    assert client.reactor.wait(lambda: False, begun + 0.03) is False
    assert 0.03 <= time.monotonic() - begun < 1.0


def test_a_past_deadline_still_looks_once(client: Side) -> None:
    assert client.reactor.wait(lambda: True, time.monotonic() - 1) is True
    assert client.reactor.wait(lambda: False, time.monotonic() - 1) is False


def test_several_threads_wait_each_for_its_own(
    server: Side, client: Side, path: str
) -> None:
    channel = client.reactor.connect(f"unix:{path}")
    server.handler.answer = lambda channel, message: channel.send(message)
    topics: set[str] = set()
    with client.reactor.lock:
        client.handler.answer = lambda channel, message: topics.add(message.topic)
    results: dict[str, int] = {}

    def ask_many(name: str) -> None:
        for i in range(30):
            topic = f"{name}{i}"
            client.send(channel, note(topic))
            assert client.wait_for(lambda topic=topic: topic in topics)
            results[name] = i + 1

    threads = [threading.Thread(target=ask_many, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert results == {"a": 30, "b": 30, "c": 30}


def test_a_follower_leads_when_the_leader_has_what_it_wants(
    server: Side, client: Side, path: str
) -> None:
    """Two threads wait; the one that reads gets its message first and leaves."""
    channel = client.reactor.connect(f"unix:{path}")
    client.send(channel, note("hello"))
    spin(client, until=lambda: server.handler.got)
    done: list[str] = []

    def wait_for(count: int) -> None:
        assert client.wait_for(lambda: len(client.handler.got) >= count)
        done.append(f"has {count}")

    threads = [threading.Thread(target=wait_for, args=(count,)) for count in (1, 2)]
    for thread in threads:
        thread.start()
    server.send(server.handler.channels[0], note("one"))
    threads[0].join(DEADLINE_S)
    assert done == ["has 1"]
    server.send(server.handler.channels[0], note("two"))
    threads[1].join(DEADLINE_S)
    assert done == ["has 1", "has 2"]


def test_a_notice_wakes_who_waits(make_side: Callable[..., Side]) -> None:
    side = make_side(background=True)
    flag: list[int] = []
    waiter = threading.Thread(target=side.wait_for, args=(lambda: flag,))
    waiter.start()
    with side.reactor.lock:
        side.reactor.call_later(0.01, lambda: flag.append(1))
    waiter.join(DEADLINE_S)
    assert not waiter.is_alive()


def test_timers_run_in_the_order_of_their_time(client: Side) -> None:
    ran: list[str] = []
    client.reactor.call_later(0.02, lambda: ran.append("late"))
    client.reactor.call_later(0.0, lambda: ran.append("first"))
    client.reactor.call_later(0.01, lambda: ran.append("second"))
    assert client.wait_for(lambda: len(ran) == 3)
    assert ran == ["first", "second", "late"]


def test_a_timer_runs_without_anybody_waiting(server: Side) -> None:
    ran = threading.Event()
    server.reactor.call_later(0.01, ran.set)
    assert ran.wait(DEADLINE_S)


def test_a_sooner_timer_wakes_the_background(server: Side) -> None:
    ran = threading.Event()
    server.reactor.call_later(60.0, lambda: None)
    time.sleep(0.005)  # lets the background thread fall asleep for the first one
    server.reactor.call_later(0.005, ran.set)
    assert ran.wait(DEADLINE_S)


def test_a_timer_may_set_a_timer(client: Side) -> None:
    ran: list[int] = []

    def again() -> None:
        ran.append(1)
        if len(ran) < 3:
            client.reactor.call_later(0.001, again)

    client.reactor.call_later(0.001, again)
    assert client.wait_for(lambda: len(ran) == 3)


def test_a_timer_that_fails_ends_nothing_else(
    server: Side, client: Side, caplog: pytest.LogCaptureFixture
) -> None:
    ran = threading.Event()
    for side in (server, client):
        side.reactor.call_later(0.0, lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    server.reactor.call_later(0.01, ran.set)
    assert ran.wait(DEADLINE_S)
    assert client.reactor.wait(lambda: False, time.monotonic() + 0.02) is False
    assert caplog.text.count("a timer failed") == 2


def test_timers_and_handlers_run_under_the_lock(
    server: Side, client: Side, path: str
) -> None:
    owned: list[bool] = []
    look = server.reactor.lock._is_owned  # type: ignore[attr-defined]
    server.handler.answer = lambda channel, message: owned.append(look())
    server.reactor.call_later(0.0, lambda: owned.append(look()))
    channel = client.reactor.connect(f"unix:{path}")
    client.send(channel, note())
    spin(client, until=lambda: len(owned) == 2)
    assert owned == [True, True]


def test_deferred_callbacks_run_outside_the_lock(
    server: Side, client: Side, path: str
) -> None:
    owned: list[bool] = []
    look = client.reactor.lock._is_owned  # type: ignore[attr-defined]
    server.handler.answer = lambda channel, message: channel.send(message)

    def handle(channel: Channel, message: Any) -> None:
        client.reactor.deferred.append(lambda: owned.append(look()))

    client.handler.answer = handle
    client.send(client.reactor.connect(f"unix:{path}"), note())
    assert client.wait_for(lambda: owned)
    assert owned == [False]


def test_an_event_loop_may_read_by_itself(
    server: Side, client: Side, path: str
) -> None:
    channel = client.reactor.connect(f"unix:{path}")
    server.handler.answer = lambda channel, message: channel.send(message)
    client.send(channel, note())
    client.reactor.hand_over()
    deadline = time.monotonic() + DEADLINE_S
    while not client.handler.got and time.monotonic() < deadline:
        client.reactor.read_now()
    assert client.handler.got


def test_closing_twice_from_a_handler_is_harmless(server: Side, path: str) -> None:
    server.handler.answer = lambda channel, _: server.reactor.close_channel(channel)
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        sock.sendall(frame(note()))
        assert at_end(sock)
    wait_until(lambda: server.handler.closed_channels)
    server.handler.answer = None
    assert_serves(server, path)


def test_a_message_that_fails_ends_its_channel_and_nothing_else(
    server: Side, client: Side, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(channel: Channel, message: Any) -> None:
        if message.topic == "bad":
            raise KeyError("no such thing")

    server.handler.answer = fail
    good = client.reactor.connect(f"unix:{path}")
    bad = client.reactor.connect(f"unix:{path}")
    client.send(good, note("one"))
    client.send(bad, note("bad"))
    assert client.wait_for(lambda: bad in client.handler.closed_channels)
    client.send(good, note("two"))
    wait_until(lambda: note("two") in server.handler.got)
    assert not good.closed
    assert "a message on it failed" in caplog.text


def test_a_wait_ends_when_the_reactor_is_closed(server: Side) -> None:
    errors: list[Exception] = []

    def wait() -> None:
        try:
            server.reactor.wait(lambda: False)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    server.reactor.close()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [type(error) for error in errors] == [ConnectionAbortedError] * 3


def test_frames_after_a_close_are_not_handled(server: Side, path: str) -> None:
    def close(channel: Channel, _: Any) -> None:
        server.reactor.close_channel(channel)

    server.handler.answer = close
    with raw(path) as sock:
        auth.connect(sock, TOKEN)
        sock.sendall(frame(note("1")) + frame(note("2")))
        assert at_end(sock)
    assert len(server.handler.got) == 1


def test_what_a_server_sends_before_the_handshake_ends_arrives(
    make_side: Any, path: str
) -> None:
    left, right = make_side(listens=path), make_side()
    right.reactor.connect(f"unix:{path}")
    spin(left, until=lambda: left.reactor._channels)
    with left.reactor.lock:
        (channel,) = left.reactor._channels.values()
        for _ in range(40):  # more than a socket holds
            channel.send(note("x", bytes(1 << 18)))
    spin(left, right, until=lambda: len(right.handler.got) == 40)
