"""Families as text, and texts of several nodes as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rayshim.adapters.metrics.families import Bucketed, Family

if TYPE_CHECKING:
    from prometheus_client.core import Metric

#: Before each name, as in Ray.
PREFIX = "ray_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(families: Iterable[Family], common: dict[str, str]) -> bytes:
    """The text form of families.

    Args:
        families: each name once.
        common: labels of all values.
    """
    from prometheus_client.exposition import generate_latest

    class Source:
        def collect(self) -> Iterator[Metric]:
            for family in families:
                yield _metric(family, common)

    return bytes(generate_latest(Source()))


def _metric(family: Family, common: dict[str, str]) -> Metric:
    from prometheus_client.core import Metric

    name = PREFIX + family.name.removesuffix("_total")
    if family.kind != "counter":
        name = PREFIX + family.name
    metric = Metric(name, family.description, family.kind)
    for labels, value in family.samples:
        together = {**common, **labels}
        if isinstance(value, Bucketed):
            _add_histogram(metric, name, together, value)
        else:
            shown = f"{name}_total" if family.kind == "counter" else name
            metric.add_sample(shown, together, value)
    return metric


def _add_histogram(
    metric: Metric, name: str, labels: dict[str, str], value: Bucketed
) -> None:
    count = 0
    for bound, inside in zip([*value.bounds, float("inf")], value.counts, strict=True):
        count += inside
        text = "+Inf" if bound == float("inf") else repr(float(bound))
        metric.add_sample(f"{name}_bucket", {**labels, "le": text}, count)
    metric.add_sample(f"{name}_count", labels, count)
    metric.add_sample(f"{name}_sum", labels, value.total)


def merge(texts: Iterable[str]) -> str:
    """One text of several: the values of a name follow each other, under one heading.

    Prometheus takes no text in which a name comes up twice.

    Example:
        >>> first = "# HELP a A.\\n# TYPE a gauge\\na{n=\\"1\\"} 1.0\\n"
        >>> print(merge([first, first.replace('"1"', '"2"')]), end="")
        # HELP a A.
        # TYPE a gauge
        a{n="1"} 1.0
        a{n="2"} 1.0
    """
    #: Name -> its heading, its values.
    found: dict[str, tuple[list[str], list[str]]] = {}
    for text in texts:
        name, is_new = "", False
        for line in text.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                is_new = name not in found
            heading, values = found.setdefault(name, ([], []))
            if not line.startswith("#"):
                values.append(line)
            elif is_new:
                heading.append(line)
    lines = [line for parts in found.values() for part in parts for line in part]
    return "".join(f"{line}\n" for line in lines)
