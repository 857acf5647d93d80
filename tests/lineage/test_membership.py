"""Who belongs to the cluster."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rayshim.lineage import membership as ms
from rayshim.lineage.membership import Membership, NodeState


def machine(*events: tuple[float, ms.Event]) -> Membership:
    made = Membership()
    for now, event in events:
        made.handle(event, now)
        made.validate()
    return made


def test_a_node_joins_and_lives_while_it_speaks() -> None:
    made = machine((0, ms.TimePassed()))
    assert made.handle(ms.Joined("a", 1), 0) == [ms.AdmitNode("a")]
    for second in range(1, 20):
        assert made.handle(ms.Spoke("a"), second) == []
        assert made.handle(ms.TimePassed(), second) == []
    assert made.is_usable("a")


def test_the_end_of_its_channel_is_its_death() -> None:
    made = machine((0, ms.Joined("a", 1)))
    (mourned,) = made.handle(ms.ChannelEnded("a", 1), 1)
    assert isinstance(mourned, ms.MournNode)
    assert "connection ended" in mourned.death
    assert made.is_dead("a") and not made.is_usable("a")
    assert made.handle(ms.ChannelEnded("a", 1), 1) == []


def test_the_end_of_an_older_channel_is_none() -> None:
    made = machine((0, ms.Joined("a", 1)), (1, ms.Joined("a", 2)))
    assert made.handle(ms.ChannelEnded("a", 1), 1) == []
    assert made.is_usable("a")


def test_a_silent_node_is_suspected_then_dead() -> None:
    made = machine((0, ms.Joined("a", 1)), (0, ms.TimePassed()))
    assert made.handle(ms.TimePassed(), 2) == []
    assert made.handle(ms.TimePassed(), 3) == [ms.AnnounceNode("a")]
    assert not made.is_usable("a")
    assert made.handle(ms.TimePassed(), 4.9) == []
    (mourned,) = made.handle(ms.TimePassed(), 5)
    assert isinstance(mourned, ms.MournNode)
    assert "nothing was heard of it for 5.0 s" in mourned.death


def test_a_suspect_that_speaks_is_trusted_again() -> None:
    made = machine((0, ms.Joined("a", 1)), (1, ms.TimePassed()), (3, ms.TimePassed()))
    assert made.members["a"].state is NodeState.SUSPECT
    assert made.handle(ms.Spoke("a"), 4) == [ms.AnnounceNode("a")]
    assert made.is_usable("a")


def test_the_dead_are_told_to_leave() -> None:
    made = machine((0, ms.Joined("a", 1)), (1, ms.ChannelEnded("a", 1)))
    for event in (ms.Joined("a", 2), ms.Spoke("a")):
        (dismissed,) = made.handle(event, 2)
        assert isinstance(dismissed, ms.DismissNode)
    assert made.is_dead("a")


def test_a_node_that_leaves_gets_no_work_and_names_its_reason() -> None:
    made = machine((0, ms.Joined("a", 1)))
    assert made.handle(ms.Leaving("a", "drained"), 1) == [ms.AnnounceNode("a")]
    assert not made.is_usable("a")
    assert made.handle(ms.ChannelEnded("a", 1), 2) == [
        ms.MournNode("a", "it left the cluster: drained")
    ]


def test_a_pause_of_the_head_counts_for_no_node() -> None:
    made = machine((0, ms.Joined("a", 1)), (1, ms.TimePassed()))
    assert made.handle(ms.TimePassed(), 100) == []
    assert made.is_usable("a")
    assert made.handle(ms.TimePassed(), 102) == [ms.AnnounceNode("a")]
    assert made.handle(ms.TimePassed(), 104) != []
    assert made.is_dead("a")


def test_an_expected_node_has_one_time_limit_to_come_back() -> None:
    made = machine((0, ms.Expected("a")), (0, ms.Expected("b")), (1, ms.TimePassed()))
    assert made.handle(ms.Joined("a", 1), 2) == [ms.AdmitNode("a")]
    made.handle(ms.TimePassed(), 3)
    made.handle(ms.Spoke("a"), 4)
    (mourned,) = made.handle(ms.TimePassed(), 5)
    assert isinstance(mourned, ms.MournNode)
    assert mourned.node_id == "b" and "restart" in mourned.death


def test_a_node_that_an_earlier_head_declared_dead_stays_dead() -> None:
    made = machine((0, ms.Mourned("a", "its host burned")))
    (dismissed,) = made.handle(ms.Joined("a", 1), 1)
    assert dismissed == ms.DismissNode("a", "its host burned")
    assert made.is_dead("a")


def test_the_story_of_a_node_names_its_events() -> None:
    made = machine((0, ms.Joined("a", 1)), (0, ms.Joined("b", 1)))
    assert len(made.story("a")) == 1


_EVENTS = st.one_of(
    st.builds(ms.Expected, st.sampled_from("ab")),
    st.builds(ms.Joined, st.sampled_from("ab"), st.integers(1, 3)),
    st.builds(ms.Mourned, st.sampled_from("ab"), st.just("burned")),
    st.builds(ms.Spoke, st.sampled_from("ab")),
    st.builds(ms.Leaving, st.sampled_from("ab"), st.just("")),
    st.builds(ms.ChannelEnded, st.sampled_from("ab"), st.integers(1, 3)),
    st.just(ms.TimePassed()),
)


@given(st.lists(st.tuples(st.floats(0, 4), _EVENTS), max_size=40))
def test_any_order_of_events_keeps_the_rules(
    steps: list[tuple[float, ms.Event]],
) -> None:
    made, now, mourned = Membership(), 0.0, []
    for wait, event in steps:
        now += wait
        for command in made.handle(event, now):
            if isinstance(command, ms.MournNode):
                mourned.append(command.node_id)
        made.validate()
    assert len(mourned) == len(set(mourned))
