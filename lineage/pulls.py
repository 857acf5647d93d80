"""The pull machine of one node: values of other nodes that are fetched to this one.

There is at most one *pull* of an object on a node, however many processes ask:

    ABSENT -> QUEUED -> RESERVING -> FETCHING -> ABSENT
                  (RESERVING, FETCHING) -> DRAINING -> ABSENT | QUEUED

QUEUED waits for its turn, so that the bytes on their way and the open files are
bounded; RESERVING waits for room in the store, so that nothing is received that cannot
be kept; FETCHING has ranges of the object under way, several at once and from several
sources; DRAINING failed or is not wanted any more and waits until nothing writes to
its file. A finished copy is the store's affair, as are pins on it. Four rules always
hold:

1. Every byte of an object in FETCHING has arrived, is under way once, or is missing.
2. Every asker is answered once, unless it is gone or withdrew first.
3. While anything may write to a file it is neither removed nor begun anew.
4. A pull in FETCHING has a fetch under way: it ends by itself.

A source that breaks keeps what arrived; the rest of its range goes to another one. It
may break :data:`MAX_FAILURES` times before it is given up; one that has no such file,
or is dead, at once. With the last source the pull fails, and each asker learns what
every source said.

Asking twice asks once. Late outcomes of fetches that ended are ignored (fetches are
numbered), as are a second free or withdrawal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from rayshim.lineage import pull_events as ev
from rayshim.lineage.pull_events import Command, Making, Source
from rayshim.lineage.transitions import InvalidTransition, Story

#: Ranges are at most this long: what a broken source costs to fetch again, and how
#: finely streams share an object. Below it, the call for each range would show.
MAX_RANGE_BYTES = 64 << 20
#: Ranges are at least this long (but for the last).
MIN_RANGE_BYTES = 8 << 20
#: Ranges begin at whole pages, so that senders can map them.
PAGE_BYTES = 4096
#: Objects that are fetched at once; far more than there are streams.
MAX_ACTIVE = 64
#: Times that one source may break in one pull.
MAX_FAILURES = 2


class PullState(Enum):
    """Where a pull is; see the module's text."""

    ABSENT = "absent"
    QUEUED = "queued"
    RESERVING = "reserving"
    FETCHING = "fetching"
    DRAINING = "draining"


_ACTIVE = frozenset((PullState.RESERVING, PullState.FETCHING, PullState.DRAINING))


@dataclass(slots=True)
class Fetch:
    """A range that is under way."""

    source: Source
    offset: int
    size_bytes: int


@dataclass(slots=True)
class Pull:
    """One object on its way here."""

    object_id: bytes
    making: Making
    state: PullState = PullState.QUEUED
    #: Sources to fetch from, best first -> times that it broke.
    sources: dict[Source, int] = field(default_factory=dict)
    #: Sources that were given up -> why, and whether the file is gone there.
    given_up: dict[Source, tuple[str, bool]] = field(default_factory=dict)
    #: Askers to answer, in order of asking.
    waiters: dict[str, None] = field(default_factory=dict)
    #: Ranges (offset, size) to fetch; only in FETCHING.
    missing: deque[tuple[int, int]] = field(default_factory=deque)
    #: Fetch number -> its range; only in FETCHING and DRAINING.
    running: dict[int, Fetch] = field(default_factory=dict)
    arrived_bytes: int = 0
    #: In DRAINING: the store still owes an answer about room.
    is_awaiting: bool = False
    #: In DRAINING: what to pull afterwards.
    again: ev.PullAsked | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes to fetch."""
        return self.making.size_bytes


class Pulls:
    """The machine. See the module's text for its rules.

    Args:
        max_active_bytes: Bound on the sizes of all active pulls together; one pull
            may always be active, however large.
        streams: Ranges of one object that are fetched at once.
        max_active: Bound on the number of active pulls; each has a file open.
    """

    def __init__(
        self,
        *,
        max_active_bytes: int,
        streams: int = 2,
        max_active: int = MAX_ACTIVE,
    ) -> None:
        self.max_active_bytes = max_active_bytes
        self.max_active = max_active
        self.streams = streams
        #: Object id -> its pull, in any state but ABSENT.
        self.pulls: dict[bytes, Pull] = {}
        #: Exactly the pulls in QUEUED, in order.
        self._queue: dict[bytes, None] = {}
        #: Sum of the sizes of the pulls in the active states.
        self.active_bytes = 0
        self._fetches = 0
        self._story = Story()

    def handle(self, event: Any, now: float) -> list[Command]:
        """Takes one event at time ``now`` (seconds, monotonic).

        Raises:
            InvalidTransition: the event does not fit the state of its object.
        """
        self._story.add(event, now)
        kind = type(event)
        if kind in _OF_ALL:
            return _OF_ALL[kind](self, event)
        pull = self.pulls.get(event.object_id)
        state = pull.state if pull else PullState.ABSENT
        method = TABLE.get((state, kind))
        if method is None:
            subject = event.object_id
            raise InvalidTransition(subject, state, event, self.story(subject))
        return method(self, pull, event)

    def state(self, object_id: bytes) -> PullState:
        """Where an object is."""
        pull = self.pulls.get(object_id)
        return pull.state if pull else PullState.ABSENT

    def story(self, subject: bytes) -> list[str]:
        """The remembered events that name an object."""
        return self._story.of(subject)

    def validate(self) -> None:
        """Checks the invariants.

        Raises:
            AssertionError: one does not hold.
        """
        active = [pull for pull in self.pulls.values() if pull.state in _ACTIVE]
        assert self.active_bytes == sum(pull.size_bytes for pull in active)
        assert len(active) <= 1 or self.active_bytes <= self.max_active_bytes
        assert len(active) <= self.max_active
        queued = [i for i, p in self.pulls.items() if p.state is PullState.QUEUED]
        assert sorted(queued) == sorted(self._queue)
        assert active or not queued
        for pull in self.pulls.values():
            self._validate(pull)

    def _validate(self, pull: Pull) -> None:
        state = pull.state
        running = sum(fetch.size_bytes for fetch in pull.running.values())
        missing = sum(size_bytes for _, size_bytes in pull.missing)
        assert len(pull.running) <= self.streams
        assert not (pull.is_awaiting or pull.again) or state is PullState.DRAINING
        if state in (PullState.QUEUED, PullState.RESERVING):
            assert pull.waiters and pull.sources and not pull.running
        elif state is PullState.FETCHING:
            assert pull.waiters and pull.sources and pull.running
            assert pull.arrived_bytes + running + missing == pull.size_bytes
            spans = [(f.offset, f.size_bytes) for f in pull.running.values()]
            end = 0
            for offset, size_bytes in sorted([*pull.missing, *spans]):
                assert offset >= end and size_bytes > 0
                end = offset + size_bytes
            assert end <= pull.size_bytes
        else:
            assert state is PullState.DRAINING
            assert pull.running or pull.is_awaiting
            assert not pull.missing and bool(pull.again) == bool(pull.waiters)

    # Askers.

    def _ask_new(self, pull: None, event: ev.PullAsked) -> list[Command]:
        return self._begin(event, {event.asker: None})

    def _ask_known(self, pull: Pull, event: ev.PullAsked) -> list[Command]:
        pull.waiters[event.asker] = None
        if event.making == pull.making:
            for source in event.sources:
                if source not in pull.given_up:
                    pull.sources.setdefault(source, 0)
        return self._fetch(pull) if pull.state is PullState.FETCHING else []

    def _ask_draining(self, pull: Pull, event: ev.PullAsked) -> list[Command]:
        pull.waiters[event.asker] = None
        asked = pull.again
        if asked is not None and asked.making == event.making:
            # What anybody knows is tried for all.
            sources = dict.fromkeys((*asked.sources, *event.sources))
            event = replace(event, sources=tuple(sources))
        pull.again = event
        return []

    def _begin(self, ask: ev.PullAsked, waiters: dict[str, None]) -> list[Command]:
        object_id = ask.object_id
        if not ask.sources:
            reason = "no node that lives is known to hold it"
            return [ev.Refuse(object_id, asker, reason, True) for asker in waiters]
        pull = Pull(object_id, ask.making, waiters=waiters)
        pull.sources = dict.fromkeys(ask.sources, 0)
        self.pulls[object_id] = pull
        self._queue[object_id] = None
        return self._admit()

    def _admit(self) -> list[Command]:
        """Makes pulls active as long as there is room for their bytes."""
        commands: list[Command] = []
        while self._queue:
            object_id = next(iter(self._queue))
            pull = self.pulls[object_id]
            held = self.active_bytes
            if held and held + pull.size_bytes > self.max_active_bytes:
                break
            if len(self.pulls) - len(self._queue) >= self.max_active:
                break
            del self._queue[object_id]
            self.active_bytes += pull.size_bytes
            pull.state = PullState.RESERVING
            commands.append(ev.ReserveRoom(object_id, pull.making))
        return commands

    def _withdrawn(self, pull: Pull, event: ev.Withdrawn) -> list[Command]:
        return self._leave(pull, event.asker)

    def _asker_gone(self, event: ev.AskerGone) -> list[Command]:
        commands: list[Command] = []
        for pull in list(self.pulls.values()):
            commands += self._leave(pull, event.asker)
        return commands

    def _leave(self, pull: Pull, asker: str) -> list[Command]:
        """An asker waits no more."""
        if asker not in pull.waiters:
            return []
        del pull.waiters[asker]
        if pull.waiters:
            return []
        if pull.state is PullState.DRAINING:
            pull.again = None
            return []
        return self._abandon(pull)

    # Room and bytes.

    def _room(self, pull: Pull, event: ev.RoomGiven) -> list[Command]:
        pull.state = PullState.FETCHING
        share = -(-pull.size_bytes // self.streams)
        step = max(MIN_RANGE_BYTES, min(MAX_RANGE_BYTES, share))
        step = -(-step // PAGE_BYTES) * PAGE_BYTES
        for offset in range(0, pull.size_bytes, step):
            pull.missing.append((offset, min(step, pull.size_bytes - offset)))
        return self._fetch(pull)

    def _no_room(self, pull: Pull, event: ev.RoomRefused) -> list[Command]:
        commands = self._refuse(pull, event.reason, is_gone=False)
        return commands + self._forget(pull)

    def _fetch(self, pull: Pull) -> list[Command]:
        """Starts fetches of missing ranges, spread over the sources."""
        commands: list[Command] = []
        while pull.missing and len(pull.running) < self.streams:
            load = dict.fromkeys(pull.sources, 0)
            for fetch in pull.running.values():
                if fetch.source in load:
                    load[fetch.source] += 1
            source = min(load, key=lambda one: (pull.sources[one], load[one]))
            offset, size_bytes = pull.missing.popleft()
            self._fetches += 1
            pull.running[self._fetches] = Fetch(source, offset, size_bytes)
            commands.append(
                ev.FetchRange(pull.object_id, self._fetches, source, offset, size_bytes)
            )
        return commands

    def _arrived(self, pull: Pull, event: ev.RangeArrived) -> list[Command]:
        fetch = pull.running.pop(event.fetch, None)
        if fetch is None:
            return []
        pull.arrived_bytes += fetch.size_bytes
        if not pull.missing and not pull.running:
            return self._complete(pull)
        return self._fetch(pull)

    def _broken(self, pull: Pull, event: ev.RangeBroken) -> list[Command]:
        fetch = pull.running.pop(event.fetch, None)
        if fetch is None:
            return []
        got = min(max(event.received_bytes, 0), fetch.size_bytes)
        pull.arrived_bytes += got
        if got < fetch.size_bytes:
            rest = (fetch.offset + got, fetch.size_bytes - got)
            pull.missing.appendleft(rest)
        if fetch.source in pull.sources:
            pull.sources[fetch.source] += 1
            if event.is_gone or pull.sources[fetch.source] >= MAX_FAILURES:
                del pull.sources[fetch.source]
                pull.given_up[fetch.source] = (event.reason, event.is_gone)
        if not pull.missing and not pull.running:
            return self._complete(pull)
        if not pull.sources:
            return self._fail(pull)
        return self._fetch(pull)

    def _unwritable(self, pull: Pull, event: ev.WriteFailed) -> list[Command]:
        if pull.running.pop(event.fetch, None) is None:
            return []
        commands = self._refuse(pull, event.reason, is_gone=False)
        return commands + self._abandon(pull)

    def _node_lost(self, event: ev.NodeLost) -> list[Command]:
        commands: list[Command] = []
        for pull in list(self.pulls.values()):
            lost = [source for source in pull.sources if source.node == event.node]
            for source in lost:
                del pull.sources[source]
                pull.given_up[source] = (event.reason, True)
            if not lost or pull.state is PullState.DRAINING:
                continue
            if not pull.sources:
                commands += self._fail(pull)
                continue
            stopped = [n for n, fetch in pull.running.items() if fetch.source in lost]
            if stopped:
                commands.append(ev.StopFetches(pull.object_id, tuple(stopped)))
        return commands

    def _complete(self, pull: Pull) -> list[Command]:
        sealed = ev.SealCopy(pull.object_id, tuple(pull.waiters))
        return [sealed, *self._forget(pull)]

    # Ends.

    def _refuse(self, pull: Pull, reason: str, *, is_gone: bool) -> list[Command]:
        asked, pull.waiters = pull.waiters, {}
        return [ev.Refuse(pull.object_id, asker, reason, is_gone) for asker in asked]

    def _fail(self, pull: Pull) -> list[Command]:
        """The last source is given up."""
        reason = "; ".join(
            f"node {source.node[:8]}: {why}"
            for source, (why, _) in pull.given_up.items()
        )
        is_gone = all(gone for _, gone in pull.given_up.values())
        commands = self._refuse(pull, reason, is_gone=is_gone)
        return commands + self._abandon(pull)

    def _abandon(self, pull: Pull) -> list[Command]:
        """Ends a pull that nobody waits for, as soon as nothing writes to its file."""
        if pull.state is PullState.QUEUED:
            del self._queue[pull.object_id]
            del self.pulls[pull.object_id]
            return self._admit()
        is_awaiting = pull.state is PullState.RESERVING
        if not pull.running and not is_awaiting:
            return [ev.DropRoom(pull.object_id), *self._forget(pull)]
        pull.state = PullState.DRAINING
        pull.is_awaiting = is_awaiting
        pull.missing.clear()
        if pull.running:
            return [ev.StopFetches(pull.object_id, tuple(pull.running))]
        return []

    def _forget(self, pull: Pull) -> list[Command]:
        """An active pull is over; begins it anew if somebody asked meanwhile."""
        del self.pulls[pull.object_id]
        self.active_bytes -= pull.size_bytes
        commands: list[Command] = []
        if pull.again is not None:
            commands = self._begin(pull.again, pull.waiters)
        return commands + self._admit()

    def _drain_fetch(
        self, pull: Pull, event: ev.RangeArrived | ev.RangeBroken | ev.WriteFailed
    ) -> list[Command]:
        if pull.running.pop(event.fetch, None) is None or pull.running:
            return []
        return [ev.DropRoom(pull.object_id), *self._forget(pull)]

    def _drain_room(self, pull: Pull, event: ev.RoomGiven) -> list[Command]:
        return [ev.DropRoom(pull.object_id), *self._forget(pull)]

    def _drain_no_room(self, pull: Pull, event: ev.RoomRefused) -> list[Command]:
        return self._forget(pull)

    def _freed(self, pull: Pull, event: ev.CopyFreed) -> list[Command]:
        reason = "its owner freed it: no reference to it was left"
        commands = self._refuse(pull, reason, is_gone=True)
        if pull.state is PullState.DRAINING:
            pull.again = None
            return commands
        return commands + self._abandon(pull)

    def _ignore(self, pull: Pull | None, event: Any) -> list[Command]:
        return []


_P = Pulls
_S = PullState
_Method = Callable[[Pulls, Any, Any], list[Command]]
#: Events without an object.
_OF_ALL: dict[type, Callable[[Pulls, Any], list[Command]]] = {
    ev.AskerGone: _P._asker_gone,
    ev.NodeLost: _P._node_lost,
}
TABLE: dict[tuple[PullState, type], _Method] = {
    (_S.ABSENT, ev.PullAsked): _P._ask_new,
    (_S.QUEUED, ev.PullAsked): _P._ask_known,
    (_S.RESERVING, ev.PullAsked): _P._ask_known,
    (_S.FETCHING, ev.PullAsked): _P._ask_known,
    (_S.DRAINING, ev.PullAsked): _P._ask_draining,
    (_S.RESERVING, ev.RoomGiven): _P._room,
    (_S.DRAINING, ev.RoomGiven): _P._drain_room,
    (_S.RESERVING, ev.RoomRefused): _P._no_room,
    (_S.DRAINING, ev.RoomRefused): _P._drain_no_room,
    (_S.FETCHING, ev.RangeArrived): _P._arrived,
    (_S.DRAINING, ev.RangeArrived): _P._drain_fetch,
    (_S.FETCHING, ev.RangeBroken): _P._broken,
    (_S.DRAINING, ev.RangeBroken): _P._drain_fetch,
    (_S.FETCHING, ev.WriteFailed): _P._unwritable,
    (_S.DRAINING, ev.WriteFailed): _P._drain_fetch,
    (_S.QUEUED, ev.Withdrawn): _P._withdrawn,
    (_S.RESERVING, ev.Withdrawn): _P._withdrawn,
    (_S.FETCHING, ev.Withdrawn): _P._withdrawn,
    (_S.DRAINING, ev.Withdrawn): _P._withdrawn,
    (_S.QUEUED, ev.CopyFreed): _P._freed,
    (_S.RESERVING, ev.CopyFreed): _P._freed,
    (_S.FETCHING, ev.CopyFreed): _P._freed,
    (_S.DRAINING, ev.CopyFreed): _P._freed,
    # Late news of what is forgotten.
    (_S.ABSENT, ev.Withdrawn): _P._ignore,
    (_S.ABSENT, ev.CopyFreed): _P._ignore,
    (_S.ABSENT, ev.RangeArrived): _P._ignore,
    (_S.ABSENT, ev.RangeBroken): _P._ignore,
    (_S.ABSENT, ev.WriteFailed): _P._ignore,
    (_S.QUEUED, ev.RangeArrived): _P._ignore,
    (_S.QUEUED, ev.RangeBroken): _P._ignore,
    (_S.QUEUED, ev.WriteFailed): _P._ignore,
    (_S.RESERVING, ev.RangeArrived): _P._ignore,
    (_S.RESERVING, ev.RangeBroken): _P._ignore,
    (_S.RESERVING, ev.WriteFailed): _P._ignore,
}
