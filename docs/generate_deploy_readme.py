"""Writes the tables of ``k8s/deploy/README.md`` that follow from code.

python docs/generate_deploy_readme.py           write the tables
python docs/generate_deploy_readme.py --check   fail if they are not up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rayshim.k8s.cost import monthly_costs
from rayshim.k8s.loading import load_platform
from rayshim.k8s.rendering import (
    device_plugin,
    karpenter,
    kueue,
    operator_values,
)
from rayshim.k8s.rendering.alerts import rules

DEPLOY = Path(__file__).parents[1] / "k8s" / "deploy"
PAGE = DEPLOY / "README.md"
BEGIN = "<!-- {name}: written by docs/generate_deploy_readme.py -->"
END = "<!-- end of {name} -->"


def costs() -> str:
    """The cost tables of the example, of ten times its load, and of the EU's."""
    example = load_platform(DEPLOY / "platform.yaml")
    larger = load_platform(DEPLOY / "overlays" / "10x" / "platform.yaml")
    regional = load_platform(DEPLOY / "overlays" / "eu" / "platform.yaml")
    parts = [
        ("`platform.yaml`:", example),
        ("`overlays/10x`, ten times the load:", larger),
        ("`overlays/eu`:", regional),
    ]
    return "\n".join(
        f"{title}\n\n{monthly_costs(platform).to_markdown()}"
        for title, platform in parts
    ).strip()


def alerts() -> str:
    """Name, severity and delay of each alert, and what it says."""
    lines = ["| alert | severity | after | says |", "|---|---|---|---|"]
    for rule in rules(load_platform(DEPLOY / "platform.yaml")):
        text = re.sub(
            r"\{\{[^}]*labels\.(\w+)[^}]*\}\}", r"GROUP", rule["annotations"]["summary"]
        )
        text = re.sub(r"\{\{[^}]*\}\}", "N", text)
        severity = rule["labels"]["severity"]
        lines.append(f"| `{rule['alert']}` | {severity} | {rule['for']} | {text} |")
    return "\n".join(lines)


def versions() -> str:
    """What the rendered values were written for."""
    lines = ["| what | version |", "|---|---|"]
    for name, version in (
        ("Karpenter", karpenter.CHART.version),
        ("Amazon's image for EKS", karpenter.IMAGE_RELEASE),
        ("NVIDIA's device plugin", device_plugin.CHART.version),
        ("Kueue (`v1beta2` needs 0.15 or newer)", kueue.CHART.version),
        ("dask-kubernetes operator", operator_values.OPERATOR_VERSION),
    ):
        lines.append(f"| {name} | {version} |")
    return "\n".join(lines)


BLOCKS = {"costs": costs, "alerts": alerts, "versions": versions}


def page() -> str:
    """The page with the tables in their places.

    Raises:
        ValueError: the page has no place for one.
    """
    text = PAGE.read_text()
    for name, make in BLOCKS.items():
        begin, end = BEGIN.format(name=name), END.format(name=name)
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{PAGE} has no place for {name}: {begin} ... {end}")
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


def main() -> int:
    """Write, or compare."""
    wanted = page()
    if "--check" in sys.argv[1:]:
        return int(wanted != PAGE.read_text())
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
