"""The life of every actor of a cluster.

    REGISTERED -> PLACING -> CREATING -> ALIVE -> ENDING -> DEAD
                     ^__________________________|  (a restart: incarnation + 1)

REGISTERED waits for the constructor's arguments, PLACING for an executor, CREATING for
the constructor; ENDING was told or made to leave and waits for the process to exit. Any
state may go to DEAD, and DEAD is for ever. Rules that always hold:

1. A name belongs to at most one actor that is not DEAD and not on its final way there.
2. An incarnation has at most one executor; news of an earlier one change nothing.
3. ``restarts_left`` never grows, and an actor that is meant to end is not restarted.

Outside, REGISTERED, PLACING and CREATING read "PENDING" in the first incarnation and
"RESTARTING" in later ones; ENDING still reads "ALIVE" (or as before).

Registering twice is registering once (ids are made by the owner). Every other event is
ignored in the states where it comes late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Any

from rayshim.lineage import actor_events as ev
from rayshim.lineage.actor_events import Command
from rayshim.lineage.transitions import InvalidTransition, Story

#: Dead actors that are remembered.
REMEMBERED = 2_000


class ActorState(Enum):
    """States of an actor."""

    UNKNOWN = 0
    REGISTERED = 1
    PLACING = 2
    CREATING = 3
    ALIVE = 4
    ENDING = 5
    DEAD = 6


class Actor:
    """One actor."""

    __slots__ = (
        "address",
        "cause",
        "ending",
        "incarnation",
        "is_created",
        "is_out_of_scope",
        "kind",
        "pid",
        "repr_name",
        "restarts_left",
        "since_s",
        "spec",
        "state",
        "worker_id",
    )

    def __init__(self, spec: ev.ActorSpec, now: float) -> None:
        self.spec = spec
        self.state = ActorState.REGISTERED
        #: Number of restarts so far.
        self.incarnation = 0
        self.restarts_left = spec.max_restarts
        #: The process of this incarnation; meaningful in CREATING, ALIVE, ENDING.
        self.worker_id = b""
        self.address = ""
        self.pid = 0
        #: Whether this incarnation's constructor has returned.
        self.is_created = False
        self.repr_name = ""
        #: Why it died last, and the kind of that ("crash", "kill", ...).
        self.cause = ""
        self.kind = ""
        #: In ENDING: (kind, cause, whether a restart is out of the question).
        self.ending: tuple[str, str, bool] | None = None
        self.is_out_of_scope = False
        #: Time of the last change of state.
        self.since_s = now

    @property
    def shown_state(self) -> str:
        """The state's name for peers."""
        state = self.state
        if state is ActorState.DEAD:
            return "DEAD"
        if state in (ActorState.ALIVE, ActorState.ENDING) and self.is_created:
            return "ALIVE"
        return "RESTARTING" if self.incarnation else "PENDING"


class ActorManager:
    """The machine. See the module's text for its rules."""

    def __init__(self) -> None:
        #: Actor id -> actor; of the DEAD at most REMEMBERED.
        self.actors: dict[bytes, Actor] = {}
        #: (namespace, name) -> id of the actor that has it.
        self.names: dict[tuple[str, str], bytes] = {}
        #: Owner -> ids of its actors that are not DEAD, in order.
        self._owned: dict[str, dict[bytes, None]] = {}
        #: Exactly the DEAD, oldest first.
        self._dead: OrderedDict[bytes, None] = OrderedDict()
        self._story = Story()

    def handle(self, event: Any, now: float) -> list[Command]:
        """Takes one event at time ``now`` (seconds, monotonic).

        Raises:
            InvalidTransition: the event does not fit the actor's state.
        """
        self._story.add(event, now)
        if isinstance(event, ev.OwnerGone):
            return self._owner_gone(event, now)
        actor = self.actors.get(event.actor_id)
        state = actor.state if actor else ActorState.UNKNOWN
        if state is ActorState.UNKNOWN:
            if isinstance(event, ev.Registered):
                return self._register(event, now)
            return []  # It was forgotten long after its death.
        method = _TABLE.get((state, type(event)))
        if method is None:
            story = self.story(event.actor_id)
            raise InvalidTransition(event.actor_id, state, event, story)
        assert actor is not None
        if getattr(event, "incarnation", actor.incarnation) != actor.incarnation:
            return []
        return method(self, actor, event, now)

    def story(self, actor_id: bytes) -> list[str]:
        """The remembered events that name an actor."""
        return self._story.of(actor_id)

    def validate(self) -> None:
        """Checks the invariants.

        Raises:
            AssertionError: one does not hold.
        """
        dead = {key for key, one in self.actors.items() if one.state is ActorState.DEAD}
        assert dead == set(self._dead)
        owned = {key for ids in self._owned.values() for key in ids}
        assert owned == self.actors.keys() - dead
        for (namespace, name), actor_id in self.names.items():
            actor = self.actors[actor_id]
            assert (actor.spec.namespace, actor.spec.name) == (namespace, name)
            assert actor.state is not ActorState.DEAD
        for actor in self.actors.values():
            assert (actor.ending is not None) == (actor.state is ActorState.ENDING)
            if actor.spec.max_restarts >= 0:
                used = actor.spec.max_restarts - actor.restarts_left
                assert actor.restarts_left >= 0 and used == actor.incarnation

    def restore(self, actor: Actor) -> None:
        """Takes up an actor that an earlier life of the control service had."""
        actor_id, spec = actor.spec.actor_id, actor.spec
        self.actors[actor_id] = actor
        if actor.state is ActorState.DEAD:
            self._dead[actor_id] = None
            return
        self._owned.setdefault(spec.owner, {})[actor_id] = None
        is_final = actor.ending is not None and actor.ending[2]
        if spec.name and not (is_final or actor.is_out_of_scope):
            self.names[spec.namespace, spec.name] = actor_id

    # Towards ALIVE.

    def _register(self, event: ev.Registered, now: float) -> list[Command]:
        spec = event.spec
        if spec.name:
            key = (spec.namespace, spec.name)
            if key in self.names:
                return [ev.Refuse(spec.actor_id, spec.name, spec.namespace)]
            self.names[key] = spec.actor_id
        self.actors[spec.actor_id] = Actor(spec, now)
        self._owned.setdefault(spec.owner, {})[spec.actor_id] = None
        return [ev.Accept(spec.actor_id)]

    def _again(self, actor: Actor, event: ev.Registered, now: float) -> list[Command]:
        return [ev.Accept(actor.spec.actor_id)]

    def _ignore(self, actor: Actor, event: Any, now: float) -> list[Command]:
        return []

    def _start(self, actor: Actor, event: ev.Started, now: float) -> list[Command]:
        _move(actor, ActorState.PLACING, now)
        return [ev.Place(actor.spec.actor_id, actor.incarnation)]

    def _unstartable(
        self, actor: Actor, event: ev.Unstartable, now: float
    ) -> list[Command]:
        return self._die(actor, "init", "an argument of its constructor failed", now)

    def _placed(self, actor: Actor, event: ev.Placed, now: float) -> list[Command]:
        _move(actor, ActorState.CREATING, now)
        actor.worker_id = event.worker_id
        actor.address = event.address
        actor.pid = event.pid
        return [ev.Construct(actor.spec.actor_id, actor.incarnation)]

    def _unplaced(
        self, actor: Actor, event: ev.PlacementFailed, now: float
    ) -> list[Command]:
        is_known = event.kind in ("removed", "infeasible", "setup")
        return self._die(actor, event.kind if is_known else "crash", event.reason, now)

    def _created(self, actor: Actor, event: ev.Created, now: float) -> list[Command]:
        actor_id, incarnation = actor.spec.actor_id, actor.incarnation
        _move(actor, ActorState.ALIVE, now)
        actor.is_created = True
        actor.repr_name = event.repr_name
        commands: list[Command] = [
            ev.Settle(actor_id, incarnation),
            ev.Publish(actor_id),
        ]
        if actor.is_out_of_scope:
            commands += self._scope(actor, ev.OutOfScope(actor_id), now)
        return commands

    def _constructor_failed(
        self, actor: Actor, event: ev.ConstructorFailed, now: float
    ) -> list[Command]:
        actor_id, incarnation = actor.spec.actor_id, actor.incarnation
        self._ends(actor, "init", "its constructor raised", now, is_final=True)
        return [ev.Dismiss(actor_id, incarnation, "init", is_patient=False)]

    # Towards DEAD.

    def _exiting(self, actor: Actor, event: ev.Exiting, now: float) -> list[Command]:
        self._ends(actor, "exit", event.reason, now, is_final=True)
        return []

    def _lost(self, actor: Actor, event: ev.ExecutorLost, now: float) -> list[Command]:
        kind, cause, is_final = event.kind or "crash", event.reason, False
        if event.kind == "removed":
            kind, is_final = "kill", True
        elif actor.ending is not None:
            kind, cause, is_final = actor.ending
        if actor.is_out_of_scope and not is_final:
            kind, is_final = "scope", True
        if is_final or actor.restarts_left == 0:
            return self._die(actor, kind, cause, now)
        if actor.restarts_left > 0:
            actor.restarts_left -= 1
        actor.incarnation += 1
        actor.kind, actor.cause = kind, cause
        actor.address, actor.worker_id, actor.pid = "", b"", 0
        actor.is_created = False
        _move(actor, ActorState.PLACING, now)
        actor_id = actor.spec.actor_id
        return [ev.Publish(actor_id), ev.Place(actor_id, actor.incarnation)]

    def _kill_early(self, actor: Actor, event: ev.Killed, now: float) -> list[Command]:
        return self._die(actor, "kill", "it was killed before it was created", now)

    def _kill(self, actor: Actor, event: ev.Killed, now: float) -> list[Command]:
        was_final = actor.ending is not None and actor.ending[2]
        if not was_final:
            cause = "it was killed by ray.kill"
            self._ends(actor, "kill", cause, now, is_final=event.no_restart)
        return [ev.Kill(actor.spec.actor_id, actor.incarnation)]

    def _scope_early(
        self, actor: Actor, event: ev.OutOfScope, now: float
    ) -> list[Command]:
        return self._die(actor, "scope", "all handles to it went out of scope", now)

    def _scope_later(
        self, actor: Actor, event: ev.OutOfScope, now: float
    ) -> list[Command]:
        actor.is_out_of_scope = True
        self._free_name(actor)
        return []

    def _scope(self, actor: Actor, event: ev.OutOfScope, now: float) -> list[Command]:
        cause = "all handles to it went out of scope"
        self._ends(actor, "scope", cause, now, is_final=True)
        actor_id, incarnation = actor.spec.actor_id, actor.incarnation
        return [ev.Dismiss(actor_id, incarnation, "scope", is_patient=True)]

    def _owner_gone(self, event: ev.OwnerGone, now: float) -> list[Command]:
        commands: list[Command] = []
        cause = "its owner died"
        for actor_id in list(self._owned.get(event.owner, ())):
            actor = self.actors[actor_id]
            if actor.spec.is_detached:
                continue
            if actor.state in (ActorState.REGISTERED, ActorState.PLACING):
                commands += self._die(actor, "owner", cause, now)
            else:
                if actor.ending is None or not actor.ending[2]:
                    self._ends(actor, "owner", cause, now, is_final=True)
                commands.append(ev.Kill(actor_id, actor.incarnation))
        return commands

    def _ends(
        self, actor: Actor, kind: str, cause: str, now: float, *, is_final: bool
    ) -> None:
        _move(actor, ActorState.ENDING, now)
        actor.ending = (kind, cause, is_final)
        if is_final:
            self._free_name(actor)

    def _die(self, actor: Actor, kind: str, cause: str, now: float) -> list[Command]:
        actor_id = actor.spec.actor_id
        commands: list[Command] = []
        if actor.state is ActorState.PLACING:
            commands.append(ev.Unplace(actor_id, actor.incarnation))
        _move(actor, ActorState.DEAD, now)
        actor.kind, actor.cause = kind, cause
        self._free_name(actor)
        owned = self._owned[actor.spec.owner]
        del owned[actor_id]
        if not owned:
            del self._owned[actor.spec.owner]
        self._dead[actor_id] = None
        if len(self._dead) > REMEMBERED:
            oldest, _ = self._dead.popitem(last=False)
            del self.actors[oldest]
            commands.append(ev.Forget(oldest))
        commands.append(ev.Publish(actor_id))
        return commands

    def _free_name(self, actor: Actor) -> None:
        key = (actor.spec.namespace, actor.spec.name)
        if self.names.get(key) == actor.spec.actor_id:
            del self.names[key]


def _move(actor: Actor, state: ActorState, now: float) -> None:
    actor.state = state
    actor.since_s = now
    actor.ending = None


_S, _M = ActorState, ActorManager
_Method = Callable[[ActorManager, Actor, Any, float], list[Command]]
_TABLE: dict[tuple[ActorState, type], _Method] = {
    **{(state, ev.Registered): _M._again for state in _S},
    **{(state, ev.Started): _M._ignore for state in _S},
    (_S.REGISTERED, ev.Started): _M._start,
    **{(state, ev.Unstartable): _M._ignore for state in _S},
    (_S.REGISTERED, ev.Unstartable): _M._unstartable,
    (_S.PLACING, ev.Placed): _M._placed,
    (_S.DEAD, ev.Placed): _M._ignore,
    (_S.PLACING, ev.PlacementFailed): _M._unplaced,
    (_S.DEAD, ev.PlacementFailed): _M._ignore,
    (_S.CREATING, ev.Created): _M._created,
    (_S.ALIVE, ev.Created): _M._ignore,
    (_S.ENDING, ev.Created): _M._ignore,
    (_S.PLACING, ev.Created): _M._ignore,
    (_S.DEAD, ev.Created): _M._ignore,
    (_S.CREATING, ev.ConstructorFailed): _M._constructor_failed,
    (_S.ENDING, ev.ConstructorFailed): _M._ignore,
    (_S.PLACING, ev.ConstructorFailed): _M._ignore,
    (_S.DEAD, ev.ConstructorFailed): _M._ignore,
    (_S.CREATING, ev.Exiting): _M._exiting,
    (_S.ALIVE, ev.Exiting): _M._exiting,
    (_S.ENDING, ev.Exiting): _M._ignore,
    (_S.PLACING, ev.Exiting): _M._ignore,
    (_S.DEAD, ev.Exiting): _M._ignore,
    (_S.CREATING, ev.ExecutorLost): _M._lost,
    (_S.ALIVE, ev.ExecutorLost): _M._lost,
    (_S.ENDING, ev.ExecutorLost): _M._lost,
    (_S.PLACING, ev.ExecutorLost): _M._ignore,
    (_S.DEAD, ev.ExecutorLost): _M._ignore,
    (_S.REGISTERED, ev.Killed): _M._kill_early,
    (_S.PLACING, ev.Killed): _M._kill_early,
    (_S.CREATING, ev.Killed): _M._kill,
    (_S.ALIVE, ev.Killed): _M._kill,
    (_S.ENDING, ev.Killed): _M._kill,
    (_S.DEAD, ev.Killed): _M._ignore,
    (_S.REGISTERED, ev.OutOfScope): _M._scope_early,
    (_S.PLACING, ev.OutOfScope): _M._scope_early,
    (_S.CREATING, ev.OutOfScope): _M._scope_later,
    (_S.ALIVE, ev.OutOfScope): _M._scope,
    (_S.ENDING, ev.OutOfScope): _M._scope_later,
    (_S.DEAD, ev.OutOfScope): _M._ignore,
}
