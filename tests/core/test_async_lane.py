"""Plain generators in the event loop of an actor."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import live_session
import rayshim as ray


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    live_session.start()
    yield
    ray.shutdown()


@ray.remote
class Endless:
    async def ping(self) -> str:
        return "pong"

    async def anumbers(self) -> AsyncIterator[int]:
        while True:
            yield 1

    def numbers(self) -> Iterator[int]:
        while True:
            yield 1


@pytest.mark.parametrize("method", ["numbers", "anumbers"])
@pytest.mark.parametrize("end", ["cancel", "drop"])
def test_an_endless_generator_shares_the_loop_and_ends(method: str, end: str) -> None:
    actor: Any = Endless.remote()
    call = getattr(actor, method).options(num_returns="streaming")
    generator = call.remote()
    assert ray.get(next(generator), timeout=10) == 1
    assert ray.get(actor.ping.remote(), timeout=10) == "pong"
    if end == "cancel":
        ray.cancel(generator)
    else:
        del generator
        gc.collect()
    assert ray.get(actor.ping.remote(), timeout=10) == "pong"
