"""Microbenchmark of Ray's Core API, on rayshim or on Ray itself.

    python benchmarks/microbench.py
    python benchmarks/microbench.py --backend ray --only actor --json out.json

A line that raises or takes too long is reported as an error and the run goes on; the
exit code is 1 then.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any

from harness import DURATION, Line, Result, measure
from kit import Kit
from lines_actors import ACTORS
from lines_objects import OBJECTS
from lines_tasks import TASKS

LINES: list[Line] = [*OBJECTS.lines, *TASKS.lines, *ACTORS.lines]


def start(ray: Any, arguments: dict[str, Any]) -> list[Result]:
    """Initialize the back end and run a first task; time both."""
    begin = time.perf_counter()
    ray.init(**arguments)
    init_s = time.perf_counter() - begin

    @ray.remote
    def first():
        return 1

    ray.get(first.remote())
    first_s = time.perf_counter() - begin
    return [
        Result.of("init", DURATION, [init_s]),
        Result.of("init and first task", DURATION, [first_s]),
    ]


def stop(ray: Any) -> Result:
    """Shut the back end down; time it."""
    begin = time.perf_counter()
    ray.shutdown()
    return Result.of("shutdown", DURATION, [time.perf_counter() - begin])


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--backend", default="rayshim", help="module with Ray's API")
    add("--only", metavar="REGEX", default="", help="run the lines that match")
    add("--json", type=Path, metavar="FILE", help="write the results there")
    add("--seconds", type=float, default=1.0, help="length of a trial")
    add("--trials", type=int, default=3, help="trials of a line; the median counts")
    add("--line-timeout", type=float, default=120.0, help="seconds for one line")
    add("--num-cpus", type=int, default=os.cpu_count(), help="CPUs of the cluster")
    add("--list", action="store_true", help="print the names of the lines")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.list:
        print("\n".join(line.name for line in LINES))
        return 0
    ray = importlib.import_module(options.backend)
    results: list[Result] = []

    def report(result: Result) -> None:
        results.append(result)
        print(result, flush=True)

    init_arguments = {
        "num_cpus": options.num_cpus,
        "resources": {"custom": 100},
        "include_dashboard": False,
        "logging_level": "ERROR",
    }
    for result in start(ray, init_arguments):
        report(result)
    kit = Kit(ray)
    for line in LINES:
        if re.search(options.only, line.name):
            report(
                measure(
                    line,
                    kit,
                    seconds=options.seconds,
                    trials=options.trials,
                    limit_s=options.line_timeout,
                )
            )
    report(stop(ray))

    if options.json is not None:
        document = {
            "backend": options.backend,
            "version": str(getattr(ray, "__version__", "unknown")),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "seconds": options.seconds,
            "trials": options.trials,
            "results": [result.to_json() for result in results],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if any(result.value is None for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
