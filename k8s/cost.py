"""What a platform costs in a month, and the platform at a multiple of its load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rayshim.k8s.config import Platform

#: 365 days of 24 hours, a twelfth.
HOURS_PER_MONTH = 730.0


@dataclass(frozen=True, slots=True)
class GroupCost:
    """Of one group in a month, US dollars."""

    group: str
    #: Name of the platform it belongs to.
    platform: str
    #: Workers while there is work.
    workers: int
    #: Of one worker for an hour.
    price: float
    #: Hours of the month that these workers are there.
    hours: float
    #: Were they always there.
    pinned: float
    #: As it is.
    elastic: float


@dataclass(frozen=True, slots=True)
class FixedCost:
    """What does not follow the load, US dollars a month."""

    name: str
    platform: str
    monthly: float
    #: How it comes about, as "0.1 $/h x 730 h".
    formula: str


@dataclass(frozen=True, slots=True)
class CostTable:
    """A month of a platform, with those on clusters of their own."""

    groups: tuple[GroupCost, ...]
    fixed: tuple[FixedCost, ...]

    @property
    def elastic(self) -> float:
        """All of it, as it is."""
        raise NotImplementedError

    @property
    def pinned(self) -> float:
        """All of it, were all workers always there."""
        raise NotImplementedError

    def to_text(self) -> str:
        """As a table for a terminal, ending in a line break."""
        raise NotImplementedError

    def to_markdown(self) -> str:
        """As a table of Markdown, ending in a line break."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """As plain maps, lists and numbers."""
        raise NotImplementedError


def monthly_costs(platform: Platform) -> CostTable:
    """What a month of a platform costs, with its ``others``."""
    raise NotImplementedError


def scaled(platform: Platform, factor: float) -> Platform:
    """The platform at a multiple of its load: sizes follow the service levels anew.

    Args:
        platform: at its own load.
        factor: 10 for ten times the requests and rows; > 0.

    Raises:
        ConfigError: the factor is none.
    """
    raise NotImplementedError
