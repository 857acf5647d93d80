"""The simulated raylet of a node: leases, executors, and a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayshim.adapters.sim.network import REPEAT_S, Process
from rayshim.lineage import lease_events as ev
from rayshim.lineage.raylet import Raylet
from rayshim.lineage.resources import CPU, UNITS, ResourceSet

if TYPE_CHECKING:
    from rayshim.adapters.sim.cluster import Cluster
    from rayshim.adapters.sim.executor import Executor

#: Seconds between two words to the head.
BEAT_S = 0.5


class Node(Process):
    """One node. Its host has the same name; it dies with its executors."""

    def __init__(self, cluster: Cluster, name: str, cpus: int) -> None:
        super().__init__(cluster, f"{name}.raylet", name)
        self.name = name
        self.cpus = cpus
        self._forks = 0
        self.raylet = Raylet(
            ResourceSet({CPU: cpus * UNITS}),
            self._new_worker_id,
            prestart=1,
            max_starting=2,
            is_clustered=True,
        )
        self.executors: dict[bytes, Executor] = {}
        #: Segment -> (what it holds, who owns it).
        self.store: dict[str, tuple[Any, str]] = {}
        #: Leases that the head is asked about -> their requests.
        self._asked: dict[bytes, Any] = {}
        #: Actor -> (worker, incarnation) of lives here.
        self._actors: dict[bytes, tuple[bytes, int]] = {}
        #: Actors whose constructor has returned here.
        self._created: set[bytes] = set()
        self.greet_head()
        self._handle(ev.TimePassed())
        self._beat()

    def _new_worker_id(self) -> bytes:
        self._forks += 1
        return f"{self.name}.x{self._forks}".encode()

    def _beat(self) -> None:
        self._tell_load()
        self._handle(ev.TimePassed())
        for lease_id, request in list(self._asked.items()):
            self.note("head", "place", lease_id, request, self.name)
        self.later(BEAT_S, self._beat)

    def greet_head(self) -> None:
        """Join, with the lives of actors that are here."""
        lives = tuple(
            (lease_id, lease.executor.worker_id, lease.executor.address)
            for lease_id, lease in self.raylet.leases.items()
            if lease.request.fixed and lease.executor is not None
        )
        created = tuple(sorted(self._created))
        if not self.send(
            "head", "join", self.name, self.address, self.cpus, lives, created
        ):
            self.later(REPEAT_S, self.greet_head)

    def _tell_load(self) -> None:
        available = dict(self.raylet.resources.available)
        self.note("head", "load", self.name, available)

    # -- the machine -------------------------------------------------------------

    def _handle(self, event: Any) -> None:
        before = self.raylet.resources.available.get(CPU, 0)
        commands = self.raylet.handle(event, self.kernel.now_s)
        for command in commands:
            getattr(self, f"_do_{type(command).__name__}")(command)
        if self.raylet.resources.available.get(CPU, 0) > before:
            self._tell_load()

    def _to_holder(self, holder: str, *message: Any) -> None:
        self.send(holder.partition("|")[0], *message)

    def _do_GrantLease(self, command: ev.GrantLease) -> None:
        self._to_holder(
            command.holder,
            "granted",
            command.lease_id,
            command.address,
            command.worker_id,
        )

    def _do_RejectLease(self, command: ev.RejectLease) -> None:
        self._asked.pop(command.lease_id, None)
        holder = command.holder.partition("|")[0]
        # A rejection is said once, so it must arrive.
        self.send(
            holder,
            "rejected",
            command.lease_id,
            command.kind,
            command.spill_to,
            command.hops,
        )

    def _do_AskBack(self, command: ev.AskBack) -> None:
        self.send(command.holder.partition("|")[0], "reclaim", command.lease_id)

    def _do_ReportLost(self, command: ev.ReportLost) -> None:
        holder = command.holder.partition("|")[0]
        self.send(holder, "lease_lost", command.lease_id, command.reason)

    def _do_AskElsewhere(self, command: ev.AskElsewhere) -> None:
        self._asked[command.lease_id] = command.cargo
        self.note("head", "place", command.lease_id, command.cargo, self.name)

    def _do_AskNoMore(self, command: ev.AskNoMore) -> None:
        self._asked.pop(command.lease_id, None)
        self.note("head", "unplace", command.lease_id, self.name)

    def _do_StartExecutor(self, command: ev.StartExecutor) -> None:
        self.later(
            0.01 + self.kernel.rng.random() * 0.02, self._fork, command.worker_id
        )

    def _do_InterruptExecutor(self, command: ev.InterruptExecutor) -> None:
        executor = self.executors.get(command.worker_id)
        if executor is not None:
            self.send(executor.address, "leave", command.reason)

    def _do_EndExecutor(self, command: ev.EndExecutor) -> None:
        executor = self.executors.get(command.worker_id)
        if executor is not None:
            executor.die()

    # -- executors ---------------------------------------------------------------

    def _fork(self, worker_id: bytes) -> None:
        if worker_id not in self.raylet.executors.by_id:
            return
        executor = self.cluster.new_executor(self, worker_id)
        self.executors[worker_id] = executor
        executor.send(self.address, "ready", worker_id)

    def on_ready(self, source: str, worker_id: bytes) -> None:
        """An executor is up."""
        self._handle(ev.ExecutorReady(worker_id, source, 1))

    def executor_ended(self, worker_id: bytes) -> None:
        """The fork server's report on a child, which comes a little later."""
        self.later(self.kernel.rng.random() * 0.01, self._exited, worker_id)

    def _exited(self, worker_id: bytes) -> None:
        executor = self.executors.pop(worker_id)
        for actor, (worker, incarnation) in list(self._actors.items()):
            if worker == worker_id:
                del self._actors[actor]
                self._created.discard(actor)
                self.send("head", "life_lost", actor, incarnation)
        self.bury(executor.address)
        self._handle(ev.ExecutorExited(worker_id, "killed", -9))

    def on_blocked(self, source: str, worker_id: bytes, is_blocked: bool) -> None:
        """A call of an executor waits in ``get``, or no more."""
        self._handle(ev.ExecutorBlocked(worker_id, is_blocked))

    # -- holders -----------------------------------------------------------------

    def on_request(self, source: str, request: ev.LeaseRequested) -> None:
        """Somebody wants a lease."""
        self._handle(request)

    def on_cancel_lease(self, source: str, lease_id: bytes) -> None:
        """Not any more."""
        self._asked.pop(lease_id, None)
        self._handle(ev.LeaseCancelled(lease_id))

    def on_return(self, source: str, lease_id: bytes, dispose: bool) -> None:
        """A lease comes back."""
        self._asked.pop(lease_id, None)
        self._handle(ev.LeaseReturned(lease_id, dispose))

    def on_kill_lease(self, source: str, lease_id: bytes) -> None:
        """The holder wants the executor dead."""
        self._handle(ev.LeaseKilled(lease_id))

    def peer_ended(self, address: str) -> None:
        """A process is gone, with its leases."""
        for name, (_, owner) in list(self.store.items()):
            if owner == address:
                del self.store[name]
        self._handle(ev.HolderGone(address))

    # -- the head ----------------------------------------------------------------

    def on_placed(self, source: str, lease_id: bytes, address: str, error: str) -> None:
        """The head found a node for a request."""
        self._asked.pop(lease_id, None)
        if error:
            self._handle(ev.LeaseRefused(lease_id, error))
        elif address == self.address:
            self._handle(ev.LeaseAdmitted(lease_id))
        else:
            self._handle(ev.LeaseSpilled(lease_id, address))

    def on_create_actor(
        self, source: str, worker_id: bytes, actor: bytes, incarnation: int, spec: Any
    ) -> None:
        """The head wants a constructor run; said until it is answered."""
        executor = self.executors.get(worker_id)
        if executor is None or not executor.alive:
            return
        if actor in self._actors and self._actors[actor][0] == worker_id:
            return
        self._actors[actor] = (worker_id, incarnation)
        self.send(executor.address, "create_actor", actor, incarnation, spec)

    def on_relay(self, source: str, worker_id: bytes, reason: str) -> None:
        """The head asks an executor to leave."""
        executor = self.executors.get(worker_id)
        if executor is not None:
            self.send(executor.address, "leave", reason)

    def on_actor_created(self, source: str, actor: bytes, incarnation: int) -> None:
        """An executor says that it is an actor now."""
        self._created.add(actor)
        self.send("head", "created", actor, incarnation)

    def on_dismissed(self, source: str) -> None:
        """The head takes this node for dead: it ends."""
        self.cluster.end_node(self)

    def on_table(self, source: str, dead: tuple[tuple[str, str], ...]) -> None:
        """Who is dead: passed on to all processes here."""
        for executor in self.executors.values():
            self.send(executor.address, "table", dead)
        for name, address in dead:
            if name == self.name:
                self.cluster.end_node(self)
                return
            self.bury_node(name, address)

    def bury_node(self, name: str, address: str) -> None:
        """Close all channels to a node's processes."""
        for process in self.network.processes.values():
            if process.host == name and process is not self:
                self.bury(process.address)

    # -- the store ---------------------------------------------------------------

    def on_read(self, source: str, name: str, number: int) -> None:
        """A process of another node wants a segment."""
        found = self.store.get(name)
        data = found[0] if found else None
        self.send(source, "read_answer", number, found is not None, data)

    def on_free_segments(self, source: str, names: tuple[str, ...]) -> None:
        """Nobody needs these."""
        for name in names:
            self.store.pop(name, None)

    def ended(self) -> None:
        """The store goes with the node."""
        self.store.clear()
