"""Kubernetes' objects -> what the planner sees. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rayshim.k8s.observed import Observed

Object = Mapping[str, Any]


def observe(
    worker_groups: Iterable[Object],
    deployments: Iterable[Object],
    pods: Iterable[Object],
    *,
    now: float,
    queues: Iterable[Object] = (),
) -> Observed:
    """What is there."""
    raise NotImplementedError
