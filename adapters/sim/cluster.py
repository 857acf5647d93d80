"""A simulated cluster: made, worked, broken, and judged."""

from __future__ import annotations

import gc
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rayshim.adapters.sim import workloads
from rayshim.adapters.sim.executor import Executor
from rayshim.adapters.sim.head import Head
from rayshim.adapters.sim.kernel import Kernel
from rayshim.adapters.sim.network import Network, Process
from rayshim.adapters.sim.node import Node
from rayshim.adapters.sim.peer import Driver, Peer
from rayshim.adapters.sim.values import SimError
from rayshim.lineage.actors import ActorState

#: Virtual seconds in which every ``get`` must answer.
PATIENCE_S = 60.0
#: Virtual seconds between the last program and the look for leaks.
QUIET_S = 20.0
#: Nodes beside the driver's, which never dies.
OTHERS = 2


@dataclass(frozen=True)
class Report:
    """What came of one seed."""

    seed: int
    events: int
    virtual_s: float
    gets: int
    runs: int
    faults: dict[str, int]
    errors: dict[str, int]
    broken: tuple[str, ...]
    digest: str

    def describe(self) -> str:
        """Text for people."""
        faults = ", ".join(f"{n} {kind}" for kind, n in sorted(self.faults.items()))
        errors = ", ".join(f"{n} {kind}" for kind, n in sorted(self.errors.items()))
        lines = [
            f"seed {self.seed}: {self.events:,} events in {self.virtual_s:.1f} virtual "
            f"seconds, {self.runs} runs, {self.gets} gets; faults: {faults or 'none'}; "
            f"typed errors: {errors or 'none'}; trace {self.digest}"
        ]
        lines += [f"  BROKEN {one}" for one in self.broken]
        if self.broken:
            lines.append(f"  replay: python -m rayshim.adapters.sim --seed {self.seed}")
        return "\n".join(lines)


class Cluster:
    """All processes of one run.

    Args:
        seed: of everything that is left to chance.
        faults: how many things break, or -1 for what the seed says.
        rounds: length of each program.
    """

    def __init__(self, seed: int, *, faults: int = -1, rounds: int = 8) -> None:
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel)
        self.functions = workloads.FUNCTIONS
        self.classes = workloads.CLASSES
        #: Peers with references that Python dropped.
        self.with_drops: dict[str, Peer] = {}
        #: Call -> runs allowed, and runs.
        self.limits: dict[bytes, int] = {}
        self.runs: Counter[bytes] = Counter()
        self.gets = 0
        self.faults: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._numbers = 0
        self._has_hung = False
        self._nodes = 0
        self._wanted = faults
        self._rounds = rounds
        self.kernel.after_each.append(self._collect)
        self.head = Head(self)
        self.nodes: list[Node] = []
        self.first = self.add_node()
        for _ in range(OTHERS):
            self.add_node()
        self.driver = Driver(self, self.first)

    # -- what processes use ------------------------------------------------------

    def new_number(self) -> int:
        """A number that is given once."""
        self._numbers += 1
        return self._numbers

    def add_node(self) -> Node:
        """One more node."""
        self._nodes += 1
        node = Node(self, f"n{self._nodes}", 2)
        self.nodes.append(node)
        return node

    def new_executor(self, node: Node, worker_id: bytes) -> Executor:
        """A child of a node's fork server."""
        return Executor(self, node, worker_id)

    def end_node(self, node: Node, *, is_silent: bool = False) -> None:
        """A host goes: its raylet and all executors."""
        if not node.alive:
            return
        node.die(is_silent=is_silent)
        for executor in list(node.executors.values()):
            executor.die(is_silent=is_silent)

    def started(self, task_id: bytes, name: str, executor: Executor) -> None:
        """A call begins to run."""
        self.runs[task_id] += 1
        runs, limit = self.runs[task_id], self.limits[task_id]
        self.kernel.note(f"{executor.address} starts {task_id!r} {name} run {runs}")
        if runs > limit:
            self.kernel.fail(f"{name} {task_id!r} runs for the {runs}. time")

    def count_error(self, error: SimError) -> None:
        """User code got a typed error."""
        self.errors[error.kind if error.kind != "Task" else error.text.split()[0]] += 1

    def _collect(self) -> None:
        while self.with_drops:
            _, peer = self.with_drops.popitem()
            if peer.alive:
                peer.objects.collect()

    # -- the judge ---------------------------------------------------------------

    def judge_free(self, owner: Peer, object_id: bytes) -> None:
        """An owner frees an object: nobody may have a reference."""
        if owner.objects.handles.get(object_id):
            self.kernel.fail(f"{owner} frees its own {object_id!r}, which it uses")
        for process in self.network.processes.values():
            if not isinstance(process, Peer) or process is owner or not process.alive:
                continue
            if process.objects.handles.get(object_id):
                if not self._is_excused(process, object_id, owner, set()):
                    self.kernel.fail(
                        f"{owner} frees {object_id!r}, and {process} has a reference"
                    )

    def judge_lost(self, holder: Peer, object_id: bytes) -> None:
        """A living owner says that it does not know what a process refers to."""
        entry = holder.objects.entries.get(object_id)
        if entry is None or not holder.objects.handles.get(object_id):
            return
        owner = self.network.processes[entry.owner]
        if owner.alive and not self._is_excused(holder, object_id, owner, set()):
            self.kernel.fail(f"{holder} has lost {object_id!r} of {owner}")

    def _is_excused(
        self, holder: Peer, object_id: bytes, owner: Process, seen: set[str]
    ) -> bool:
        """Whether somebody died who alone could tell the owner of the holder."""
        if self._are_parted(holder, owner):
            return True
        seen.add(holder.address)
        for lender in sorted(holder.objects.lenders.get(object_id, ())):
            process = self.network.processes[lender]
            if not process.alive or self._are_parted(process, owner):
                return True
            if self._are_parted(process, holder):
                return True
            if (
                isinstance(process, Peer)
                and lender not in seen
                and process is not owner
            ):
                if self._is_excused(process, object_id, owner, seen):
                    return True
        return False

    def _are_parted(self, one: Process, other: Process) -> bool:
        if self.network.has_broken(one.address, other.address):
            return True
        return one.address in other.buried or other.address in one.buried

    def _watch(self) -> None:
        """Every wait ends in time."""
        now = self.kernel.now_s
        for process in list(self.network.processes.values()):
            if not isinstance(process, Peer) or not process.alive:
                continue
            for thread in process.threads():
                if thread.waits is not None and now - thread.waits[1] > PATIENCE_S:
                    object_id, since_s = thread.waits
                    self.kernel.fail(
                        f"{process} waits for {object_id!r} since {since_s:.3f} s"
                        + self._explain(process, object_id)
                    )
                    self._has_hung = True
        self.kernel.after(5.0, self._watch)

    def _explain(self, peer: Peer, object_id: bytes) -> str:
        entry = peer.objects.entries.get(object_id)
        owner: Process | None = peer
        if entry is not None and entry.owner:
            owner = self.network.processes.get(entry.owner)
        text = f"\n    there: {entry}"
        if isinstance(owner, Peer):
            text += f"\n    owner {owner} (alive={owner.alive}): "
            text += f"{owner.objects.entries.get(object_id)}"
            for client in owner.actors.clients.values():
                if len(client.queue):
                    text += f"\n      {client.describe()}"
            for line in owner.tasks.describe()[:12]:
                text += f"\n      {line}"
        return text

    def _look_for_leaks(self) -> None:
        for process in self.network.processes.values():
            if not process.alive:
                continue
            if isinstance(process, Peer):
                left = list(process.objects.entries.values())
                if left:
                    self.kernel.fail(f"{process} keeps {left[:3]}")
                if process.objects.kept:
                    self.kernel.fail(
                        f"{process} keeps calls {list(process.objects.kept)}"
                    )
                if process.tasks.records:
                    self.kernel.fail(f"{process} has calls {process.tasks.describe()}")
            elif isinstance(process, Node):
                raylet = process.raylet
                raylet.validate()
                if raylet.leases:
                    self.kernel.fail(f"{process} has leases {list(raylet.leases)}")
                if raylet.resources.available != raylet.resources.total:
                    free = raylet.resources.available
                    self.kernel.fail(f"{process} has free {free}, not all")
                names = [
                    name
                    for name, (_, owner) in process.store.items()
                    if self.network.processes[owner].alive
                ]
                if names:
                    self.kernel.fail(f"{process} keeps segments {names[:3]}")
        for actor_id, actor in self.head.actors.actors.items():
            if actor.state is not ActorState.DEAD:
                self.kernel.fail(f"actor {actor_id!r} is still {actor.state.name}")
        if self.head.waiting:
            self.kernel.fail(f"the head looks for {list(self.head.waiting)}")

    # -- faults ------------------------------------------------------------------

    def _plan(self) -> None:
        rng = self.kernel.rng
        count = self._wanted if self._wanted >= 0 else rng.randrange(0, 25)
        self.network.is_lossy = count > 0
        for _ in range(count):
            self.kernel.after(rng.random() * 8.0, self._break_something)

    def _break_something(self) -> None:
        rng = self.kernel.rng
        kind = rng.choices(
            ["executor", "node", "silent", "cut", "pause", "channel", "join", "head"],
            [8, 1, 1, 3, 3, 2, 1, 1],
        )[0]
        others = [node for node in self.nodes if node.alive and node is not self.first]
        executors = [
            executor
            for node in self.nodes
            for executor in node.executors.values()
            if executor.alive
        ]
        if kind == "executor" and executors:
            rng.choice(executors).die()
        elif kind in ("node", "silent") and others:
            self.kernel.note(f"{kind} death of a host")
            self.end_node(rng.choice(others), is_silent=kind == "silent")
            self.kernel.after(rng.random() * 3.0, self._replace)
        elif kind == "cut":
            self._cut()
        elif kind == "pause" and executors:
            victims: list[Process] = [*executors, *others, self.head, self.driver]
            victim = rng.choice(victims)
            seconds = rng.random() * 2.0
            victim.paused_until_s = self.kernel.now_s + seconds
            self.kernel.note(f"{victim} pauses for {seconds:.3f} s")
        elif kind == "channel" and executors:
            one, other = rng.choice(executors), rng.choice([*executors, self.driver])
            if one is other or not self.network.break_channel(one, other):
                return
            self.kernel.note(f"the channel of {one} and {other} breaks")
        elif kind == "join" and len(others) < 5:
            self.add_node()
        elif kind == "head" and self.head.alive:
            self.head.die()
            self.kernel.after(0.3 + rng.random() * 2.0, self._restart_head)
        else:
            return
        self.faults[kind] += 1

    def _restart_head(self) -> None:
        self.kernel.note("head is back")
        self.head = Head(self, self.head)

    def _replace(self) -> None:
        self.add_node()

    def _cut(self) -> None:
        rng = self.kernel.rng
        hosts = [node.name for node in self.nodes if node.alive]
        one = rng.choice([*hosts, "head"])
        other = rng.choice([host for host in hosts if host != one] or hosts)
        # Long ones make the head give the node up; the driver's node stays.
        is_first = self.first.name in (one, other)
        seconds = rng.random() * (3.0 if is_first else 9.0)
        self.network.cut(one, other, seconds)
        self.kernel.note(f"{one} and {other} are parted for {seconds:.3f} s")

    # -- a run -------------------------------------------------------------------

    def run(self) -> Report:
        """Let the programs run to their end, and judge.

        Python's collector of cycles is off meanwhile: the moments at which it drops
        references depend on what else the process does.
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._run()
        finally:
            if was_enabled:
                gc.enable()

    def _run(self) -> Report:
        rng = random.Random(self.kernel.seed)
        self.kernel.run(0.5)
        self._plan()
        self._watch()
        program = workloads.Program(self.driver, rng, self._rounds)
        for body in program.all():
            self.driver.run(body)
        is_over = self.kernel.run(
            400.0, lambda: self._has_hung or not self.driver.threads()
        )
        if self._has_hung:
            return self.report()
        if not is_over:
            self.kernel.fail("the programs do not end")
        for node in self.nodes:
            for process in (node, *node.executors.values()):
                process.paused_until_s = 0.0
        self.kernel.run(self.kernel.now_s + QUIET_S)
        if is_over:
            self._look_for_leaks()
        return self.report()

    def report(self) -> Report:
        """What happened so far."""
        return Report(
            self.kernel.seed,
            self.kernel.events,
            self.kernel.now_s,
            self.gets,
            sum(self.runs.values()),
            dict(self.faults),
            dict(self.errors),
            tuple(self.kernel.broken),
            self.kernel.digest,
        )


def simulate(seed: int, **options: Any) -> Report:
    """Run one seed."""
    return Cluster(seed, **options).run()
