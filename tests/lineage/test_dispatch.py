"""Which call goes to which lease, and when leases come and go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rayshim.lineage.dispatch import (
    BATCH,
    CAREFUL_REPLIES,
    IDLE_S,
    LATE_S,
    MAX_DEPTH,
    MAX_REQUESTS,
    QUANTUM_S,
    STEAL_AFTER_S,
    LeaseSlot,
    SchedulingClass,
)


def make_class(
    *, queued: int = 0, leases: int = 0, cost_s: float | None = None, **options: Any
) -> SchedulingClass:
    made = SchedulingClass("key", "f", None, **options)
    made.queue.extend(range(queued))
    made.slots.extend(LeaseSlot(b"%d" % i, None, 0.0) for i in range(leases))
    made.cost_s = cost_s
    return made


def load(slot: LeaseSlot, count: int) -> None:
    """Give a lease calls in hand."""
    slot.inflight = {b"%d" % i: object() for i in range(count)}


def shares(made: SchedulingClass, *, flush: bool = True) -> list[int]:
    return [len(calls) for _, calls in made.assign(flush=flush, now_s=0.0)]


# Depth.


@pytest.mark.parametrize(
    ("cost_s", "depth"),
    [
        (None, 1),
        (0.0, 512),
        (10e-6, 416),
        (100e-6, 49),
        (0.001, 4),
        (0.0024, 2),
        (0.0026, 1),
        (2.0, 1),
    ],
)
def test_depth_is_the_work_of_five_milliseconds(
    cost_s: float | None, depth: int
) -> None:
    assert make_class(cost_s=cost_s).depth() == depth


def test_depth_respects_the_limit_of_the_class() -> None:
    assert make_class(cost_s=0.0, max_depth=1).depth() == 1


def test_a_slow_call_counts_at_once_and_a_fast_one_slowly() -> None:
    made = make_class()
    made.record_cost(0.001)
    assert made.cost_s == 0.001
    made.record_cost(0.1)
    assert made.cost_s == 0.1
    made.record_cost(0.0)
    assert made.cost_s == pytest.approx(0.08)


# Assigning.


def test_nothing_is_assigned_without_calls_or_leases() -> None:
    assert shares(make_class(leases=2)) == []
    assert shares(make_class(queued=2)) == []


def test_a_lease_of_unknown_cost_gets_one_call() -> None:
    made = make_class(queued=5, leases=2)
    assert shares(made) == [1, 1]
    assert list(made.queue) == [2, 3, 4]


def test_leases_share_the_queue_evenly() -> None:
    assert shares(make_class(queued=10, leases=4, cost_s=0.0)) == [3, 3, 2, 2]


def test_calls_are_taken_in_order() -> None:
    made = make_class(queued=5, leases=2, cost_s=0.0)
    pushes = made.assign(flush=True, now_s=0.0)
    assert [calls for _, calls in pushes] == [[0, 1, 2], [3, 4]]


def test_the_emptiest_lease_comes_first() -> None:
    made = make_class(queued=1, leases=3, cost_s=0.001)
    for slot, count in zip(made.slots, (2, 0, 1), strict=True):
        load(slot, count)
    ((slot, _),) = made.assign(flush=True, now_s=0.0)
    assert slot is made.slots[1]


def test_a_full_lease_gets_nothing() -> None:
    made = make_class(queued=3, leases=1, cost_s=0.001)
    load(made.slots[0], 4)
    assert shares(made) == []


def test_a_draining_lease_gets_nothing() -> None:
    made = make_class(queued=4, leases=2)
    made.slots[0].draining = True
    ((slot, _),) = made.assign(flush=True, now_s=0.0)
    assert slot is made.slots[1]


def test_a_busy_lease_waits_for_a_full_batch_unless_flushed() -> None:
    made = make_class(queued=BATCH - 1, leases=1, cost_s=0.0)
    load(made.slots[0], 1)
    assert shares(made, flush=False) == []
    made.queue.append("one more")
    assert shares(made, flush=False) == [BATCH]


def test_an_idle_lease_gets_a_call_at_once() -> None:
    made = make_class(queued=1, leases=1, cost_s=0.0)
    assert shares(made, flush=False) == [1]


def test_the_first_call_of_an_idle_lease_starts_its_clock() -> None:
    made = make_class(queued=2, leases=2, cost_s=0.001)
    load(made.slots[0], 1)
    made.assign(flush=True, now_s=7.0)
    assert made.slots[1].progress_s == 7.0
    assert made.slots[0].progress_s == 0.0


@given(
    queued=st.integers(0, 2000),
    held=st.lists(st.integers(0, 20), max_size=6),
    cost_s=st.none() | st.floats(0, 1),
    flush=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_assigning_loses_and_doubles_nothing(
    queued: int, held: list[int], cost_s: float | None, flush: bool
) -> None:
    made = make_class(queued=queued, leases=len(held), cost_s=cost_s)
    for slot, count in zip(made.slots, held, strict=True):
        load(slot, count)
    depth = made.depth()
    pushes = made.assign(flush=flush, now_s=0.0)
    pushed = [call for _, calls in pushes for call in calls]
    assert sorted(pushed + list(made.queue)) == list(range(queued))
    assert len({id(slot) for slot, _ in pushes}) == len(pushes)
    for slot, calls in pushes:
        assert 0 < len(calls)
        assert len(slot.inflight) + len(calls) <= max(depth, 1)
    if flush and made.queue:
        taken = {id(slot): len(calls) for slot, calls in pushes}
        idle = [s for s in made.slots if not s.inflight and id(s) not in taken]
        assert not idle, "a lease idles while calls wait"


# How many leases.


@pytest.mark.parametrize(
    ("queued", "leases", "cost_s", "requested", "wanted"),
    [
        (0, 0, None, 0, 0),
        (1, 0, None, 0, 1),
        (5, 0, None, 2, 3),
        (100, 0, None, 0, MAX_REQUESTS),
        (100, 0, None, MAX_REQUESTS, 0),
        (5, 1, None, 0, 5),
        (5, 1, 2.0, 0, 5),
        (5, 1, 0.001, 0, 5),
        (50, 1, 10e-6, 0, 0),
        (500, 1, 10e-6, 0, 5),
        (2, 1, 1.0, 5, 0),
    ],
)
def test_leases_are_asked_for_where_they_take_a_millisecond_of_work(
    queued: int, leases: int, cost_s: float | None, requested: int, wanted: int
) -> None:
    made = make_class(queued=queued, leases=leases, cost_s=cost_s)
    made.requested = {b"r%d" % i: 0.0 for i in range(requested)}
    assert made.leases_wanted() == wanted


# Stealing.


def test_an_idle_lease_takes_half_of_the_longest_pipeline() -> None:
    made = make_class(leases=3)
    load(made.slots[1], 5)
    load(made.slots[2], 9)
    assert made.steal(1.0) == (made.slots[2], 4)


def test_the_call_that_runs_is_not_stolen_alone() -> None:
    made = make_class(leases=2)
    load(made.slots[0], 1)
    assert made.steal(1.0) is None
    assert not made.may_steal_later()


def test_nothing_is_stolen_while_calls_wait_in_the_queue() -> None:
    made = make_class(leases=2, queued=1)
    load(made.slots[0], 5)
    assert made.steal(1.0) is None


def test_nothing_is_stolen_for_a_draining_lease() -> None:
    made = make_class(leases=2)
    load(made.slots[0], 5)
    made.slots[1].draining = True
    assert made.steal(1.0) is None


def test_a_lease_that_replies_in_time_keeps_its_calls() -> None:
    made = make_class(leases=2)
    load(made.slots[0], 5)
    made.slots[0].progress_s = 1.0
    assert made.steal(1.0 + STEAL_AFTER_S / 2) is None
    assert made.may_steal_later()
    assert made.steal(1.0 + 2 * STEAL_AFTER_S) == (made.slots[0], 2)


def test_a_lease_is_stolen_from_once_at_a_time() -> None:
    made = make_class(leases=2)
    load(made.slots[0], 5)
    made.slots[0].stealing = True
    assert made.steal(1.0) is None


def test_two_calls_give_one() -> None:
    made = make_class(leases=2)
    load(made.slots[0], 2)
    assert made.steal(1.0) == (made.slots[0], 1)


# Giving back.


def test_an_idle_lease_is_kept_for_a_second() -> None:
    made = make_class(leases=1)
    assert made.returnable(IDLE_S - 0.01) == []
    assert made.returnable(IDLE_S) == made.slots


def test_a_lease_with_calls_waiting_is_kept() -> None:
    assert make_class(leases=1, queued=1).returnable(100.0) == []


def test_a_claimed_idle_lease_goes_back_at_once() -> None:
    made = make_class(leases=1)
    made.slots[0].reclaimed = True
    assert made.returnable(0.0) == made.slots


def test_a_claimed_busy_lease_drains_after_its_quantum() -> None:
    made = make_class(leases=1, queued=1)
    slot = made.slots[0]
    slot.reclaimed = True
    load(slot, 1)
    assert made.returnable(QUANTUM_S / 2) == []
    assert not slot.draining
    assert made.returnable(QUANTUM_S) == []
    assert slot.draining
    slot.inflight.clear()
    assert made.returnable(QUANTUM_S) == [slot]


def test_a_claimed_lease_with_a_queue_goes_back_after_its_quantum() -> None:
    made = make_class(leases=1, queued=1)
    made.slots[0].reclaimed = True
    assert made.returnable(QUANTUM_S / 2) == []
    assert made.returnable(QUANTUM_S) == made.slots


def test_a_draining_lease_goes_back_when_it_is_empty() -> None:
    made = make_class(leases=2, queued=1)
    made.slots[1].draining = True
    assert made.returnable(0.0) == [made.slots[1]]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.floats(0, 3)),
        max_size=6,
    ),
    st.integers(0, 3),
    st.floats(3, 6),
)
@settings(max_examples=25, deadline=None)
def test_a_lease_with_calls_in_hand_never_goes_back(
    slots: list[tuple[int, bool, bool, float]], queued: int, now_s: float
) -> None:
    made = make_class(leases=len(slots), queued=queued)
    for slot, (held, reclaimed, draining, since_s) in zip(
        made.slots, slots, strict=True
    ):
        load(slot, held)
        slot.reclaimed, slot.draining, slot.idle_since_s = reclaimed, draining, since_s
    out = made.returnable(now_s)
    assert all(not slot.inflight for slot in out)
    assert len({id(slot) for slot in out}) == len(out)


# A class, its executors, and time.


class Dispatch(RuleBasedStateMachine):
    """Calls run one by one on each lease; a naive list knows where each one is."""

    def __init__(self) -> None:
        super().__init__()
        self.made = make_class()
        self.now_s = 0.0
        self.submitted = 0
        self.asked = 0
        self.done: list[int] = []

    @rule(count=st.integers(1, 70), flush=st.booleans())
    def submit(self, count: int, flush: bool) -> None:
        for _ in range(count):
            self.made.queue.append(self.submitted)
            self.submitted += 1
        self.advance(flush)

    def advance(self, flush: bool = True) -> None:
        for slot, calls in self.made.assign(flush=flush, now_s=self.now_s):
            assert not slot.draining
            slot.inflight.update((b"%d" % call, call) for call in calls)
        for _ in range(self.made.leases_wanted()):
            self.asked += 1
            self.made.requested[b"%d" % self.asked] = self.now_s

    @precondition(lambda self: self.made.requested)
    @rule()
    def grant(self) -> None:
        lease_id = next(iter(self.made.requested))
        del self.made.requested[lease_id]
        self.made.slots.append(LeaseSlot(lease_id, None, self.now_s))
        self.advance()

    @precondition(lambda self: any(slot.inflight for slot in self.made.slots))
    @rule(data=st.data(), cost_s=st.sampled_from([1e-6, 1e-4, 0.01, 2.0]))
    def reply(self, data: st.DataObject, cost_s: float) -> None:
        busy = [slot for slot in self.made.slots if slot.inflight]
        slot = data.draw(st.sampled_from(busy))
        self.now_s += cost_s
        self.done.append(slot.inflight.pop(next(iter(slot.inflight))))
        slot.progress_s = slot.idle_since_s = self.now_s
        self.made.record_cost(cost_s)
        self.advance()

    @rule(wait_s=st.sampled_from([0.001, 0.1, 2.0]))
    def review(self, wait_s: float) -> None:
        self.now_s += wait_s
        for slot in self.made.returnable(self.now_s):
            self.made.slots.remove(slot)
        found = self.made.steal(self.now_s)
        if found is not None:
            slot, count = found
            assert count < len(slot.inflight), "the call that runs cannot be stolen"
            stolen = [slot.inflight.popitem()[1] for _ in range(count)]
            self.made.queue.extendleft(stolen)
        self.advance()

    @precondition(lambda self: self.made.slots)
    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.made.slots)).reclaimed = True

    @invariant()
    def every_call_is_in_one_place(self) -> None:
        self.made.validate()
        held = [c for slot in self.made.slots for c in slot.inflight.values()]
        everywhere = self.done + held + list(self.made.queue)
        assert sorted(everywhere) == list(range(self.submitted))

    @invariant()
    def somebody_will_take_what_waits(self) -> None:
        if self.made.queue:
            assert self.made.slots or self.made.requested

    @invariant()
    def pipelines_are_bounded(self) -> None:
        assert all(len(slot.inflight) <= MAX_DEPTH for slot in self.made.slots)


Dispatch.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)


@pytest.mark.slow
class TestDispatch(Dispatch.TestCase):  # type: ignore[misc]
    """Every order of events that hypothesis can think of."""


# Late leases.


def test_calls_behind_a_late_one_are_taken_back_without_an_idle_lease() -> None:
    made = make_class(leases=1, cost_s=0.0)
    load(made.slots[0], 5)
    assert made.late(LATE_S / 2) == []
    assert made.late(2 * LATE_S) == [(made.slots[0], 4)]


def test_a_late_lease_gets_no_more_and_others_are_asked_for() -> None:
    made = make_class(queued=4, leases=1, cost_s=1e-6)
    load(made.slots[0], 1)
    assert made.assign(flush=True, now_s=2 * LATE_S) == []
    assert made.leases_wanted(2 * LATE_S) == 4


def test_a_steal_under_way_is_not_asked_for_again() -> None:
    made = make_class(leases=1, cost_s=0.0)
    load(made.slots[0], 5)
    made.slots[0].stealing = True
    assert made.late(1.0) == []


# Places of their own, and homes.


def test_a_class_whose_calls_are_spread_pushes_one_call_to_each_lease() -> None:
    made = make_class(queued=100, leases=2, cost_s=0.0, single_use=True)
    assert shares(made) == [1, 1]


def test_a_class_whose_calls_are_spread_asks_for_a_lease_for_each() -> None:
    made = make_class(queued=10, leases=1, cost_s=1e-6, single_use=True)
    assert made.leases_wanted(0.0) == 10


def test_an_idle_lease_that_others_would_use_goes_back_at_once() -> None:
    made = make_class(leases=2)
    made.slots[0].wanted = True
    assert made.returnable(0.0) == [made.slots[0]]


def test_a_lease_that_others_would_use_is_kept_while_there_are_calls() -> None:
    made = make_class(queued=3, leases=1)
    made.slots[0].wanted = True
    assert made.returnable(QUANTUM_S * 2) == []
    load(made.slots[0], 2)
    made.queue.clear()
    assert made.returnable(QUANTUM_S * 2) == []
    assert not made.slots[0].draining


def test_a_class_at_another_node_is_the_same_but_for_its_home() -> None:
    made = make_class(cost_s=0.5, max_depth=3)
    twin = made.at("node")
    assert (twin.home, twin.base, twin.max_depth, twin.cost_s) == ("node", made, 3, 0.5)
    assert twin.key != made.key
    assert made.home == "" and made.base is None


def test_after_a_crash_calls_are_pushed_one_at_a_time_for_a_while() -> None:
    scheduling = SchedulingClass("f", "f", None)
    scheduling.record_cost(0.0001)
    assert scheduling.depth() > 1
    scheduling.crashed()
    assert scheduling.depth() == 1
    for _ in range(CAREFUL_REPLIES):
        assert scheduling.depth() == 1
        scheduling.record_cost(0.0001)
    assert scheduling.depth() > 1
