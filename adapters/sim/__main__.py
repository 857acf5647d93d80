"""Runs seeds of the simulated cluster and says what broke.

python -m rayshim.adapters.sim --seed 7           one seed
python -m rayshim.adapters.sim --seed 7 --trace   with the last lines of its trace
python -m rayshim.adapters.sim --seeds 0 1000     many
"""

from __future__ import annotations

import argparse
import sys

from rayshim.adapters.sim.cluster import Cluster


def main() -> int:
    """Runs what the command line says; the exit code tells if a rule broke."""
    parser = argparse.ArgumentParser(prog="python -m rayshim.adapters.sim")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("FROM", "TO"))
    parser.add_argument("--faults", type=int, default=-1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    seeds = range(*options.seeds) if options.seeds else [options.seed or 0]
    broken = events = 0
    for seed in seeds:
        cluster = Cluster(seed, faults=options.faults, rounds=options.rounds)
        report = cluster.run()
        events += report.events
        broken += bool(report.broken)
        if report.broken or len(seeds) == 1:
            print(report.describe())
        if options.trace:
            print("\n".join(cluster.kernel.trace))
    if len(seeds) > 1:
        print(f"{len(seeds)} seeds, {events:,} events, {broken} with broken rules")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
