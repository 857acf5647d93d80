"""When a wish for a node by name fails."""

from __future__ import annotations

import pytest

from rayshim.lineage.affinity import FAIL, WAIT, is_able, refusal
from rayshim.lineage.placement import View

ONE, TWO = {"CPU": 10_000}, {"CPU": 20_000}
FULL = View("aa" * 28, ONE, {"CPU": 0}, {"zone": "n"})
FREE = View("bb" * 28, ONE, ONE, {"zone": "s"})
NORTH = ({"zone": "n"},)


def refused(*views: View, need: dict[str, int] = ONE, **more: object) -> str:
    wanted = {one.node_id: one for one in views}
    options = {"selectors": (), "strategy": WAIT, **more}
    return refusal("f", need, wanted, **options)  # type: ignore[arg-type]  # of tests


def test_able_is_what_would_have_room_and_has_the_labels() -> None:
    assert is_able(ONE, FULL, NORTH)
    assert not is_able(TWO, FULL, NORTH)
    assert not is_able(ONE, FREE, NORTH)
    assert is_able(ONE, FREE, ())


def test_a_full_node_is_waited_for_unless_the_user_says_to_fail() -> None:
    assert refused(FULL) == ""
    assert "has only {CPU: 0} free" in refused(FULL, strategy=FAIL)
    assert refused(FREE, strategy=FAIL) == ""


def test_one_node_of_several_is_enough() -> None:
    assert refused(FULL, FREE, strategy=FAIL) == ""
    assert refused(FULL, FREE, selectors=NORTH) == ""
    text = refused(FULL, FREE, selectors=NORTH, strategy=FAIL)
    assert "aaaaaaaa" in text
    assert "bbbbbbbb does not have the labels" in text


@pytest.mark.parametrize("strategy", [WAIT, FAIL])
def test_what_can_never_be_is_said_with_numbers(strategy: str) -> None:
    text = refused(FREE, need=TWO, strategy=strategy)
    assert "f needs {CPU: 2}, and node bbbbbbbb has {CPU: 1} in all" in text
    assert "soft=False was specified" in text
    dead = refusal("f", ONE, {"cc" * 28: None}, (), strategy)
    assert "cccccccc is dead or was never part" in dead
