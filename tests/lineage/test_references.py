"""The rules of reference counting, in one table and between several."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rayshim.lineage.directory import Copies
from rayshim.lineage.references import ReferenceTable
from reference_world import World

X = b"x"
Y = b"y"


def owner_table() -> ReferenceTable:
    table = ReferenceTable("owner")
    table.own(X)
    return table


def borrower_table(lend: int = 1) -> ReferenceTable:
    """A process that got X from its owner and uses it once."""
    table = ReferenceTable("me")
    table.receive(X, "owner", "owner", lend).local += 1
    return table


def freed(table: ReferenceTable) -> list[bytes]:
    table.validate()
    return [entry.object_id for entry in table.freed]


# Rule 1: an owned object is freed when nobody uses it.


def test_an_object_is_freed_with_its_last_use() -> None:
    table = owner_table()
    table.hold(X)
    table.drop(X)
    assert freed(table) == []
    table.drop(X)
    assert freed(table) == [X]
    assert table.entries == {}


def test_a_long_chain_of_containers_goes_at_once() -> None:
    table = ReferenceTable("owner")
    ids = [number.to_bytes(4, "little") for number in range(5000)]
    for inner, outer in zip([b"", *ids], ids, strict=False):
        table.contain(table.own(outer), [inner] if inner else [])
        if inner:
            table.drop(inner)
    assert freed(table) == []
    table.drop(ids[-1])
    assert freed(table) == ids[::-1]
    assert table.entries == {}


def test_an_open_lend_keeps_an_object() -> None:
    table = owner_table()
    lend = table.lend(X, "a")
    table.drop(X)
    assert freed(table) == []
    table.release(X, "a", lend)
    assert freed(table) == [X]


def test_every_borrower_has_to_release() -> None:
    table = owner_table()
    first, second = table.lend(X, "a"), table.lend(X, "b")
    table.drop(X)
    table.release(X, "a", first)
    assert freed(table) == []
    table.release(X, "b", second)
    assert freed(table) == [X]


def test_a_release_leaves_the_uses_of_the_owner() -> None:
    table = owner_table()
    table.release(X, "a", table.lend(X, "a"))
    assert freed(table) == []
    assert table.entries[X].local == 1


def test_a_value_keeps_what_it_contains() -> None:
    table = owner_table()
    table.contain(table.own(Y), [X])
    table.drop(X)
    assert freed(table) == []
    table.drop(Y)
    assert freed(table) == [Y, X]


def test_a_long_chain_of_values_is_freed_at_once() -> None:
    table = ReferenceTable("owner")
    ids = [b"%d" % i for i in range(50)]
    for position, object_id in enumerate(ids):
        entry = table.own(object_id)
        if position:
            table.contain(entry, [ids[position - 1]])
            table.drop(ids[position - 1])
    assert freed(table) == []
    table.drop(ids[-1])
    assert freed(table) == ids[::-1]


def test_a_value_may_contain_one_object_twice() -> None:
    table = owner_table()
    table.contain(table.own(Y), [X, X])
    table.drop(X)
    table.drop(Y)
    assert freed(table) == [Y, X]


def test_an_object_of_an_ended_session_is_ignored() -> None:
    table = ReferenceTable("owner")
    table.drop(X)
    table.release(X, "a", 1)
    table.acknowledge(X, 1)
    assert freed(table) == []
    assert not table.releases and not table.borrows


def test_only_what_is_there_can_be_borrowed() -> None:
    table = owner_table()
    assert table.register_borrower(X, "a") == 1
    assert table.register_borrower(Y, "a") == 0


def test_a_borrower_death_releases_its_lends() -> None:
    table = owner_table()
    table.lend(X, "a")
    other = table.lend(X, "b")
    table.drop(X)
    assert table.peer_died("a") == []
    assert freed(table) == []
    table.release(X, "b", other)
    assert freed(table) == [X]


def test_the_death_of_a_stranger_changes_nothing() -> None:
    table = owner_table()
    assert table.peer_died("stranger") == []
    assert freed(table) == []


# Rule 2: a borrowed object is given back when nobody here uses it.


def test_a_borrower_names_the_last_lend_it_saw() -> None:
    table = borrower_table(lend=1)
    table.receive(X, "owner", "owner", 4)
    table.drop(X)
    table.validate()
    assert table.releases == {"owner": [(X, 4)]}
    assert table.entries == {}


def test_a_borrower_that_lent_on_waits_for_its_borrower() -> None:
    table = borrower_table()
    lend = table.lend(X, "b")
    table.drop(X)
    assert table.releases == {}
    table.release(X, "b", lend)
    assert table.releases == {"owner": [(X, 1)]}


def test_a_reference_from_a_third_process_is_registered() -> None:
    table = ReferenceTable("me")
    table.receive(X, "owner", "lender", 7).local += 1
    assert table.borrows == {"owner": [X]}
    table.receive(X, "owner", "lender", 8)
    assert table.borrows == {"owner": [X]}, "one registration is enough"


def test_a_lender_is_paid_back_once_the_owner_knows() -> None:
    table = ReferenceTable("me")
    table.receive(X, "owner", "lender", 7).local += 1
    assert table.releases == {}
    table.acknowledge(X, 3)
    assert table.releases == {"lender": [(X, 7)]}
    table.drop(X)
    assert table.releases == {"lender": [(X, 7)], "owner": [(X, 3)]}


def test_a_dropped_reference_waits_for_its_registration() -> None:
    table = ReferenceTable("me")
    table.receive(X, "owner", "lender", 7).local += 1
    table.drop(X)
    assert table.releases == {}
    table.acknowledge(X, 3)
    assert table.releases == {"lender": [(X, 7)], "owner": [(X, 3)]}
    assert table.entries == {}


def test_the_refusal_of_a_registration_pays_the_lender_only() -> None:
    table = ReferenceTable("me")
    table.receive(X, "owner", "lender", 7).local += 1
    table.acknowledge(X, 0)
    table.drop(X)
    assert table.releases == {"lender": [(X, 7)]}


def test_an_argument_that_is_not_kept_needs_no_message() -> None:
    table = ReferenceTable("me")
    table.receive(X, "owner", "lender", 7, register=False).local += 1
    table.drop(X)
    assert table.keep(X, "lender", 7) is False
    assert table.entries == {}
    assert not table.releases and not table.borrows


def test_an_argument_that_is_kept_is_registered() -> None:
    table = ReferenceTable("me")
    table.receive(X, "owner", "lender", 7, register=False).local += 1
    assert table.borrows == {}
    assert table.keep(X, "lender", 7) is True
    assert table.borrows == {"owner": [X]}


def test_an_argument_from_its_owner_is_kept_without_a_registration() -> None:
    table = ReferenceTable("me")
    table.receive(X, "owner", "owner", 7, register=False).local += 1
    assert table.keep(X, "owner", 7) is True
    assert table.borrows == {}
    table.drop(X)
    assert table.releases == {"owner": [(X, 7)]}


def test_an_owner_never_reports_its_own_objects_as_kept() -> None:
    table = owner_table()
    table.receive(X, "owner", "lender", 0, register=False).local += 1
    assert table.keep(X, "lender", 0) is False


def test_an_owner_pays_a_lender_back_at_once() -> None:
    table = owner_table()
    table.receive(X, "owner", "lender", 5)
    assert table.releases == {"lender": [(X, 5)]}


def test_a_doubled_acknowledgement_completes_no_later_registration() -> None:
    table = ReferenceTable("me")
    table.receive(X, "owner", "lender", 7).local += 1
    first = table.registration(X)
    table.acknowledge(X, 3, first, "owner")
    table.drop(X)
    table.receive(X, "owner", "lender", 8).local += 1
    table.releases.clear()
    table.acknowledge(X, 3, first, "owner")
    assert table.registration(X) == first + 1
    assert table.releases == {"owner": [(X, 3)]}, "it stands on no such lend"
    table.acknowledge(X, 4, first + 1, "owner")
    assert table.releases == {"owner": [(X, 3)], "lender": [(X, 8)]}


def test_the_second_acknowledgement_of_a_doubled_registration_is_released() -> None:
    table = ReferenceTable("me")
    table.receive(X, "owner", "lender", 7).local += 1
    number = table.registration(X)
    table.acknowledge(X, 3, number, "owner")
    table.acknowledge(X, 4, number, "owner")
    table.drop(X)
    assert table.releases == {"lender": [(X, 7)], "owner": [(X, 4)]}
    table.acknowledge(X, 5, number, "owner")
    assert table.releases["owner"] == [(X, 4), (X, 5)]


# Rule 4: a value goes while the way to make it again stays.


def test_a_value_goes_while_it_is_needed_as_lineage() -> None:
    table = owner_table()
    table.contain(table.own(Y), [])
    table.entries[X].value = "value"
    table.pin_lineage(X)
    table.drop(X)
    table.validate()
    assert [(e.object_id, value) for e, value, _ in table.faded] == [(X, "value")]
    assert table.entries[X].lost
    assert freed(table) == []
    table.unpin_lineage(X)
    assert freed(table) == [X]


def test_a_value_that_comes_again_for_nobody_goes_again() -> None:
    table = owner_table()
    entry = table.entries[X]
    entry.value = "first"
    table.pin_lineage(X)
    table.drop(X)
    entry.value, entry.lost = "second", False
    table.arrived(entry)
    assert [value for _, value, _ in table.faded] == ["first", "second"]
    table.hold(X)
    entry.value, entry.lost = "third", False
    table.arrived(entry)
    assert entry.value == "third"


def test_lineage_keeps_nothing_of_what_the_value_contains() -> None:
    table = owner_table()
    outer = table.own(Y)
    outer.value = "value"
    table.contain(outer, [X])
    table.pin_lineage(Y)
    table.drop(X)
    table.drop(Y)
    assert freed(table) == [X]


def test_a_borrower_that_read_a_copy_says_so_at_the_end() -> None:
    table = borrower_table()
    copies = table.entries[X].copies = Copies()
    copies.near = "segment"
    table.drop(X)
    assert table.unread_copies == [X]


def test_the_owner_death_leaves_orphans_for_those_who_hold_them() -> None:
    table = borrower_table()
    orphans = table.peer_died("owner")
    assert [entry.object_id for entry in orphans] == [X]
    table.drop(X)
    assert table.entries == {}
    assert not table.releases and not table.borrows


def test_nothing_is_owed_to_a_dead_lender() -> None:
    table = ReferenceTable("me")
    table.receive(X, "owner", "lender", 7).local += 1
    table.peer_died("lender")
    table.acknowledge(X, 3)
    assert table.releases == {}


# Rule 3: a release covers the lends up to its number, no later one.


def test_a_release_on_its_way_does_not_cover_a_new_lend() -> None:
    """Lend, drop, lend again, and only then does the first release arrive."""
    owner, borrower = owner_table(), ReferenceTable("a")
    first = owner.lend(X, "a")
    borrower.receive(X, "owner", "owner", first).local += 1
    borrower.drop(X)
    (release,) = borrower.releases.pop("owner")
    second = owner.lend(X, "a")
    borrower.receive(X, "owner", "owner", second).local += 1
    owner.drop(X)

    owner.release(release[0], "a", release[1])
    assert freed(owner) == [], "the second reference is in use at the borrower"

    borrower.drop(X)
    owner.release(X, "a", borrower.releases["owner"][0][1])
    assert freed(owner) == [X]


def test_a_doubled_release_counts_once() -> None:
    table = owner_table()
    first = table.lend(X, "a")
    table.release(X, "a", first)
    table.lend(X, "a")
    table.drop(X)
    table.release(X, "a", first)
    assert freed(table) == []


def test_a_release_of_a_lend_that_was_never_made_is_ignored() -> None:
    table = owner_table()
    table.lend(X, "a")
    table.drop(X)
    table.release(X, "b", 1)
    table.release(X, "a", 0)
    assert freed(table) == []


def test_lend_numbers_grow_over_all_borrowers() -> None:
    table = owner_table()
    assert [table.lend(X, peer) for peer in "aba"] == [1, 2, 3]


# Several tables against a judge that sees everything.


def run(names: str, seed: int, steps: int = 60) -> World:
    """A run in which each process works on one call at a time, in order."""
    world, draw = World(names), random.Random(seed).randrange
    world.deliver_releases_twice = bool(seed % 2)
    for _ in range(steps):
        world.one_step(draw)
    return world


@pytest.mark.parametrize("block", range(4))
def test_two_processes_free_everything_and_nothing_too_early(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        run("AB", seed).end()


@pytest.mark.parametrize("block", range(4))
def test_three_processes_free_nothing_too_early(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        run("ABC", seed)


@pytest.mark.slow
def test_many_runs_of_two_processes() -> None:
    for seed in range(4000):
        run("AB", seed, steps=120).end()


@pytest.mark.slow
def test_many_runs_of_three_processes() -> None:
    for seed in range(4000):
        run("ABC", seed, steps=120)


class Exchange(RuleBasedStateMachine):
    """Two processes that call each other; hypothesis shrinks what it finds."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World("AB")

    def held(self) -> list[tuple[str, bytes]]:
        return sorted(pair for pair, count in self.world.uses.items() if count > 0)

    @rule(name=st.sampled_from("AB"))
    def create(self, name: str) -> None:
        self.world.create(name)

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def wrap(self, data: st.DataObject) -> None:
        self.world.create(*data.draw(st.sampled_from(self.held())))

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.world.drop(*data.draw(st.sampled_from(self.held())))

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        name, object_id = data.draw(st.sampled_from(self.held()))
        self.world.call(name, "B" if name == "A" else "A", object_id)

    @precondition(lambda self: any(self.world.channels.values()))
    @rule(data=st.data(), twice=st.booleans())
    def deliver(self, data: st.DataObject, twice: bool) -> None:
        waiting = sorted(pair for pair, queue in self.world.channels.items() if queue)
        self.world.deliver_releases_twice = twice
        self.world.deliver(*data.draw(st.sampled_from(waiting)))

    @rule(name=st.sampled_from("AB"), keeps=st.booleans(), returns=st.booleans())
    def work(self, name: str, keeps: bool, returns: bool) -> None:
        process = self.world.processes[name]
        if process.running:
            self.world.finish(process.running[0], keeps=keeps, returns=returns)
        elif process.accepted:
            self.world.start(process.accepted[0])

    @invariant()
    def tables_are_sound(self) -> None:
        for process in self.world.processes.values():
            process.table.validate()

    def teardown(self) -> None:
        self.world.end()


Exchange.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)


@pytest.mark.slow
class TestExchange(Exchange.TestCase):  # type: ignore[misc]
    """Every order of messages that hypothesis can think of."""
