"""Values of other nodes are fetched once, and every asker hears how it went."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rayshim.lineage import pull_events as ev
from rayshim.lineage.pull_events import Making, Source
from rayshim.lineage.pulls import MIN_RANGE_BYTES, TABLE, Pulls, PullState
from rayshim.lineage.transitions import InvalidTransition

X = b"x" * 28
A, B = Source("aa" * 28, "1-1"), Source("bb" * 28, "o-78")
SIZE = 3 * MIN_RANGE_BYTES
MADE = Making("aa/1-1", SIZE)


class World:
    """Pulls with a plain way to say things."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("max_active_bytes", 10 * SIZE)
        self.pulls = Pulls(**options)

    def __call__(self, event: Any) -> list[Any]:
        commands = self.pulls.handle(event, 0.0)
        self.pulls.validate()
        return commands

    def ask(
        self, asker: str = "p", *sources: Source, object_id: bytes = X, **more: Any
    ) -> list[Any]:
        making = more.pop("making", MADE)
        return self(ev.PullAsked(object_id, asker, making, sources or (A,)))

    def fetching(self, *sources: Source) -> list[ev.FetchRange]:
        self.ask("p", *sources)
        return self(ev.RoomGiven(X))


def test_an_asked_object_is_fetched_in_ranges_and_delivered_once() -> None:
    world = World(streams=2)

    assert world.ask() == [ev.ReserveRoom(X, MADE)]
    first, second = world(ev.RoomGiven(X))
    assert (first.offset, second.offset) == (0, SIZE // 2)
    assert world(ev.RangeArrived(X, first.fetch)) == []
    assert world(ev.RangeArrived(X, second.fetch)) == [ev.SealCopy(X, ("p",))]
    assert world.pulls.state(X) is PullState.ABSENT


def test_two_askers_share_one_pull() -> None:
    world = World(streams=1)
    (fetch,) = world.fetching()[:1]

    assert world.ask("q") == []
    while world.pulls.state(X) is PullState.FETCHING:
        commands = world(ev.RangeArrived(X, fetch.fetch))
        fetch = commands[0]

    assert commands == [ev.SealCopy(X, ("p", "q"))]


def test_asking_twice_asks_once() -> None:
    world = World(streams=1)
    world.fetching()

    assert world.ask() == []
    assert list(world.pulls.pulls[X].waiters) == ["p"]


def test_rest_of_a_broken_range_goes_to_the_other_source() -> None:
    world = World(streams=1)
    (fetch,) = world.fetching(A, B)

    (again,) = world(ev.RangeBroken(X, fetch.fetch, 5000, "reset"))

    assert again.source == B
    assert (again.offset, again.size_bytes) == (5000, fetch.size_bytes - 5000)


def test_a_source_without_the_file_is_given_up_at_once() -> None:
    world = World(streams=1)
    (fetch,) = world.fetching(A)

    commands = world(ev.RangeBroken(X, fetch.fetch, 0, "no file", is_gone=True))

    reason = "node aaaaaaaa: no file"
    assert commands == [ev.Refuse(X, "p", reason, True), ev.DropRoom(X)]


def test_a_breaking_source_is_tried_again_and_then_given_up() -> None:
    world = World(streams=1)
    (fetch,) = world.fetching(A)

    (again,) = world(ev.RangeBroken(X, fetch.fetch, 0, "reset"))
    commands = world(ev.RangeBroken(X, again.fetch, 0, "reset"))

    assert commands[0] == ev.Refuse(X, "p", "node aaaaaaaa: reset", False)


def test_streams_spread_over_the_sources() -> None:
    world = World(streams=2)

    assert {fetch.source for fetch in world.fetching(A, B)} == {A, B}


def test_sources_of_another_making_are_not_mixed_in() -> None:
    world = World(streams=1)
    (fetch,) = world.fetching(A)
    world.ask("q", B, making=Making("bb/2-2", SIZE))

    world(ev.RangeBroken(X, fetch.fetch, 0, "no file", is_gone=True))

    assert world.pulls.state(X) is PullState.ABSENT


def test_nothing_is_removed_while_a_stream_writes() -> None:
    world = World(streams=2)
    first, second = world.fetching(A)

    commands = world(ev.RangeBroken(X, first.fetch, 0, "no file", is_gone=True))
    assert commands[1:] == [ev.StopFetches(X, (second.fetch,))]
    assert world.ask("q", B) == []

    commands = world(ev.RangeArrived(X, second.fetch))
    assert commands == [ev.DropRoom(X), ev.ReserveRoom(X, MADE)]


def test_a_pull_that_nobody_waits_for_is_stopped() -> None:
    world = World(streams=1)
    (fetch,) = world.fetching()

    assert world(ev.AskerGone("p")) == [ev.StopFetches(X, (fetch.fetch,))]
    commands = world(ev.RangeBroken(X, fetch.fetch, 0, "stopped"))

    assert commands == [ev.DropRoom(X)]


def test_a_freed_object_is_refused() -> None:
    world = World()
    world.ask()

    (refused,) = world(ev.CopyFreed(X))
    assert isinstance(refused, ev.Refuse) and refused.is_gone
    assert world(ev.RoomGiven(X)) == [ev.DropRoom(X)]


def test_death_of_the_only_source_fails_the_pull() -> None:
    world = World(streams=1)
    (fetch,) = world.fetching(A)

    commands = world(ev.NodeLost(A.node, "died"))

    assert commands == [
        ev.Refuse(X, "p", "node aaaaaaaa: died", True),
        ev.StopFetches(X, (fetch.fetch,)),
    ]


def test_death_of_one_source_moves_its_ranges() -> None:
    world = World(streams=1)
    (fetch,) = world.fetching(A, B)

    assert world(ev.NodeLost(A.node, "died")) == [ev.StopFetches(X, (fetch.fetch,))]
    (moved,) = world(ev.RangeBroken(X, fetch.fetch, 4096, "stopped"))

    assert (moved.source, moved.offset) == (B, 4096)


def test_full_store_refuses_with_its_reason() -> None:
    world = World()
    world.ask()

    assert world(ev.RoomRefused(X, "full")) == [ev.Refuse(X, "p", "full", False)]


def test_a_file_that_cannot_be_written_fails_the_pull_for_all() -> None:
    world = World(streams=1)
    (fetch,) = world.fetching(A, B)
    world.ask("q")

    commands = world(ev.WriteFailed(X, fetch.fetch, "disk full"))

    assert commands == [
        ev.Refuse(X, "p", "disk full", False),
        ev.Refuse(X, "q", "disk full", False),
        ev.DropRoom(X),
    ]


def test_bytes_on_their_way_are_bounded() -> None:
    world = World(max_active_bytes=SIZE, streams=1)
    world.ask()

    assert world.ask(object_id=b"y" * 28) == []
    commands = world(ev.RoomRefused(X, "full"))

    assert commands[1:] == [ev.ReserveRoom(b"y" * 28, MADE)]


def test_open_files_are_bounded() -> None:
    world = World(max_active=1)
    world.ask()

    assert world.ask(object_id=b"y" * 28) == []
    commands = world(ev.RoomRefused(X, "full"))

    assert commands[1:] == [ev.ReserveRoom(b"y" * 28, MADE)]


def test_one_object_may_be_larger_than_the_bound() -> None:
    world = World(max_active_bytes=1)

    assert world.ask() == [ev.ReserveRoom(X, MADE)]


def test_a_pull_without_sources_is_refused() -> None:
    world = World()

    (refused,) = world(ev.PullAsked(X, "p", MADE, ()))

    assert isinstance(refused, ev.Refuse)


def test_a_pull_that_cannot_begin_anew_lets_the_next_one_go() -> None:
    world = World(max_active=1)
    world.ask()
    world(ev.AskerGone("p"))
    assert world.ask(object_id=b"y" * 28) == []
    world(ev.PullAsked(X, "q", MADE, ()))

    commands = world(ev.RoomRefused(X, "full"))

    assert [type(one) for one in commands] == [ev.Refuse, ev.ReserveRoom]
    world.pulls.validate()


def test_what_askers_know_while_a_pull_drains_is_added_up() -> None:
    world = World()
    world.ask()
    world(ev.AskerGone("p"))
    world(ev.PullAsked(X, "q", MADE, (A,)))
    world(ev.PullAsked(X, "r", MADE, ()))

    assert world(ev.RoomRefused(X, "full")) == [ev.ReserveRoom(X, MADE)]
    assert list(world.pulls.pulls[X].sources) == [A]


def test_an_event_that_cannot_be_names_its_story() -> None:
    world = World()
    world.ask()

    world(ev.RoomGiven(X))
    with pytest.raises(InvalidTransition, match=r"FETCHING.*\n.*PullAsked"):
        world(ev.RoomGiven(X))


class PullWorld(RuleBasedStateMachine):
    """Three askers, two objects, three sources; the store and streams obey."""

    OBJECTS = (b"x" * 28, b"y" * 28)
    ASKERS = ("p", "q", "r")
    SOURCES = (A, B, Source("cc" * 28, "2-2"))

    def __init__(self) -> None:
        super().__init__()
        self.pulls = Pulls(max_active_bytes=SIZE, streams=2)
        #: (object, asker) that were promised an answer.
        self.open: set[tuple[bytes, str]] = set()
        self.reserving: set[bytes] = set()
        self.reserved: set[bytes] = set()
        self.fetches: dict[int, ev.FetchRange] = {}
        #: Object -> bytes that were written since its room was given.
        self.written: dict[bytes, list[tuple[int, int]]] = {}

    def take(self, event: Any) -> None:
        for command in self.pulls.handle(event, 0.0):
            object_id = command.object_id
            if isinstance(command, ev.ReserveRoom):
                assert object_id not in self.reserving | self.reserved
                self.reserving.add(object_id)
            elif isinstance(command, ev.FetchRange):
                assert object_id in self.reserved
                self.fetches[command.fetch] = command
            elif isinstance(command, (ev.DropRoom, ev.SealCopy)):
                self.reserved.remove(object_id)
                busy = {fetch.object_id for fetch in self.fetches.values()}
                assert object_id not in busy
                spans = sorted(self.written.pop(object_id, []))
                if isinstance(command, ev.SealCopy):
                    end = 0
                    for offset, size_bytes in spans:
                        assert offset == end
                        end += size_bytes
                    assert end == SIZE
                    for asker in command.askers:
                        self.open.remove((object_id, asker))
            elif isinstance(command, ev.Refuse):
                self.open.remove((object_id, command.asker))

    @rule(
        object_id=st.sampled_from(OBJECTS),
        asker=st.sampled_from(ASKERS),
        sources=st.lists(st.sampled_from(SOURCES), max_size=3, unique=True),
    )
    def ask(self, object_id: bytes, asker: str, sources: list[Source]) -> None:
        self.open.add((object_id, asker))
        self.take(ev.PullAsked(object_id, asker, MADE, tuple(sources)))

    @rule(object_id=st.sampled_from(OBJECTS), asker=st.sampled_from(ASKERS))
    def withdraw(self, object_id: bytes, asker: str) -> None:
        self.open.discard((object_id, asker))
        self.take(ev.Withdrawn(object_id, asker))

    @rule(asker=st.sampled_from(ASKERS))
    def asker_dies(self, asker: str) -> None:
        self.open = {one for one in self.open if one[1] != asker}
        self.take(ev.AskerGone(asker))

    @precondition(lambda self: self.reserving)
    @rule(data=st.data(), ok=st.booleans())
    def store_answers(self, data: st.DataObject, ok: bool) -> None:
        object_id = data.draw(st.sampled_from(sorted(self.reserving)))
        self.reserving.remove(object_id)
        if ok:
            self.reserved.add(object_id)
            self.take(ev.RoomGiven(object_id))
        else:
            self.take(ev.RoomRefused(object_id, "full"))

    @precondition(lambda self: self.fetches)
    @rule(data=st.data())
    def arrives(self, data: st.DataObject) -> None:
        fetch = self.fetches.pop(data.draw(st.sampled_from(sorted(self.fetches))))
        spans = self.written.setdefault(fetch.object_id, [])
        spans.append((fetch.offset, fetch.size_bytes))
        self.take(ev.RangeArrived(fetch.object_id, fetch.fetch))

    @precondition(lambda self: self.fetches)
    @rule(data=st.data(), share=st.sampled_from((0.0, 0.3, 1.0)), gone=st.booleans())
    def breaks(self, data: st.DataObject, share: float, gone: bool) -> None:
        fetch = self.fetches.pop(data.draw(st.sampled_from(sorted(self.fetches))))
        got = int(fetch.size_bytes * share)
        if got:
            spans = self.written.setdefault(fetch.object_id, [])
            spans.append((fetch.offset, got))
        self.take(ev.RangeBroken(fetch.object_id, fetch.fetch, got, "reset", gone))

    @precondition(lambda self: self.fetches)
    @rule(data=st.data())
    def write_fails(self, data: st.DataObject) -> None:
        fetch = self.fetches.pop(data.draw(st.sampled_from(sorted(self.fetches))))
        self.take(ev.WriteFailed(fetch.object_id, fetch.fetch, "disk full"))

    @rule(fetch=st.integers(1, 5), object_id=st.sampled_from(OBJECTS))
    def late_outcome(self, fetch: int, object_id: bytes) -> None:
        state = self.pulls.state(object_id)
        if fetch not in self.fetches and (state, ev.RangeBroken) in TABLE:
            self.take(ev.RangeBroken(object_id, fetch, 0, "late"))

    @rule(object_id=st.sampled_from(OBJECTS))
    def free(self, object_id: bytes) -> None:
        self.take(ev.CopyFreed(object_id))

    @rule(source=st.sampled_from(SOURCES))
    def node_dies(self, source: Source) -> None:
        self.take(ev.NodeLost(source.node, "died"))

    @invariant()
    def holds(self) -> None:
        self.pulls.validate()
        waiting = {
            (pull.object_id, asker)
            for pull in self.pulls.pulls.values()
            for asker in pull.waiters
        }
        assert waiting == self.open
        # Nothing waits for nothing: somebody still owes an answer.
        assert not waiting or self.reserving or self.fetches


TestPullWorld = PullWorld.TestCase
TestPullWorld.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
