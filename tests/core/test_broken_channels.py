"""Channels that break while both ends live, and grants that come twice."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rayshim as ray
from live_session import is_running, start_ready, wait_until
from rayshim import exceptions
from rayshim._core import session as sessions
from rayshim.adapters.wire import messages as m

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def shared() -> Iterator[None]:
    """A session of one CPU."""
    start_ready(1)
    yield
    ray.shutdown()


@ray.remote
def first_run_hangs(folder: str) -> str:
    marker = Path(folder) / str(os.getpid())
    is_first = not any(Path(folder).iterdir())
    marker.touch()
    while is_first:
        time.sleep(0.05)
    return "done"


def break_channel_of_running_call(folder: Path) -> int:
    """Cut the driver's connection to the executor that runs; returns its pid."""
    pid = int(wait_until(lambda: [one.name for one in folder.iterdir()])[0])
    assert sessions.session is not None
    peer: Any = sessions.session.peer
    (found,) = [pair[1] for pair in peer.tasks._slots.values()]
    found.channel.sock.shutdown(socket.SHUT_RDWR)
    return pid


def test_a_call_behind_a_broken_channel_is_run_again(tmp_path: Path) -> None:
    ref = first_run_hangs.options(max_retries=1).remote(str(tmp_path))
    pid = break_channel_of_running_call(tmp_path)

    assert ray.get(ref, timeout=30) == "done"
    assert not is_running(pid)


def test_a_call_without_retries_fails_when_its_channel_breaks(tmp_path: Path) -> None:
    ref = first_run_hangs.options(max_retries=0).remote(str(tmp_path))
    pid = break_channel_of_running_call(tmp_path)

    with pytest.raises(exceptions.WorkerCrashedError):
        ray.get(ref, timeout=30)
    assert not is_running(pid)


class Outbox:
    """Stands for a channel."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def test_a_grant_that_comes_twice_does_not_give_the_lease_back(tmp_path: Path) -> None:
    (tmp_path / "not-the-first").touch()
    assert ray.get(first_run_hangs.remote(str(tmp_path))) == "done"
    assert sessions.session is not None
    peer: Any = sessions.session.peer
    outbox: Any = Outbox()
    with peer.lock:
        ((lease_id, address),) = peer.tasks._leases.items()
        grant = m.LeaseGranted(lease_id, address, b"", 0, {"CPU": 1.0}, [])
        peer.tasks._on_granted(outbox, grant)

        assert outbox.sent == []
        assert list(peer.tasks._leases) == [lease_id]

    unknown = m.LeaseGranted(b"x" * 16, address, b"", 0, {"CPU": 1.0}, [])
    peer.tasks._on_granted(outbox, unknown)
    assert outbox.sent == [m.ReturnLease(b"x" * 16)]


@ray.remote
class Counter:
    """Counts its calls, slowly if asked to."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, seconds: float = 0.0) -> int:
        """One more."""
        self.count += 1
        count = self.count
        time.sleep(seconds)
        return count


def break_channel_of_actor(actor: Any) -> None:
    """Cut the driver's connection to an actor that runs a call."""
    assert sessions.session is not None
    peer: Any = sessions.session.peer
    client = peer.actors.clients[actor._id]
    wait_until(lambda: client.queue.inflight)
    client.channel.sock.shutdown(socket.SHUT_RDWR)


def test_an_actor_behind_a_broken_channel_is_reached_again() -> None:
    actor = Counter.remote()
    assert ray.get(actor.add.remote()) == 1
    ref = actor.add.remote(1.0)
    break_channel_of_actor(actor)

    with pytest.raises(exceptions.ActorUnavailableError, match="connection to it"):
        ray.get(ref, timeout=30)
    assert ray.get(actor.add.remote(), timeout=30) == 3


def test_a_call_of_an_actor_that_may_be_repeated_is_sent_again() -> None:
    actor = Counter.options(max_task_retries=1).remote()
    assert ray.get(actor.add.remote()) == 1
    ref = actor.add.remote(1.0)
    break_channel_of_actor(actor)

    assert ray.get(ref, timeout=30) == 3


@ray.remote(
    num_returns="streaming", max_retries=1, _generator_backpressure_num_objects=1
)
def counts(folder: str) -> Iterator[int]:
    for number in range(6):
        if number == 3 and not os.path.exists(f"{folder}/died"):
            Path(folder, "died").touch()
            time.sleep(0.2)
            os._exit(1)
        yield number


def test_a_stream_that_starts_over_does_not_wait_for_old_items(tmp_path: Path) -> None:
    found: list[int] = []
    stream = counts.remote(str(tmp_path))
    while ray.wait([stream], timeout=30)[0]:
        try:
            found.append(ray.get(next(stream)))
        except StopIteration:
            break

    assert found == list(range(6))
