"""The cases of the scheduling benchmark, and one of them in this process.

    python benchmarks/scheduling/cases.py CASE --backend rayshim

A case is a function that takes the module with Ray's API, starts what it needs, and
gives a number for each of its lines. It prints one JSON object a line: ``{case,
backend, value, unit, threshold, ideal}``, with ``error`` in place of a value. Stock
Dask has no such module: its functions are in ``stock_dask.py`` under the same names.

A module with cases decorates them and is named in :data:`MODULES`::

    @case("fairness", Line("ten_beside_10000", "x", threshold=2.0, ideal=1.0))
    def fairness(ray): ...
        return 1.3
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The folder above has the clock, and the cases of other modules import this one.
for _folder in (Path(__file__).parent, Path(__file__).parent.parent):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from harness import time_limit  # noqa: E402  (its folder is in the path only now)

BACKENDS = ("ray", "rayshim", "dask")
#: Modules beside this one that have cases, in the order of the table.
MODULES = (
    "waiting",
    "placing",
    "groups",
    "pending",
    "fifty_nodes",
    "simulated",
    "stock_dask",
)
#: Why there is no value where a back end has nothing to measure.
NOT_MEASURED = "not measured here"
#: Enough for what the cases store.
STORE_BYTES = 100 * 1024 * 1024

#: A number for the only line, or one for each line by name.
Outcome = float | Mapping[str, float]
#: Takes the module with Ray's API; for Dask the module ``distributed``.
Function = Callable[[Any], Outcome]


@dataclass(frozen=True, slots=True)
class Line:
    """One number that a case gives.

    Args:
        name: of the line in the table.
        unit: of the number, for people ("s", "ms", "MB", "x", "1/s").
        threshold: what it must not pass; None where nothing is demanded.
        ideal: what it would be without any overhead; None where nobody knows.
        more_is_better: the threshold is a lower bound.
        times_ray: the threshold is so many times what real Ray gives.
    """

    name: str
    unit: str
    threshold: float | None = None
    ideal: float | None = None
    more_is_better: bool = False
    times_ray: float | None = None


@dataclass(slots=True)
class Case:
    """A program, and what it does on each back end."""

    name: str
    lines: tuple[Line, ...]
    #: Limit of one run.
    limit_s: float
    #: Back end -> function.
    functions: dict[str, Function] = field(default_factory=dict)


#: All cases by name, in the order in which they were written.
CASES: dict[str, Case] = {}


def case(
    name: str,
    *lines: Line,
    limit_s: float = 60.0,
    backends: tuple[str, ...] = ("ray", "rayshim"),
) -> Callable[[Function], Function]:
    """Make the decorated function a case.

    Args:
        name: of the case.
        *lines: what it measures; a function with one line may give a plain number.
        limit_s: a run that takes longer is given up.
        backends: where it runs.
    """

    def register(function: Function) -> Function:
        CASES[name] = Case(name, lines, limit_s, dict.fromkeys(backends, function))
        return function

    return register


def on(backend: str, name: str) -> Callable[[Function], Function]:
    """Make the decorated function what a case, known already, does on a back end."""

    def register(function: Function) -> Function:
        CASES[name].functions[backend] = function
        return function

    return register


def load() -> dict[str, Case]:
    """Import the modules with cases; those that are not there are left out."""
    for name in MODULES:
        if Path(__file__).with_name(f"{name}.py").exists():
            importlib.import_module(name)
    return CASES


@contextmanager
def session(ray: Any, **options: Any) -> Iterator[Any]:
    """A session on one node, ended afterwards; ``options`` are those of ``init``."""
    options.setdefault("object_store_memory", STORE_BYTES)
    ray.init(
        include_dashboard=False, log_to_driver=False, logging_level="ERROR", **options
    )
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def cluster(ray: Any, *nodes: Mapping[str, Any]) -> Iterator[Any]:
    """A connected cluster; the driver is on the first of the nodes.

    Args:
        ray: the module.
        *nodes: parameters of ``Cluster.add_node`` for each node.
    """
    utils = importlib.import_module(f"{ray.__name__}.cluster_utils")
    made = utils.Cluster()
    try:
        for options in nodes:
            defaults = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
            made.add_node(wait=False, **{**defaults, **options})
        made.wait_for_nodes()
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def run(name: str, backend: str) -> list[dict[str, Any]]:
    """Run a case in this process.

    Returns:
        A row for each of its lines; with ``error`` where there is no value.
    """
    known = load()[name]
    values: dict[str, float] = {}
    error = ""
    try:
        if backend not in known.functions:
            raise NotImplementedError(f"{name} does not run on {backend}")
        module = importlib.import_module(
            "distributed" if backend == "dask" else backend
        )
        with time_limit(known.limit_s):
            outcome = known.functions[backend](module)
        if isinstance(outcome, Mapping):
            values.update(outcome)
        else:
            values[known.lines[0].name] = outcome
    except Exception as problem:  # the other cases are still worth running
        error = f"{type(problem).__name__}: {problem}"[:300]
    rows = []
    for line in known.lines:
        row: dict[str, Any] = {
            "case": line.name,
            "backend": backend,
            "value": values.get(line.name),
            "unit": line.unit,
            "threshold": line.threshold,
            "ideal": line.ideal,
        }
        if row["value"] is None:
            row["error"] = error or NOT_MEASURED
        rows.append(row)
    return rows


def main() -> int:
    """Run the named case and print its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=list(load()))
    parser.add_argument("--backend", default="rayshim", choices=BACKENDS)
    options = parser.parse_args()
    rows = run(options.case, options.backend)
    for row in rows:
        print(json.dumps(row), flush=True)
    return int(any(row["value"] is None for row in rows))


if __name__ == "__main__":
    # This file is imported by the modules with cases: let there be one list of them.
    import cases

    sys.exit(cases.main())
