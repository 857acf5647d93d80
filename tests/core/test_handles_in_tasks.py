"""A handle may be used by a task before the control service knows the actor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rayshim as ray
from live_session import Keeper, start

pytestmark = pytest.mark.slow


@pytest.fixture
def session() -> Iterator[None]:
    start(2)
    yield
    ray.shutdown()


def test_first_call_of_a_new_actor_comes_from_a_task(session: None) -> None:
    @ray.remote(num_cpus=0)
    def use(keeper: Any) -> Any:
        return ray.get(keeper.give.remote())

    # What the owner and the executor say comes on two channels, in any order.
    for _ in range(40):
        assert ray.get(use.remote(Keeper.remote()), timeout=20) is None
