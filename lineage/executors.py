"""The executor processes of a node: which are idle, starting, used, leaving.

    STARTING -> IDLE <-> LEASED -> LEAVING,  and from each the process may exit

An executor is *unused* until its first lease and from then on belongs to that lease's
job and environment. Of idle ones that fit, the one used last is taken: its caches are
warm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from rayshim.lineage import lease_events as ev
from rayshim.lineage.lease_events import EnvKey, LeaseRequested
from rayshim.lineage.leases import Executor, ExecutorState, Lease

#: Seconds after which an executor beyond the kept ones leaves.
IDLE_LIMIT_S = 60.0
#: Seconds that an executor may take to leave before it is killed.
LEAVE_LIMIT_S = 5.0

_UNUSED: tuple[bytes, EnvKey] = (b"", ())


class ExecutorSet:
    """Bookkeeping for the lease machine, which says when what happens.

    Args:
        new_worker_id: Gives a fresh id for each call.
        prestart: Executors, idle or running tasks, that are kept at least.
        kept_idle: Idle executors that may stay for ever.
        max_starting: Executors that may be starting at once; forks beyond the number
            of CPUs only delay each other.
    """

    def __init__(
        self,
        new_worker_id: Callable[[], bytes],
        *,
        prestart: int,
        kept_idle: int,
        max_starting: int,
    ) -> None:
        self._new_worker_id = new_worker_id
        self.prestart = prestart
        self._kept_idle = kept_idle
        self._max_starting = max_starting
        #: Worker id -> executor that has not exited.
        self.by_id: dict[bytes, Executor] = {}
        #: Exactly the executors in STARTING.
        self._booting: set[bytes] = set()
        #: Exactly the executors in IDLE or with a lease that is not fixed.
        self._reserve: set[bytes] = set()
        #: (job, env) -> executors in IDLE, used last at the end.
        self._idle: dict[tuple[bytes, EnvKey], list[Executor]] = {}

    def __iter__(self) -> Iterator[Executor]:
        return iter(self.by_id.values())

    def report(self, event: ev.ExecutorReady) -> Executor:
        """A forked executor is up; the caller binds or keeps it."""
        executor = self.by_id[event.worker_id]
        executor.address = event.address
        executor.pid = event.pid
        self._booting.discard(event.worker_id)
        return executor

    def take(self, request: LeaseRequested) -> Executor | None:
        """An idle executor for a request; actors take unused ones only."""
        if not request.fixed:
            pool = self._idle.get((request.job_id, request.env))
            if pool:
                return pool.pop()
        pool = self._idle.get(_UNUSED)
        return pool.pop() if pool else None

    def suits(self, executor: Executor, request: LeaseRequested) -> bool:
        """Whether an executor that is free may serve a request."""
        if not executor.job_id:
            return True
        return not request.fixed and (
            (executor.job_id, executor.env) == (request.job_id, request.env)
        )

    def bind(self, executor: Executor, lease: Lease, now: float) -> None:
        """Gives a free executor to a lease."""
        request = lease.request
        executor.state = ExecutorState.LEASED
        executor.lease = lease
        executor.since_s = now
        executor.is_blocked = False
        executor.job_id = request.job_id
        executor.env = request.env
        if request.fixed:
            self._reserve.discard(executor.worker_id)
        else:
            self._reserve.add(executor.worker_id)

    def keep(self, executor: Executor, now: float) -> None:
        """Has a free executor wait for its next lease."""
        executor.state = ExecutorState.IDLE
        executor.lease = None
        executor.since_s = now
        self._reserve.add(executor.worker_id)
        self._idle.setdefault((executor.job_id, executor.env), []).append(executor)

    def leave(self, executor: Executor, now: float) -> None:
        """Takes an executor out of use; its process goes soon."""
        self._unpool(executor)
        self._reserve.discard(executor.worker_id)
        self._booting.discard(executor.worker_id)
        executor.state = ExecutorState.LEAVING
        executor.lease = None
        executor.since_s = now

    def remove(self, worker_id: bytes) -> Executor:
        """Forgets an executor whose process is gone."""
        executor = self.by_id.pop(worker_id)
        self._unpool(executor)
        self._booting.discard(worker_id)
        self._reserve.discard(worker_id)
        return executor

    def fork(self, waiting: Collection[Lease], now: float) -> list[ev.Command]:
        """Forks for ``waiting`` leases, which need one each, and for the reserve."""
        booting = len(self._booting)
        room = self._max_starting - booting
        wanted = len(waiting) - booting
        if wanted < room and len(self._reserve) < self.prestart:
            soft = sum(not lease.request.fixed for lease in waiting)
            wanted += max(0, self.prestart - len(self._reserve) - soft)
        commands: list[ev.Command] = []
        for _ in range(min(wanted, room)):
            worker_id = self._new_worker_id()
            self.by_id[worker_id] = Executor(worker_id, now)
            self._booting.add(worker_id)
            commands.append(ev.StartExecutor(worker_id))
        return commands

    def expire(self, now: float) -> list[ev.Command]:
        """Sends surplus idle executors away, kills those that do not go."""
        commands: list[ev.Command] = []
        idle = [executor for pool in self._idle.values() for executor in pool]
        idle.sort(key=lambda executor: executor.since_s)
        surplus = len(idle) - max(self.prestart, self._kept_idle)
        for executor in idle[: max(0, surplus)]:
            if now - executor.since_s >= IDLE_LIMIT_S:
                self.leave(executor, now)
                commands.append(ev.InterruptExecutor(executor.worker_id, "idle"))
        for executor in self:
            if executor.state is ExecutorState.LEAVING and (
                now - executor.since_s >= LEAVE_LIMIT_S
            ):
                commands.append(ev.EndExecutor(executor.worker_id))
        return commands

    def validate(self) -> None:
        """Checks the invariants.

        Raises:
            AssertionError: one does not hold.
        """
        states: dict[ExecutorState, set[bytes]] = {
            state: set() for state in ExecutorState
        }
        soft = set()
        for worker_id, executor in self.by_id.items():
            states[executor.state].add(worker_id)
            lease = executor.lease
            assert (lease is not None) == (executor.state is ExecutorState.LEASED)
            if lease is not None:
                assert lease.executor is executor
                assert lease.request.job_id == executor.job_id
                assert lease.request.env == executor.env
                if not lease.request.fixed:
                    soft.add(worker_id)
        assert states[ExecutorState.STARTING] == self._booting
        assert states[ExecutorState.IDLE] | soft == self._reserve
        pooled = [one.worker_id for pool in self._idle.values() for one in pool]
        assert len(pooled) == len(set(pooled))
        assert set(pooled) == states[ExecutorState.IDLE]
        assert len(self._booting) <= self._max_starting

    def _unpool(self, executor: Executor) -> None:
        if executor.state is ExecutorState.IDLE:
            pool = self._idle[executor.job_id, executor.env]
            pool.remove(executor)
            if not pool:
                del self._idle[executor.job_id, executor.env]
