"""Each machine is what its event log says: replayed, it is in the same state."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rayshim.lineage import actor_events as aev
from rayshim.lineage import lease_events as lev
from rayshim.lineage import membership as mem
from rayshim.lineage import pull_events as pev
from rayshim.lineage import recovery as rec
from rayshim.lineage import waits
from rayshim.lineage.actors import ActorManager
from rayshim.lineage.membership import Membership
from rayshim.lineage.placement import View
from rayshim.lineage.placement_groups import Group, PlacementGroups
from rayshim.lineage.pulls import Pulls
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.recovery import RecoveryManager
from rayshim.lineage.references import ObjectEntry, ReferenceTable
from rayshim.lineage.resources import CPU, UNITS, ResourceSet
from rayshim.lineage.tasks import TaskEvent, TaskLife
from rayshim.lineage.transitions import (
    InvalidTransition,
    Recorder,
    Story,
    picture,
    repeat,
    replay,
)
from rayshim.lineage.wait_graph import Process, Wait
from rayshim.lineage.waits import WaitDetector

Draw = Callable[[int], int]


class Ids:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        return bytes([self.count])


def raylet() -> Raylet:
    return Raylet(ResourceSet({CPU: 2 * UNITS}), Ids(), prestart=1)


def lease_event(draw: Draw) -> Any:
    lease, worker = bytes([draw(4)]), bytes([1 + draw(4)])
    holder = "hg"[draw(2)]
    return (
        lev.LeaseRequested(lease, holder, b"j", "f", {CPU: UNITS}),
        lev.LeaseReturned(lease, bool(draw(2))),
        lev.LeaseCancelled(lease),
        lev.LeaseShrunk(lease, {}),
        lev.ExecutorReady(worker, "unix:w", 1),
        lev.ExecutorExited(worker, "killed", -9),
        lev.ExecutorBlocked(worker, bool(draw(2))),
        lev.HolderGone(holder),
        lev.TimePassed(),
    )[draw(9)]


def actor_event(draw: Draw) -> Any:
    actor, life = bytes([draw(2)]), draw(2)
    spec = aev.ActorSpec(actor, b"j", "owner", "C", "n", "", False, 1, {}, {})
    return (
        aev.Registered(actor, spec),
        aev.Started(actor),
        aev.Placed(actor, life, b"w", "unix:w", 1),
        aev.Created(actor, life),
        aev.ExecutorLost(actor, life, "crash"),
        aev.Killed(actor, bool(draw(2))),
        aev.OutOfScope(actor),
        aev.OwnerGone("owner"),
    )[draw(8)]


def member_event(draw: Draw) -> Any:
    node = "ab"[draw(2)]
    return (
        mem.Expected(node),
        mem.Joined(node, draw(3)),
        mem.Spoke(node),
        mem.Leaving(node, "drained"),
        mem.ChannelEnded(node, draw(3)),
        mem.TimePassed(),
    )[draw(6)]


def recovery_event(draw: Draw) -> Any:
    task = bytes([draw(3)]) * 24
    one = task + (1).to_bytes(4, "little")
    other = bytes([draw(3)]) * 24 + (1).to_bytes(4, "little")
    return (
        rec.Kept(task, (one,), (other,), 100, draw(3), draw(2)),
        rec.Lost(one),
        rec.Needed(one),
        rec.Broke(task),
        rec.Dropped(one),
    )[draw(5)]


def pull_event(draw: Draw) -> Any:
    one, asker = bytes([draw(2)]), "ab"[draw(2)]
    sources = (pev.Source("n1", "x"), pev.Source("n2", "o-x"))
    return (
        pev.PullAsked(one, asker, pev.Making("n1/x", 100), sources),
        pev.RoomGiven(one),
        pev.RoomRefused(one, "full"),
        pev.RangeArrived(one, 1 + draw(3)),
        pev.RangeBroken(one, 1 + draw(3), 10, "gone"),
        pev.Withdrawn(one, asker),
        pev.CopyFreed(one),
        pev.NodeLost("n1", "died"),
    )[draw(8)]


def wait_event(draw: Draw) -> Any:
    address = "ab"[draw(2)]
    wait = Wait(draw(2), b"c", "", ((b"o", "b"),), True, "f")
    said = Process("f", (wait,) if draw(3) else ())
    return (
        waits.WaitsTold(address, said),
        waits.WaitsAnswered(address, draw(3), said, {}),
        waits.ProcessGone(address),
        waits.TimePassed(),
    )[draw(4)]


MACHINES: dict[str, tuple[Callable[[], Any], Callable[[Draw], Any]]] = {
    "leases": (raylet, lease_event),
    "actors": (ActorManager, actor_event),
    "membership": (Membership, member_event),
    "recovery": (lambda: RecoveryManager(250), recovery_event),
    "pulls": (lambda: Pulls(max_active_bytes=150), pull_event),
    "waits": (WaitDetector, wait_event),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_replayed_log_gives_the_same_machine(name: str) -> None:
    fresh, event = MACHINES[name]
    for seed in range(40):
        draw = random.Random(seed).randrange
        machine = fresh()
        for step in range(60):
            try:
                machine.handle(event(draw), step * 0.1)
            except InvalidTransition:
                continue

        twin = replay(fresh(), machine._story.log())

        assert picture(twin) == picture(machine)


def test_the_pictures_of_different_machines_differ() -> None:
    one, other = raylet(), raylet()
    event = lev.LeaseRequested(b"l", "h", b"j", "f", {CPU: UNITS})
    other.handle(event, 0.0)
    assert picture(one) != picture(other)
    one.handle(event, 0.0)
    assert picture(one) == picture(other)


def test_a_log_that_lost_its_start_says_so() -> None:
    story = Story()
    for number in range(3000):
        story.add(number, 0.0)
    with pytest.raises(ValueError, match="first 952 of 3000 events are forgotten"):
        story.log()


def test_a_story_keeps_all_if_asked() -> None:
    story = Story()
    story.keep_all()
    for number in range(3000):
        story.add(number, 0.5)
    assert len(story.log()) == 3000
    assert story.log()[0] == (0, 0.5)


def test_recorded_references_are_rebuilt() -> None:
    def name(argument: Any) -> Any:
        if isinstance(argument, ObjectEntry):
            return ("entry", argument.object_id)
        return argument

    def find(table: ReferenceTable, argument: Any) -> Any:
        if isinstance(argument, tuple) and argument[:1] == ("entry",):
            return table.entries[argument[1]]
        return argument

    table = Recorder(ReferenceTable("me"), name)
    table.own(b"x")
    outer = table.own(b"y")
    table.contain(outer, [b"x"])
    table.receive(b"z", "owner", "lender", 3)
    table.hold(b"z")
    table.lend(b"x", "a")
    table.release(b"x", "a", table.lend(b"x", "a"))
    table.drop(b"x")
    table.acknowledge(b"z", 4)

    twin = repeat(ReferenceTable("me"), table, find)

    assert picture(twin) == picture(table._machine)
    assert list(twin.entries) == [b"x", b"y", b"z"]


def test_recorded_calls_are_rebuilt() -> None:
    life = Recorder(TaskLife(b"t", 2))
    life.on(TaskEvent.ARGUMENTS_KNOWN)
    life.on(TaskEvent.PUSHED)
    life.crashed(started=True)
    with pytest.raises(InvalidTransition):
        life.on(TaskEvent.RESULT)
    life.on(TaskEvent.PUSHED)
    life.raised(retryable=True)

    twin = repeat(TaskLife(b"t", 2), life)

    assert picture(twin) == picture(life._machine)
    assert (twin.attempt, twin.retries_left) == (2, 0)


def test_recorded_placement_groups_are_rebuilt() -> None:
    groups = Recorder(PlacementGroups())
    group = Group(
        b"g",
        ({CPU: UNITS},),
        strategy="PACK",
        name="n",
        job_id=b"j",
        is_detached=False,
        now=0.0,
    )
    groups.requested(group)
    views = [View("n", {CPU: UNITS}, {CPU: UNITS})]
    groups.tried(b"g", views)
    groups.answered(b"g", "n", attempt=1, is_reserved=True, now=1.0)
    groups.job_ended(b"j")

    twin = repeat(PlacementGroups(), groups)

    assert picture(twin) == picture(groups._machine)
