"""A small Kubernetes in processes of this machine; see docs/localkube.md."""

from __future__ import annotations

from rayshim.k8s.testing.localkube.local_cluster import LocalCluster
from rayshim.k8s.testing.localkube.nodes import (
    DEFAULT_NODES,
    FakeNode,
    platform_nodes,
)

__all__ = ["DEFAULT_NODES", "FakeNode", "LocalCluster", "platform_nodes"]
