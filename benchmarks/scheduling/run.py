"""Run all cases on all back ends in turn and write the table.

    python benchmarks/scheduling/run.py --ray-python RAY_ENV/bin/python \\
        --rounds 3 --markdown result.md

Each run is a process of its own. Of each line the median over the rounds counts.
Without ``--ray-python`` the column of Ray stays empty.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cases

#: Seconds beyond the limit of a case for starting and ending.
GRACE_S = 30.0

#: (line, back end) -> values, one a round.
Samples = dict[tuple[str, str], list[float]]
#: (line, back end) -> why there is no value.
Errors = dict[tuple[str, str], str]


def run_case(
    python: str, case: cases.Case, backend: str, nice: int
) -> list[dict[str, Any]]:
    """Run a case in a fresh process; the rows that it printed."""
    script = str(Path(cases.__file__))
    command = [python, script, case.name, "--backend", backend]
    process = subprocess.Popen(
        ["nice", "-n", str(nice), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=case.limit_s + GRACE_S)
    except subprocess.TimeoutExpired:
        output = ""
    finally:
        # What it started is in its group, and goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    missing = {"value": None, "error": "the process gave no result"}
    return rows or [{"case": line.name, **missing} for line in case.lines]


def show(value: float | None) -> str:
    """A number with three significant digits."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def bound(line: cases.Line) -> str:
    """The threshold, for people."""
    sign = ">=" if line.more_is_better else "<="
    if line.times_ray is not None:
        return f"{sign} {show(line.times_ray)} x Ray"
    return "-" if line.threshold is None else f"{sign} {show(line.threshold)}"


def judge(line: cases.Line, samples: Samples) -> bool | None:
    """Whether the threshold holds; None where nothing can be said."""
    threshold = line.threshold
    if line.times_ray is not None:
        theirs = samples.get((line.name, "ray"))
        if theirs is None:
            return None
        threshold = line.times_ray * statistics.median(theirs)
    if threshold is None:
        return None
    ours = samples.get((line.name, "rayshim"))
    if ours is None:
        return False
    value = statistics.median(ours)
    return value >= threshold if line.more_is_better else value <= threshold


def to_markdown(known: list[cases.Case], samples: Samples, errors: Errors) -> str:
    """The table: one row a line, one column a back end."""
    table = [
        "| line | unit | threshold | ideal | rayshim | real Ray | stock Dask | holds |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    notes = []
    for case in known:
        for line in case.lines:
            cells = []
            for backend in ("rayshim", "ray", "dask"):
                values = samples.get((line.name, backend))
                cells.append(show(statistics.median(values)) if values else "-")
                reason = errors.get((line.name, backend))
                note = f"- {case.name} on {backend}: {reason}"
                if reason and reason != cases.NOT_MEASURED and note not in notes:
                    notes.append(note)
            holds = {None: "-", True: "yes", False: "no"}[judge(line, samples)]
            table.append(
                f"| {line.name} | {line.unit} | {bound(line)} | {show(line.ideal)} | "
                f"{' | '.join(cells)} | {holds} |"
            )
    if notes:
        table += ["", "No value:", "", *notes]
    return "\n".join(table) + "\n"


def circumstances(load_before: tuple[float, float, float]) -> str:
    """Where and how the numbers were made."""
    words = ["python", "benchmarks/scheduling/run.py"]
    skip = False
    for word in sys.argv[1:]:
        words.append("RAY_ENV/bin/python" if skip else word)
        skip = word == "--ray-python"
    loads = ", ".join(f"{one:.1f}" for one in load_before)
    return (
        f"`{shlex.join(words)}`, {time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, "
        f"{platform.system()} {platform.machine()}, Python "
        f"{platform.python_version()}; load average before it (1, 5, 15 minutes): "
        f"{loads}\n\n"
    )


def write(
    options: argparse.Namespace,
    load_before: tuple[float, float, float],
    known: list[cases.Case],
    samples: Samples,
    errors: Errors,
) -> None:
    """Keep what is known so far: a run takes minutes."""
    if options.markdown is not None:
        table = to_markdown(known, samples, errors)
        options.markdown.write_text(circumstances(load_before) + table)
    if options.json is not None:
        values = [
            {"case": name, "backend": backend, "values": found}
            for (name, backend), found in samples.items()
        ]
        options.json.write_text(json.dumps(values, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ray-python", metavar="PATH", help="python executable that has real Ray")
    add("--rounds", type=int, default=1, help="runs of each case on each back end")
    add("--cases", nargs="*", metavar="CASE", help="only these")
    add("--backends", nargs="*", choices=cases.BACKENDS, help="only these")
    add("--nice", type=int, default=0, help="of the runs, to leave others the machine")
    add("--markdown", type=Path, metavar="FILE", help="write the table there as well")
    add("--json", type=Path, metavar="FILE", help="write all values there")
    return parser.parse_args()


def main() -> int:
    """Run everything; 0 if every threshold holds."""
    options = parse()
    load_before = os.getloadavg()
    known = [
        one
        for one in cases.load().values()
        if not options.cases or one.name in options.cases
    ]
    pythons = {"ray": options.ray_python, "rayshim": sys.executable}
    samples: Samples = {}
    errors: Errors = {}
    for number in range(1, options.rounds + 1):
        for case in known:
            for backend in ("rayshim", "ray", "dask"):
                python = pythons.get(backend, sys.executable)
                if backend not in case.functions or python is None:
                    continue
                if options.backends and backend not in options.backends:
                    continue
                started = time.monotonic()
                for row in run_case(python, case, backend, options.nice):
                    key = (row["case"], backend)
                    if row["value"] is None:
                        errors[key] = row["error"]
                    else:
                        samples.setdefault(key, []).append(row["value"])
                print(
                    f"round {number} of {options.rounds}: {case.name} on {backend}, "
                    f"{time.monotonic() - started:.1f} s",
                    file=sys.stderr,
                )
                write(options, load_before, known, samples, errors)
    print(to_markdown(known, samples, errors))
    verdicts = [judge(line, samples) for case in known for line in case.lines]
    return int(False in verdicts)


if __name__ == "__main__":
    sys.exit(main())
