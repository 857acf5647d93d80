"""The lease machine's rules."""

from __future__ import annotations

import itertools
import random
from typing import Any, TypeVar

import pytest

from rayshim.lineage import explain
from rayshim.lineage import lease_events as ev
from rayshim.lineage.leases import ExecutorState, LeaseState
from rayshim.lineage.raylet import START_ATTEMPTS, Raylet
from rayshim.lineage.resources import ResourceSet, to_amounts, to_units
from rayshim.lineage.transitions import InvalidTransition
from typed_list import TypedList

C = TypeVar("C")
JOB = b"job"


class World:
    """A machine whose executors start as soon as they are forked."""

    def __init__(self, *, prestart: int = 0, boots: bool = True, **amounts: float):
        numbers = itertools.count()
        self.machine = Raylet(
            ResourceSet(to_units(amounts or {"CPU": 2})),
            lambda: b"w%d" % next(numbers),
            prestart=prestart,
        )
        self.boots = boots
        self.now = 0.0
        self.forked: list[bytes] = []
        self.killed: list[bytes] = []
        self.interrupted: list[bytes] = []
        self.do(ev.TimePassed())

    def do(self, event: Any) -> list[Any]:
        """All commands, with those of executors that start because of them."""
        commands = list(self.machine.handle(event, self.now))
        self.machine.validate()
        for command in list(commands):
            if isinstance(command, ev.StartExecutor):
                self.forked.append(command.worker_id)
                if self.boots:
                    commands += self.boot(command.worker_id)
            elif isinstance(command, ev.EndExecutor):
                self.killed.append(command.worker_id)
            elif isinstance(command, ev.InterruptExecutor):
                self.interrupted.append(command.worker_id)
        return TypedList(commands)

    def boot(self, worker_id: bytes) -> list[Any]:
        name = worker_id.decode()
        return self.do(ev.ExecutorReady(worker_id, f"unix:{name}", int(name[1:]) + 1))

    def ask(self, lease_id: bytes, holder: str = "a", **options: Any) -> list[Any]:
        need = to_units(options.pop("need", {"CPU": 1}))
        options = {"job_id": JOB, "label": "f", **options}
        return self.do(ev.LeaseRequested(lease_id, holder, need=need, **options))

    def granted(self, lease_id: bytes, holder: str = "a", **options: Any) -> bytes:
        (grant,) = only(self.ask(lease_id, holder, **options), ev.GrantLease)
        assert grant.lease_id == lease_id
        return bytes(grant.worker_id)

    def exits(self, worker_id: bytes, reason: str = "crashed") -> list[Any]:
        return self.do(ev.ExecutorExited(worker_id, reason, 1))

    @property
    def available(self) -> dict[str, float]:
        return to_amounts(self.machine.resources.available)

    def state(self, lease_id: bytes) -> LeaseState:
        return self.machine.leases[lease_id].state


def only(commands: list[Any], kind: type[C]) -> list[C]:
    return [command for command in commands if isinstance(command, kind)]


def granted_ids(commands: list[Any]) -> list[bytes]:
    return [command.lease_id for command in only(commands, ev.GrantLease)]


def asked_back(commands: list[Any]) -> tuple[list[bytes], list[bytes]]:
    """Leases that are asked back in full, and those asked for if they idle."""
    asked = only(commands, ev.AskBack)
    full = [one.lease_id for one in asked if not one.if_idle]
    return full, [one.lease_id for one in asked if one.if_idle]


# Granting.


def test_a_request_that_fits_is_granted_with_its_resources() -> None:
    world = World(CPU=2, GPU=1)
    (grant,) = only(world.ask(b"1", need={"CPU": 1, "GPU": 0.5}), ev.GrantLease)
    assert grant.holder == "a"
    assert grant.gpu_ids == [0]
    assert to_amounts(grant.units) == {"CPU": 1.0, "GPU": 0.5}
    assert world.available == {"CPU": 1.0, "GPU": 0.5}


def test_a_prestarted_executor_is_used_before_one_is_forked() -> None:
    world = World(prestart=2)
    assert world.forked == [b"w0", b"w1"]
    world.granted(b"1")
    world.granted(b"2")
    assert world.forked == [b"w0", b"w1"]


def test_requests_of_one_shape_are_granted_by_arrival() -> None:
    world = World(CPU=1)
    world.granted(b"1")
    for lease_id in (b"2", b"3", b"4"):
        world.ask(lease_id)
    for lease_id, following in ((b"1", b"2"), (b"2", b"3"), (b"3", b"4")):
        assert granted_ids(world.do(ev.LeaseReturned(lease_id))) == [following]


def test_a_small_request_passes_a_large_one() -> None:
    world = World(CPU=2)
    world.granted(b"1")
    assert granted_ids(world.ask(b"large", need={"CPU": 2})) == []
    assert granted_ids(world.ask(b"small")) == [b"small"]


def test_shapes_that_fit_are_granted_by_arrival() -> None:
    world = World(CPU=2, boots=True)
    world.granted(b"1", need={"CPU": 2})
    world.ask(b"2", need={"CPU": 1})
    world.ask(b"3", need={"CPU": 0.5})
    world.ask(b"4", need={"CPU": 1})
    commands = world.do(ev.LeaseReturned(b"1"))
    assert granted_ids(commands) == [b"2", b"3"]


def test_no_cpu_needs_no_room() -> None:
    world = World(CPU=1)
    world.granted(b"1")
    world.granted(b"2", need={})


def test_asking_twice_is_asking_once() -> None:
    world = World(CPU=2)
    first = world.ask(b"1")
    again = world.ask(b"1")
    assert only(again, ev.GrantLease) == only(first, ev.GrantLease)
    assert world.available == {"CPU": 1.0}
    world.do(ev.LeaseReturned(b"1"))
    assert granted_ids(world.ask(b"1")) == []
    assert world.available == {"CPU": 2.0}


def test_a_cancelled_request_is_rejected_and_its_grant_is_not_undone() -> None:
    world = World(CPU=1)
    world.granted(b"1")
    world.ask(b"2")
    (rejected,) = only(world.do(ev.LeaseCancelled(b"2")), ev.RejectLease)
    assert (rejected.lease_id, rejected.kind) == (b"2", "cancelled")
    assert world.do(ev.LeaseCancelled(b"1")) == []
    assert world.state(b"1") is LeaseState.GRANTED


def test_an_infeasible_request_waits_and_says_so() -> None:
    world = World(CPU=2)
    assert world.ask(b"1", need={"CPU": 3}) == []
    (line,) = explain.lease(world.machine, b"1", 5.0)
    assert "needs {CPU: 3}; the cluster has at most {CPU: 2}" in line
    assert "waits for 5.0 s" in line


def test_explain_names_who_holds_what() -> None:
    world = World(CPU=2)
    world.granted(b"1", label="train_step")
    world.granted(b"2", label="load")
    world.ask(b"3")
    (line,) = explain.lease(world.machine, b"3", 12.0)
    assert "free {CPU: 0} of {CPU: 2}" in line
    assert "train_step {CPU: 1} (pid 1, 12 s), load {CPU: 1} (pid 2, 12 s)" in line


# Executors.


def test_a_returned_executor_serves_its_job_again() -> None:
    world = World()
    first = world.granted(b"1")
    world.do(ev.LeaseReturned(b"1"))
    assert world.granted(b"2") == first
    world.do(ev.LeaseReturned(b"2"))
    assert world.granted(b"3", job_id=b"other") != first
    world.do(ev.LeaseReturned(b"3"))
    assert world.granted(b"4", env=(("A", "1"),)) != first


def test_an_actor_takes_an_unused_executor_only() -> None:
    world = World()
    used = world.granted(b"1")
    world.do(ev.LeaseReturned(b"1"))
    assert world.granted(b"2", fixed=True) != used


def test_the_reserve_is_refilled_behind_actors_but_not_behind_tasks() -> None:
    world = World(prestart=1, CPU=4)
    world.granted(b"1")
    assert world.forked == [b"w0"]
    world.do(ev.LeaseReturned(b"1"))
    world.granted(b"2", fixed=True)
    assert len(world.forked) == 2
    world.granted(b"3", fixed=True)
    assert len(world.forked) == 3


def test_few_executors_start_at_once() -> None:
    world = World(boots=False, CPU=100)
    for number in range(20):
        world.ask(b"%d" % number)
    assert len(world.forked) == 8
    world.boot(world.forked[0])
    assert len(world.forked) == 9


def test_a_started_executor_goes_to_the_first_that_waits_for_one() -> None:
    world = World(boots=False)
    world.ask(b"1")
    world.ask(b"2")
    assert granted_ids(world.boot(b"w1")) == [b"1"]
    assert granted_ids(world.boot(b"w0")) == [b"2"]


def test_a_cancelled_start_leaves_an_idle_executor() -> None:
    world = World(boots=False)
    world.ask(b"1")
    world.do(ev.LeaseCancelled(b"1"))
    assert world.available == {"CPU": 2.0}
    assert world.boot(b"w0") == []
    assert world.granted(b"2") == b"w0"


def test_executors_that_cannot_start_end_in_a_rejection() -> None:
    world = World(boots=False)
    world.ask(b"1")
    commands = []
    for _ in range(START_ATTEMPTS):
        commands = world.exits(world.forked[-1], "no module named x")
    (rejected,) = only(commands, ev.RejectLease)
    assert (rejected.lease_id, rejected.kind) == (b"1", "setup")
    assert "no module named x" in rejected.reason
    assert only(commands, ev.StartExecutor) == []


def test_a_disposed_executor_is_told_to_go_and_killed_if_it_stays() -> None:
    world = World()
    worker = world.granted(b"1")
    world.do(ev.LeaseReturned(b"1", dispose=True))
    assert world.interrupted == [worker]
    assert world.granted(b"2") != worker
    world.now = 6.0
    world.do(ev.TimePassed())
    assert world.killed == [worker]
    world.exits(worker)


def test_idle_executors_beyond_the_cpus_leave_after_a_minute() -> None:
    world = World(CPU=1)
    workers = [world.granted(b"%d" % number, need={}) for number in range(3)]
    for number in range(3):
        world.now = float(number)
        world.do(ev.LeaseReturned(b"%d" % number))
    world.now = 60.5
    world.do(ev.TimePassed())
    assert world.interrupted == [workers[0]]
    world.now = 100.0
    world.do(ev.TimePassed())
    assert world.interrupted == [workers[0], workers[1]]


def test_the_death_of_an_executor_is_reported_and_frees_its_resources() -> None:
    world = World(CPU=1)
    worker = world.granted(b"1")
    world.ask(b"2")
    commands = world.exits(worker, "killed by SIGSEGV")
    (lost,) = only(commands, ev.ReportLost)
    assert (lost.lease_id, lost.holder, lost.reason) == (b"1", "a", "killed by SIGSEGV")
    assert granted_ids(commands) == [b"2"]
    assert world.do(ev.LeaseReturned(b"1")) == []


def test_an_executor_that_holds_leases_takes_them_along() -> None:
    world = World()
    parent = world.granted(b"1")
    child = world.granted(b"2", holder=f"unix:{parent.decode()}")
    world.exits(parent)
    assert world.killed == [child]
    assert world.available == {"CPU": 2.0}


# Blocking.


def test_a_blocked_executor_frees_its_cpu_and_nothing_else() -> None:
    world = World(CPU=1, GPU=1)
    parent = world.granted(b"1", need={"CPU": 1, "GPU": 1})
    assert granted_ids(world.ask(b"2")) == []
    commands = world.do(ev.ExecutorBlocked(parent, True))
    assert granted_ids(commands) == [b"2"]
    assert world.available == {"CPU": 0.0, "GPU": 0.0}


def test_nothing_that_needs_cpu_is_granted_while_cpu_is_negative() -> None:
    world = World(CPU=1)
    parent = world.granted(b"1")
    world.do(ev.ExecutorBlocked(parent, True))
    world.granted(b"2")
    world.do(ev.ExecutorBlocked(parent, False))
    assert world.available == {"CPU": -1.0}
    world.ask(b"3", need={"CPU": 0.5})
    assert granted_ids(world.do(ev.LeaseReturned(b"2"))) == []
    assert granted_ids(world.do(ev.LeaseReturned(b"1"))) == [b"3"]


def test_an_actor_that_waits_keeps_its_cpus() -> None:
    world = World(CPU=1)
    actor = world.granted(b"1", fixed=True)
    assert world.do(ev.ExecutorBlocked(actor, True)) == []
    assert world.available == {"CPU": 0.0}


def test_blocking_twice_frees_once() -> None:
    world = World(CPU=2)
    parent = world.granted(b"1")
    world.do(ev.ExecutorBlocked(parent, True))
    world.do(ev.ExecutorBlocked(parent, True))
    assert world.available == {"CPU": 2.0}
    world.do(ev.ExecutorBlocked(parent, False))
    world.do(ev.ExecutorBlocked(parent, False))
    assert world.available == {"CPU": 1.0}


# Asking back.


def test_holders_are_asked_back_once_for_what_would_help() -> None:
    world = World(CPU=1, x=1)
    world.granted(b"cpu")
    world.granted(b"x", need={"x": 1})
    (asked,) = only(world.ask(b"2", holder="b"), ev.AskBack)
    assert (asked.lease_id, asked.holder) == (b"cpu", "a")
    assert only(world.ask(b"3", holder="b"), ev.AskBack) == []


def test_the_next_waiting_request_asks_again() -> None:
    world = World(CPU=2)
    world.granted(b"1")
    world.granted(b"2")
    assert asked_back(world.ask(b"3", holder="b")) == ([b"1"], [b"2"])
    assert asked_back(world.ask(b"4", holder="b")) == ([], [])
    world.do(ev.LeaseReturned(b"1"))
    # Each class has half of the node: only what idles would change hands.
    assert asked_back(world.ask(b"5", label="g", holder="c")) == ([b"2"], [b"3"])


def test_nobody_is_asked_to_exchange_one_lease_for_its_like() -> None:
    world = World(CPU=1)
    world.granted(b"1")
    assert only(world.ask(b"2"), ev.AskBack) == []
    asked = only(world.ask(b"3", label="g", need={"CPU": 0.5}), ev.AskBack)
    assert [one.lease_id for one in asked] == [b"1"]


def test_actors_are_not_asked_back() -> None:
    world = World(CPU=1)
    world.granted(b"1", fixed=True)
    assert world.ask(b"2", holder="b") == []


def test_nobody_is_asked_for_an_infeasible_request() -> None:
    world = World(CPU=1)
    world.granted(b"1")
    assert world.ask(b"2", holder="b", need={"CPU": 2}) == []


# Peers and jobs.


def test_a_dead_holder_gives_all_back_and_its_executors_are_killed() -> None:
    world = World(CPU=1)
    worker = world.granted(b"1")
    world.ask(b"2")
    world.ask(b"3", holder="b")
    commands = world.do(ev.HolderGone("a"))
    assert world.killed == [worker]
    assert granted_ids(commands) == [b"3"]
    assert only(world.exits(worker), ev.ReportLost) == []


def test_a_job_ends_with_its_idle_executors_and_the_leases_of_its_peers() -> None:
    world = World(CPU=5)
    busy = world.granted(b"1", holder="driver")
    idle = world.granted(b"2", holder="driver")
    actor = world.granted(b"3", fixed=True)
    other = world.granted(b"4", job_id=b"other")
    # A detached actor of the job goes on, and so does what it asked for.
    inner = world.granted(b"5", holder="detached")
    world.do(ev.LeaseReturned(b"2"))
    world.do(ev.JobEnded(JOB))
    assert world.killed == [idle]
    world.do(ev.HolderGone("driver"))
    assert sorted(world.killed) == sorted([busy, idle])
    states = {one.worker_id: one.state for one in world.machine.executors}
    assert states[actor] is states[other] is states[inner] is ExecutorState.LEASED


# Placement groups.

GROUP = b"group"


def bundles(*amounts: dict[str, float]) -> ev.BundlesRequested:
    return ev.BundlesRequested(GROUP, tuple(to_units(one) for one in amounts))


def test_bundles_are_reserved_all_or_none() -> None:
    world = World(CPU=2)
    world.granted(b"1")
    assert only(world.do(bundles({"CPU": 1}, {"CPU": 1})), ev.ReportBundles) == []
    assert world.available == {"CPU": 1.0}
    commands = world.do(ev.LeaseReturned(b"1"))
    assert only(commands, ev.ReportBundles) == [ev.ReportBundles(GROUP)]
    assert world.available == {"CPU": 0.0}


def test_a_reservation_asks_holders_back() -> None:
    world = World(CPU=2)
    world.granted(b"1")
    asked = only(world.do(bundles({"CPU": 2})), ev.AskBack)
    assert [one.lease_id for one in asked] == [b"1"]


def test_leases_in_a_group_draw_on_its_bundles_only() -> None:
    world = World(CPU=4)
    world.do(bundles({"CPU": 1}, {"CPU": 2}))
    world.granted(b"1", group=GROUP, bundle=0)
    assert granted_ids(world.ask(b"2", group=GROUP, bundle=0)) == []
    world.granted(b"3", group=GROUP, need={"CPU": 2})
    assert world.available == {"CPU": 1.0}
    world.granted(b"4")
    assert world.available == {"CPU": 0.0}


def test_a_bundle_has_gpus_of_its_own() -> None:
    world = World(CPU=4, GPU=2)
    world.granted(b"0", need={"GPU": 1})
    world.do(bundles({"GPU": 1}))
    (grant,) = only(world.ask(b"1", need={"GPU": 1}, group=GROUP), ev.GrantLease)
    assert grant.gpu_ids == [1]


def test_a_request_waits_for_its_group() -> None:
    world = World(CPU=1)
    assert world.ask(b"1", group=GROUP) == []
    assert granted_ids(world.do(bundles({"CPU": 1}))) == [b"1"]


def test_a_removed_group_takes_its_leases_along() -> None:
    world = World(CPU=2)
    world.do(bundles({"CPU": 1}, {"CPU": 1}))
    worker = world.granted(b"1", group=GROUP, bundle=0)
    world.ask(b"2", group=GROUP, bundle=0)
    commands = world.do(ev.BundlesRemoved(GROUP))
    assert world.killed == [worker]
    assert [one.kind for one in only(commands, ev.RejectLease)] == ["removed"]
    assert world.available == {"CPU": 1.0}
    (lost,) = only(world.exits(worker), ev.ReportLost)
    assert lost.kind == "removed"
    assert world.available == {"CPU": 2.0}
    (rejected,) = only(world.ask(b"3", group=GROUP), ev.RejectLease)
    assert rejected.kind == "removed"


def test_a_group_that_waits_can_be_removed() -> None:
    world = World(CPU=1)
    world.do(bundles({"CPU": 2}))
    world.do(ev.BundlesRemoved(GROUP))
    world.do(ev.BundlesRemoved(GROUP))
    assert world.do(bundles({"CPU": 1})) == []


# The table, small worlds, random worlds.


def test_an_impossible_event_tells_the_story() -> None:
    world = World(boots=False)
    world.ask(b"1")
    with pytest.raises(InvalidTransition, match="STARTING and cannot take") as caught:
        world.machine.handle(ev.LeaseShrunk(b"1", {}), 0.0)
    assert "LeaseRequested" in str(caught.value)


SMALL = (
    ev.LeaseRequested(b"1", "a", JOB, "f", {"CPU": 10_000}),
    ev.LeaseRequested(b"2", "b", JOB, "f", {"CPU": 10_000}),
    ev.LeaseReturned(b"1"),
    ev.LeaseReturned(b"2", dispose=True),
    ev.LeaseCancelled(b"2"),
    ev.ExecutorReady(b"w0", "unix:w0", 1),
    ev.ExecutorExited(b"w0", "crashed", 1),
    ev.ExecutorBlocked(b"w0", True),
    ev.HolderGone("a"),
)


def test_every_short_history_keeps_the_rules() -> None:
    for length in (1, 2, 3, 4):
        for history in itertools.permutations(SMALL, length):
            numbers = itertools.count()
            machine = Raylet(
                ResourceSet({"CPU": 10_000}), lambda n=numbers: b"w%d" % next(n)
            )  # type: ignore[misc]
            for event in history:
                try:
                    machine.handle(event, 0.0)
                except InvalidTransition:
                    # Only a process that has not reported can block.
                    assert isinstance(event, ev.ExecutorBlocked)
            machine.validate()


@pytest.mark.parametrize("seed", range(20))
def test_random_worlds_keep_the_rules_and_starve_nobody(seed: int) -> None:
    draw = random.Random(seed)
    world = World(prestart=seed % 3, boots=seed % 2 == 0, CPU=3, GPU=2)
    machine = world.machine
    needs: list[dict[str, float]] = [
        {},
        {"CPU": 1},
        {"CPU": 2},
        {"GPU": 0.5},
        {"GPU": 1},
    ]
    for step in range(150):
        world.now += draw.random() * 10
        choice = draw.randrange(10)
        leases, workers = list(machine.leases), list(machine.executors.by_id)
        if choice < 4:
            world.ask(
                b"%d" % step,
                draw.choice(["a", "b", "unix:w0"]),
                need=draw.choice(needs),
                job_id=draw.choice([b"j", b"k"]),
                fixed=draw.random() < 0.2,
                group=draw.choice([b"", b"", GROUP]),
            )
        elif choice == 4:
            world.do(bundles({"CPU": 1}, {"GPU": 0.5}))
        elif choice == 5 and draw.random() < 0.1:
            world.do(ev.BundlesRemoved(GROUP))
        elif choice == 6 and leases:
            world.do(
                draw.choice([ev.LeaseReturned, ev.LeaseCancelled])(draw.choice(leases))
            )
        elif choice == 7 and workers:
            worker = draw.choice(workers)
            if machine.executors.by_id[worker].state is ExecutorState.STARTING:
                world.boot(worker)
            else:
                world.do(ev.ExecutorBlocked(worker, draw.random() < 0.5))
        elif choice == 8 and workers:
            world.exits(draw.choice(workers))
        elif choice == 9:
            late = draw.choice([ev.TimePassed(), ev.HolderGone("b"), ev.JobEnded(b"k")])
            world.do(late)
    world.boots = True
    for worker in [one for one in machine.executors if not one.address]:
        world.boot(worker.worker_id)
    while True:
        granted = [
            key for key in machine.leases if world.state(key) is LeaseState.GRANTED
        ]
        if not granted:
            break
        for lease_id in granted:
            world.do(ev.LeaseReturned(lease_id))
    world.do(ev.BundlesRemoved(GROUP))
    for lease_id in list(machine.leases):
        world.do(ev.LeaseReturned(lease_id))
    assert machine.leases == {}
    assert world.available == {"CPU": 3.0, "GPU": 2.0}
