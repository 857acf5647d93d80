"""The page on the state machines says what the machines do."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rayshim.lineage import actors, raylet
from rayshim.lineage.leases import ExecutorState, LeaseState

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    path = DOCS / "generate_machines.py"
    spec = importlib.util.spec_from_file_location("generate_machines", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "generate_machines", module)
        patch.setattr(sys, "path", [*sys.path])
        spec.loader.exec_module(module)
        yield module


@pytest.mark.slow
def test_page_is_the_generated_text(generator: ModuleType) -> None:
    page = (DOCS / "state-machines.md").read_text()

    assert page == generator.page(), "run: python docs/generate_machines.py"


def test_page_names_every_machine() -> None:
    page = (DOCS / "state-machines.md").read_text()
    tables = ("TABLE: dict", "TRANSITIONS: dict")
    machines = [
        path.name
        for path in (DOCS.parent / "lineage").glob("*.py")
        if any(table in path.read_text() for table in tables)
        or path.name in ("references.py", "dispatch.py", "actor_calls.py")
    ]

    assert [name for name in machines if f"`{name}`" not in page] == []


@pytest.mark.slow
def test_tours_try_every_entry_of_the_tables(generator: ModuleType) -> None:
    actor = generator.tour_actors()
    lease, worker = generator.tour_raylet()
    states = {*LeaseState, *ExecutorState}
    of_node = {key for key in raylet._TABLE if key[0] in states}

    assert actors._TABLE.keys() <= actor.after.keys() | {
        key for key in actors._TABLE if key[0] is actors.ActorState.UNKNOWN
    }
    assert of_node <= lease.after.keys() | worker.after.keys()

    for name, machine in generator.MACHINES.items():
        assert machine.table.keys() <= machine.walk().after.keys(), name
