"""NetworkPolicies: nothing comes in or goes out but what is said here.

Source of the address of EKS' agent:
https://docs.aws.amazon.com/eks/latest/userguide/pod-id-how-it-works.html
"""

from __future__ import annotations

from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.config import Platform
from rayshim.k8s.rendering import base, pods, serving, state

Object = dict[str, Any]

#: Namespace whose pods read metrics.
MONITORING: Final = "monitoring"
#: Agent of EKS that gives pods their credentials.
POD_IDENTITY: Final = "169.254.170.23/32"
#: Ports below belong to nobody here.
FIRST_PORT: Final = 1024


def objects(platform: Platform) -> list[Object]:
    """All of them.

    - every pod of the platform is closed (others in the namespace, such as the
      operator's, are left alone);
    - the head and the workers reach each other at every port: executors, Flight and
      collectives choose theirs;
    - pods with the label ``rayshim.io/client: "true"`` reach the head and the workers,
      and are reached (values that a driver owns are read from it);
    - requests reach the serving group; metrics are read from ``monitoring``;
    - only the head reaches Valkey;
    - outwards go DNS, HTTPS (S3, the API server) and EKS' credentials.
    """
    found = [_closed(platform), _members(platform), _metrics(platform)]
    found += [_clients(platform), _outwards(platform)]
    if serving.selector(platform):
        found.append(_requests(platform))
    if state.kind(platform) == "valkey":
        found += [_state(platform), _head_to_state(platform)]
    if state.kind(platform) == "external":
        found.append(_head_to_state(platform))
    return found


def member_labels(platform: Platform, component: str) -> Object:
    """Selector of the pods of a component."""
    labels = {names.PLATFORM: platform.name, base.COMPONENT: component}
    return {"matchLabels": labels}


def _policy(platform: Platform, name: str, selector: Object, **spec: Any) -> Object:
    types = [one.capitalize() for one in ("ingress", "egress") if one in spec]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": base.metadata(platform, f"{platform.name}-{name}", "network"),
        "spec": {"podSelector": selector, "policyTypes": types, **spec},
    }


def _components(platform: Platform, *components: str) -> Object:
    """Selector of the pods of these components."""
    wanted = {"key": base.COMPONENT, "operator": "In", "values": list(components)}
    return {
        "matchLabels": {names.PLATFORM: platform.name},
        "matchExpressions": [wanted],
    }


def _nodes(platform: Platform) -> Object:
    """Selector of the head and the workers."""
    return _components(platform, "head", "worker")


def _drivers() -> Object:
    return {"matchLabels": {names.CLIENT: "true"}}


def _all_ports() -> list[Object]:
    return [{"protocol": "TCP", "port": FIRST_PORT, "endPort": 65535}]


def _tcp(*numbers: int) -> list[Object]:
    return [{"protocol": "TCP", "port": one} for one in numbers]


def _closed(platform: Platform) -> Object:
    every = {"matchLabels": {names.PLATFORM: platform.name}}
    return _policy(platform, "closed", every, ingress=[], egress=[])


def _members(platform: Platform) -> Object:
    peers = [{"podSelector": _nodes(platform)}, {"podSelector": _drivers()}]
    return _policy(
        platform,
        "nodes",
        _nodes(platform),
        ingress=[{"from": peers, "ports": _all_ports()}],
        egress=[{"to": peers, "ports": _all_ports()}],
    )


def _clients(platform: Platform) -> Object:
    peers = [{"podSelector": _nodes(platform)}]
    return _policy(
        platform,
        "clients",
        _drivers(),
        ingress=[{"from": peers, "ports": _all_ports()}],
        egress=[{"to": peers, "ports": _all_ports()}],
    )


def _metrics(platform: Platform) -> Object:
    """Of the head, the workers and the autoscaler."""
    where = {"matchLabels": {"kubernetes.io/metadata.name": MONITORING}}
    number = pods.NODE_PORTS["metrics"]
    if platform.runtime == "dask":
        number = pods.DASK_WORKER_PORTS["metrics"]
    selector = _components(platform, "head", "worker", "autoscaler")
    numbers = sorted({number, pods.NODE_PORTS["metrics"]})
    return _policy(
        platform,
        "metrics",
        selector,
        ingress=[{"from": [{"namespaceSelector": where}], "ports": _tcp(*numbers)}],
    )


def _outwards(platform: Platform) -> Object:
    dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    # 6443 is where API servers listen that are not EKS'.
    egress: list[Object] = [{"ports": dns}, {"ports": _tcp(443, 6443)}]
    if platform.eks_cluster:
        agent = {"ipBlock": {"cidr": POD_IDENTITY}}
        egress.append({"to": [agent], "ports": _tcp(80)})
    selector = _components(platform, "head", "worker", "autoscaler")
    return _policy(platform, "outwards", selector, egress=egress)


def _requests(platform: Platform) -> Object:
    """From everywhere: the load balancer sends from addresses of its own."""
    selector = {"matchLabels": serving.selector(platform)}
    ports = _tcp(pods.SERVE_PORT)
    return _policy(platform, "requests", selector, ingress=[{"ports": ports}])


def _state(platform: Platform) -> Object:
    peers = [{"podSelector": member_labels(platform, "head")}]
    ingress = [{"from": peers, "ports": _tcp(state.PORT)}]
    return _policy(platform, "state", member_labels(platform, "state"), ingress=ingress)


def _head_to_state(platform: Platform) -> Object:
    """A policy knows no host names: an external endpoint is its port at any address."""
    rule: Object = {"ports": _tcp(state.PORT)}
    if state.kind(platform) == "valkey":
        rule = {"to": [{"podSelector": member_labels(platform, "state")}], **rule}
    head = member_labels(platform, "head")
    return _policy(platform, "head-to-state", head, egress=[rule])
