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

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rayshim.lineage.lease_events import EnvKey
from rayshim.lineage.raylet import InvalidTransition
from rayshim.lineage.resources import Units

#: Dead actors that are remembered.
REMEMBERED = 10_000
STORY_EVENTS = 2048


class ActorState(Enum):
    """States of an actor."""

    UNKNOWN = 0
    REGISTERED = 1
    PLACING = 2
    CREATING = 3
    ALIVE = 4
    ENDING = 5
    DEAD = 6


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """What stays the same for an actor's life."""

    actor_id: bytes
    job_id: bytes
    #: Address of the process that created it.
    owner: str
    class_name: str
    name: str
    namespace: str
    is_detached: bool
    #: -1 for no limit.
    max_restarts: int
    #: Held while the constructor runs; covers ``need``.
    placement: Units
    #: Held for life.
    need: Units
    env: EnvKey = ()
    group: bytes = b""
    bundle: int = -1


# Events.


@dataclass(frozen=True, slots=True)
class Registered:
    """An owner wants an actor."""

    actor_id: bytes
    spec: ActorSpec


@dataclass(frozen=True, slots=True)
class Started:
    """The constructor's arguments are known."""

    actor_id: bytes


@dataclass(frozen=True, slots=True)
class Unstartable:
    """A constructor argument failed."""

    actor_id: bytes


@dataclass(frozen=True, slots=True)
class Placed:
    """An executor is there."""

    actor_id: bytes
    incarnation: int
    worker_id: bytes
    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class PlacementFailed:
    """No executor will come."""

    actor_id: bytes
    incarnation: int
    reason: str
    kind: str


@dataclass(frozen=True, slots=True)
class Created:
    """The constructor returned."""

    actor_id: bytes
    incarnation: int
    repr_name: str = ""


@dataclass(frozen=True, slots=True)
class ConstructorFailed:
    """The constructor raised."""

    actor_id: bytes
    incarnation: int


@dataclass(frozen=True, slots=True)
class Exiting:
    """The actor leaves by its own will."""

    actor_id: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class ExecutorLost:
    """The process is gone; ``kind`` is "", "oom" or "removed"."""

    actor_id: bytes
    incarnation: int
    reason: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Killed:
    """Somebody wants the process dead."""

    actor_id: bytes
    no_restart: bool


@dataclass(frozen=True, slots=True)
class OutOfScope:
    """The owner counts no handle any more."""

    actor_id: bytes


@dataclass(frozen=True, slots=True)
class OwnerGone:
    """A process is gone, and all that it owned and that is not detached."""

    owner: str


# Commands.


@dataclass(frozen=True, slots=True)
class Accept:
    """Answer the registration."""

    actor_id: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """The name is taken: answer the registration with an error."""

    actor_id: bytes
    name: str
    namespace: str


@dataclass(frozen=True, slots=True)
class Place:
    """Ask for an executor."""

    actor_id: bytes
    incarnation: int


@dataclass(frozen=True, slots=True)
class Unplace:
    """Ask no more."""

    actor_id: bytes
    incarnation: int


@dataclass(frozen=True, slots=True)
class Construct:
    """Have the executor run the constructor."""

    actor_id: bytes
    incarnation: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Hold only the lifetime resources from now on."""

    actor_id: bytes
    incarnation: int


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Ask the process to leave; ``is_patient``: however long its calls take."""

    actor_id: bytes
    incarnation: int
    reason: str
    is_patient: bool


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the process."""

    actor_id: bytes
    incarnation: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell the subscribers how the actor is now."""

    actor_id: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing about the actor is needed any more."""

    actor_id: bytes


Command = (
    Accept
    | Refuse
    | Place
    | Unplace
    | Construct
    | Settle
    | Dismiss
    | Kill
    | Publish
    | Forget
)


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

    def __init__(self, spec: ActorSpec, now: float) -> None:
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
        self._events: deque[tuple[float, Any]] = deque(maxlen=STORY_EVENTS)

    def handle(self, event: Any, now: float) -> list[Command]:
        """Takes one event at time ``now`` (seconds, monotonic).

        Raises:
            InvalidTransition: the event does not fit the actor's state.
        """
        self._events.append((now, event))
        if isinstance(event, OwnerGone):
            return self._owner_gone(event, now)
        actor = self.actors.get(event.actor_id)
        state = actor.state if actor else ActorState.UNKNOWN
        if state is ActorState.UNKNOWN:
            if isinstance(event, Registered):
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
        return [
            f"{now:.6f} {event}"
            for now, event in self._events
            if getattr(event, "actor_id", None) == actor_id
        ]

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

    # Towards ALIVE.

    def _register(self, event: Registered, now: float) -> list[Command]:
        spec = event.spec
        if spec.name:
            key = (spec.namespace, spec.name)
            if key in self.names:
                return [Refuse(spec.actor_id, spec.name, spec.namespace)]
            self.names[key] = spec.actor_id
        self.actors[spec.actor_id] = Actor(spec, now)
        self._owned.setdefault(spec.owner, {})[spec.actor_id] = None
        return [Accept(spec.actor_id)]

    def _again(self, actor: Actor, event: Registered, now: float) -> list[Command]:
        return [Accept(actor.spec.actor_id)]

    def _ignore(self, actor: Actor, event: Any, now: float) -> list[Command]:
        return []

    def _start(self, actor: Actor, event: Started, now: float) -> list[Command]:
        _move(actor, ActorState.PLACING, now)
        return [Place(actor.spec.actor_id, actor.incarnation)]

    def _unstartable(
        self, actor: Actor, event: Unstartable, now: float
    ) -> list[Command]:
        return self._die(actor, "init", "an argument of its constructor failed", now)

    def _placed(self, actor: Actor, event: Placed, now: float) -> list[Command]:
        _move(actor, ActorState.CREATING, now)
        actor.worker_id = event.worker_id
        actor.address = event.address
        actor.pid = event.pid
        return [Construct(actor.spec.actor_id, actor.incarnation)]

    def _unplaced(
        self, actor: Actor, event: PlacementFailed, now: float
    ) -> list[Command]:
        kind = "kill" if event.kind == "removed" else "crash"
        return self._die(actor, kind, event.reason, now)

    def _created(self, actor: Actor, event: Created, now: float) -> list[Command]:
        actor_id, incarnation = actor.spec.actor_id, actor.incarnation
        _move(actor, ActorState.ALIVE, now)
        actor.is_created = True
        actor.repr_name = event.repr_name
        commands: list[Command] = [Settle(actor_id, incarnation), Publish(actor_id)]
        if actor.is_out_of_scope:
            commands += self._scope(actor, OutOfScope(actor_id), now)
        return commands

    def _constructor_failed(
        self, actor: Actor, event: ConstructorFailed, now: float
    ) -> list[Command]:
        actor_id, incarnation = actor.spec.actor_id, actor.incarnation
        self._ends(actor, "init", "its constructor raised", now, is_final=True)
        return [Dismiss(actor_id, incarnation, "init", is_patient=False)]

    # Towards DEAD.

    def _exiting(self, actor: Actor, event: Exiting, now: float) -> list[Command]:
        self._ends(actor, "exit", event.reason, now, is_final=True)
        return []

    def _lost(self, actor: Actor, event: ExecutorLost, now: float) -> list[Command]:
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
        return [Publish(actor_id), Place(actor_id, actor.incarnation)]

    def _kill_early(self, actor: Actor, event: Killed, now: float) -> list[Command]:
        return self._die(actor, "kill", "it was killed before it was created", now)

    def _kill(self, actor: Actor, event: Killed, now: float) -> list[Command]:
        was_final = actor.ending is not None and actor.ending[2]
        if not was_final:
            cause = "it was killed by ray.kill"
            self._ends(actor, "kill", cause, now, is_final=event.no_restart)
        return [Kill(actor.spec.actor_id, actor.incarnation)]

    def _scope_early(
        self, actor: Actor, event: OutOfScope, now: float
    ) -> list[Command]:
        return self._die(actor, "scope", "all handles to it went out of scope", now)

    def _scope_later(
        self, actor: Actor, event: OutOfScope, now: float
    ) -> list[Command]:
        actor.is_out_of_scope = True
        self._free_name(actor)
        return []

    def _scope(self, actor: Actor, event: OutOfScope, now: float) -> list[Command]:
        cause = "all handles to it went out of scope"
        self._ends(actor, "scope", cause, now, is_final=True)
        actor_id, incarnation = actor.spec.actor_id, actor.incarnation
        return [Dismiss(actor_id, incarnation, "scope", is_patient=True)]

    def _owner_gone(self, event: OwnerGone, now: float) -> list[Command]:
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
                commands.append(Kill(actor_id, actor.incarnation))
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
            commands.append(Unplace(actor_id, actor.incarnation))
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
            commands.append(Forget(oldest))
        commands.append(Publish(actor_id))
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
    **{(state, Registered): _M._again for state in _S},
    **{(state, Started): _M._ignore for state in _S},
    (_S.REGISTERED, Started): _M._start,
    **{(state, Unstartable): _M._ignore for state in _S},
    (_S.REGISTERED, Unstartable): _M._unstartable,
    (_S.PLACING, Placed): _M._placed,
    (_S.DEAD, Placed): _M._ignore,
    (_S.PLACING, PlacementFailed): _M._unplaced,
    (_S.DEAD, PlacementFailed): _M._ignore,
    (_S.CREATING, Created): _M._created,
    (_S.ALIVE, Created): _M._ignore,
    (_S.ENDING, Created): _M._ignore,
    (_S.PLACING, Created): _M._ignore,
    (_S.DEAD, Created): _M._ignore,
    (_S.CREATING, ConstructorFailed): _M._constructor_failed,
    (_S.ENDING, ConstructorFailed): _M._ignore,
    (_S.PLACING, ConstructorFailed): _M._ignore,
    (_S.DEAD, ConstructorFailed): _M._ignore,
    (_S.CREATING, Exiting): _M._exiting,
    (_S.ALIVE, Exiting): _M._exiting,
    (_S.ENDING, Exiting): _M._ignore,
    (_S.PLACING, Exiting): _M._ignore,
    (_S.DEAD, Exiting): _M._ignore,
    (_S.CREATING, ExecutorLost): _M._lost,
    (_S.ALIVE, ExecutorLost): _M._lost,
    (_S.ENDING, ExecutorLost): _M._lost,
    (_S.PLACING, ExecutorLost): _M._ignore,
    (_S.DEAD, ExecutorLost): _M._ignore,
    (_S.REGISTERED, Killed): _M._kill_early,
    (_S.PLACING, Killed): _M._kill_early,
    (_S.CREATING, Killed): _M._kill,
    (_S.ALIVE, Killed): _M._kill,
    (_S.ENDING, Killed): _M._kill,
    (_S.DEAD, Killed): _M._ignore,
    (_S.REGISTERED, OutOfScope): _M._scope_early,
    (_S.PLACING, OutOfScope): _M._scope_early,
    (_S.CREATING, OutOfScope): _M._scope_later,
    (_S.ALIVE, OutOfScope): _M._scope,
    (_S.ENDING, OutOfScope): _M._scope_later,
    (_S.DEAD, OutOfScope): _M._ignore,
}
