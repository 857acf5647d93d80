"""Who of several autoscalers decides: the holder of a Lease."""

from __future__ import annotations

from collections.abc import Callable

from rayshim.k8s.api import Kube

#: Seconds for which the Lease is held without being renewed.
DURATION_S = 15.0


class Election:
    """One candidate for a Lease."""

    def __init__(
        self,
        kube: Kube,
        name: str,
        identity: str,
        *,
        duration_s: float = DURATION_S,
        clock: Callable[[], float],
    ) -> None:
        raise NotImplementedError

    def campaign(self) -> bool:
        """Takes or renews the Lease if possible; whether this candidate holds it."""
        raise NotImplementedError

    def release(self) -> None:
        """Gives the Lease up, if held."""
        raise NotImplementedError
