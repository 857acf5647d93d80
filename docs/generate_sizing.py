"""Writes ``platform-sizing.md`` from the code that sizes and costs a platform.

python docs/generate_sizing.py           write the page
python docs/generate_sizing.py --check   fail if it is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from rayshim.k8s.cost import monthly_costs
from rayshim.k8s.loading import load_platform
from rayshim.k8s.sizing import explain

DOCS = Path(__file__).parent
PAGE = DOCS / "platform-sizing.md"
DEPLOY = DOCS.parent / "k8s" / "deploy"

HEAD = """\
# Sizes and cost of the platform

<!-- Written by docs/generate_sizing.py from k8s/deploy/platform.yaml; do not edit. -->

Where each number of workers and each dollar of the example
([`k8s/deploy/platform.yaml`](../k8s/deploy/platform.yaml)) comes from. A figure is an
input, which stands in that file, or computed from inputs; `rayshim k8s plan --explain`
prints the same for your file. Prices are round figures, a month has 730 hours.
"""

COSTS = """\
## What a month costs

Elastic groups are paid while they work, start, and wait for more work; pinned ones
always. `rayshim k8s plan` prints this table.
"""

LARGER = """\
## The month at ten times the load

[`overlays/10x`](../k8s/deploy/overlays/10x/platform.yaml), or `--scale 10`.
"""

REGIONAL = """\
## The month of the platform in the EU

[`overlays/eu`](../k8s/deploy/overlays/eu/platform.yaml): the same load there, at that
region's prices, beside the first platform and with nothing shared.
"""

SEARCH = """\
## Successive halving

Every configuration of a search gets a first part of a whole run. The best of them, one
in so many, go on from where they stopped with that many times the budget, and so on
until the rest has had a whole run. With n configurations, factor f and a first part r
of a run, step i has floor(n / f^i) configurations and brings each from r f^(i-1) to
r f^i (Jamieson and Talwalkar, *Non-stochastic Best Arm Identification and
Hyperparameter Optimization*, 2016; Li et al., *A System for Massively Parallel
Hyperparameter Tuning*, 2020).
"""


def page() -> str:
    """The whole page."""
    example = load_platform(DEPLOY / "platform.yaml")
    larger = load_platform(DEPLOY / "overlays" / "10x" / "platform.yaml")
    regional = load_platform(DEPLOY / "overlays" / "eu" / "platform.yaml")
    blocks = [HEAD, *(one.to_markdown() for one in explain(example)), SEARCH]
    for title, platform in [(COSTS, example), (LARGER, larger), (REGIONAL, regional)]:
        blocks += [title, monthly_costs(platform).to_markdown()]
    return "\n".join(blocks)


def main() -> int:
    """Write, or compare."""
    wanted = page()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or wanted != PAGE.read_text())
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
