"""Requests at a node that leaves, or that stays after all."""

from __future__ import annotations

import itertools
from typing import Any

from rayshim.lineage import lease_events as ev
from rayshim.lineage.leases import LeaseState
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import ResourceSet, to_units


class World:
    """A node of a cluster, all of whose CPUs are held."""

    def __init__(self) -> None:
        numbers = itertools.count()
        self.machine = Raylet(
            ResourceSet(to_units({"CPU": 1})),
            lambda: b"w%d" % next(numbers),
            is_clustered=True,
        )
        self.ask(b"holder")
        self.do(ev.ExecutorReady(b"w0", "unix:w0", 1))

    def do(self, event: Any) -> list[Any]:
        found = self.machine.handle(event, 0.0)
        self.machine.validate()
        return list(found)

    def ask(self, lease_id: bytes) -> list[Any]:
        need = to_units({"CPU": 1})
        return self.do(ev.LeaseRequested(lease_id, "a", b"job", "f", need, cargo="f"))

    def state(self, lease_id: bytes) -> LeaseState:
        return self.machine.leases[lease_id].state


def test_what_waits_at_a_leaving_node_is_left_to_the_control_service() -> None:
    world = World()
    assert ev.AskElsewhere(b"one", "f") in world.ask(b"one")
    # It was asked before, but not to reckon with the node itself: a drain may be
    # given up, and then nobody else may have room.
    assert world.do(ev.Draining()) == [ev.AskElsewhere(b"one", "f")]
    assert world.state(b"one") is LeaseState.FORWARDED


def test_a_node_that_stays_grants_what_was_left_to_the_control_service() -> None:
    world = World()
    world.ask(b"one")
    world.do(ev.Draining())
    world.do(ev.DrainGivenUp())
    world.do(ev.LeaseAdmitted(b"one"))
    assert world.state(b"one") is LeaseState.WAITING
    world.do(ev.LeaseReturned(b"holder"))
    assert world.state(b"one") is LeaseState.GRANTED
