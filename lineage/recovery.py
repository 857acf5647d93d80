"""Making lost values again: which calls may run once more, and when they do.

Only values in a node store can be lost while their owner lives, so only calls that
returned such a value are *kept* when they end. The machine knows each kept call by
what is needed to decide; the shell keeps the call itself.

    KNOWN --Lost--> LOST --Needed--> RECOVERING --Kept--> KNOWN
                      |                  |
                      +---> FAILED <-----+--Broke

KNOWN: nothing that anybody holds is lost. LOST: a value has no copy, and nobody asked
for it yet. RECOVERING: the call runs again. FAILED: it never will, for ``reason``.
A call is forgotten when nobody holds any of its values.

Rules that always hold:

1. A call runs again only when somebody needs a value that is lost, and once for all
   who need it, whichever of its values that is.
2. What a call needs comes first: lost arguments are made again before it, to any
   depth, each once.
3. Each run costs a retry (-1: without limit). A call that has none left fails.
4. The kept calls take at most ``limit_bytes``; the oldest are let go first, and say
   so when they are asked for. A call that runs again is not let go.

Every event may come twice: what is known, on its way or failed is so already. Lineage
re-execution follows Ownership (Wang et al., NSDI 2021, section 4.3); that a retry is
paid for it is Ray's rule.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from rayshim.lineage.transitions import InvalidTransition, Story

#: An object id is the id of its call and an index.
_TASK_ID_BYTES = 24


class RecoveryState(Enum):
    """Where a call that has ended is."""

    UNKNOWN = "UNKNOWN"
    KNOWN = "KNOWN"
    LOST = "LOST"
    RECOVERING = "RECOVERING"
    FAILED = "FAILED"


class Reason(Enum):
    """Why a value cannot be made again. The numbers are those of Ray's errors."""

    MAX_ATTEMPTS_EXCEEDED = 12
    LINEAGE_EVICTED = 13
    PUT = 27
    RETRIES_DISABLED = 28
    REF_NOT_FOUND = 30
    LINEAGE_DISABLED = 32


# --- events ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    """A call ended well, for the first time or again."""

    task_id: bytes
    #: Ids of its values that somebody holds.
    returns: tuple[bytes, ...]
    #: Ids of arguments that can be made again themselves.
    arguments: tuple[bytes, ...]
    #: What keeping its description takes.
    size_bytes: int
    #: Further runs allowed; -1: without limit.
    retries_left: int
    #: 0 after its first run.
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """A value has no copy any more, or was dropped as only lineage needs it."""

    object_id: bytes


@dataclass(frozen=True, slots=True)
class Needed:
    """Somebody waits for a lost value."""

    object_id: bytes


@dataclass(frozen=True, slots=True)
class Broke:
    """A call that ran again ended with an error, which its values are now."""

    task_id: bytes


@dataclass(frozen=True, slots=True)
class Dropped:
    """Nobody holds the value, nor needs it as lineage."""

    object_id: bytes


Event = Kept | Lost | Needed | Broke | Dropped

# --- commands -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rerun:
    """Submit the call again; its lost arguments are on their way."""

    task_id: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """The value is an error from now on."""

    object_id: bytes
    reason: Reason


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the description of the call, and its hold on its arguments."""

    task_id: bytes


Command = Rerun | Refuse | Forget


class Recipe:
    """A call that ended, as the machine knows it."""

    __slots__ = (
        "arguments",
        "attempt",
        "lost",
        "reason",
        "retries_left",
        "returns",
        "size_bytes",
        "state",
        "task_id",
    )

    def __init__(self, task_id: bytes) -> None:
        self.task_id = task_id
        self.state = RecoveryState.UNKNOWN
        #: Ids of its values that somebody holds; never empty.
        self.returns: set[bytes] = set()
        #: Those without a copy; a subset of ``returns``, empty in KNOWN.
        self.lost: set[bytes] = set()
        self.arguments: tuple[bytes, ...] = ()
        #: Counted in ``RecoveryManager.total_bytes`` unless FAILED.
        self.size_bytes = 0
        self.retries_left = 0
        self.attempt = 0
        #: In FAILED: why; None if its values say it themselves.
        self.reason: Reason | None = None


class RecoveryManager:
    """The machine. See the module's text for its rules."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        #: Task id -> call, exactly those not UNKNOWN.
        self.recipes: dict[bytes, Recipe] = {}
        #: Bytes of all recipes that are not FAILED.
        self.total_bytes = 0
        #: Exactly the KNOWN and LOST, oldest first (rule 4).
        self._evictable: OrderedDict[bytes, None] = OrderedDict()
        self._story = Story()

    @classmethod
    def replay(
        cls, limit_bytes: int, log: Iterable[tuple[Event, float]]
    ) -> RecoveryManager:
        """The machine as it is after the events of a log."""
        machine = cls(limit_bytes)
        for event, now in log:
            machine.handle(event, now)
        return machine

    def handle(self, event: Event, now: float) -> list[Command]:
        """Takes one event at time ``now`` (seconds, monotonic).

        Raises:
            InvalidTransition: the event does not fit the call's state.
        """
        self._story.add(event, now)
        task_id = (
            event.task_id
            if isinstance(event, (Kept, Broke))
            else (event.object_id[:_TASK_ID_BYTES])
        )
        recipe = self.recipes.get(task_id) or Recipe(task_id)
        method = TABLE.get((recipe.state, type(event)))
        if method is None:
            story = self.story(task_id)
            raise InvalidTransition(task_id, recipe.state, event, story)
        return method(self, recipe, event)

    def story(self, task_id: bytes) -> list[str]:
        """The remembered events of a call and of its values."""
        return self._story.of_prefix(task_id)

    def state_of(self, task_id: bytes) -> RecoveryState:
        """State of a call; UNKNOWN for one that is not kept."""
        recipe = self.recipes.get(task_id)
        return recipe.state if recipe is not None else RecoveryState.UNKNOWN

    # -- transitions ---------------------------------------------------------------

    def _keep(self, recipe: Recipe, event: Kept) -> list[Command]:
        commands: list[Command] = []
        if not event.returns:
            if recipe.state is not RecoveryState.UNKNOWN:
                return self._forget(recipe)
            return [Forget(recipe.task_id)]
        if recipe.state is RecoveryState.UNKNOWN:
            self.recipes[recipe.task_id] = recipe
        else:
            self.total_bytes -= recipe.size_bytes
        recipe.state = RecoveryState.KNOWN
        recipe.returns = set(event.returns)
        recipe.lost = set()
        recipe.arguments = event.arguments
        recipe.size_bytes = event.size_bytes
        recipe.retries_left = event.retries_left
        recipe.attempt = event.attempt
        self.total_bytes += recipe.size_bytes
        if self.limit_bytes <= 0:
            self._fail(recipe, Reason.LINEAGE_DISABLED)
            return [Forget(recipe.task_id)]
        if not recipe.retries_left:
            self._fail(recipe, self._spent(recipe))
            return [Forget(recipe.task_id)]
        self._evictable[recipe.task_id] = None
        while self.total_bytes > self.limit_bytes and self._evictable:
            oldest = next(iter(self._evictable))
            self._fail(self.recipes[oldest], Reason.LINEAGE_EVICTED)
            commands.append(Forget(oldest))
        return commands

    def _lose(self, recipe: Recipe, event: Lost) -> list[Command]:
        if event.object_id in recipe.returns:
            recipe.lost.add(event.object_id)
            recipe.state = RecoveryState.LOST
        return []

    def _lose_more(self, recipe: Recipe, event: Lost) -> list[Command]:
        if event.object_id in recipe.returns:
            recipe.lost.add(event.object_id)
        return []

    def _need(self, recipe: Recipe, event: Needed) -> list[Command]:
        """Rule 2, with a stack: chains may be longer than Python's own one."""
        commands: list[Command] = []
        pending: list[tuple[bytes, bool]] = [(event.object_id, False)]
        while pending:
            object_id, is_ready = pending.pop()
            found = self.recipes.get(object_id[:_TASK_ID_BYTES])
            if found is None or object_id not in found.lost:
                continue
            if is_ready:
                commands.append(Rerun(found.task_id))
            elif found.state is RecoveryState.FAILED:
                commands += self._refuse(found, object_id)
            elif found.state is RecoveryState.LOST:
                found.state = RecoveryState.RECOVERING
                del self._evictable[found.task_id]
                pending.append((object_id, True))
                pending += [(argument, False) for argument in found.arguments]
        return commands

    def _refuse_needed(self, recipe: Recipe, event: Needed) -> list[Command]:
        return self._refuse(recipe, event.object_id)

    @staticmethod
    def _refuse(recipe: Recipe, object_id: bytes) -> list[Command]:
        if object_id not in recipe.lost:
            return []
        recipe.lost.discard(object_id)
        return [Refuse(object_id, recipe.reason or Reason.REF_NOT_FOUND)]

    def _refuse_unknown(self, recipe: Recipe, event: Needed) -> list[Command]:
        is_put = event.object_id[_TASK_ID_BYTES + 3 :] == b"\x80"
        return [Refuse(event.object_id, Reason.PUT if is_put else Reason.REF_NOT_FOUND)]

    def _break(self, recipe: Recipe, event: Broke) -> list[Command]:
        recipe.lost.clear()
        self._fail(recipe, None)
        return [Forget(recipe.task_id)]

    def _drop(self, recipe: Recipe, event: Dropped) -> list[Command]:
        recipe.returns.discard(event.object_id)
        recipe.lost.discard(event.object_id)
        if not recipe.returns:
            return self._forget(recipe)
        if recipe.state is RecoveryState.LOST and not recipe.lost:
            recipe.state = RecoveryState.KNOWN
        return []

    def _drop_failed(self, recipe: Recipe, event: Dropped) -> list[Command]:
        recipe.returns.discard(event.object_id)
        recipe.lost.discard(event.object_id)
        if not recipe.returns:
            del self.recipes[recipe.task_id]
        return []

    def _drop_recovering(self, recipe: Recipe, event: Dropped) -> list[Command]:
        # The call runs to its end, as any call whose values nobody holds.
        recipe.returns.discard(event.object_id)
        recipe.lost.discard(event.object_id)
        return []

    def _nothing(self, recipe: Recipe, event: Event) -> list[Command]:
        return []

    # -- rules 3 and 4 ---------------------------------------------------------------

    @staticmethod
    def _spent(recipe: Recipe) -> Reason:
        if recipe.attempt:
            return Reason.MAX_ATTEMPTS_EXCEEDED
        return Reason.RETRIES_DISABLED

    def _fail(self, recipe: Recipe, reason: Reason | None) -> None:
        recipe.state = RecoveryState.FAILED
        recipe.reason = reason
        recipe.arguments = ()
        self.total_bytes -= recipe.size_bytes
        self._evictable.pop(recipe.task_id, None)
        if not recipe.returns:
            del self.recipes[recipe.task_id]

    def _forget(self, recipe: Recipe) -> list[Command]:
        del self.recipes[recipe.task_id]
        self._evictable.pop(recipe.task_id, None)
        self.total_bytes -= recipe.size_bytes
        recipe.state = RecoveryState.UNKNOWN
        return [Forget(recipe.task_id)]

    def validate(self) -> None:
        """Check the invariants; used by tests after every event."""
        states = RecoveryState
        total = 0
        for task_id, recipe in self.recipes.items():
            assert task_id == recipe.task_id
            assert recipe.state is not states.UNKNOWN, recipe.task_id
            assert recipe.lost <= recipe.returns, recipe.task_id
            assert recipe.returns or recipe.state is states.RECOVERING, recipe.task_id
            assert not recipe.lost or recipe.state is not states.KNOWN, recipe.task_id
            assert recipe.lost or recipe.state is not states.LOST, recipe.task_id
            kept = recipe.state in (states.KNOWN, states.LOST)
            assert kept is (task_id in self._evictable), recipe.task_id
            if recipe.state is not states.FAILED:
                total += recipe.size_bytes
                assert recipe.retries_left, recipe.task_id
        assert total == self.total_bytes
        assert self._evictable.keys() <= self.recipes.keys()
        if self._evictable:
            assert self.total_bytes <= max(self.limit_bytes, 0)


_S = RecoveryState
_Method = Callable[[RecoveryManager, Recipe, "Event"], list[Command]]
_M = RecoveryManager

#: (state, event) -> method; a pair that is missing is a bug of the shell.
TABLE: dict[tuple[RecoveryState, type], _Method] = {
    (_S.UNKNOWN, Kept): _M._keep,  # type: ignore[dict-item]  # narrower events
    (_S.UNKNOWN, Lost): _M._nothing,
    (_S.UNKNOWN, Needed): _M._refuse_unknown,  # type: ignore[dict-item]
    (_S.UNKNOWN, Broke): _M._nothing,
    (_S.UNKNOWN, Dropped): _M._nothing,
    (_S.KNOWN, Lost): _M._lose,  # type: ignore[dict-item]
    (_S.KNOWN, Needed): _M._nothing,
    (_S.KNOWN, Dropped): _M._drop,  # type: ignore[dict-item]
    (_S.LOST, Lost): _M._lose_more,  # type: ignore[dict-item]
    (_S.LOST, Needed): _M._need,  # type: ignore[dict-item]
    (_S.LOST, Dropped): _M._drop,  # type: ignore[dict-item]
    (_S.RECOVERING, Kept): _M._keep,  # type: ignore[dict-item]
    (_S.RECOVERING, Lost): _M._lose_more,  # type: ignore[dict-item]
    (_S.RECOVERING, Needed): _M._nothing,
    (_S.RECOVERING, Broke): _M._break,  # type: ignore[dict-item]
    (_S.RECOVERING, Dropped): _M._drop_recovering,  # type: ignore[dict-item]
    (_S.FAILED, Lost): _M._lose_more,  # type: ignore[dict-item]
    (_S.FAILED, Needed): _M._refuse_needed,  # type: ignore[dict-item]
    (_S.FAILED, Broke): _M._nothing,
    (_S.FAILED, Dropped): _M._drop_failed,  # type: ignore[dict-item]
}
