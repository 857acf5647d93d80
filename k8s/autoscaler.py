"""The loop: looks at the head and at Kubernetes, decides, carries out.

What must hold whatever happens:

1. Only the holder of the Lease writes; it looks at its clock before each write.
2. Nothing is stopped while the head does not answer, while a restarted head has not
   heard again of every worker that was there, or until 3 s after that: what waits at
   a node is told after the node itself. Twice the largest cold start ends it.
3. Nothing is done while the API server does not answer.
4. A new process decides as the old one would: what it lacks (since when a worker is
   away, who has refused) makes it wait longer, never act sooner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rayshim.autoscaler.control import Control
from rayshim.k8s import names
from rayshim.k8s.api import Forbidden, Kube, KubeError, Unreachable
from rayshim.k8s.autoscaler_metrics import AutoscalerMetrics
from rayshim.k8s.carrying_out import CarryingOut, LeaseLost, Outcome, may_not
from rayshim.k8s.config import Platform
from rayshim.k8s.election import Election, lease_labels
from rayshim.k8s.event_log import EventLog
from rayshim.k8s.gang import gang_id
from rayshim.k8s.happenings import conditions, done
from rayshim.k8s.hearing import Hearing
from rayshim.k8s.observed import Decisions, Memory, Observed
from rayshim.k8s.observing import observe, queue_usage
from rayshim.k8s.planner import decide
from rayshim.k8s.platform_status import (
    PlatformStatus,
    group_statuses,
    read_status,
    status_object,
)
from rayshim.k8s.waking import Watches
from rayshim.k8s.worker_states import WorkerState, survey

logger = logging.getLogger(__name__)

#: Seconds between two turns, and while something drains.
INTERVAL_S: Final = 5.0
BUSY_INTERVAL_S: Final = 1.0
#: Seconds between two turns that something has woken.
PAUSE_S: Final = 0.3
#: Seconds between two looks whether the demand has changed.
PEEK_S: Final = 1.0
#: Seconds for which a worker that refused is not drained.
HOLD_S: Final = 15.0
#: Seconds between two tries to reach the API server; doubled up to the limit.
BACK_OFF_S, MAX_BACK_OFF_S = 1.0, 30.0
#: What has not changed is written, or told, again after so many seconds.
STATUS_S: Final = 30.0
REPORT_S: Final = 5.0


@dataclass(slots=True)
class _Look:
    """What a turn has seen."""

    observed: Observed
    #: Kind and name -> uid, for Events.
    uids: dict[str, str] = field(default_factory=dict)


class PlatformAutoscaler:
    """Keeps the workers of a platform at what the demand needs.

    Args:
        kube: the platform's namespace.
        link: the cluster's head.
        platform: the file.
        identity: of this process among several autoscalers, as the pod's name.
        interval_s: seconds between two turns, if nothing wakes it.
        dry_run: decides and says what it would do; writes nothing at all.
        clock: Unix time.
        on_step: called with the name of each write before it is made ("joined",
            "keep", "delete", "end_gang", "annotate", "drain", "replicas",
            "start_gang"); what it raises ends the turn, as the end of the process
            would.

    Thread safety: :meth:`turn` and :meth:`run` belong to one thread; :attr:`status` may
    be read from any.
    """

    def __init__(
        self,
        kube: Kube,
        link: Control,
        platform: Platform,
        *,
        identity: str,
        interval_s: float = INTERVAL_S,
        dry_run: bool = False,
        clock: Callable[[], float] = time.time,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        self._kube = kube
        self._link = link
        self._platform = platform
        self._identity = identity
        self._interval_s = interval_s
        self._is_dry_run = dry_run
        self._clock = clock
        self._on_step = on_step
        self._election = Election(
            kube,
            names.autoscaler(platform.name),
            identity,
            labels=lease_labels(platform.name),
            clock=clock,
        )
        self._events = EventLog(kube, platform.name, identity, clock=clock)
        self.metrics = AutoscalerMetrics()
        cold_starts = [one.cold_start_s for one in platform.groups]
        self._head = Hearing(link, 2 * max(cold_starts, default=0.0))
        self._held: dict[str, float] = {}
        self._absent: dict[str, float] = {}
        self._unwanted: dict[str, float] = {}
        #: Worker group -> (replicas and Deployments, since when it is like that).
        self._owed: dict[str, tuple[tuple[int, int], float]] = {}
        #: Turns in which the API server did not answer, in a row.
        self._unreachable = 0
        self._may_read_queues = True
        self._written: tuple[float, dict[str, Any]] = (float("-inf"), {})
        self._reported: tuple[float, dict[str, Any]] = (float("-inf"), {})
        #: The last turn.
        self.status = PlatformStatus(identity=identity, is_dry_run=dry_run)

    # The thread.

    def run(
        self, stop: threading.Event, *, tell: Callable[[str], None] | None = None
    ) -> None:
        """Turns until ``stop`` is set; then gives the Lease up.

        Changes of pods, Deployments and worker groups, and of the demand, begin the
        next turn at once.

        Args:
            stop: ends it.
            tell: is given each line of a turn's status that the turn before did not
                have.
        """
        told = PlatformStatus()
        wake = threading.Event()
        with Watches(self._kube, self._platform.name, wake):
            while not stop.is_set():
                wake.clear()
                try:
                    status = self.turn()
                    if tell is not None:
                        for line in status.news(told):
                            tell(line)
                        told = status
                except Exception:
                    # The next turn starts from what is there then.
                    logger.exception("a turn of the autoscaler failed")
                self._wait(stop, wake)
        self.release()

    def release(self) -> None:
        """Gives the Lease up, for one that turns no more."""
        if not self._is_dry_run:
            self._election.release()

    def _wait(self, stop: threading.Event, wake: threading.Event) -> None:
        began_s = time.monotonic()
        pause_s, peeked_s = self.pause_s(), began_s
        while not stop.wait(min(PAUSE_S, pause_s)):
            now_s = time.monotonic()
            if now_s - began_s >= pause_s:
                return
            if self._unreachable:
                continue
            if wake.is_set():
                return
            if self.status.is_leader and now_s - peeked_s >= PEEK_S:
                peeked_s = now_s
                if self._head.has_changed():
                    return

    def pause_s(self) -> float:
        """Seconds until the next turn, if nothing wakes it."""
        if self._unreachable:
            return min(MAX_BACK_OFF_S, BACK_OFF_S * 2.0 ** (self._unreachable - 1))
        states = [one.states for one in self.status.groups.values()]
        if any(one.get("draining") or one.get("left") for one in states):
            return min(BUSY_INTERVAL_S, self._interval_s)
        return self._interval_s

    # One turn.

    def turn(self) -> PlatformStatus:
        """Looks, decides and acts once.

        Returns:
            What it saw and did; trouble with Kubernetes or the head is told there.
        """
        began_s, now = time.monotonic(), self._clock()
        outcome = Outcome()
        try:
            status = self._turn(now, outcome)
            self._unreachable = 0
        except Unreachable as error:
            self._unreachable += 1
            outcome.errors += 1
            age = "never read"
            if self.status.observed_s is not None:
                age = f"last read {now - self.status.observed_s:.0f} s ago"
            text = f"Kubernetes is unreachable ({age}): nothing is done; {error}"
            status = self._troubled(now, text)
        except LeaseLost as error:
            status = replace(self._troubled(now, str(error)), is_leader=False)
        except KubeError as error:
            outcome.errors += 1
            status = self._troubled(now, str(error))
        self.status = status
        duration_s = time.monotonic() - began_s
        self.metrics.turned(status, duration_s, outcome.counts, outcome.errors)
        return status

    def _troubled(self, now: float, text: str) -> PlatformStatus:
        """The last status, with what went wrong now."""
        if self._unreachable <= 1 and text not in self.status.problems:
            logger.warning("%s", text)
        is_leader = not self._is_dry_run and self._election.holds()
        return replace(self.status, time_s=now, is_leader=is_leader, problems=(text,))

    def _turn(self, now: float, outcome: Outcome) -> PlatformStatus:
        if not self._is_dry_run:
            is_leader = self._called("update", "Lease", self._election.campaign)
            if not is_leader:
                self._forget()
                return PlatformStatus(now, self._identity, leader=self._election.holder)
        silence = self._head.hear(now)
        look = self._look(now)
        self._remember(look.observed, now)
        seen = survey(look.observed, self._head.demand, now, self._memory())
        hold = self._head.settle(seen, now, self._last_trusted)
        problems = [text for text in (silence, hold) if text]
        demand, memory = self._head.demand, self._memory()
        decisions = decide(
            demand,
            look.observed,
            self._platform,
            now,
            memory=memory,
            may_stop=self._head.is_heard and not hold,
        )
        if not self._is_dry_run:
            self._act(decisions, look.observed, now, outcome)
        problems += outcome.problems
        status = PlatformStatus(
            time_s=now,
            identity=self._identity,
            is_leader=not self._is_dry_run,
            leader=self._election.holder,
            is_dry_run=self._is_dry_run,
            instance=self._head.instance,
            demand_s=demand.time_s if demand is not None else None,
            observed_s=now,
            groups=group_statuses(
                self._platform,
                look.observed,
                demand,
                decisions,
                now,
                memory=memory,
            ),
            decisions=decisions,
            problems=tuple(problems),
        )
        if not self._is_dry_run:
            self._tell(status, look, outcome, now)
        return status

    def _forget(self) -> None:
        """What was noticed while it led says nothing when it leads again."""
        self._held.clear()
        self._absent.clear()
        self._unwanted.clear()
        self._owed.clear()
        self._head = self._head.anew()

    # What it sees.

    def _look(self, now: float) -> _Look:
        ours = {names.PLATFORM: self._platform.name}
        theirs = {names.CLUSTER_NAME: self._platform.name, names.COMPONENT: "worker"}
        # In this order: see rayshim.k8s.observing.
        groups = self._list("DaskWorkerGroup", ours)
        deployments = self._list("Deployment", theirs)
        pods = self._list("Pod", theirs)
        queues = []
        if self._platform.queues and self._may_read_queues:
            try:
                queues = self._kube.list("LocalQueue", ours)
            except Forbidden:
                self._may_read_queues = False
                logger.warning(
                    "%s", may_not("list", "LocalQueue", self._kube.namespace)
                )
        observed = observe(
            groups,
            deployments,
            pods,
            now=now,
            quotas=queue_usage(self._platform, queues),
        )
        uids = {one.name: one.uid for one in observed.groups}
        return _Look(observed, uids)

    def _list(self, kind: str, labels: dict[str, str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._called(
            "list", kind, lambda: self._kube.list(kind, labels)
        )
        return found

    def _called(self, verb: str, kind: str, call: Callable[[], Any]) -> Any:
        """Does what no turn can do without."""
        try:
            return call()
        except Forbidden as error:
            text = may_not(verb, kind, self._kube.namespace)
            raise Forbidden(text, error.status, error.reason) from error

    def _remember(self, observed: Observed, now: float) -> None:
        """Notes since when things are as they are."""
        seen = survey(observed, self._head.demand, now, self._memory())
        if self._head.is_heard:
            for name, one in seen.items():
                if one.node is None and one.state is not WorkerState.STARTING:
                    self._absent.setdefault(name, now)
                else:
                    self._absent.pop(name, None)
        demand = self._head.demand
        if self._head.is_heard and demand is not None:
            waiting = {gang_id(one.group_id) for one in demand.gangs}
            waiting |= {gang_id(one) for one in demand.placing}
            gangs = {one.gang for one in observed.groups if one.gang} - waiting
            self._unwanted = {one: self._unwanted.get(one, now) for one in gangs}
        for name in [name for name in self._absent if name not in seen]:
            del self._absent[name]
        for name in [name for name, until in self._held.items() if until <= now]:
            del self._held[name]
        owed = {}
        for about in observed.groups:
            there = sum(one.worker.worker_group == about.name for one in seen.values())
            is_handled = about.handled == about.replicas
            if is_handled or (about.handled is None and there >= about.replicas):
                continue
            before = self._owed.get(about.name)
            key = (about.replicas, there)
            owed[about.name] = before if before and before[0] == key else (key, now)
        self._owed = owed

    def _memory(self) -> Memory:
        owed = {name: since_s for name, (_, since_s) in self._owed.items()}
        return Memory(dict(self._held), dict(self._absent), owed, dict(self._unwanted))

    def _last_trusted(self) -> str:
        """The life of the head that the last autoscaler trusted."""
        try:
            found = read_status(self._kube, self._platform.name)
        except ValueError:
            return ""
        return str((found or {}).get("trusted", ""))

    # What it does.

    def _act(
        self, decisions: Decisions, observed: Observed, now: float, outcome: Outcome
    ) -> None:
        hands = CarryingOut(
            self._kube,
            self._link,
            self._platform,
            now=now,
            before_write=self._before_write,
            outcome=outcome,
        )
        try:
            hands.run(decisions, observed)
        finally:
            for worker in outcome.refused:
                self._held[worker] = now + HOLD_S

    def _before_write(self, step: str) -> None:
        if self._on_step is not None:
            self._on_step(step)
        if not self._election.holds():
            raise LeaseLost(
                "the Lease ran out in the middle of a turn: the rest is left to its "
                "next holder"
            )

    def _tell(
        self, status: PlatformStatus, look: _Look, outcome: Outcome, now: float
    ) -> None:
        """Status, Events and the head's report: none of them stops the work."""
        writes: Sequence[tuple[str, str, Callable[[], None]]] = (
            ("patch", "ConfigMap", lambda: self._write_status(status, now)),
            ("create", "Event", lambda: self._write_events(status, look, outcome)),
        )
        for verb, kind, write in writes:
            try:
                write()
            except Forbidden:
                outcome.errors += 1
                logger.warning("%s", may_not(verb, kind, self._kube.namespace))
            except KubeError as error:
                outcome.errors += 1
                logger.warning("%s", error)
        self._report(status, now)

    def _write_status(self, status: PlatformStatus, now: float) -> None:
        written_s, before = self._written
        record = _lasting(status)
        if record == before and now - written_s < STATUS_S:
            return
        self._kube.apply(
            status_object(status, self._platform.name, trusted=self._head.trusted)
        )
        self._written = (now, record)

    def _write_events(
        self, status: PlatformStatus, look: _Look, outcome: Outcome
    ) -> None:
        for one in done(outcome.done, status.decisions, self._platform, look.uids):
            self._events.tell(one)
        self._events.hold(conditions(status, self._platform, look.uids))

    def _report(self, status: PlatformStatus, now: float) -> None:
        reported_s, before = self._reported
        report = status.report()
        lasting = {**report, "lines": []}
        if lasting == before and now - reported_s < REPORT_S:
            return
        try:
            self._link.report(report)
        except (ConnectionError, RuntimeError):
            return  # It is told in the next turn.
        self._reported = (now, lasting)


def _lasting(status: PlatformStatus) -> dict[str, Any]:
    """A status without what changes all the time."""
    kept = replace(
        status,
        time_s=0.0,
        demand_s=None,
        observed_s=None,
        decisions=replace(status.decisions, notes=()),
    )
    return kept.to_json()
