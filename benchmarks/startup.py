"""How long it takes to start: import, init to first result, shutdown.

    python benchmarks/startup.py --backend rayshim --runs 7

Every run is a process of its own; the first is a warm-up and does not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from harness import DURATION, Result

PROGRAM = """
import json, sys, time
clock = time.perf_counter
begin = clock()
import {backend} as ray
imported = clock()
ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
ready = clock()
@ray.remote
def first(): return 1
ray.get(first.remote())
done = clock()
ray.shutdown()
ended = clock()
print(json.dumps({{
    "import": imported - begin,
    "init": ready - imported,
    "init to first result": done - imported,
    "shutdown": ended - done,
}}))
"""


def run_once(python: str, backend: str) -> dict[str, float]:
    """Start and stop the back end once, in a process of its own; seconds by phase."""
    done = subprocess.run(
        [python, "-c", PROGRAM.format(backend=backend)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    phases: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return phases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="python executable")
    parser.add_argument("--backend", default="rayshim", help="module with Ray's API")
    parser.add_argument("--runs", type=int, default=7, help="runs that count")
    options = parser.parse_args()

    run_once(options.python, options.backend)
    runs = [run_once(options.python, options.backend) for _ in range(options.runs)]
    for phase in runs[0]:
        print(Result.of(phase, DURATION, [run[phase] for run in runs]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
