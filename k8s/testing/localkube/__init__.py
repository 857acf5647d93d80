"""A small Kubernetes in processes of this machine; see docs/localkube.md."""

from __future__ import annotations

try:
    from rayshim.k8s.testing.localkube.local_cluster import LocalCluster
    from rayshim.k8s.testing.localkube.nodes import (
        DEFAULT_NODES,
        FakeNode,
        platform_nodes,
    )
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "rayshim":
        raise
    raise ModuleNotFoundError(
        f"{error.name} is not installed: the local cluster needs "
        "`pip install 'rayshim[k8s,localkube]'`, or `pip install '.[k8s,localkube]'` "
        "in a clone",
        name=error.name,
    ) from None

__all__ = ["DEFAULT_NODES", "FakeNode", "LocalCluster", "platform_nodes"]
