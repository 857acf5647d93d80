"""What the head says, and whether it is all that there is to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from rayshim.autoscaler.control import Control
from rayshim.k8s.worker_states import Seen, WorkerState
from rayshim.lineage.demand import Demand

#: Seconds for the nodes of a restarted head to say again what waits at them.
SETTLE_S: Final = 3.0


class Hearing:
    """Asks the head, and notices when it was restarted.

    Args:
        link: the head.
        limit_s: seconds after which workers that a restarted head has not heard of are
            not waited for any more: twice the largest cold start.
    """

    def __init__(self, link: Control, limit_s: float) -> None:
        self._link = link
        self._limit_s = limit_s
        #: The newest demand, with the time when it was heard; None before the first.
        self.demand: Demand | None = None
        #: Whether the head has answered when it was asked last.
        self.is_heard = False
        #: Life of the head that is known; empty: none yet.
        self.instance = ""
        #: Since when another one is there; None: it is trusted.
        self._restarted_s: float | None = None
        #: Since when all its workers are back; None: they are not.
        self._complete_s: float | None = None

    @property
    def trusted(self) -> str:
        """Life of the head whose demand is complete; empty: it may not be."""
        return "" if self._restarted_s is not None else self.instance

    def anew(self) -> Hearing:
        """One of the same head that has heard nothing yet."""
        return Hearing(self._link, self._limit_s)

    def hear(self, now: float) -> str:
        """Takes the newest demand; what is to be said if there is none."""
        try:
            demand = self._link.demand()
        except (ConnectionError, RuntimeError, ValueError) as error:
            self.is_heard = False
            age = "none was heard yet"
            if self.demand is not None:
                age = f"the demand is {now - self.demand.time_s:.0f} s old"
            return f"the head does not answer, {age}, nothing is stopped: {error}"
        self.is_heard = True
        # By this machine's clock: the head's may differ.
        self.demand = replace(demand, time_s=now)
        return ""

    def has_changed(self) -> bool:
        """Whether the head has something new to say; nothing is taken."""
        try:
            demand = self._link.demand()
        except (ConnectionError, RuntimeError, ValueError):
            return False  # The turn says so.
        return self.demand is None or _wants(demand) != _wants(self.demand)

    def settle(
        self, seen: Mapping[str, Seen], now: float, last_trusted: Callable[[], str]
    ) -> str:
        """Why the demand may be incomplete; empty: it is not.

        Args:
            seen: all workers.
            now: Unix time.
            last_trusted: asked once, for the life of the head that the autoscaler
                before this one trusted.
        """
        demand = self.demand
        if demand is None or not self.is_heard:
            return ""
        is_first = not self.instance
        if is_first:
            self.instance = last_trusted()
        if demand.instance != self.instance:
            has_no_past = is_first and not self.instance and not seen
            self.instance = demand.instance
            if not has_no_past:
                self._restarted_s, self._complete_s = now, None
        if self._restarted_s is None:
            return ""
        if now - self._restarted_s > self._limit_s + SETTLE_S:
            self._restarted_s = None
            return ""
        missing = sum(one.state is WorkerState.LOST for one in seen.values())
        if missing:
            self._complete_s = None
            return (
                f"the head was restarted and has not heard again of {missing} "
                "workers: nothing is stopped"
            )
        if self._complete_s is None:
            self._complete_s = now
        if now - self._complete_s < SETTLE_S:
            return (
                "the head was restarted and its nodes tell it again what waits: "
                "nothing is stopped"
            )
        self._restarted_s = None
        return ""


def _wants(demand: Demand) -> object:
    """What of a demand makes a turn worth while."""
    leases = [(one.resources, one.count, one.labels) for one in demand.leases]
    gangs = [(one.group_id, one.bundles) for one in demand.gangs]
    nodes = [(one.node_id, one.is_draining) for one in demand.nodes]
    return demand.instance, leases, gangs, nodes, demand.requested
