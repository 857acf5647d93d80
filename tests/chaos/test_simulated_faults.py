"""A thousand seeded fault schedules, and a million states and events.

Each test prints its totals; run with ``-m chaos -s`` to see them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rayshim.adapters.sim.cluster import simulate
from rayshim.lineage.explore import explore

SEEDS = 1000
#: What the explored worlds have together, at least.
STATES = 1_000_000

EXPLORER = Path(__file__).resolve().parents[1] / "explore"


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """The worlds of the explorer, and how many states of each are looked at."""
    monkeypatch.syspath_prepend(EXPLORER)
    from actor_steps import Actors
    from lease_steps import Leases
    from reference_steps import References
    from task_steps import Tasks

    late: Any = {"doubled": ("borrow", "acknowledged"), "doubles": 1}
    return [
        (Tasks(3, retries=1, executors=3, deaths=2, steals=2), 100_000),
        (Tasks(3, retries=1, errors=1, cancels=1, strays=1), 100_000),
        (Tasks(3, max_depth=1, executors=3, deaths=2, holding=True), 100_000),
        (Actors(3, retries=1, restarts=2, crashes=2, kills=1), 100_000),
        (Actors(3, restarts=-1, crashes=2, kills=1, ends=1, late=1), 100_000),
        (Leases("HG", leases=3, cpus=2, deaths=1, doubles=1, cancels=1), 80_000),
        (Leases("hg", leases=3, leavers=1, blocks=1, disposals=1), 80_000),
        (References("OAB", hand_overs=3), 150_000),
        (References("OAB", hand_overs=2, deaths=2), 100_000),
        (References("OAB", hand_overs=3, deaths=1, by_call=False), 100_000),
        (References("OAB", hand_overs=3, deaths=1), 120_000),
        (References("OAB", objects=2, hand_overs=2, deaths=1), 100_000),
        (References("OAB", hand_overs=2, pins=1, deaths=1, **late), 100_000),
        (References("OA", hand_overs=4, pins=1), 100_000),
    ]


@pytest.mark.timeout(3600)
def test_a_million_states_free_nothing_too_early_and_leak_nothing(
    worlds: list[tuple[Any, int]],
) -> None:
    states = steps = 0
    for world, limit in worlds:
        seen = explore(world, max_states=limit)
        states += seen.states
        steps += seen.steps
        print(f"{world!r}: {seen.describe()}", flush=True)
        assert seen.counterexample is None, seen.counterexample.as_test("found")
    print(f"together {states:,} states, {steps:,} steps", flush=True)
    assert states >= STATES


@pytest.mark.timeout(7200)
def test_a_thousand_schedules_lose_nothing_and_run_nothing_twice() -> None:
    events = runs = gets = 0
    virtual_s = 0.0
    faults: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    broken = []
    for seed in range(SEEDS):
        report = simulate(seed)
        events += report.events
        runs += report.runs
        gets += report.gets
        virtual_s += report.virtual_s
        faults.update(report.faults)
        errors.update(report.errors)
        if report.broken:
            broken.append(report.describe())
            print(report.describe(), flush=True)
    print(
        f"{SEEDS} schedules: {events:,} events, {virtual_s:,.0f} virtual seconds, "
        f"{runs:,} runs of calls, {gets:,} gets; faults {dict(faults)}; "
        f"typed errors {dict(errors)}; {len(broken)} schedules with broken rules",
        flush=True,
    )
    assert not broken, "\n".join(broken)
    assert events >= 1_000_000
