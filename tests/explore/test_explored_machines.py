"""All orders of small worlds of calls, actors and leases."""

from __future__ import annotations

from typing import Any

import pytest

from actor_steps import Actors
from lease_steps import Leases
from rayshim.lineage.explore import World, explore
from task_steps import Tasks


def assert_holds(world: World) -> None:
    seen = explore(world, max_states=20_000)

    assert seen.counterexample is None, seen.counterexample.as_test("found")
    assert seen.is_complete, seen.describe()


@pytest.mark.parametrize(
    "options",
    [
        {"calls": 3, "max_depth": 1},
        {"retries": 1, "deaths": 2, "executors": 3},
        {"retries": 1, "strays": 1},
        {"retries": 1, "errors": 1},
        {"max_depth": 1, "holding": True},
    ],
    ids=str,
)
def test_calls_run_as_often_as_allowed_and_end(options: dict[str, Any]) -> None:
    assert_holds(Tasks(**options))


def test_a_run_whose_result_was_held_back_costs_no_retry() -> None:
    """Known and accepted: a call that may run twice runs three times.

    An executor holds results for about a millisecond. If it dies then, the owner
    cannot know that the second call of its pipeline had started. Calls without
    retries are never pushed behind others, so they run at most once all the same.
    """
    start = Tasks(retries=1, executors=3, deaths=2, holding=True)

    found = explore(start, max_states=20_000).counterexample

    assert found is not None
    assert found.broken == "AssertionError: call 1 ran 3 times, not 2"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retries": 1},
        {"kills": 1},
        {"ends": 1},
        {"late": 1},
    ],
    ids=str,
)
def test_an_actors_calls_run_once_in_order_and_end(options: dict[str, Any]) -> None:
    assert_holds(Actors(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"leases": 3},
        {"deaths": 1},
        {"leavers": 1},
        {"doubles": 1},
        {"cancels": 1},
        {"disposals": 1},
    ],
    ids=str,
)
def test_leases_add_up_and_none_is_lost(options: dict[str, Any]) -> None:
    assert_holds(Leases(**options))
