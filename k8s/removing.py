"""What ``rayshim k8s down`` does: nothing of a platform is there any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayshim.k8s.api import Kube
from rayshim.k8s.config import Platform

if TYPE_CHECKING:
    from rayshim.k8s.demand import ClusterLink


@dataclass(frozen=True, slots=True)
class Removed:
    """What ``down`` did."""

    #: Kind/name of what was deleted, in that order.
    deleted: tuple[str, ...]
    #: Kind/name of what was kept on purpose.
    kept: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def remove(
    kube: Kube,
    platform: Platform,
    *,
    link: ClusterLink | None = None,
    keep_state: bool = False,
    timeout_s: float = 300.0,
    tell: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Removed:
    """Removes what carries the platform's labels, the autoscaler first.

    Args:
        kube: the cluster.
        platform: the file.
        link: to the head, for draining; None: nothing is drained.
        keep_state: keep the head's state (Valkey, volumes, Secrets).
        timeout_s: for all of it.
        tell: called with each step in words.
        clock: seconds that only grow.

    Raises:
        TookTooLong: something is still there; the text lists it.
        Forbidden: a write is not allowed.
        Unreachable: the API server does not answer.
    """
    raise NotImplementedError
