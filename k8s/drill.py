"""Drills: something is killed, and what it takes to recover is measured.

Each drill lays probe work on the platform, kills one thing as a failing machine would
(a pod without grace), and waits until the probe is complete again. A result beyond the
limits of the file is a failed check.

The probe is a driver in this process, whose values the platform's pods read: run drills
in a pod of the namespace with the label ``rayshim.io/client: "true"``, or on a host
that pods reach, with ``--head``. A port that is forwarded to the head is not enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, TypeVar

from rayshim.adapters.dask.probe_answer import Answer
from rayshim.adapters.wire.tls import Credentials
from rayshim.k8s import names
from rayshim.k8s.api import Kube
from rayshim.k8s.config import Group, Platform
from rayshim.k8s.demand import DASK_PORT, HEAD_PORT, ClusterLink, open_link
from rayshim.k8s.drill_probes import Probe, RayshimProbe
from rayshim.k8s.observing import worker_of
from rayshim.k8s.reaching import credentials, place_of
from rayshim.lineage.demand import NodeFacts

_Found = TypeVar("_Found")

#: Name of a drill -> what it does.
DRILLS: Final = {
    "train-worker": "kill a worker of the training group while it has work",
    "serve-replica": "kill a worker of the serving group under an actor that answers",
    "head": "delete the head's pod under an actor with a state",
}
#: Seconds between two looks.
LOOK_S: Final = 0.1
#: How often as long as the limit a recovery is waited for.
PATIENCE: Final = 2.0
#: Seconds beyond twice the cold start in which the probe has to find a place.
START_S: Final = 60.0


class DrillError(RuntimeError):
    """A drill could not be held; nothing was measured."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened."""

    #: Seconds after the kill; negative: before it.
    after_s: float
    text: str


@dataclass(frozen=True, slots=True)
class DrillResult:
    """What a drill has measured."""

    name: str
    #: Seconds from the kill until everything was as before.
    recovery_s: float
    limit_s: float
    steps: tuple[Step, ...] = ()
    #: Why it did not recover; empty: it did.
    failure: str = ""

    @property
    def is_passed(self) -> bool:
        """Whether it recovered within the limit."""
        return not self.failure and self.recovery_s <= self.limit_s

    @property
    def exit_code(self) -> int:
        """0, or 1 of a failed check."""
        return 0 if self.is_passed else 1


class _NotRecoveredError(Exception):
    """Something did not come back in the time that the drill waits for it."""


def run_drill(
    name: str,
    kube: Kube,
    platform: Platform,
    *,
    probe: Probe | None = None,
    link: ClusterLink | None = None,
    head: str | None = None,
    token_path: str = "",
    say: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> DrillResult:
    """Hold a drill on the running platform.

    Args:
        name: one of ``DRILLS``.
        kube: the platform's namespace.
        platform: the file.
        probe: what lays the work; None: one for the platform's runtime.
        link: to the head; None: one is opened, and closed.
        head: "HOST" or "HOST:PORT" by which this process reaches the head; None: its
            Service, as inside the Kubernetes cluster.
        token_path: file with the cluster's token; empty: it is read from its Secret.
        say: takes each line for people.
        clock: seconds that only grow.
        sleep: of seconds.

    Returns:
        What was measured, also if it did not recover.

    Raises:
        DrillError: there is nothing to kill, or no way to lay the probe's work.
        ConnectionError: the head, or Kubernetes, does not answer before the kill.
    """
    if name not in DRILLS:
        raise DrillError(f"there is no drill {name!r}; there are {', '.join(DRILLS)}")
    with ExitStack() as stack:
        if link is None or probe is None:
            path, tls = stack.enter_context(credentials(kube, platform, token_path))
            host, port = place_of(head)
            if link is None:
                link = open_link(
                    platform, host=host, port=port, token_path=path, tls=tls
                )
                stack.callback(link.close)
            if probe is None:
                where = host or names.head_host(platform.name, platform.namespace)
                probe = _probe(platform, where, port, link, path, tls)
        stack.callback(probe.end)
        drill = _Drill(name, kube, platform, link, probe, say, clock, sleep)
        return drill.run()


def _probe(
    platform: Platform,
    host: str,
    port: int | None,
    link: ClusterLink,
    token_path: str,
    tls: Credentials | None,
) -> Probe:
    """The one for the platform's runtime."""
    if platform.runtime == "dask":
        from rayshim.adapters.dask.platform_probe import DaskProbe

        return DaskProbe(f"{host}:{port or DASK_PORT}", link, tls)
    try:
        return RayshimProbe(f"{host}:{port or HEAD_PORT}", token_path, tls)
    except RuntimeError as error:
        raise DrillError(f"no probe could be laid: {error}") from error


class _Drill:
    """One drill."""

    def __init__(
        self,
        name: str,
        kube: Kube,
        platform: Platform,
        link: ClusterLink,
        probe: Probe,
        say: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._name = name
        self._kube = kube
        self._platform = platform
        self._link = link
        self._probe = probe
        self._say = say
        self._clock = clock
        self._sleep = sleep
        limits = platform.drill
        self._limit_s = {
            "train-worker": limits.train_worker_s,
            "serve-replica": limits.serve_replica_s,
            "head": limits.head_s,
        }[name]
        #: (clock, text) of each step.
        self._steps: list[tuple[float, str]] = []
        self._killed_s = 0.0
        #: What the head knew last.
        self._seen: tuple[NodeFacts, ...] = ()
        #: Something was killed.
        self.is_begun = False

    def run(self) -> DrillResult:
        """All of it."""
        self._say(f"{self._name}: {DRILLS[self._name]}")
        failure = ""
        try:
            if self._name == "train-worker":
                self._train_worker()
            elif self._name == "serve-replica":
                self._serve_replica()
            else:
                self._head()
        except _NotRecoveredError as error:
            failure = str(error)
            self._step(failure)
        steps = tuple(Step(at - self._killed_s, text) for at, text in self._steps)
        return DrillResult(self._name, steps[-1].after_s, self._limit_s, steps, failure)

    # The drills.

    def _train_worker(self) -> None:
        group = self._train_group()
        before = self._nodes(group.name)
        each = _one_piece(group)
        amount = group.accelerator.count if group.accelerator else int(group.cpus)
        width = max(1, amount) * max(1, len(before))
        self._probe.begin_work(group.name, each, width)
        start_s = 2 * group.cold_start_s + START_S

        def at_work() -> NodeFacts | None:
            done = self._probe.step()
            found = (one for one in self._nodes(group.name) if one.node_id in done)
            return next(found, None)

        victim = self._before(
            at_work,
            start_s,
            f"no worker of {group.name} took the probe's work within {start_s:.0f} s: "
            "is the autoscaler running, and is there room for one more task?",
        )
        known = {one.node_id for one in self._nodes(group.name)}
        self._kill_worker(victim, group.name)

        def is_gone() -> bool:
            self._probe.step()
            return victim.node_id not in {one.node_id for one in self._all_nodes()}

        self._wait(is_gone, "the head does not notice that the worker is gone")
        self._step("the head knows that it is gone")

        def joined() -> NodeFacts | None:
            self._probe.step()
            found = self._nodes(group.name)
            return next((one for one in found if one.node_id not in known), None)

        other = self._wait(joined, f"no other worker of {group.name} has joined")
        self._step(f"worker {other.labels.get(names.WORKER) or other.node_id} joined")
        self._wait(
            lambda: self._probe.step() - known,
            "no new worker takes work",
        )
        self._step("it takes work")
        try:
            count = self._probe.finish_work(self._left_s())
        except (TimeoutError, ValueError) as error:
            raise _NotRecoveredError(f"the work is not complete: {error}") from error
        self._step(f"the results of all {count} pieces of work are complete")

    def _serve_replica(self) -> None:
        group = self._serve_group()
        self._probe.begin_actor(group.name, is_detached=False)
        start_s = 2 * group.cold_start_s + START_S
        first: Answer = self._before(
            self._probe.ask,
            start_s,
            f"no actor could be started on {group.name} within {start_s:.0f} s: is the "
            "autoscaler running?",
        )
        nodes = self._nodes(group.name)
        victim = next((one for one in nodes if one.node_id == first.node_id), None)
        if victim is None:
            raise DrillError(f"the actor's node {first.node_id} is no worker")
        self._kill_worker(victim, group.name)

        def again() -> Answer | None:
            found = self._probe.ask()
            return found if found is not None and found.life != first.life else None

        other: Answer = self._wait(again, "the actor does not answer again")
        self._step(f"the actor answers again, on node {other.node_id}")

    def _head(self) -> None:
        state = self._platform.head.state.kind
        if self._platform.runtime == "rayshim" and state == "none":
            raise DrillError(
                "head: nothing survives a head whose state is kept nowhere; set "
                f"head.state in {self._platform.source} to valkey, external or volume"
            )
        before = {self._name_of(one) for one in self._workers()}
        self._probe.begin_actor(self._state_group(), is_detached=True)
        start_s = START_S + 2 * max(
            (one.cold_start_s for one in self._platform.groups), default=0.0
        )
        first: Answer = self._before(
            self._probe.ask,
            start_s,
            f"no actor could be started within {start_s:.0f} s: is there a worker?",
        )
        before |= {self._name_of(one) for one in self._workers()}
        instance = self._link.demand().instance
        self._probe.leave()
        labels = {names.CLUSTER_NAME: self._platform.name, names.COMPONENT: "scheduler"}
        pods = self._kube.list("Pod", labels)
        if not pods:
            raise DrillError(
                f"there is no head of {self._platform.name} in {self._kube.namespace}; "
                "`rayshim k8s status` shows what there is"
            )
        self._kill(pods[0]["metadata"]["name"], "the head")
        self._wait(self._is_other_head(instance), "there is no other head")
        self._step("another head answers")

        def again() -> Answer | None:
            try:
                return self._probe.ask_anew()
            except ConnectionError:
                return None
            except LookupError as error:
                raise _NotRecoveredError(f"the state is lost: {error}") from error

        second: Answer = self._wait(again, "the detached actor does not answer")
        if self._probe.keeps_state and second.count <= first.count:
            raise _NotRecoveredError(
                f"the state is lost: the actor has counted to {second.count}, and to "
                f"{first.count} before"
            )
        kept = self._probe.keeps_state
        self._step("the actor answers, with its state" if kept else "work is done")

        def all_back() -> bool:
            return before <= {self._name_of(one) for one in self._workers()}

        self._wait(all_back, f"not all of {len(before)} workers came back")
        self._step(f"all {len(before)} workers are back")

    # What there is.

    def _train_group(self) -> Group:
        platform = self._platform
        if platform.train is not None:
            return platform.group(platform.train.group)
        serving = platform.serve.group if platform.serve else ""
        others = [one for one in platform.groups if one.name != serving]
        found = [one for one in others if one.is_gpu] or others
        if not found:
            raise DrillError(f"{platform.source} has no group to train on")
        return found[0]

    def _serve_group(self) -> Group:
        platform = self._platform
        if platform.serve is not None:
            return platform.group(platform.serve.group)
        for one in platform.groups:
            if one.min or one.warm:
                return one
        raise DrillError(
            f"{platform.source} has no serving group: neither levels.serve nor a group "
            "with min or warm"
        )

    def _state_group(self) -> str:
        """Where an actor has a place now: at the head nothing survives it."""
        for one in self._workers():
            return one.group
        return self._platform.groups[0].name

    def _all_nodes(self) -> tuple[NodeFacts, ...]:
        """What the head says; while it is away after a kill, what it said last."""
        try:
            self._seen = self._link.demand().nodes
        except ConnectionError:
            if not self.is_begun:
                raise
        return self._seen

    def _workers(self) -> list[NodeFacts]:
        return [one for one in self._all_nodes() if names.WORKER in one.labels]

    def _nodes(self, group: str) -> list[NodeFacts]:
        return [one for one in self._workers() if one.group == group]

    def _name_of(self, node: NodeFacts) -> str:
        return node.labels[names.WORKER]

    def _is_other_head(self, instance: str) -> Callable[[], bool]:
        def is_other() -> bool:
            try:
                return self._link.demand().instance != instance
            except ConnectionError:
                return False

        return is_other

    # Killing and waiting.

    def _kill_worker(self, node: NodeFacts, group: str) -> None:
        worker = self._name_of(node)
        for pod in self._kube.list("Pod", {names.GROUP: group}):
            if worker_of(pod) == worker:
                self._kill(pod["metadata"]["name"], f"worker {worker}")
                return
        raise DrillError(
            f"worker {worker} of {group} has no pod in {self._kube.namespace}; is this "
            "the platform's namespace?"
        )

    def _kill(self, pod: str, what: str) -> None:
        self._killed_s = self._clock()
        self.is_begun = True
        if what == "the head":
            self._seen = ()
        self._kube.delete("Pod", pod, grace_s=0)
        self._step(f"killed {what} (pod {pod})")

    def _step(self, text: str) -> None:
        now = self._clock()
        self._steps.append((now, text))
        self._say(f"  {now - self._killed_s:7.1f} s  {text}")

    def _left_s(self) -> float:
        end_s = self._killed_s + PATIENCE * self._limit_s
        return max(0.0, end_s - self._clock())

    def _before(
        self, look: Callable[[], _Found | None], limit_s: float, what: str
    ) -> _Found:
        """Waits before the kill."""
        end_s = self._clock() + limit_s
        while not (found := look()):
            if self._clock() > end_s:
                raise DrillError(f"{self._name}: {what}")
            self._sleep(LOOK_S)
        return found

    def _wait(self, look: Callable[[], _Found | None], what: str) -> _Found:
        """Waits after it."""
        while not (found := look()):
            if not self._left_s():
                waited_s = self._clock() - self._killed_s
                raise _NotRecoveredError(f"{what} {waited_s:.0f} s after the kill")
            self._sleep(LOOK_S)
        return found


def _one_piece(group: Group) -> dict[str, float]:
    """What one piece of work asks for: a GPU, or a CPU in groups without."""
    return {"GPU": 1.0} if group.is_gpu else {"CPU": 1.0}
