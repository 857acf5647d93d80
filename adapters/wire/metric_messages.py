"""What processes count, on the way to their raylet."""

from __future__ import annotations

from msgspec import Struct


class ReportMetrics(Struct, array_like=True, tag=140):
    """Values that changed since the last report; sums and counts are totals."""

    #: A MessagePack list of :class:`FamilyReport`.
    payload: bytes


class Sample(Struct, array_like=True, gc=False):
    """One value of a family."""

    #: Tag -> value.
    tags: dict[str, str]
    #: Of a counter or gauge; of a histogram, the sum of what was observed.
    value: float
    #: Of a histogram: observations in each bucket, the last one without a bound.
    buckets: list[int] = []


class FamilyReport(Struct, array_like=True):
    """All values of one name."""

    name: str
    #: "counter", "gauge" or "histogram".
    kind: str
    description: str
    #: Upper bounds of the buckets of a histogram.
    boundaries: list[float] = []
    samples: list[Sample] = []
