"""The actor machine's rules."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from rayshim.lineage import actor_events as ev
from rayshim.lineage.actors import REMEMBERED, Actor, ActorManager, ActorState
from rayshim.lineage.transitions import InvalidTransition
from typed_list import TypedList

A = b"actor"


class World:
    """A machine, checked after each event."""

    def __init__(self) -> None:
        self.machine = ActorManager()
        self.now = 0.0

    def do(self, event: Any) -> list[Any]:
        commands = self.machine.handle(event, self.now)
        self.machine.validate()
        return TypedList(commands)

    def register(self, actor_id: bytes = A, **options: Any) -> list[Any]:
        values: dict[str, Any] = {
            "job_id": b"job",
            "owner": "owner",
            "class_name": "Counter",
            "name": "",
            "namespace": "ns",
            "is_detached": False,
            "max_restarts": 0,
            "placement": {"CPU": 10_000},
            "need": {},
            **options,
        }
        spec = ev.ActorSpec(actor_id, **values)
        return self.do(ev.Registered(actor_id, spec))

    def place(self, actor_id: bytes = A, incarnation: int = 0) -> list[Any]:
        worker = b"w%d" % incarnation
        return self.do(ev.Placed(actor_id, incarnation, worker, "unix:w", 7))

    def alive(self, actor_id: bytes = A, **options: Any) -> Actor:
        self.register(actor_id, **options)
        self.do(ev.Started(actor_id))
        self.place(actor_id)
        self.do(ev.Created(actor_id, 0))
        return self.machine.actors[actor_id]

    def lost(self, incarnation: int = 0, kind: str = "") -> list[Any]:
        return self.do(ev.ExecutorLost(A, incarnation, "exited with exit code 1", kind))


def test_an_actor_is_registered_placed_created() -> None:
    world = World()
    assert world.register() == [ev.Accept(A)]
    assert world.do(ev.Started(A)) == [ev.Place(A, 0)]
    assert world.place() == [ev.Construct(A, 0)]
    assert world.machine.actors[A].shown_state == "PENDING"
    assert world.do(ev.Created(A, 0, "<me>")) == [ev.Settle(A, 0), ev.Publish(A)]
    actor = world.machine.actors[A]
    assert (actor.shown_state, actor.address, actor.repr_name) == (
        "ALIVE",
        "unix:w",
        "<me>",
    )


def test_registering_or_starting_twice_is_doing_it_once() -> None:
    world = World()
    world.register(name="n")
    assert world.register(name="n") == [ev.Accept(A)]
    world.do(ev.Started(A))
    assert world.do(ev.Started(A)) == []


def test_a_name_belongs_to_one_actor_of_a_namespace() -> None:
    world = World()
    world.register(name="n")
    assert world.register(b"b", name="n") == [ev.Refuse(b"b", "n", "ns")]
    assert world.register(b"b", name="n", namespace="other") == [ev.Accept(b"b")]
    world.do(ev.Killed(A, no_restart=True))
    assert world.register(b"c", name="n") == [ev.Accept(b"c")]


def test_a_failed_argument_kills_at_once() -> None:
    world = World()
    world.register()
    assert world.do(ev.Unstartable(A)) == [ev.Publish(A)]
    actor = world.machine.actors[A]
    assert (actor.shown_state, actor.kind) == ("DEAD", "init")


def test_a_failed_constructor_is_final_and_waits_for_the_exit() -> None:
    world = World()
    world.register(max_restarts=5)
    world.do(ev.Started(A))
    world.place()
    assert world.do(ev.ConstructorFailed(A, 0)) == [
        ev.Dismiss(A, 0, "init", is_patient=False)
    ]
    assert world.machine.actors[A].shown_state == "PENDING"
    assert world.lost() == [ev.Publish(A)]
    actor = world.machine.actors[A]
    assert (actor.state, actor.kind) == (ActorState.DEAD, "init")


def test_a_crash_without_restarts_is_death() -> None:
    world = World()
    actor = world.alive()
    assert world.lost() == [ev.Publish(A)]
    assert (actor.state, actor.kind, actor.cause) == (
        ActorState.DEAD,
        "crash",
        "exited with exit code 1",
    )


def test_a_crash_with_restarts_left_is_a_new_incarnation() -> None:
    world = World()
    actor = world.alive(max_restarts=1)
    assert world.lost() == [ev.Publish(A), ev.Place(A, 1)]
    assert (actor.shown_state, actor.restarts_left) == ("RESTARTING", 0)
    world.place(incarnation=1)
    assert actor.shown_state == "RESTARTING"
    world.do(ev.Created(A, 1))
    assert actor.shown_state == "ALIVE"
    assert world.lost(1) == [ev.Publish(A)]
    assert actor.state is ActorState.DEAD


def test_restarts_without_limit_go_on() -> None:
    world = World()
    actor = world.alive(max_restarts=-1)
    for incarnation in range(5):
        world.lost(incarnation)
        world.place(incarnation=incarnation + 1)
        world.do(ev.Created(A, incarnation + 1))
    assert (actor.incarnation, actor.restarts_left) == (5, -1)


def test_a_crash_in_the_constructor_uses_a_restart() -> None:
    world = World()
    world.register(max_restarts=1)
    world.do(ev.Started(A))
    world.place()
    assert world.lost() == [ev.Publish(A), ev.Place(A, 1)]


def test_news_of_an_earlier_incarnation_change_nothing() -> None:
    world = World()
    actor = world.alive(max_restarts=-1)
    world.lost(0)
    for event in (
        ev.ExecutorLost(A, 0, "again"),
        ev.Created(A, 0),
        ev.Placed(A, 0, b"w", "x", 1),
        ev.ConstructorFailed(A, 0),
    ):
        assert world.do(event) == []
    assert actor.state is ActorState.PLACING


def test_leaving_by_its_own_will_is_final() -> None:
    world = World()
    actor = world.alive(max_restarts=-1)
    assert world.do(ev.Exiting(A, "exit_actor")) == []
    assert world.lost() == [ev.Publish(A)]
    assert (actor.kind, actor.cause) == ("exit", "exit_actor")


@pytest.mark.parametrize("no_restart", [True, False])
def test_kill_is_death_unless_a_restart_is_wanted(no_restart: bool) -> None:
    world = World()
    actor = world.alive(max_restarts=1)
    assert world.do(ev.Killed(A, no_restart)) == [ev.Kill(A, 0)]
    world.lost()
    assert (actor.shown_state, actor.kind) == (
        "DEAD" if no_restart else "RESTARTING",
        "kill",
    )


def test_kill_for_good_wins_over_kill_with_restart() -> None:
    world = World()
    actor = world.alive(max_restarts=1)
    world.do(ev.Killed(A, no_restart=False))
    world.do(ev.Killed(A, no_restart=True))
    world.lost()
    assert actor.state is ActorState.DEAD


def test_kill_before_placement_takes_the_request_back() -> None:
    world = World()
    world.register()
    world.do(ev.Started(A))
    assert world.do(ev.Killed(A, no_restart=True)) == [ev.Unplace(A, 0), ev.Publish(A)]
    assert world.place() == []


def test_out_of_scope_ends_patiently_and_frees_the_name_at_once() -> None:
    world = World()
    actor = world.alive(name="n", max_restarts=-1)
    assert world.do(ev.OutOfScope(A)) == [ev.Dismiss(A, 0, "scope", is_patient=True)]
    assert world.machine.names == {}
    assert actor.shown_state == "ALIVE"
    world.lost()
    assert (actor.state, actor.kind) == (ActorState.DEAD, "scope")


def test_out_of_scope_while_created_waits_for_the_constructor() -> None:
    world = World()
    world.register()
    world.do(ev.Started(A))
    world.place()
    assert world.do(ev.OutOfScope(A)) == []
    assert world.do(ev.Created(A, 0))[-1] == ev.Dismiss(A, 0, "scope", is_patient=True)


def test_an_actor_out_of_scope_is_not_restarted() -> None:
    world = World()
    actor = world.alive(max_restarts=-1)
    world.do(ev.Killed(A, no_restart=False))
    world.do(ev.OutOfScope(A))
    world.lost()
    assert actor.state is ActorState.DEAD


def test_a_dead_owner_takes_its_actors_along_but_not_detached_ones() -> None:
    world = World()
    actor = world.alive(max_restarts=-1)
    detached = world.alive(b"detached", is_detached=True)
    world.register(b"early")
    commands = world.do(ev.OwnerGone("owner"))
    assert commands == [ev.Kill(A, 0), ev.Publish(b"early")]
    world.lost()
    assert (actor.state, actor.kind) == (ActorState.DEAD, "owner")
    assert detached.state is ActorState.ALIVE


def test_a_removed_placement_group_is_final() -> None:
    world = World()
    actor = world.alive(max_restarts=-1)
    world.lost(kind="removed")
    assert (actor.state, actor.kind) == (ActorState.DEAD, "kill")


def test_a_placement_that_fails_is_death_with_its_reason() -> None:
    world = World()
    world.register()
    world.do(ev.Started(A))
    world.do(ev.PlacementFailed(A, 0, "no executor can start", "setup"))
    actor = world.machine.actors[A]
    assert (actor.kind, actor.cause) == ("setup", "no executor can start")


def test_old_dead_actors_are_forgotten() -> None:
    world = World()
    machine = world.machine
    for number in range(REMEMBERED + 1):
        spec = ev.ActorSpec(b"%d" % number, b"", "o", "C", "", "", False, 0, {}, {})
        machine.handle(ev.Registered(spec.actor_id, spec), 0.0)
        commands = machine.handle(ev.Killed(spec.actor_id, no_restart=True), 0.0)
    assert [one for one in commands if isinstance(one, ev.Forget)] == [ev.Forget(b"0")]
    assert machine.handle(ev.OutOfScope(b"0"), 0.0) == []
    machine.validate()


def test_an_impossible_event_tells_the_story() -> None:
    world = World()
    world.register()
    with pytest.raises(InvalidTransition, match="REGISTERED and cannot take") as caught:
        world.place()
    assert "Registered" in str(caught.value)


EVENTS = (
    ev.Started(A),
    ev.Placed(A, 0, b"w", "unix:w", 7),
    ev.Created(A, 0),
    ev.ConstructorFailed(A, 0),
    ev.ExecutorLost(A, 0, "crashed"),
    ev.ExecutorLost(A, 1, "crashed"),
    ev.Placed(A, 1, b"x", "unix:x", 8),
    ev.Killed(A, False),
    ev.Killed(A, True),
    ev.OutOfScope(A),
    ev.OwnerGone("owner"),
    ev.Exiting(A, "exit"),
    ev.Unstartable(A),
)


def test_every_short_history_keeps_the_rules() -> None:
    for history in itertools.permutations(EVENTS, 3):
        world = World()
        world.register(name="n", max_restarts=1)
        for event in history:
            was_dead = world.machine.actors[A].state is ActorState.DEAD
            try:
                commands = world.do(event)
            except InvalidTransition:
                break
            assert not was_dead or commands == []


@pytest.mark.parametrize("seed", range(20))
def test_an_actor_that_must_end_is_never_placed_again(seed: int) -> None:
    draw = random.Random(seed)
    world = World()
    world.register(name="n", max_restarts=-1)
    actor = world.machine.actors[A]
    must_end = False
    for _ in range(100):
        n = actor.incarnation
        event = draw.choice(
            (
                ev.Started(A),
                ev.Placed(A, n, b"w", "unix:w", 7),
                ev.Created(A, n),
                ev.ExecutorLost(A, n, "crashed"),
                ev.ExecutorLost(A, n, "crashed"),
                ev.Killed(A, False),
                *(
                    (ev.Killed(A, True), ev.OutOfScope(A))
                    if draw.random() < 0.05
                    else ()
                ),
            )
        )
        try:
            commands = world.do(event)
        except InvalidTransition:
            continue
        assert not (must_end and any(isinstance(one, ev.Place) for one in commands))
        must_end = must_end or isinstance(event, ev.OutOfScope)
        must_end = must_end or getattr(event, "no_restart", False)
        assert not must_end or world.machine.names == {}
