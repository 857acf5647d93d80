"""What it costs to see that nobody has to be asked for a lease."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rayshim.lineage import asking_back
from rayshim.lineage import lease_events as ev
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import ResourceSet, to_units

CPUS = 16


class World:
    """A node whose CPUs are held by classes of different shapes, and many that wait."""

    def __init__(self, shapes: int) -> None:
        numbers = itertools.count()
        self.ids = itertools.count()
        self.machine = Raylet(
            ResourceSet(to_units({"CPU": CPUS})),
            lambda: b"w%d" % next(numbers),
            max_starting=2 * CPUS,
        )
        self.asked: list[ev.AskBack] = []
        for shape in range(shapes):
            for _ in range(4):
                self.ask(shape)

    def ask(self, shape: int) -> None:
        lease_id = b"%d" % next(self.ids)
        need = to_units({"CPU": 1 - shape / 1000})
        self.do(ev.LeaseRequested(lease_id, "a", b"job", f"f{shape}", need))

    def do(self, event: Any) -> None:
        for command in self.machine.handle(event, 0.0):
            if isinstance(command, ev.StartExecutor):
                self.do(ev.ExecutorReady(command.worker_id, "unix:w", 1))
            elif isinstance(command, ev.AskBack):
                self.asked.append(command)


def test_what_was_asked_for_is_not_gone_through_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(40)
    assert world.asked
    world.asked.clear()
    looks = []
    has_any = asking_back._has_any
    monkeypatch.setattr(
        asking_back,
        "_has_any",
        lambda lease, missing: looks.append(lease) or has_any(lease, missing),
    )
    for _ in range(10):
        world.ask(0)
    world.machine.validate()
    # Forty shapes wait, and sixteen leases are held: one look at each were 6,400.
    assert world.asked == []
    assert len(looks) <= 10 * CPUS
