"""All orders of small worlds of references, and the bug that a simpler table has."""

from __future__ import annotations

from typing import Any

import pytest

from rayshim.lineage.explore import explore, replay
from rayshim.lineage.references import ReferenceTable
from reference_steps import References, X


class BorrowerSet(ReferenceTable):
    """What rule 3 forbids: a release clears the borrower, whatever was lent since."""

    def release(self, object_id: bytes, peer: str, lend: int) -> None:
        super().release(object_id, peer, 1 << 30)


def test_the_explorer_finds_what_a_set_of_borrowers_gets_wrong() -> None:
    start = References("OA", by_call=False, on_the_way=False, table=BorrowerSet)

    found = explore(start, max_states=10_000).counterexample

    assert found is not None
    assert found.as_test("a_release_frees_what_was_lent_again") == (
        "def test_a_release_frees_what_was_lent_again() -> None:\n"
        "    # AssertionError: b'x' was freed too early: A has a reference\n"
        "    world = References('OA', by_call=False, on_the_way=False, "
        "table=BorrowerSet)\n"
        "    world.create()\n"
        "    world.lend('O', 'A', b'x')\n"
        "    world.deliver('O', 'A')\n"
        "    world.drop('A', b'x')\n"
        "    world.lend('O', 'A', b'x')\n"
        "    world.deliver('O', 'A')\n"
        "    world.deliver('A', 'O')\n"
        "    world.drop('O', b'x')\n"
        "    world.check()\n"
    )


def test_one_step_less_if_a_reference_on_its_way_counts() -> None:
    start = References("OA", by_call=False, table=BorrowerSet)

    found = explore(start, max_states=10_000).counterexample

    assert found is not None
    assert len(found.steps) == 7


@pytest.mark.parametrize(
    "options",
    [
        {"names": "OA", "hand_overs": 2},
        {"names": "OA", "hand_overs": 2, "deaths": 1},
        {"names": "OA", "hand_overs": 1, "objects": 2, "deaths": 1},
        {"names": "OA", "hand_overs": 1, "pins": 1},
        {"doubled": ("borrow", "acknowledged"), "doubles": 1},
        {"names": "OAB", "hand_overs": 2, "by_value": False},
    ],
    ids=str,
)
def test_no_order_frees_too_early_or_leaks(options: dict[str, Any]) -> None:
    seen = explore(References(**options), max_states=20_000)

    assert seen.counterexample is None, seen.counterexample.as_test("found")
    assert seen.is_complete


@pytest.mark.parametrize("kind", ["reference", "call", "result", "release"])
def test_what_comes_twice_and_late_needs_a_channel_that_forbids_it(kind: str) -> None:
    start = References(doubled=(kind,), doubles=1)

    found = explore(start, max_states=10_000).counterexample

    assert found is not None
    assert any(step[0] == "deliver_twice" for step in found.steps)


def test_a_reference_that_goes_home_needs_a_lend_too() -> None:
    """The owner may hear that all its borrowers are done before it gets the value."""
    steps = [
        ("create",),
        ("lend", "O", "A", X),
        ("deliver", "O", "A"),
        ("call", "A", "B", X),
        ("deliver", "A", "B"),
        ("start", "B", 1),
        ("drop", "A", X),
        ("lend", "B", "O", X),
        ("drop", "B", X),
        ("finish", "B", 1),
        ("deliver", "B", "A"),
        ("drop", "O", X),
    ]

    world = replay(References("OAB", hand_overs=3), steps)

    assert list(world.tables["O"].entries) == [X]
