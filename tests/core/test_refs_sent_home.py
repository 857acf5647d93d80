"""A reference that comes back to its owner as an argument outlives its sender."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rayshim as ray
from live_session import start, wait_until
from rayshim._core import current

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    start(2)
    yield
    ray.shutdown()


@ray.remote(concurrency_groups={"side": 1})
class Owner:
    def __init__(self) -> None:
        self.seen: Any = None

    def make(self, size_bytes: int) -> list[Any]:
        return [ray.put(b"x" * size_bytes)]

    def wait_for(self, path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.01)

    def use(self, refs: list[Any]) -> None:
        try:
            self.seen = len(ray.get(refs[0]))
        except Exception as error:
            self.seen = repr(error)

    def use_value(self, value: bytes) -> None:
        self.seen = len(value)

    @ray.method(concurrency_group="side")
    def ping(self) -> None:
        pass

    @ray.method(concurrency_group="side")
    def objects(self) -> int:
        return len(current.require_peer().objects.entries)

    def report(self) -> Any:
        return self.seen


@ray.remote
class Carrier:
    def fetch(self, owner: Any, size_bytes: int) -> None:
        (self.ref,) = ray.get(owner.make.remote(size_bytes))

    def carry(self, owner: Any, nested: bool) -> int:
        argument = [self.ref] if nested else self.ref
        method = owner.use if nested else owner.use_value
        self.call = method.remote(argument)
        # It takes the same channel: when it has come, so has the call before it.
        ray.get(owner.ping.remote())
        return os.getpid()


@pytest.mark.parametrize("size_bytes", [10, 1_000_000])
@pytest.mark.parametrize("nested", [True, False])
def test_the_call_finds_it_though_its_sender_died(
    tmp_path: Path, size_bytes: int, nested: bool
) -> None:
    flag = tmp_path / "go"
    owner, carrier = Owner.remote(), Carrier.remote()
    ray.get(carrier.fetch.remote(owner, size_bytes))
    held = owner.wait_for.remote(str(flag))
    pid = ray.get(carrier.carry.remote(owner, nested))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(carrier.carry.remote(owner, nested))
    # The owner sees the end of the channel before this answer.
    ray.get(owner.ping.remote())
    flag.touch()
    ray.get(held)

    assert ray.get(owner.report.remote(), timeout=20) == size_bytes


def test_an_idle_owner_frees_what_its_last_borrower_lets_go() -> None:
    owner = Owner.remote()
    assert len(ray.get(ray.get(owner.make.remote(10))[0])) == 10

    wait_until(lambda: ray.get(owner.objects.remote()) == 0, deadline_s=5)


def test_an_idle_owner_frees_what_a_dead_borrower_had() -> None:
    owner, carrier = Owner.remote(), Carrier.remote()
    ray.get(carrier.fetch.remote(owner, 10))
    assert ray.get(owner.objects.remote()) == 1

    ray.kill(carrier)

    wait_until(lambda: ray.get(owner.objects.remote()) == 0, deadline_s=5)
