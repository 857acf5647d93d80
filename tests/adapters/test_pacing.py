"""Passes that take long are made together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rayshim.adapters.raylet.pacing import LIGHT_S, SHARE, Pace


class Loop:
    """Keeps what is due later."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, run: Callable[[], None]) -> None:
        self.due.append((delay_s, run))


class World:
    """Passes that take as long as is said."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.now = 0.0
        self.takes_s = 0.0
        self.count = 0
        self.pace = Pace(self.loop, self.run, lambda: self.now)

    def run(self) -> None:
        self.count += 1
        self.now += self.takes_s
        self.pace()  # It causes another one, which it has seen itself.


def test_short_passes_are_made_at_once() -> None:
    world = World()
    world.takes_s = LIGHT_S / 2
    for _ in range(5):
        world.pace()
    assert (world.count, world.loop.due) == (5, [])


def test_after_a_long_pass_one_serves_all_that_came() -> None:
    world = World()
    world.takes_s = 0.1
    for _ in range(5):
        world.pace()
    assert world.count == 1
    ((delay_s, rested),) = world.loop.due
    assert 0.1 / (0.1 + delay_s) == pytest.approx(SHARE)
    world.loop.due.clear()
    rested()
    assert world.count == 2
    ((_, rested),) = world.loop.due
    rested()  # Nothing came since.
    assert world.count == 2
    world.pace()
    assert world.count == 3


def test_a_pass_that_fails_is_not_the_last() -> None:
    loop = Loop()

    def fail() -> None:
        raise ValueError

    pace = Pace(loop, fail)
    for _ in range(2):
        with pytest.raises(ValueError):
            pace()
