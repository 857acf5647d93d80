"""What the autoscaler knows and does, for people and tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rayshim.lineage.node_groups import Launching, Plan


@dataclass(frozen=True, slots=True)
class Status:
    """One turn of the loop."""

    #: Unix time.
    time_s: float = 0.0
    #: The plan of this turn; of a dry run what would be done.
    plan: Plan = field(default_factory=Plan)
    #: Group -> nodes that run, and that start.
    running: Mapping[str, int] = field(default_factory=dict)
    launching: tuple[Launching, ...] = ()
    #: Node id -> why it is drained.
    draining: Mapping[str, str] = field(default_factory=dict)
    #: Node id -> why it stays although nothing needs it.
    held: Mapping[str, str] = field(default_factory=dict)
    #: Group -> why its last node did not come up.
    failures: Mapping[str, str] = field(default_factory=dict)
    #: Why nothing is stopped now, or the head is not heard; empty: all is well.
    note: str = ""
    is_dry_run: bool = False

    def lines(self) -> list[str]:
        """The whole in words, most important first."""
        return list(self._lines())

    def _lines(self) -> Iterator[str]:
        would = "would " if self.is_dry_run else ""
        if self.note:
            yield self.note
        for name in sorted({*self.running, *(one.group for one in self.launching)}):
            coming = sum(one.group == name for one in self.launching)
            yield f"group {name}: {self.running.get(name, 0)} run, {coming} start"
        for name, count in self.plan.launch.items():
            yield f"{would}start {count} of group {name}"
        for drain in self.plan.drain:
            yield f"{would}drain node {drain.node_id[:8]}: {drain.reason}"
        for node_id, reason in self.draining.items():
            yield f"node {node_id[:8]} is being drained: {reason}"
        for node_id, reason in self.held.items():
            yield f"node {node_id[:8]} stays: {reason}"
        for name, reason in self.failures.items():
            yield f"group {name}: its last node did not come up: {reason}"
        for unmet in self.plan.infeasible:
            yield f"infeasible: {unmet.text}"
        for unmet in self.plan.waiting:
            yield f"waiting: {unmet.text}"
        for late in self.plan.late:
            yield f"node {late.node_id[:8]} of group {late.group} is late"

    def report(self) -> dict[str, Any]:
        """What the control service is told."""
        return {
            "infeasible": [asdict(one) for one in self.plan.infeasible],
            "waiting": [asdict(one) for one in self.plan.waiting],
            "failures": dict(self.failures),
            "lines": self.lines(),
        }
