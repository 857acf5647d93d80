"""Values on their way into Prometheus' text form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

#: Tag -> value.
Labels = dict[str, str]


@dataclass(slots=True)
class Bucketed:
    """One value of a histogram."""

    #: Upper bounds, without the last one, which is infinite.
    bounds: list[float]
    #: Observations in each bucket, one more than there are bounds.
    counts: list[int]
    total: float


@dataclass(slots=True)
class Family:
    """All values of one name."""

    #: As people write it; see :func:`exposed_name`.
    name: str
    #: "counter", "gauge" or "histogram".
    kind: str
    description: str
    samples: list[tuple[Labels, float | Bucketed]] = field(default_factory=list)

    def add(self, value: float | Bucketed, /, **labels: str) -> None:
        """Take in one value."""
        self.samples.append((labels, value))


class Families:
    """Families by name, in the order in which they came."""

    def __init__(self) -> None:
        self._by_name: dict[str, Family] = {}

    def __iter__(self) -> Iterator[Family]:
        return iter(self._by_name.values())

    def get(self, name: str, kind: str, description: str) -> Family:
        """The family of a name, made if there is none."""
        family = self._by_name.get(name)
        if family is None or family.kind != kind:
            # Two processes that use a name for two kinds are both shown.
            key = name if family is None else f"{name}_{kind}"
            family = self._by_name.setdefault(key, Family(key, kind, description))
        return family

    def gauge(
        self, name: str, description: str, value: float, /, **labels: str
    ) -> None:
        """Take in one value of a gauge."""
        self.get(name, "gauge", description).add(value, **labels)

    def counter(
        self, name: str, description: str, value: float, /, **labels: str
    ) -> None:
        """Take in one value of a counter."""
        self.get(name, "counter", description).add(value, **labels)
