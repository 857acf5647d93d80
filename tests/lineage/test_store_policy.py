"""What leaves a full store, and in which order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayshim.lineage import store_policy
from rayshim.lineage.store_policy import Copies, Holder, Kind, StoredFile, plan

MIB = 1 << 20


def stored(name, kind=Kind.PRIMARY, used_s=0.0, size=10, is_used=False):
    return StoredFile(name, size, kind, used_s, is_used)


def test_copies_go_first_then_restored_then_the_oldest_primary():
    files = [
        stored("p1", used_s=1),
        stored("p2", used_s=2),
        stored("r", Kind.RESTORED, used_s=9),
        stored("c", Kind.COPY, used_s=9),
    ]

    assert plan(files, 5, None).drop == ["c"]
    assert plan(files, 15, None).drop == ["c", "r"]
    chosen = plan(files, 25, None)
    assert (chosen.drop, chosen.spill) == (["c", "r"], ["p1"])
    assert (chosen.freed_bytes, chosen.spilled_bytes) == (30, 10)


def test_the_least_recently_used_copy_goes_first():
    files = [stored("new", Kind.COPY, 5), stored("old", Kind.COPY, 1)]

    assert plan(files, 1, None).drop == ["old"]


def test_what_is_in_use_stays():
    files = [stored("a", is_used=True), stored("b", Kind.COPY, is_used=True)]

    assert plan(files, 100, None) == store_policy.Plan([], [], 0, 0, 0)


def test_what_does_not_fit_on_the_disk_is_left_and_counted():
    files = [stored("large", size=50, used_s=1), stored("small", size=10, used_s=2)]

    chosen = plan(files, 60, 20)

    assert chosen.spill == ["small"]
    assert chosen.refused_bytes == 50


@given(
    st.lists(
        st.builds(
            StoredFile,
            name=st.uuids().map(str),
            size_bytes=st.integers(1, 100),
            kind=st.sampled_from(Kind),
            used_s=st.floats(0, 10),
            is_used=st.booleans(),
        ),
        max_size=12,
    ),
    st.integers(1, 500),
    st.none() | st.integers(0, 200),
)
def test_a_plan_frees_enough_or_all_that_may_go(files, wanted, room):
    chosen = plan(files, wanted, room)
    sizes = {held.name: held.size_bytes for held in files}
    unused = {held.name: held for held in files if not held.is_used}

    assert set(chosen.drop) | set(chosen.spill) <= set(unused)
    assert not set(chosen.drop) & set(chosen.spill)
    assert all(unused[name].kind is not Kind.PRIMARY for name in chosen.drop)
    assert all(unused[name].kind is Kind.PRIMARY for name in chosen.spill)
    assert chosen.spilled_bytes == sum(sizes[name] for name in chosen.spill)
    assert room is None or chosen.spilled_bytes <= room
    if chosen.freed_bytes < wanted:
        left = sum(sizes[name] for name in unused) - chosen.freed_bytes
        assert left == chosen.refused_bytes


def test_a_pinned_copy_that_is_freed_goes_at_its_last_unpin():
    copies = Copies()
    copies.add(b"x", "o-1", 10, "peer1", 0.0)
    assert copies.pin(b"x", "peer2", 1.0) == "o-1"

    assert copies.free([b"x"]) == []
    assert copies.pin(b"x", "peer3", 2.0) is None
    assert copies.unpin([b"x"], "peer1") == []
    assert copies.unpin([b"x"], "peer1") == []
    assert copies.unpin([b"x"], "peer2") == ["o-1"]
    copies.validate()
    assert copies.names == {}


def test_a_death_takes_the_pins_of_the_dead():
    copies = Copies()
    copies.add(b"x", "o-1", 10, "peer1", 0.0)
    copies.add(b"y", "o-2", 10, "peer2", 0.0)

    copies.free([b"x", b"y"])

    assert copies.peer_gone("peer1") == ["o-1"]
    assert copies.pinned_names() == {"o-2"}
    copies.validate()


def test_an_evicted_copy_is_forgotten_and_may_come_again():
    copies = Copies()
    copies.add(b"x", "o-1", 10, "", 0.0)

    copies.forget("o-1")

    assert copies.pin(b"x", "peer", 1.0) is None
    copies.add(b"x", "o-1", 10, "peer", 2.0)
    assert copies.is_pinned("o-1")
    copies.validate()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "pin", "unpin", "gone", "free", "forget"]),
            st.sampled_from([b"x", b"y"]),
            st.sampled_from(["p", "q"]),
        ),
        max_size=25,
    )
)
def test_copies_hold_their_invariants(steps):
    copies = Copies()
    for verb, object_id, peer in steps:
        name = "o-" + object_id.hex()
        if verb == "add":
            copies.add(object_id, name, 10, peer, 0.0)
        elif verb == "pin":
            copies.pin(object_id, peer, 0.0)
        elif verb == "unpin":
            copies.unpin([object_id], peer)
        elif verb == "gone":
            copies.peer_gone(peer)
        elif verb == "free":
            copies.free([object_id])
        elif not copies.is_pinned(name):
            copies.forget(name)
        copies.validate()


def test_the_report_ranks_holders_by_the_place_that_made_them():
    holders = [
        Holder("a", 3 * MIB, "load.py:17", "driver 1"),
        Holder("b", 3 * MIB, "load.py:17", "driver 1"),
        Holder("c", 5 * MIB, "train.py:4", "driver 1"),
    ]

    text = store_policy.report(
        wanted_bytes=20 * MIB,
        limit_bytes=10 * MIB,
        used_bytes=9 * MIB,
        viewed_bytes=8 * MIB,
        spilled_bytes=0,
        spill_limit_bytes=100 * MIB,
        spill_target="/spill",
        holders=holders,
        error="full",
    )

    assert "20.0 MiB wanted, 9.0 MiB of 10.0 MiB in use (8.0 MiB of it" in text
    assert "larger than the whole store" in text
    first, second = (text.index(one) for one in ("load.py:17", "train.py:4"))
    assert first < second
    assert "6.0 MiB in 2 objects from load.py:17 (driver 1)" in text
    assert "object_store_memory" in text


def test_the_spill_limit_leaves_five_percent_of_the_disk():
    assert store_policy.spill_limit(0, 1000, 400, 100) == 450
    assert store_policy.spill_limit(0, 1000, 20, 0) == 0
    assert store_policy.spill_limit(77, 1000, 20, 0) == 77
