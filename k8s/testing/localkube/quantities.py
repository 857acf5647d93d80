"""Amounts as Kubernetes writes them, and what pods ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rayshim.k8s.api import Object

_QUANTITY = re.compile(r"^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]{0,2})$")
_UNITS = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
    "Ei": 2.0**60,
}


def quantity(text: Any) -> float:
    """The number that a quantity means.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/

    Raises:
        ValueError: it is none.

    Example:
        >>> quantity("1500m"), quantity("2Ki"), quantity(3)
        (1.5, 2048.0, 3.0)
    """
    match = _QUANTITY.match(str(text))
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is no quantity, such as 500m, 2 or 4Gi")
    return float(match[1]) * _UNITS[match[2]]


def container_requests(container: Object) -> dict[str, float]:
    """What one container asks for; a limit counts where no request is given."""
    resources = container.get("resources") or {}
    given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in given.items()}


def pod_requests(spec: Object) -> dict[str, float]:
    """What a pod asks for: all containers, or the largest of those that run before.

    Source: https://kubernetes.io/docs/concepts/workloads/pods/init-containers/
    (resource sharing within containers).

    Example:
        >>> pod_requests({"containers": [{"resources": {"limits": {"cpu": "2"}}}]})
        {'cpu': 2.0}
    """
    total = sums(container_requests(one) for one in spec.get("containers") or ())
    for one in spec.get("initContainers") or ():
        for name, amount in container_requests(one).items():
            total[name] = max(total.get(name, 0.0), amount)
    return sums([total, _amounts(spec.get("overhead") or {})])


def sums(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Resource by resource, the sum."""
    total: dict[str, float] = {}
    for one in amounts:
        for name, amount in one.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _amounts(given: Mapping[str, Any]) -> dict[str, float]:
    return {name: quantity(amount) for name, amount in given.items()}
