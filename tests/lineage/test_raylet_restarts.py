"""What a node makes of orders that an earlier life of the control service gave."""

from __future__ import annotations

from typing import Any

from rayshim.lineage import lease_events as ev
from rayshim.lineage.leases import LIFE_HOPS
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import ResourceSet, to_units

JOB = b"job"


class Node:
    """The lease machine of a node with one CPU and executors that start at once."""

    def __init__(self) -> None:
        ids = iter(b"w%d" % number for number in range(100))
        self.machine = Raylet(
            ResourceSet(to_units({"CPU": 1.0})), lambda: next(ids), is_clustered=True
        )

    def do(self, event: Any) -> list[Any]:
        """All commands, with those of executors that start because of them."""
        commands = list(self.machine.handle(event, 0.0))
        for command in list(commands):
            if isinstance(command, ev.StartExecutor):
                worker_id = command.worker_id
                commands += self.do(ev.ExecutorReady(worker_id, "unix:w", 1))
        self.machine.validate()
        return commands

    def place(self, lease_id: bytes, hops: int = 1) -> list[Any]:
        """The control service wants an executor for an actor."""
        need = to_units({"CPU": 1.0})
        request = ev.LeaseRequested(
            lease_id, "actor:1", JOB, "actor A", need, fixed=True, hops=hops
        )
        return self.do(request)

    def reserve(self, attempt: int) -> list[Any]:
        """The control service wants a bundle, and waits for it for a while."""
        bundle = to_units({"CPU": 1.0})
        return self.do(
            ev.BundlesRequested(b"g", (bundle,), is_patient=True, attempt=attempt)
        )


def kinds(commands: list[Any]) -> list[type]:
    return [type(one) for one in commands if not isinstance(one, ev.StartExecutor)]


def test_an_actor_whose_grant_and_death_were_not_heard_of_is_placed_again() -> None:
    node = Node()
    (grant,) = [x for x in node.place(b"1") if isinstance(x, ev.GrantLease)]
    node.do(ev.ExecutorExited(grant.worker_id, "crashed", 1))
    assert kinds(node.place(b"1")) == [], "a late copy of the first request"
    assert kinds(node.place(b"1", hops=LIFE_HOPS + 1)) == [ev.GrantLease]


def test_requests_of_an_earlier_life_are_taken_back() -> None:
    node = Node()
    node.place(b"1")
    node.place(b"2")
    assert node.machine.not_granted() == [b"2"]
    node.do(ev.LeaseCancelled(b"2"))
    assert node.machine.not_granted() == []
    node.place(b"2", hops=LIFE_HOPS + 1)
    assert node.machine.not_granted() == [b"2"]


def test_a_new_attempt_takes_the_place_of_one_that_waits() -> None:
    node = Node()
    node.place(b"1")
    assert kinds(node.reserve(3)) == []
    assert kinds(node.reserve(3)) == [], "the same attempt, twice"
    assert kinds(node.reserve(4)) == []
    # The end of the older one's time says nothing of the newer one.
    assert kinds(node.do(ev.ReservationExpired(b"g", 3))) == []
    returned = node.do(ev.LeaseReturned(b"1"))
    (reported,) = [one for one in returned if isinstance(one, ev.ReportBundles)]
    assert reported.attempt == 4
