"""What ``rayshim k8s up`` does: everything of a platform is there, and works."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayshim.k8s.api import Kube
from rayshim.k8s.config import Platform
from rayshim.k8s.differences import Difference

if TYPE_CHECKING:
    from rayshim.k8s.render import Rendered

#: Seconds for the operator to make the head's Deployment.
OPERATOR_S = 60.0


@dataclass(frozen=True, slots=True)
class Installed:
    """What ``up`` did."""

    #: In the order in which they were applied, with what was done to each.
    objects: tuple[Difference, ...]
    #: What was left out and why, and what is left to do.
    notes: tuple[str, ...] = ()


def install(
    kube: Kube,
    platform: Platform,
    rendered: Rendered,
    *,
    timeout_s: float = 600.0,
    restart_head: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Installed:
    """Brings the cluster to what is rendered, and waits until it works.

    It may be ended and called again at any point.

    Args:
        kube: the cluster.
        platform: the file.
        rendered: from it.
        timeout_s: for all of it.
        restart_head: replace a head whose specification is older.
        tell: called with each step in words.
        clock: seconds that only grow.

    Raises:
        ClusterRefuses: rights or kinds are lacking, or an object of the same name is
            not ours.
        TookTooLong: the operator, the head or the autoscaler did not come up in time.
        Forbidden: a write is not allowed.
        Unreachable: the API server does not answer.
    """
    raise NotImplementedError
