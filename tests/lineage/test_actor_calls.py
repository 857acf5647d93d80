"""Calls of one process on one actor: order, lives, retries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rayshim.lineage.actor_calls import ActorQueue, ActorState
from rayshim.lineage.tasks import TaskEvent, TaskLife


class Call(TaskLife):
    """A call whose arguments are known or not, queued either way."""

    def __init__(
        self, task_id: bytes, ready: bool = True, retries_left: int = 0
    ) -> None:
        super().__init__(task_id, retries_left)
        self.on(TaskEvent.ARGUMENTS_KNOWN)
        self.ready = ready


def make_queue(*calls: Call, alive: bool = True) -> ActorQueue:
    queue = ActorQueue(b"actor")
    if alive:
        assert queue.alive(0)
    queue.pending.extend(calls)
    return queue


def ids(calls: Any) -> list[bytes]:
    return [call.task_id for call in calls]


A, B, C = b"a", b"b", b"c"


# Order.


def test_calls_are_sent_in_the_order_submitted() -> None:
    queue = make_queue(Call(A), Call(B), Call(C))
    assert ids(queue.sendable(2)) == [A, B]
    assert ids(queue.sendable(2)) == [C]
    assert queue.sendable(2) == []
    queue.validate()


def test_a_call_that_is_not_ready_holds_back_later_ones() -> None:
    waiting = Call(B, ready=False)
    queue = make_queue(Call(A), waiting, Call(C))
    assert ids(queue.sendable(10)) == [A]
    waiting.ready = True
    assert ids(queue.sendable(10)) == [B, C]


def test_nothing_is_sent_before_the_first_life() -> None:
    queue = make_queue(Call(A), alive=False)
    assert queue.state is ActorState.PENDING
    assert queue.sendable(10) == []
    queue.alive(0)
    assert ids(queue.sendable(10)) == [A]


def test_the_length_counts_unanswered_calls() -> None:
    queue = make_queue(Call(A), Call(B))
    queue.sendable(1)
    assert len(queue) == 2
    queue.answered(A)
    assert len(queue) == 1


def test_a_reply_counts_once() -> None:
    call = Call(A)
    queue = make_queue(call)
    queue.sendable(1)
    assert queue.answered(A) is call
    assert queue.answered(A) is None
    assert queue.answered(B) is None


def test_an_unsent_call_can_be_withdrawn() -> None:
    first, second = Call(A), Call(B)
    queue = make_queue(first, second)
    queue.sendable(1)
    assert queue.withdraw(A) is None, "it was sent"
    assert queue.withdraw(B) is second
    assert queue.withdraw(B) is None


# Lives.


def test_a_life_is_news_once() -> None:
    queue = make_queue()
    assert not queue.alive(0)
    assert queue.alive(1)
    assert not queue.alive(0)
    assert queue.incarnation == 1


def test_a_dead_actor_never_comes_back() -> None:
    queue = make_queue()
    queue.life_ended(dead=True)
    assert not queue.alive(5)
    assert queue.state is ActorState.DEAD


def test_calls_in_doubt_fail_without_retries() -> None:
    queue = make_queue(Call(A), Call(B), Call(C))
    queue.sendable(2)
    assert ids(queue.life_ended(dead=False)) == [A, B]
    assert queue.state is ActorState.RESTARTING
    assert ids(queue.pending) == [C]
    queue.validate()


def test_calls_in_doubt_go_again_before_all_others() -> None:
    queue = make_queue(Call(A, retries_left=1), Call(B, retries_left=1), Call(C))
    queue.sendable(2)
    assert queue.life_ended(dead=False) == []
    assert queue.sendable(10) == []
    queue.alive(1)
    assert ids(queue.sendable(10)) == [A, B, C]


def test_a_retry_is_spent_by_each_life() -> None:
    call = Call(A, retries_left=2)
    queue = make_queue(call)
    left = []
    for life in (1, 2):
        queue.sendable(1)
        assert queue.life_ended(dead=False) == []
        left.append(call.retries_left)
        queue.alive(life)
    queue.sendable(1)
    assert left == [1, 0]
    assert queue.life_ended(dead=False) == [call]


def test_retries_without_limit_are_not_counted() -> None:
    call = Call(A, retries_left=-1)
    queue = make_queue(call)
    for life in range(1, 20):
        queue.sendable(1)
        assert queue.life_ended(dead=False) == []
        queue.alive(life)
    assert call.retries_left == -1


def test_an_unsent_call_spends_no_retry() -> None:
    call = Call(A, retries_left=1)
    queue = make_queue(call)
    queue.life_ended(dead=False)
    assert call.retries_left == 1


def test_death_fails_every_call_in_order() -> None:
    queue = make_queue(Call(A, retries_left=-1), Call(B), Call(C, ready=False))
    queue.sendable(1)
    assert ids(queue.life_ended(dead=True)) == [A, B, C]
    assert len(queue) == 0
    queue.validate()


# The verdict waits for the end of the channel.


def test_answers_sent_before_death_are_still_heard() -> None:
    call = Call(A)
    queue = make_queue(call, Call(B))
    queue.sendable(1)
    queue.verdict = "DEAD"
    assert queue.answered(A) is call
    assert ids(queue.life_ended(dead=True)) == [B]


def test_nothing_is_sent_to_a_life_with_a_verdict() -> None:
    queue = make_queue(Call(A))
    queue.verdict = "RESTARTING"
    assert queue.sendable(10) == []
    queue.life_ended(dead=False)
    assert queue.verdict is None
    queue.alive(1)
    assert ids(queue.sendable(10)) == [A]


def test_a_late_answer_of_an_old_life_is_ignored() -> None:
    queue = make_queue(Call(A))
    queue.sendable(1)
    queue.life_ended(dead=False)
    assert queue.answered(A) is None


class Caller(RuleBasedStateMachine):
    """An actor that runs what it gets, and dies now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ActorQueue(b"actor")
        self.submitted: list[Call] = []
        #: Calls at the actor, in the order it got them.
        self.at_actor: list[Call] = []
        self.ended: list[Call] = []
        self.life = -1

    @rule(ready=st.booleans(), retries=st.sampled_from([0, 0, 1, -1]))
    def submit(self, ready: bool, retries: int) -> None:
        if self.queue.state is not ActorState.DEAD:
            call = Call(b"%04d" % len(self.submitted), ready, retries)
            self.submitted.append(call)
            self.queue.pending.append(call)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def argument_arrives(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.submitted)).ready = True

    @rule(limit=st.integers(1, 3))
    def send(self, limit: int) -> None:
        calls = self.queue.sendable(limit)
        assert all(call.ready for call in calls)
        self.at_actor += calls

    @precondition(lambda self: self.at_actor)
    @rule()
    def answer(self) -> None:
        call = self.at_actor.pop(0)
        assert self.queue.answered(call.task_id) is call
        self.ended.append(call)

    @rule(doubled=st.booleans())
    def come_alive(self, doubled: bool) -> None:
        if self.queue.state in (ActorState.PENDING, ActorState.RESTARTING):
            self.life += 1
            assert self.queue.alive(self.life)
        if doubled:
            assert not self.queue.alive(self.life)

    @precondition(lambda self: self.queue.state is ActorState.ALIVE)
    @rule(dead=st.sampled_from([False, False, False, True]))
    def die(self, dead: bool) -> None:
        self.at_actor.clear()
        self.ended += self.queue.life_ended(dead=dead)

    @invariant()
    def every_call_is_in_one_place(self) -> None:
        self.queue.validate()
        inside = [*self.queue.inflight.values(), *self.queue.pending]
        assert sorted(ids(self.ended + inside)) == ids(self.submitted)

    @invariant()
    def waiting_calls_keep_their_order(self) -> None:
        waiting = ids([*self.queue.inflight.values(), *self.queue.pending])
        assert waiting == sorted(waiting)

    @invariant()
    def the_actor_has_what_is_in_flight(self) -> None:
        assert ids(self.at_actor) == list(self.queue.inflight)


Caller.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)


@pytest.mark.slow
class TestCaller(Caller.TestCase):  # type: ignore[misc]
    """Every order of events that hypothesis can think of."""
