"""Run the microbenchmark on two back ends in turn and print the ratio of each line.

    python benchmarks/compare.py --a-python RAY_ENV/bin/python --a-backend ray \\
        --rounds 3 --markdown result.md -- --seconds 1

Rounds alternate (A B A B ...), so that a change of the machine's load meets both. A
ratio is that of the medians over the rounds, above 1 where B is the better one.
Arguments after ``--`` go to ``microbench.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import LESS_IS_BETTER

MICROBENCH = Path(__file__).with_name("microbench.py")


@dataclass(slots=True)
class Side:
    """One of the two: where it runs, and the samples that its rounds gave."""

    python: str
    backend: str
    #: line name -> one median per round in which it had a value
    samples: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the comparison; a side without a value has None."""

    name: str
    unit: str
    a: float | None
    b: float | None
    #: B over A, above 1 where B is better.
    ratio: float | None
    #: Ratios of the single rounds.
    rounds: tuple[float, ...]


def run_round(side: Side, extra: list[str], limit_s: float) -> list[dict[str, Any]]:
    """Run the benchmark in a process of its own; the results as plain data."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "result.json")
        command = [side.python, str(MICROBENCH), "--backend", side.backend]
        try:
            subprocess.run(
                [*command, "--json", str(output), *extra],
                timeout=limit_s,
                stdout=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print(f"{side.backend}: did not end in {limit_s:g} s", file=sys.stderr)
        if not output.exists():
            print(f"{side.backend}: gave no result", file=sys.stderr)
            return []
        results: list[dict[str, Any]] = json.loads(output.read_text())["results"]
        return results


def ratio(a: float, b: float, unit: str) -> float:
    """How many times better B is."""
    return a / b if unit in LESS_IS_BETTER else b / a


def compare_line(name: str, unit: str, a: Side, b: Side) -> Row:
    """The row of one line, from the samples of both sides."""
    left, right = a.samples.get(name), b.samples.get(name)
    if not left or not right:
        middles = [statistics.median(side) if side else None for side in (left, right)]
        return Row(name, unit, *middles, ratio=None, rounds=())
    middle_a, middle_b = statistics.median(left), statistics.median(right)
    rounds = tuple(ratio(x, y, unit) for x, y in zip(left, right, strict=False))
    value = ratio(middle_a, middle_b, unit)
    return Row(name, unit, middle_a, middle_b, value, rounds)


def to_markdown(rows: list[Row], a: Side, b: Side) -> str:
    """A table with one row for each line and the geometric mean below."""
    lines = [
        f"| line | unit | {a.backend} | {b.backend} | ratio | rounds |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in rows:
        left, right = (
            "-" if value is None else f"{value:,.2f}" for value in (row.a, row.b)
        )
        times = "-" if row.ratio is None else f"{row.ratio:.2f}"
        spread = f"{min(row.rounds):.2f}-{max(row.rounds):.2f}" if row.rounds else "-"
        lines.append(
            f"| {row.name} | {row.unit} | {left} | {right} | {times} | {spread} |"
        )
    ratios = [row.ratio for row in rows if row.ratio]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        lines += ["", f"Geometric mean of {len(ratios)} ratios: **{mean:.2f}**"]
    return "\n".join(lines) + "\n"


def circumstances() -> str:
    """Where and how the numbers were made."""
    command = shlex.join(["python", "benchmarks/compare.py", *sys.argv[1:]])
    machine = f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"
    return (
        f"`{command}`, {time.strftime('%Y-%m-%d')}, {machine}, "
        f"Python {platform.python_version()}\n\n"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--a-python", default=sys.executable, help="python executable of side A")
    add("--a-backend", default="ray", help="module of side A")
    add("--b-python", default=sys.executable, help="python executable of side B")
    add("--b-backend", default="rayshim", help="module of side B")
    add("--rounds", type=int, default=3, help="runs of each side")
    add("--run-timeout", type=float, default=1800.0, help="seconds for one run")
    add("--markdown", type=Path, metavar="FILE", help="write the table there as well")
    add("--json", type=Path, metavar="FILE", help="write samples and ratios there")
    add("--require", type=float, metavar="RATIO", help="exit 1 below that ratio")
    add("extra", nargs="*", help="arguments of microbench.py, after --")
    return parser.parse_args()


def main() -> int:
    options = parse()
    a = Side(options.a_python, options.a_backend)
    b = Side(options.b_python, options.b_backend)
    units: dict[str, str] = {}
    for number in range(1, options.rounds + 1):
        for side in (a, b):
            print(
                f"round {number} of {options.rounds}: {side.backend}", file=sys.stderr
            )
            for result in run_round(side, options.extra, options.run_timeout):
                units.setdefault(result["name"], result["unit"])
                if result["value"] is not None:
                    values = side.samples.setdefault(result["name"], [])
                    values.append(result["value"])

    rows = [compare_line(name, unit, a, b) for name, unit in units.items()]
    table = to_markdown(rows, a, b)
    print(table)
    if options.markdown is not None:
        options.markdown.write_text(circumstances() + table)
    if options.json is not None:
        document = {
            row.name: {
                "unit": row.unit,
                "a": a.samples.get(row.name),
                "b": b.samples.get(row.name),
                "ratio": row.ratio,
            }
            for row in rows
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if not rows:
        return 1
    if options.require is None:
        return 0
    return int(any(row.ratio is None or row.ratio < options.require for row in rows))


if __name__ == "__main__":
    sys.exit(main())
