"""Who goes next when leases are scarce: classes, jobs, large and urgent requests."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from rayshim.lineage import lease_events as ev
from rayshim.lineage.leases import LeaseState
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import ResourceSet, to_units
from rayshim.lineage.shares import (
    FIRST_GUARD_S,
    GUARD_AFTER_S,
    STARVED_S,
    YOUNG_S,
    is_guarding,
)


class Node:
    """A machine whose executors start at once, and holders that do as asked."""

    def __init__(self, **amounts: float) -> None:
        numbers = itertools.count()
        self.machine = Raylet(
            ResourceSet(to_units(amounts)), lambda: b"w%d" % next(numbers)
        )
        self.now = 0.0
        self.count = 0
        #: Lease id -> label, of what is granted, in order.
        self.granted: dict[bytes, str] = {}
        #: Asked back, in full or if idle.
        self.asked: dict[bytes, bool] = {}

    def do(self, event: Any) -> None:
        for command in self.machine.handle(event, self.now):
            if isinstance(command, ev.StartExecutor):
                name = command.worker_id.decode()
                self.do(ev.ExecutorReady(command.worker_id, f"unix:{name}", 1))
            elif isinstance(command, ev.GrantLease):
                lease = self.machine.leases[command.lease_id]
                self.granted[command.lease_id] = lease.request.label
            elif isinstance(command, ev.AskBack):
                self.asked[command.lease_id] = command.if_idle
        self.machine.validate()

    def ask(
        self,
        label: str,
        count: int = 1,
        need: dict[str, float] | None = None,
        **options: Any,
    ) -> list[bytes]:
        ids = []
        for _ in range(count):
            self.count += 1
            ids.append(b"%d" % self.count)
            units = to_units({"CPU": 1} if need is None else need)
            values = {"holder": "driver", "job_id": b"job", **options}
            self.do(ev.LeaseRequested(ids[-1], label=label, need=units, **values))
        return ids

    def give_back(self, lease_id: bytes) -> None:
        del self.granted[lease_id]
        self.asked.pop(lease_id, None)
        self.do(ev.LeaseReturned(lease_id))

    def give_asked(self) -> bool:
        """The holders give back what they are asked for, and ask for others."""
        found = [key for key, if_idle in self.asked.items() if not if_idle]
        for lease_id in found:
            request = self.machine.leases[lease_id].request
            self.give_back(lease_id)
            self.count += 1
            self.do(request._replace(lease_id=b"%d" % self.count))
        return bool(found)

    def held(self) -> dict[str, int]:
        labels = list(self.granted.values())
        return {label: labels.count(label) for label in sorted(set(labels))}

    def block(self, lease_id: bytes, is_blocked: bool) -> None:
        executor = self.machine.leases[lease_id].executor
        assert executor is not None
        self.do(ev.ExecutorBlocked(executor.worker_id, is_blocked))


# Classes.


def test_a_class_of_few_calls_is_through_before_a_large_one_goes_on() -> None:
    node = Node(CPU=4)
    node.ask("many", 16)
    node.now = 5.0
    node.ask("few", 6)
    assert node.give_asked()
    assert node.held() == {"few": 4}
    for lease_id in [key for key, label in node.granted.items() if label == "few"][:2]:
        node.give_back(lease_id)
    assert node.held() == {"few": 4}


def test_two_old_classes_come_to_rest_at_half_of_the_node() -> None:
    node = Node(CPU=4)
    node.ask("a", 16)
    node.ask("b", 16)
    for _ in range(50):
        node.now += 0.1
        node.give_asked()
    assert node.held() == {"a": 2, "b": 2}
    node.now += 1.0
    assert not node.give_asked()


def test_more_classes_than_cpus_take_turns() -> None:
    node = Node(CPU=2)
    served: dict[str, int] = dict.fromkeys("abcdef", 0)
    for label in served:
        node.ask(label, 16)
    for _ in range(300):
        node.now += 0.1
        node.give_asked()
        for lease_id, label in list(node.granted.items()):
            served[label] += 1
            node.give_back(lease_id)
            node.ask(label)
    total = sum(served.values())
    assert min(served.values()) > total / 12


def test_a_class_that_gets_nothing_goes_first_after_a_while() -> None:
    node = Node(CPU=1)
    (first,) = node.ask("a")
    node.now = YOUNG_S + 1
    node.ask("b", 3)
    node.ask("young")
    node.now += STARVED_S
    node.give_back(first)
    assert node.held() == {"b": 1}


def test_what_rebuilds_lost_values_goes_first() -> None:
    node = Node(CPU=1)
    (first,) = node.ask("a")
    node.ask("b", 3)
    node.ask("rebuilt", urgent=True)
    node.give_back(first)
    assert node.held() == {"rebuilt": 1}


def test_idle_leases_are_asked_for_even_by_a_class_with_its_share() -> None:
    node = Node(CPU=2)
    (first,) = node.ask("a")
    node.ask("b", 2)
    assert node.held() == {"a": 1, "b": 1}
    assert node.asked == {first: True}


def test_only_as_many_leases_are_asked_back_as_are_needed() -> None:
    node = Node(CPU=4)
    node.ask("a", 4)
    node.now = 10.0
    node.ask("b")
    assert sorted(node.asked.values()) == [False, True, True, True]


def test_a_large_request_asks_for_all_that_it_needs() -> None:
    node = Node(CPU=4)
    node.ask("a", 4)
    node.ask("b", need={"CPU": 3})
    assert sorted(node.asked.values()) == [False, False, False, True]


# Jobs.


@pytest.mark.parametrize("classes", [1, 8])
def test_two_jobs_share_the_node_however_many_classes_they_have(classes: int) -> None:
    node = Node(CPU=4)
    for number in range(classes):
        node.ask(f"a{number}", 8, job_id=b"a", holder="a")
    node.ask("b", 8, job_id=b"b", holder="b")
    for _ in range(50):
        node.now += 0.1
        node.give_asked()
    held = node.held()
    assert held["b"] == 2
    assert sum(held.values()) == 4


def test_a_job_counts_by_what_it_holds_not_by_how_many_leases() -> None:
    node = Node(CPU=8)
    node.ask("wide", 4, need={"CPU": 4}, job_id=b"a", holder="a")
    node.ask("narrow", 16, job_id=b"b", holder="b")
    for _ in range(50):
        node.now += 0.1
        node.give_asked()
    assert node.held() == {"narrow": 4, "wide": 1}


def test_a_call_that_waits_counts_as_nothing() -> None:
    node = Node(CPU=2)
    parents = node.ask("parent", 2, job_id=b"a", holder="a")
    for parent in parents:
        node.block(parent, True)
    node.ask("child", 2, job_id=b"a", holder="w")
    node.ask("b", 2, job_id=b"b", holder="b")
    for _ in range(10):
        node.now += 0.1
        node.give_asked()
    assert node.held() == {"b": 1, "child": 1, "parent": 2}


# Large requests beside small ones.


def churn(node: Node, rounds: int, step_s: float = 0.01) -> None:
    """Small calls end one after the other, and new ones come."""
    for _ in range(rounds):
        node.now += step_s
        small = [key for key, label in node.granted.items() if label == "small"]
        if small:
            node.give_back(small[0])
        node.ask("small")


def test_a_stream_of_small_requests_does_not_starve_a_large_one() -> None:
    node = Node(CPU=4)
    node.ask("small", 8)
    (large,) = node.ask("large", need={"CPU": 4})
    churn(node, 40)
    assert large not in node.granted
    churn(node, 30)
    assert large in node.granted


def test_a_guard_lets_those_go_that_came_before() -> None:
    node = Node(CPU=2)
    (small,) = node.ask("a")
    node.ask("a", need={"CPU": 2})
    node.now = 10.0
    node.give_back(small)
    assert node.held() == {"a": 1}


def test_a_request_that_lacks_two_kinds_guards_none() -> None:
    node = Node(CPU=2, GPU=1)
    (gpu,) = node.ask("gpu", need={"GPU": 1})
    cpus = node.ask("cpu", 2)
    node.ask("both", need={"CPU": 1, "GPU": 1})
    node.now = GUARD_AFTER_S + 1.1
    node.give_back(cpus[0])
    late = node.ask("late")
    assert gpu in node.granted
    # The first is "both"'s class's turn, but it cannot use a CPU alone.
    assert late[0] in node.granted


def test_nothing_is_guarded_that_an_actor_or_a_waiting_call_holds() -> None:
    node = Node(CPU=2)
    node.ask("actor", fixed=True)
    node.ask("large", need={"CPU": 2})
    node.now = GUARD_AFTER_S + 1.1
    (late,) = node.ask("late")
    assert late in node.granted


def test_a_guard_pauses_since_what_runs_may_wait_for_what_it_holds_up() -> None:
    node = Node(CPU=2)
    node.ask("runs")
    node.ask("large", need={"CPU": 2})
    node.now = GUARD_AFTER_S + 0.1
    (late,) = node.ask("late")
    assert late not in node.granted
    node.now = GUARD_AFTER_S + FIRST_GUARD_S
    node.do(ev.TimePassed())
    assert late in node.granted


def test_guards_and_their_pauses_grow() -> None:
    changes = [0.0]
    for number in range(1, 10_000):
        before, now = (number - 1) / 100, number / 100
        if is_guarding(before) != is_guarding(now):
            changes.append(now)
    assert changes[1:11] == [0.5, 1, 1.5, 2.5, 3.5, 5.5, 7.5, 11.5, 15.5, 23.5]
    assert changes[11:13] == [31.5, 39.5]


# Backlogs.


def test_demand_counts_calls_for_which_nobody_has_asked_yet() -> None:
    node = Node(CPU=1)
    node.ask("a")
    ids = node.ask("b", 3, backlog=2)
    assert [count for _, _, count in node.machine.demand()] == [3]
    node.do(ev.BacklogTold(ids[0], 500))
    assert [count for _, _, count in node.machine.demand()] == [500]
    assert node.machine.backlogs() == {ids[0]: 500}
    node.do(ev.LeaseCancelled(ids[0]))
    node.do(ev.LeaseCancelled(ids[1]))
    assert [count for _, _, count in node.machine.demand()] == [500]
    node.do(ev.LeaseCancelled(ids[2]))
    assert list(node.machine.demand()) == []
    assert node.machine.backlogs() == {}


def test_a_backlog_of_an_unknown_lease_is_no_news() -> None:
    node = Node(CPU=1)
    node.do(ev.BacklogTold(b"x", 5))
    assert node.machine.backlogs() == {}


@pytest.mark.parametrize("seed", range(10))
def test_every_class_gets_something_in_random_worlds(seed: int) -> None:
    draw = random.Random(seed)
    node = Node(CPU=3, GPU=1)
    classes = [
        (f"c{number}", draw.choice([b"j", b"k"]), draw.choice([0.5, 1, 1, 2, 3]))
        for number in range(draw.randint(2, 7))
    ]
    served = dict.fromkeys((label for label, _, _ in classes), 0)
    for label, job, cpus in classes:
        node.ask(label, 6, {"CPU": cpus}, job_id=job, holder=job.decode())
    for _ in range(400):
        node.now += draw.random() * 0.5
        for lease_id, if_idle in node.asked.items():
            served[node.granted[lease_id]] += not if_idle
        node.give_asked()
        for lease_id, label in list(node.granted.items()):
            if draw.random() < 0.3:
                served[label] += 1
                node.give_back(lease_id)
                _, job, cpus = classes[int(label[1:])]
                node.ask(label, 1, {"CPU": cpus}, job_id=job, holder=job.decode())
        if draw.random() < 0.1:
            node.do(ev.TimePassed())
    assert min(served.values()) > 5, served
    for lease in list(node.machine.leases.values()):
        if lease.state is LeaseState.WAITING:
            node.do(ev.LeaseCancelled(lease.request.lease_id))
    for lease_id in list(node.granted):
        node.give_back(lease_id)
    assert node.machine.shares.classes == {}
