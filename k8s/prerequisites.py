"""What has to be in a cluster before the platform: operators and their kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rayshim.k8s.api import Kube
from rayshim.k8s.config import Platform
from rayshim.k8s.differences import served_kinds

#: Kind -> the product that brings it.
_PRODUCTS: Final[Mapping[str, str]] = {
    "DaskCluster": "dask-kubernetes operator",
    "DaskWorkerGroup": "dask-kubernetes operator",
    "LocalQueue": "Kueue",
    "ClusterQueue": "Kueue",
    "ResourceFlavor": "Kueue",
    "Topology": "Kueue",
    "WorkloadPriorityClass": "Kueue",
    "Certificate": "cert-manager",
    "ServiceMonitor": "Prometheus operator",
    "PodMonitor": "Prometheus operator",
    "PrometheusRule": "Prometheus operator",
    "NodePool": "Karpenter",
    "EC2NodeClass": "Karpenter on AWS",
}
_NEXT: Final[Mapping[str, str]] = {
    "dask-kubernetes operator": "install its chart with dask-operator/values.yaml",
    "Kueue": "install it with kueue/values.yaml, or take `queue` out of the groups",
    "cert-manager": "install it, or bring a Secret with tls.source: secret",
    "Prometheus operator": "nothing scrapes the platform until it is installed",
    "Karpenter": "machines have to come from managed node groups",
    "Karpenter on AWS": "machines have to come from managed node groups",
}


@dataclass(frozen=True, slots=True)
class Missing:
    """A product whose kinds the cluster does not know."""

    product: str
    kinds: tuple[str, ...]
    #: Whether the platform cannot do without.
    is_required: bool
    next_step: str

    def text(self) -> str:
        """In one line."""
        kinds = ", ".join(self.kinds)
        verb = "is needed" if self.is_required else "left out"
        return f"{self.product} is not installed ({verb}: {kinds}); {self.next_step}"


def missing(
    kube: Kube, platform: Platform, objects: Iterable[Mapping[str, Any]]
) -> list[Missing]:
    """The products that rendered objects need and the cluster does not have.

    Raises:
        Unreachable: the API server does not answer.
    """
    kinds = {one["kind"] for one in objects if one["kind"] in _PRODUCTS}
    absent: dict[str, list[str]] = {}
    for kind in sorted(kinds - served_kinds(kube, kinds)):
        absent.setdefault(_PRODUCTS[kind], []).append(kind)
    required = {"dask-kubernetes operator"}
    if any(one.queue for one in platform.groups):
        required.add("Kueue")
    if platform.tls.is_enabled and platform.tls.source == "cert-manager":
        required.add("cert-manager")
    return [
        Missing(product, tuple(found), product in required, _NEXT[product])
        for product, found in sorted(absent.items())
    ]
