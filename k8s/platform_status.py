"""What the autoscaler knows and does, in words and as JSON, kept in a ConfigMap."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rayshim.k8s import names
from rayshim.k8s.api import Kube
from rayshim.k8s.carrying_out import texts
from rayshim.k8s.config import Platform
from rayshim.k8s.election import lease_labels
from rayshim.k8s.metric_names import WORKER_STATES
from rayshim.k8s.observed import Decisions, Memory, Observed, PodState
from rayshim.k8s.worker_states import Seen, WorkerState, survey
from rayshim.lineage.demand import Demand

#: Keys of the ConfigMap.
JSON_KEY: Final = "status.json"
TEXT_KEY: Final = "status.txt"
#: Of the JSON.
VERSION: Final = 1
#: An age within a text.
_AGE: Final = re.compile(r"\d+ s\b")
#: Characters of what is told of one pod.
MOST: Final = 300


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Workers of a group, its gangs' included."""

    #: One of ``metric_names.WORKER_STATES`` -> how many.
    states: Mapping[str, int] = field(default_factory=dict)
    max: int = 0
    #: Gangs of it, and those of which a pod is gated.
    gangs: int = 0
    gated_gangs: int = 0
    #: Workers that should have joined long ago.
    late: int = 0
    #: What its pods wait for, or why they fail.
    notes: tuple[str, ...] = ()
    #: Why workers of it do not come up; empty: they do.
    failure: str = ""


@dataclass(frozen=True, slots=True)
class PlatformStatus:
    """One turn of the autoscaler."""

    #: Unix time.
    time_s: float = 0.0
    identity: str = ""
    is_leader: bool = False
    #: Who holds the Lease; empty: unknown.
    leader: str = ""
    is_dry_run: bool = False
    #: Of this life of the head.
    instance: str = ""
    #: When the head last said what is lacking; None: never yet.
    demand_s: float | None = None
    #: When Kubernetes was last read; None: never yet.
    observed_s: float | None = None
    groups: Mapping[str, GroupStatus] = field(default_factory=dict)
    decisions: Decisions = field(default_factory=Decisions)
    #: What holds it back, most important first.
    problems: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The whole in words, most important first."""
        return list(self._lines())

    def news(self, before: PlatformStatus) -> list[str]:
        """Its lines that an earlier status lacks; that an age has grown is no news.

        Args:
            before: the earlier one.

        Example:
            >>> old = PlatformStatus(demand_s=0, problems=("the demand is 31 s old",))
            >>> now = PlatformStatus(problems=("the demand is 32 s old", "no quota"))
            >>> now.news(old)[-1]
            'no quota'
        """
        known = {_AGE.sub("", line) for line in before.lines()}
        return [line for line in self.lines() if _AGE.sub("", line) not in known]

    def _lines(self) -> Iterator[str]:
        if not self.is_leader and not self.is_dry_run:
            yield f"stands by: {self.leader or 'another autoscaler'} holds the Lease"
        yield from self.problems
        yield from self.decisions.notes
        if self.demand_s is not None:
            yield f"demand is {max(self.time_s - self.demand_s, 0):.0f} s old"
        if self.observed_s is not None and self.time_s - self.observed_s >= 1:
            age_s = self.time_s - self.observed_s
            yield f"Kubernetes was last read {age_s:.0f} s ago"
        for name, group in self.groups.items():
            there = [
                f"{count} {state}"
                for state, count in group.states.items()
                if count or state == "joined"
            ]
            gangs = f", {group.gangs} gangs" if group.gangs else ""
            yield f"group {name}: {', '.join(there)} (max {group.max}{gangs})"
            for note in group.notes:
                yield f"group {name}: {note}"
        would = "would " if self.is_dry_run else ""
        for name, count in self.decisions.launch.items():
            yield f"{would}start {count} of group {name}"
        for text in texts(self.decisions):
            yield would + text
        for unmet in self.decisions.infeasible:
            yield f"infeasible: {unmet.text}"
        for unmet in self.decisions.waiting:
            yield f"waiting: {unmet.text}"

    def to_json(self) -> dict[str, Any]:
        """As a map of plain lists, maps, numbers and texts."""
        return {"version": VERSION, **asdict(self), "lines": self.lines()}

    def report(self) -> dict[str, Any]:
        """What the head is told, so that drivers and ``explain`` can say so."""
        return {
            "infeasible": [asdict(one) for one in self.decisions.infeasible],
            "waiting": [asdict(one) for one in self.decisions.waiting],
            "failures": {
                name: group.failure
                for name, group in self.groups.items()
                if group.failure
            },
            "lines": self.lines(),
        }


def group_statuses(
    platform: Platform,
    observed: Observed,
    demand: Demand | None,
    decisions: Decisions,
    now: float,
    *,
    memory: Memory,
) -> dict[str, GroupStatus]:
    """Workers of each group of the file by state, and what they wait for.

    Args:
        platform: the file.
        observed: what is in Kubernetes.
        demand: what the head said last.
        decisions: of this turn, for those that are late.
        now: Unix time.
        memory: since when workers are absent.
    """
    seen = survey(observed, demand, now, memory)
    late = {one.node_id for one in decisions.late if one.node_id}
    found = {}
    for group in platform.groups:
        mine = [one for one in seen.values() if one.worker.group == group.name]
        states = dict.fromkeys(WORKER_STATES, 0)
        for one in mine:
            states[_shown(one, demand)] += 1
        about = [one for one in observed.groups if one.group == group.name]
        for each in about:
            there = sum(one.worker.worker_group == each.name for one in mine)
            if each.handled != each.replicas and not each.is_deleting:
                states["owed"] += max(each.replicas - there, 0)
        gated = {
            one.worker.gang
            for one in mine
            if one.worker.gang and one.worker.pod is PodState.GATED
        }
        failures = [
            f"{one.worker.name}: {one.worker.note}"[:MOST]
            for one in mine
            if one.worker.pod is PodState.FAILED
        ]
        found[group.name] = GroupStatus(
            states,
            group.max,
            gangs=sum(bool(one.gang) for one in about),
            gated_gangs=len(gated),
            late=sum(one.worker.name in late for one in mine),
            notes=tuple(_notes(mine, late, 2 * group.cold_start_s)),
            failure=failures[0] if failures else "",
        )
    return found


def _shown(one: Seen, demand: Demand | None) -> str:
    """A worker's state; before the head was heard, those that joined count as such."""
    if demand is None and one.state is WorkerState.LOST:
        return WorkerState.JOINED.value
    return one.state.value


def _notes(mine: list[Seen], late: set[str], limit_s: float) -> Iterator[str]:
    """What is told of pods that do not come: equal notes once, with their number."""
    counts: dict[str, int] = {}
    for one in mine:
        worker = one.worker
        is_late = worker.name in late
        if one.node is not None or not (worker.note or is_late):
            continue
        state = "fail" if worker.pod is PodState.FAILED else worker.pod.value
        text = state + (f" ({worker.note[:MOST]})" if worker.note else "")
        if is_late:
            text += f", did not join within {limit_s:g} s"
        counts[text] = counts.get(text, 0) + 1
    for text, count in counts.items():
        yield f"{count} workers {text}"


def status_object(
    status: PlatformStatus, platform: str, *, trusted: str = ""
) -> dict[str, Any]:
    """The ConfigMap.

    Args:
        status: what it says.
        platform: name of the platform.
        trusted: life of the head whose demand is complete, for the next autoscaler.
    """
    record = {**status.to_json(), "trusted": trusted}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.status_map(platform),
            "labels": lease_labels(platform),
        },
        "data": {
            JSON_KEY: json.dumps(record, sort_keys=True),
            TEXT_KEY: "\n".join(status.lines()) + "\n",
        },
    }


def read_status(kube: Kube, platform: str) -> Mapping[str, Any] | None:
    """The JSON of the status ConfigMap; None: no autoscaler has written one.

    Args:
        kube: the namespace.
        platform: name of the platform.

    Returns:
        A map as of :meth:`PlatformStatus.to_json`: "time_s" (Unix time, its age says
        whether the autoscaler is alive), "problems", "groups", "lines", ...

    Raises:
        ValueError: it is of another version, or somebody else's.
    """
    found = kube.get("ConfigMap", names.status_map(platform))
    if found is None:
        return None
    try:
        record = json.loads((found.get("data") or {}).get(JSON_KEY, ""))
        version = record["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"ConfigMap {names.status_map(platform)} is no status of an autoscaler: "
            f"{error}; delete it, it is written again"
        ) from error
    if version != VERSION:
        raise ValueError(
            f"ConfigMap {names.status_map(platform)} has version {version!r}, this "
            f"reader knows {VERSION}: use the same release of rayshim on both sides"
        )
    status: dict[str, Any] = record
    return status
