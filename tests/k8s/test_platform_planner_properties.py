"""What holds for every decision, whatever the platform, the workers and the demand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoscaled import autoscaler_of, platform_of
from fake_kube import World
from rayshim.k8s import names
from rayshim.k8s.config import Accelerator, Group, Platform
from rayshim.k8s.gang import gang_id
from rayshim.k8s.observed import (
    Decisions,
    Memory,
    Observed,
    ObservedGroup,
    PodState,
    Worker,
)
from rayshim.k8s.planner import decide
from rayshim.lineage.demand import (
    NODE_GROUP_LABEL,
    Demand,
    GangDemand,
    NodeFacts,
    ShapeDemand,
)

pytestmark = [pytest.mark.slow]

T = TypeVar("T")
NOW = 10_000.0
#: Random cases: of one decision, and of whole worlds, which are decisions by the
#: hundred. Those that hypothesis draws shrink when they fail, and take longer.
CASES = 1_500
DRAWN = 60
WORLDS = 40


class Pick(Protocol):
    """Draws one of several."""

    def __call__(self, options: Sequence[T], /) -> T: ...


class Case:
    """What a decision is made of."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.platform = any_platform(pick)
        self.groups: list[ObservedGroup] = []
        self.workers: list[Worker] = []
        self.nodes: list[NodeFacts] = []
        self.gangs: list[GangDemand] = [
            any_gang(pick, number) for number in range(1, 1 + pick([0, 0, 1, 2]))
        ]
        for group in self.platform.groups:
            self._fill(group, "", "")
        for group in self.platform.groups:
            if group.is_gang and pick([False, True]):
                subject = pick(
                    [f"{7:09x}{'0' * 20}", *(one.group_id for one in self.gangs)]
                )
                if gang_id(subject) not in {one.gang for one in self.groups}:
                    self._fill(group, gang_id(subject), subject)
        self.memory = Memory(
            held={one.name: NOW + pick([-1.0, 9.0]) for one in self.workers[:2]},
            absent={one.name: NOW - pick([0.0, 2.0, 99.0]) for one in self.workers},
            owed={one.name: NOW - pick([0.0, 99.0]) for one in self.groups},
            unwanted={one.gang: NOW - pick([0.0, 9.0]) for one in self.groups},
        )
        self.demand = Demand(
            "life",
            NOW - pick([0.0, 0.0, 0.0, 20.0, 45.0]),
            tuple(self.nodes),
            tuple(any_lease(pick) for _ in range(pick([0, 0, 1, 2, 3]))),
            tuple(self.gangs),
            pick([(), (), ({"CPU": 2.0},) * 3]),
        )
        self.may_stop = pick([True, True, True, False])

    @property
    def observed(self) -> Observed:
        return Observed(NOW, tuple(self.groups), tuple(self.workers))

    def decide(self) -> Decisions:
        return decide(
            self.demand,
            self.observed,
            self.platform,
            NOW,
            memory=self.memory,
            may_stop=self.may_stop,
        )

    def may_go(self) -> bool:
        return self.may_stop and NOW - self.demand.time_s <= 30

    def _fill(self, group: Group, gang: str, subject: str) -> None:
        pick = self.pick
        name = names.worker_group(self.platform.name, group.name, gang)
        count = pick(range(min(group.max, 3) + 1))
        replicas = max(count + pick([0, 0, 0, 1, -1]), 0)
        self.groups.append(
            ObservedGroup(
                name,
                group.name,
                replicas,
                "7",
                gang,
                created_s=NOW - 500,
                is_deleting=bool(gang) and pick([False, False, False, True]),
                handled=pick([replicas, replicas, replicas, count, None]),
                written=pick([replicas, None]),
                subject=subject,
                size=max(count, 1) if gang else 0,
            )
        )
        for number in range(count):
            self._add_worker(group, gang, name, number)

    def _add_worker(
        self, group: Group, gang: str, worker_group: str, number: int
    ) -> None:
        pick = self.pick
        name = f"{worker_group}-worker-{number:010x}"
        has_node = pick([True, True, False])
        node_id = f"{len(self.workers) + 1:056x}"
        is_draining = pick([False, False, False, True])
        self.workers.append(
            Worker(
                name,
                group.name,
                worker_group,
                NOW - pick([1.0, 30.0, 400.0]),
                PodState.READY if has_node else pick(list(PodState)),
                gang=gang,
                has_joined=has_node or pick([True, False]),
                draining_since_s=NOW - pick([1.0, 10.0]) if is_draining else None,
                draining_node=pick([node_id, "ff"]) if is_draining else "",
                is_deleting=pick([False] * 9 + [True]),
            )
        )
        if not has_node:
            return
        total = group.logical_resources()
        used = pick([0.0, 0.0, 1.0])
        free = {**total, "CPU": total["CPU"] - used}
        self.nodes.append(
            NodeFacts(
                node_id,
                group.name,
                total,
                free,
                {
                    **group.node_group().labels,
                    NODE_GROUP_LABEL: group.name,
                    names.WORKER: name,
                },
                idle_s=0.0 if used else pick([0.5, 30.0, 300.0]),
                is_draining=is_draining and pick([True, False]),
                is_pinned=pick([False] * 5 + [True]),
            )
        )


def any_platform(pick: Pick) -> Platform:
    return platform_of(*(any_group(pick, n) for n in range(pick([1, 2, 3]))))


def any_group(pick: Pick, number: int) -> Group:
    most = pick([0, 1, 2, 4, 6])
    gpus = pick([0, 0, 2, 4])
    return Group(
        f"group-{number}",
        pick([2.0, 4.0]),
        16.0,
        Accelerator("A100", gpus) if gpus else None,
        min=pick([0, 0, 1]) if most else 0,
        max=most,
        warm=pick([0, 0, 1]),
        idle_timeout_s=pick([5.0, 60.0]),
        upscaling_speed=pick([0.0, 1.0, 10.0]),
        cold_start_s=pick([5.0, 30.0]),
        queue="train",
        is_gang=pick([False, True]),
        price=pick([0.0, 1.0, 3.0]),
    )


def any_lease(pick: Pick) -> ShapeDemand:
    need = {"CPU": pick([1.0, 2.0, 16.0])}
    gpus = pick([0.0, 0.0, 1.0, 8.0])
    if gpus:
        need["GPU"] = gpus
    return ShapeDemand(need, pick([1, 2, 7]), label="work")


def any_gang(pick: Pick, number: int) -> GangDemand:
    strategy = pick(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])
    need = pick([{"CPU": 2.0}, {"GPU": 2.0}, {"GPU": 4.0}, {"GPU": 64.0}])
    return GangDemand(
        f"{number:09x}{'0' * 20}", strategy, (need,) * pick([1, 2, 3]), oldest_s=9.0
    )


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    return Case(lambda options: draw(st.sampled_from(list(options))))


@pytest.mark.parametrize("start", range(0, CASES, 500))
def test_every_decision_keeps_the_rules(start: int) -> None:
    for seed in range(start, start + 500):
        try:
            check_decision(Case(random.Random(seed).choice))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@settings(
    max_examples=DRAWN,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(drawn())
def test_no_drawn_decision_breaks_a_rule(case: Case) -> None:
    check_decision(case)


def check_decision(case: Case) -> None:
    made = case.decide()

    assert made == case.decide()
    check_limits(case, made)
    check_replicas(case, made)
    check_gangs(case, made)
    check_drains(case, made)
    check_launches(case, made)
    if not case.may_go():
        assert not (made.delete or made.drain or made.end_gangs or made.keep)


def there(case: Case, worker_group: str) -> int:
    return sum(one.worker_group == worker_group for one in case.workers)


def check_limits(case: Case, made: Decisions) -> None:
    """Never above max, unless somebody else has put it there."""
    for group in case.platform.groups:
        gone = {one.worker for one in made.delete if one.group == group.name}
        written = {one.worker_group: one.replicas for one in made.replicas}
        count = sum(one.size for one in made.start_gangs if one.group == group.name)
        before = 0
        for about in case.groups:
            if about.group != group.name:
                continue
            here = there(case, about.name)
            removed = sum(
                one.name in gone
                for one in case.workers
                if one.worker_group == about.name
            )
            replicas = 0 if about.is_deleting else about.replicas
            before += max(replicas, here)
            count += max(written.get(about.name, replicas), here - removed)
        if made.launch.get(group.name) or any(
            one.group == group.name for one in made.start_gangs
        ):
            assert count <= max(group.max, before)
            assert made.launch.get(group.name, 0) <= group.max


def check_replicas(case: Case, made: Decisions) -> None:
    """The operator never finds a worker too many."""
    known = {one.name: one for one in case.groups}
    for one in made.replicas:
        about = known[one.worker_group]
        removed = sum(gone.worker_group == about.name for gone in made.delete)
        assert one.replicas >= there(case, about.name) - removed
        assert one.replicas != about.replicas
        if one.replicas < about.replicas and not about.gang:
            waited_s = NOW - case.memory.owed.get(about.name, NOW)
            limit_s = 2 * case.platform.group(about.group).cold_start_s
            assert about.handled in (about.replicas, None) or waited_s > limit_s


def check_gangs(case: Case, made: Decisions) -> None:
    """A gang that waits or runs stays whole."""
    waiting = {gang_id(one.group_id) for one in case.gangs}
    by_worker = {one.labels[names.WORKER]: one for one in case.nodes}
    for about in case.groups:
        if not about.gang:
            continue
        members = [one for one in case.workers if one.worker_group == about.name]
        nodes = [by_worker[one.name] for one in members if one.name in by_worker]
        is_busy = any(one.idle_s == 0 for one in nodes)
        touched = {one.worker for one in (*made.delete, *made.drain)}
        if about.gang in waiting or is_busy:
            assert not touched & {one.name for one in members}
            assert about.name not in {one.worker_group for one in made.end_gangs}
        assert not {one.worker for one in made.delete} & {one.name for one in members}
    started = [one.gang for one in made.start_gangs]
    assert set(started) <= waiting
    assert not set(started) & {one.gang for one in case.groups}
    assert len(started) == len(set(started))


def check_drains(case: Case, made: Decisions) -> None:
    """No drain of a busy or pinned node; no deletion of one that is there."""
    by_worker = {one.labels[names.WORKER]: one for one in case.nodes}
    for drain in made.drain:
        node = by_worker[drain.worker]
        assert node.node_id == drain.node_id
        assert node.idle_s > 0
        assert not node.is_pinned
        assert not node.is_draining
        assert case.memory.held.get(drain.worker, 0.0) <= NOW or any(
            one.draining_node == "ff"
            for one in case.workers
            if one.name == drain.worker
        )
    for delete in made.delete:
        assert delete.worker not in by_worker


def check_launches(case: Case, made: Decisions) -> None:
    """Nothing is started for what fits nowhere, and not all at once."""
    for group in case.platform.groups:
        if group.max == 0:
            assert group.name not in made.launch
    for one in made.infeasible:
        assert one.subject not in {start.subject for start in made.start_gangs}
    only_infeasible = decide(
        Demand(
            "life",
            NOW,
            case.demand.nodes,
            (ShapeDemand({"GPU": 64.0}, 5, label="huge"),),
            (GangDemand("e" * 20, "PACK", ({"GPU": 64.0},)),),
        ),
        case.observed,
        case.platform,
        NOW,
        memory=case.memory,
    )
    nothing = decide(
        Demand("life", NOW, case.demand.nodes),
        case.observed,
        case.platform,
        NOW,
        memory=case.memory,
    )
    assert only_infeasible.launch == nothing.launch
    assert not only_infeasible.start_gangs
    assert len(only_infeasible.infeasible) == 2


@pytest.mark.parametrize("start", range(0, WORLDS, 10))
def test_worlds_come_to_rest_at_what_is_needed(start: int) -> None:
    for seed in range(start, start + 10):
        try:
            check_world(random.Random(seed).choice)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def check_world(pick: Pick) -> None:
    platform = any_platform(pick)
    world = World(platform, cold_start_s=2.0, seed=pick(range(9)))
    scaler = autoscaler_of(world)
    world.head.leases = tuple(any_lease(pick) for _ in range(pick([0, 1, 2])))
    world.head.gangs = tuple(any_gang(pick, n) for n in range(1, 1 + pick([0, 1, 2])))
    for _ in range(25):
        world.step()
        scaler.turn()
    # Whatever came is taken, then given back; what is infeasible goes on waiting.
    for worker in world.workers():
        if world.node_of(worker) is not None and pick([True, False]):
            world.use(worker, CPU=1.0)
    world.head.gangs = ()
    for _ in range(10):
        world.step()
        scaler.turn()
    world.head.leases = ()
    for node in list(world.head.nodes.values()):
        world.use(node.labels[names.WORKER])
    for _ in range(100):
        world.step()
        scaler.turn()
    world.kube.writes.clear()
    for _ in range(20):
        world.step()
        scaler.turn()

    assert not world.picked
    written = {(verb, kind) for verb, kind, _ in world.kube.writes}
    assert written <= {("replace", "Lease"), ("apply", "ConfigMap")}
    for group in platform.groups:
        count = len(world.workers(group.name))
        assert world.most.get(group.name, 0) <= group.max
        assert count == world.replicas(group.name)
        assert count == max(group.min, min(group.warm, group.max))
