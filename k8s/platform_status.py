"""What the autoscaler knows and does, in words and as JSON, kept in a ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayshim.k8s.api import Kube
from rayshim.k8s.observed import Decisions


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Workers of a group by state, and what its pods wait for."""

    #: One of ``metric_names.WORKER_STATES`` -> how many.
    states: Mapping[str, int] = field(default_factory=dict)
    max: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlatformStatus:
    """One turn of the autoscaler."""

    #: Unix time.
    time_s: float = 0.0
    identity: str = ""
    is_leader: bool = False
    is_dry_run: bool = False
    #: Of this life of the head.
    instance: str = ""
    #: When the head said so; None: never yet.
    demand_s: float | None = None
    groups: Mapping[str, GroupStatus] = field(default_factory=dict)
    decisions: Decisions = field(default_factory=Decisions)
    #: What holds it back, most important first.
    problems: tuple[str, ...] = ()


def read_status(kube: Kube, platform: str) -> Mapping[str, Any] | None:
    """The JSON of the status ConfigMap; None: no autoscaler has written one."""
    raise NotImplementedError
