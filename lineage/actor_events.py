"""What the actor machine takes in and gives out: facts, then wishes."""

from __future__ import annotations

from typing import NamedTuple

from rayshim.lineage.lease_events import EnvKey
from rayshim.lineage.resources import Units


class ActorSpec(NamedTuple):
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


class Registered(NamedTuple):
    """An owner wants an actor."""

    actor_id: bytes
    spec: ActorSpec


class Started(NamedTuple):
    """The constructor's arguments are known."""

    actor_id: bytes


class Unstartable(NamedTuple):
    """A constructor argument failed."""

    actor_id: bytes


class Placed(NamedTuple):
    """An executor is there."""

    actor_id: bytes
    incarnation: int
    worker_id: bytes
    address: str
    pid: int


class PlacementFailed(NamedTuple):
    """No executor will come."""

    actor_id: bytes
    incarnation: int
    reason: str
    kind: str


class Created(NamedTuple):
    """The constructor returned."""

    actor_id: bytes
    incarnation: int
    repr_name: str = ""


class ConstructorFailed(NamedTuple):
    """The constructor raised."""

    actor_id: bytes
    incarnation: int


class Exiting(NamedTuple):
    """The actor leaves by its own will."""

    actor_id: bytes
    reason: str


class ExecutorLost(NamedTuple):
    """The process is gone; ``kind`` is "", "oom" or "removed"."""

    actor_id: bytes
    incarnation: int
    reason: str
    kind: str = ""


class Killed(NamedTuple):
    """Somebody wants the process dead."""

    actor_id: bytes
    no_restart: bool


class OutOfScope(NamedTuple):
    """The owner counts no handle any more."""

    actor_id: bytes


class OwnerGone(NamedTuple):
    """A process is gone, and all that it owned and that is not detached."""

    owner: str


class Accept(NamedTuple):
    """Answer the registration."""

    actor_id: bytes


class Refuse(NamedTuple):
    """The name is taken: answer the registration with an error."""

    actor_id: bytes
    name: str
    namespace: str


class Place(NamedTuple):
    """Ask for an executor."""

    actor_id: bytes
    incarnation: int


class Unplace(NamedTuple):
    """Ask no more."""

    actor_id: bytes
    incarnation: int


class Construct(NamedTuple):
    """Have the executor run the constructor."""

    actor_id: bytes
    incarnation: int


class Settle(NamedTuple):
    """Hold only the lifetime resources from now on."""

    actor_id: bytes
    incarnation: int


class Dismiss(NamedTuple):
    """Ask the process to leave; ``is_patient``: however long its calls take."""

    actor_id: bytes
    incarnation: int
    reason: str
    is_patient: bool


class Kill(NamedTuple):
    """Kill the process."""

    actor_id: bytes
    incarnation: int


class Publish(NamedTuple):
    """Tell the subscribers how the actor is now."""

    actor_id: bytes


class Forget(NamedTuple):
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
