"""Clusters of several nodes for the scheduling cases; see those of the failures."""

from __future__ import annotations

from typing import Any

import pytest
from failures.conftest import module_nodes, nodes, quick_health_checks, ray_cluster

__all__ = ["labelled", "module_nodes", "nodes", "quick_health_checks", "ray_cluster"]


@pytest.fixture(scope="module")
def labelled(module_nodes: Any) -> Any:
    """A cluster of three nodes of which two have labels."""
    from scheduling.labelled import Labelled  # `ray` is not known before.

    return Labelled(module_nodes)
