"""Counterexamples that a simpler reference table fell for."""

from __future__ import annotations

from rayshim.lineage.references import ReferenceTable

X, Y = b"x", b"y"


def test_a_promise_opens_no_lend_and_its_confirmation_does() -> None:
    owner = ReferenceTable("o")
    owner.own(X)
    lend = owner.promise(X)
    assert not owner.entries[X].lends
    owner.confirm(X, "a", lend)
    owner.drop(X)
    assert X in owner.entries
    owner.release(X, "a", lend)
    assert not owner.entries


def test_a_call_that_ends_early_does_not_close_the_lend_of_an_earlier_one() -> None:
    owner = ReferenceTable("o")
    owner.own(X)
    first, second = owner.promise(X), owner.promise(X)
    owner.release(X, "a", second)  # the second call ended first and kept nothing
    owner.confirm(X, "a", first)
    owner.drop(X)
    assert X in owner.entries


def test_two_borrowers_that_lend_to_each_other_both_let_go() -> None:
    a, b = ReferenceTable("a"), ReferenceTable("b")
    for table in (a, b):
        table.receive(X, "o", "o", 1).local += 1
    a_to_b, b_to_a = a.lend(X, "b"), b.lend(X, "a")
    a.receive(X, "o", "b", b_to_a)
    b.receive(X, "o", "a", a_to_b)
    a.drop(X)
    b.drop(X)
    for _ in range(3):
        for sender, receiver in ((a, b), (b, a)):
            for object_id, lend in sender.releases.pop(receiver.address, []):
                receiver.release(object_id, sender.address, lend)
    assert not a.entries
    assert not b.entries


def test_a_registered_borrower_does_not_report_an_argument_as_kept() -> None:
    table = ReferenceTable("me")
    table.receive(X, "o", "o", 1).local += 1
    table.receive(X, "o", "lender", 9, register=False)
    assert not table.keep(X, "lender", 9)


def test_a_lend_by_the_owner_during_a_registration_leaves_no_lend_open() -> None:
    owner, table = ReferenceTable("o"), ReferenceTable("me")
    owner.own(X)
    table.receive(X, "o", "lender", 5).local += 1  # a Borrow is on its way
    table.receive(X, "o", "o", owner.lend(X, "me"))  # and the owner lends directly
    table.drop(X)
    ack = owner.register_borrower(X, "me")
    for object_id, lend in table.releases.pop("o", []):
        owner.release(object_id, "me", lend)
    table.acknowledge(X, ack)
    for object_id, lend in table.releases.pop("o", []):
        owner.release(object_id, "me", lend)
    owner.drop(X)
    assert not owner.entries


def test_an_argument_that_is_not_kept_drops_what_its_value_contained() -> None:
    table = ReferenceTable("me")
    entry = table.receive(X, "o", "lender", 1, register=False)
    entry.local += 1
    table.receive(Y, "o", "o", 1).local += 1
    entry.contains = (Y,)  # its value was fetched
    table.drop(X)
    assert not table.keep(X, "lender", 1)
    assert not table.entries
    assert table.releases == {"o": [(Y, 1)]}


def test_the_owners_death_does_not_forget_other_lenders() -> None:
    table = ReferenceTable("me")
    table.receive(X, "o", "lender", 2).local += 1
    table.peer_died("o")
    table.drop(X)
    assert table.releases == {"lender": [(X, 2)]}


def test_an_object_that_was_freed_before_it_came_back_is_lost() -> None:
    """A borrower calls the owner with the object and dies; the owner drops it."""
    owner = ReferenceTable("o")
    owner.own(X)
    owner.lend(X, "a")
    owner.drop(X)
    owner.peer_died("a")
    assert not owner.entries

    entry = owner.receive(X, "o", "a", 0, register=False)

    assert entry.lost, "else whoever gets it waits for ever"
    entry.local += 1
    owner.validate()


def test_a_reference_on_its_way_home_outlives_the_hold_of_its_lender() -> None:
    """O lends to A, A to B, B sends it to O and is done; A hears that before O."""
    owner, a, b = ReferenceTable("o"), ReferenceTable("a"), ReferenceTable("b")
    owner.own(X)
    a.receive(X, "o", "o", owner.lend(X, "a")).local += 1
    lend = a.promise(X)  # a call from A to B
    b.receive(X, "o", "a", lend, register=False).local += 2
    home = b.lend_home(X)  # inside a value that B sends to O
    b.drop(X)
    b.unpin(X)
    is_kept = b.keep(X, "a", lend)
    assert home and is_kept
    a.confirm(X, "b", lend)
    a.drop(X)
    assert not a.releases, "B is not known to the owner yet"
    owner.drop(X)
    assert X in owner.entries

    owner.receive(X, "o", "b", home).local += 1
    assert owner.releases == {"b": [(X, home)]}


def test_a_known_borrower_needs_no_lend_to_the_owner() -> None:
    table = ReferenceTable("me")
    table.receive(X, "o", "o", 1).local += 1
    assert table.lend_home(X) == 0
    assert not table.entries[X].lends
