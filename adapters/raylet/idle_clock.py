"""How long a node has had nothing to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rayshim.lineage.raylet import Raylet

#: What a node says that has just become idle: zero would mean that it is not.
LEAST_S = 1e-3


class IdleClock:
    """Looks at a node's leases whenever it is asked.

    Work that came and went since the last look counts, too.

    Args:
        raylet: the node's.
        now: its time.
    """

    def __init__(self, raylet: Raylet, now: float) -> None:
        self._raylet = raylet
        self._arrivals = raylet.arrivals
        self._since_s = now

    def idle_s(self, now: float) -> float:
        """Seconds without a lease, actor or bundle; 0 while there is one."""
        raylet = self._raylet
        is_busy = bool(raylet.groups) or any(
            lease.allocation is not None for lease in raylet.leases.values()
        )
        if is_busy or raylet.arrivals != self._arrivals:
            self._arrivals = raylet.arrivals
            self._since_s = now
        return 0.0 if is_busy else max(now - self._since_s, LEAST_S)
