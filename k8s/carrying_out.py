"""Carries decisions out, one write after the other, in the order of the design.

Each write is guarded: Deployments and worker groups by their uid, ``replicas`` by the
resourceVersion that was read. A conflict, or an object that is gone, ends that one
write and is left to the next turn, which looks anew. No write is made that depends on
one that failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rayshim.autoscaler.control import Control
from rayshim.k8s import names
from rayshim.k8s.api import KINDS, Conflict, Forbidden, Kube, KubeError, NotFound
from rayshim.k8s.config import Platform
from rayshim.k8s.gang import gang_object
from rayshim.k8s.observed import (
    Decisions,
    DeleteWorker,
    DrainWorker,
    EndGang,
    KeepWorker,
    Observed,
    SetReplicas,
    StartGang,
)

logger = logging.getLogger(__name__)


class LeaseLost(RuntimeError):
    """The Lease ran out in the middle of a turn: the rest is for its new holder."""


@dataclass(slots=True)
class Outcome:
    """What came of a turn's decisions."""

    #: One of ``metric_names.DECISION_KINDS`` -> how often it was done.
    counts: dict[str, int] = field(default_factory=dict)
    #: Decisions that were carried out, for Events.
    done: list[object] = field(default_factory=list)
    #: Workers whose node refused, to be left alone for a while.
    refused: list[str] = field(default_factory=list)
    #: What could not be done, for people.
    problems: list[str] = field(default_factory=list)
    #: Calls that failed.
    errors: int = 0

    def count(self, kind: str, number: int = 1) -> None:
        """Something was done."""
        self.counts[kind] = self.counts.get(kind, 0) + number


class CarryingOut:
    """Carries one turn's decisions out.

    Args:
        kube: the namespace.
        link: the cluster's head.
        platform: the file.
        now: Unix time, for annotations.
        before_write: called with the name of the step before each write; it raises
            :class:`LeaseLost` once nothing may be written any more.
        outcome: takes what came of it, also if it is given up in the middle.

    Raises:
        Unreachable: from :meth:`run`, if the API server does not answer; the rest of
            the decisions is given up.
        LeaseLost: likewise.
    """

    def __init__(
        self,
        kube: Kube,
        link: Control,
        platform: Platform,
        *,
        now: float,
        before_write: Callable[[str], None],
        outcome: Outcome,
    ) -> None:
        self._kube = kube
        self._link = link
        self._platform = platform
        self._now = now
        self._before_write = before_write
        self._outcome = outcome
        #: Worker groups with Deployments that were to be gone and are not.
        self._blocked: set[str] = set()

    def run(self, decisions: Decisions, observed: Observed) -> None:
        """All of it."""
        uids = {one.name: one.uid for one in observed.workers}
        uids |= {one.name: one.uid for one in observed.groups}
        there = {one.name for one in observed.workers}
        for name in decisions.joined:
            self._do("patch", "Deployment", self._mark_joined, name, uids)
        for keep in decisions.keep:
            self._do("patch", "Deployment", self._keep, keep, uids)
        for delete in decisions.delete:
            if not self._do("delete", "Deployment", self._delete, delete, uids):
                self._blocked.add(delete.worker_group)
        for end in decisions.end_gangs:
            self._do("delete", "DaskWorkerGroup", self._end, end, uids)
        for drain in decisions.drain:
            if drain.worker in there:
                self._do("patch", "Deployment", self._drain, drain, uids)
        for replicas in decisions.replicas:
            if replicas.worker_group not in self._blocked:
                self._do("patch", "DaskWorkerGroup", self._set, replicas, decisions)
        for start in decisions.start_gangs:
            self._do("create", "DaskWorkerGroup", self._start, start)

    def _do(
        self, verb: str, kind: str, write: Callable[..., None], *about: Any
    ) -> bool:
        """One write; whether it was done."""
        try:
            write(*about)
            return True
        except (Conflict, NotFound) as error:
            logger.debug("left to the next turn: %s", error)
        except Forbidden as error:
            self._outcome.errors += 1
            logger.warning("%s", error)
            self._problem(may_not(verb, kind, self._kube.namespace))
        except (KubeError, ValueError) as error:
            self._outcome.errors += 1
            logger.warning("%s", error)
            self._problem(str(error))
        return False

    def _problem(self, text: str) -> None:
        if text not in self._outcome.problems:
            self._outcome.problems.append(text)

    def _annotate(
        self,
        worker: str,
        uids: Mapping[str, str],
        annotations: Mapping[str, str | None],
    ) -> None:
        meta: dict[str, Any] = {"annotations": dict(annotations)}
        if uids.get(worker):
            meta["uid"] = uids[worker]
        self._kube.patch("Deployment", worker, {"metadata": meta})

    def _mark_joined(self, worker: str, uids: Mapping[str, str]) -> None:
        self._before_write("joined")
        self._annotate(worker, uids, {names.JOINED: f"{self._now:.3f}"})

    def _keep(self, keep: KeepWorker, uids: Mapping[str, str]) -> None:
        self._before_write("keep")
        taken_back = (names.DRAINING_SINCE, names.DRAIN_REASON, names.DRAINING_NODE)
        self._annotate(keep.worker, uids, dict.fromkeys(taken_back))
        if keep.is_refused:
            self._outcome.refused.append(keep.worker)
            self._outcome.count("drain_refused")
        self._outcome.done.append(keep)

    def _delete(self, delete: DeleteWorker, uids: Mapping[str, str]) -> None:
        self._before_write("delete")
        uid = uids.get(delete.worker, "")
        self._kube.delete("Deployment", delete.worker, uid=uid)
        self._outcome.count("delete")
        self._outcome.done.append(delete)
        if self._kube.get("Deployment", delete.worker) is not None:
            # Somebody's finalizer keeps it: the operator still counts it.
            raise Conflict(f"Deployment {delete.worker} is still there")

    def _end(self, end: EndGang, uids: Mapping[str, str]) -> None:
        self._before_write("end_gang")
        uid = uids.get(end.worker_group, "")
        self._kube.delete("DaskWorkerGroup", end.worker_group, uid=uid)
        self._outcome.count("end_gang")
        self._outcome.done.append(end)

    def _drain(self, drain: DrainWorker, uids: Mapping[str, str]) -> None:
        self._before_write("annotate")
        notes = {
            names.DRAINING_SINCE: f"{self._now:.3f}",
            names.DRAIN_REASON: drain.reason,
            names.DRAINING_NODE: drain.node_id,
        }
        self._annotate(drain.worker, uids, notes)
        self._before_write("drain")
        try:
            # False: there is no such node any more, as the next turn will see.
            self._link.drain(drain.node_id, drain.reason)
        except (ConnectionError, RuntimeError) as error:
            self._problem(f"{drain.worker} was not told to drain: {error}")
            return
        self._outcome.count("drain")
        self._outcome.done.append(drain)

    def _set(self, wanted: SetReplicas, decisions: Decisions) -> None:
        self._before_write("replicas")
        change = {
            "metadata": {
                "resourceVersion": wanted.resource_version,
                "annotations": {names.REPLICAS: str(wanted.replicas)},
            },
            "spec": {"worker": {"replicas": wanted.replicas}},
        }
        self._kube.patch("DaskWorkerGroup", wanted.worker_group, change)
        self._outcome.count("repair" if wanted.is_repair else "replicas")
        own = names.worker_group(self._platform.name, wanted.group)
        if wanted.worker_group == own and wanted.group in decisions.launch:
            self._outcome.count("launch", decisions.launch[wanted.group])
        self._outcome.done.append(wanted)

    def _start(self, start: StartGang) -> None:
        self._before_write("start_gang")
        made = gang_object(
            self._platform, start.group, start.gang, start.size, subject=start.subject
        )
        self._kube.create(made)
        self._outcome.count("start_gang")
        self._outcome.done.append(start)


def may_not(verb: str, kind: str, namespace: str) -> str:
    """What is said when a Role is lacking.

    Example:
        >>> may_not("patch", "DaskWorkerGroup", "ray-prod")
        'autoscaler may not patch daskworkergroups in ray-prod; apply deploy/base/rbac.yaml'
    """  # noqa: E501
    plural = KINDS[kind].plural
    return (
        f"autoscaler may not {verb} {plural} in {namespace}; apply deploy/base/"
        "rbac.yaml"
    )


def texts(decisions: Decisions) -> list[str]:
    """The decisions in words, in their order."""
    return list(_texts(decisions))


def _texts(decisions: Decisions) -> Iterable[str]:
    for keep in decisions.keep:
        yield f"keep {keep.worker}: {keep.reason}"
    for delete in decisions.delete:
        yield f"delete {delete.worker}: {delete.reason}"
    for end in decisions.end_gangs:
        yield f"end gang {end.gang} of {end.group}: {end.reason}"
    for drain in decisions.drain:
        yield f"drain {drain.worker}: {drain.reason}"
    for replicas in decisions.replicas:
        yield (
            f"set replicas of {replicas.worker_group} to {replicas.replicas}: "
            f"{replicas.reason}"
        )
    for start in decisions.start_gangs:
        yield (
            f"start gang {start.gang} of {start.size} {start.group} workers for "
            f"placement group {start.subject[:12]}"
        )
