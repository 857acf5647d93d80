"""Records of the calls that this process submitted and waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rayshim._core.arguments import Encoded
from rayshim.adapters.wire import messages as m
from rayshim.lineage.tasks import TaskLife, TaskState

if TYPE_CHECKING:
    from rayshim.lineage.dispatch import LeaseSlot, SchedulingClass


class FunctionRecord:
    """A pickled function or class, as it was at its first ``.remote()``."""

    __slots__ = ("blob", "captured", "key", "message", "name", "qualified_name")

    def __init__(
        self, key: bytes, blob: bytes, name: str, qualified: str, captured: list[Any]
    ) -> None:
        #: References that it captured: alive as long as it may be called.
        self.captured = captured
        self.key = key
        self.blob = blob
        self.name = name
        #: ``module.name``, as the runtime context shows it.
        self.qualified_name = qualified
        self.message = m.RegisterFunction(key, blob, qualified)


class CallRecord(TaskLife):
    """One submitted call, from ``.remote()`` to its result.

    The references of the arguments are held by ``encoded`` (which has the
    ObjectRefs themselves), so that they live until the call has ended.
    """

    __slots__ = (
        "actor",
        "encoded",
        "function",
        "handle_ref",
        "kept",
        "lends",
        "missing",
        "name",
        "parent",
        "retry_exceptions",
        "return_ids",
        "scheduling",
        "slot",
        "spec",
        "stream",
        "waiting_for",
    )

    def __init__(
        self,
        spec: m.TaskSpec,
        encoded: Encoded,
        return_ids: list[bytes],
        retries: int,
    ) -> None:
        # As in TaskLife: a call of its __init__ is a tenth of this one's time.
        self.task_id = spec.task_id
        self.state = TaskState.WAITING
        self.retries_left = retries
        self.attempt = 0
        self.cancelled = False
        self.memory_kills = 0
        self.spec = spec
        self.name = spec.name
        self.encoded = encoded
        self.return_ids = return_ids
        #: False, True, or the exception types that are retried.
        self.retry_exceptions: Any = False
        #: Dependencies whose value is not known yet.
        self.missing = 0
        #: One of them, for explanations.
        self.waiting_for = b""
        #: The id of the call that submitted this one; empty in a driver.
        self.parent = b""
        self.function: FunctionRecord | None = None
        self.scheduling: SchedulingClass | None = None
        self.slot: LeaseSlot | None = None
        #: The client of the actor, for a method call.
        self.actor: Any = None
        #: Counts the actor's handle while the call is under way.
        self.handle_ref: Any = None
        self.stream: Any = None
        #: Once it has ended: what is needed to run it again for a lost value.
        self.kept: Any = None
        #: Lends made when it was pushed: (object id, number).
        self.lends: list[tuple[bytes, int]] = []

    @property
    def ready(self) -> bool:
        """True when every argument is known."""
        return self.missing == 0

    @property
    def actor_id(self) -> bytes:
        """Id of the actor whose method it calls; empty for a task."""
        return self.actor.actor_id if self.actor is not None else b""

    def lease_ids(self) -> list[bytes]:
        """Lease requests that this call waits for."""
        if self.scheduling is None or self.slot is not None:
            return []
        return list(self.scheduling.requested)

    def return_dropped(self, object_id: bytes) -> None:
        """Nobody refers to a return value any more; the call runs all the same."""
        if self.kept is not None:
            self.kept.recovering.return_dropped(object_id)

    def describe(self) -> str:
        """Where the call is, for people."""
        kind = f"method {self.name}" if self.actor is not None else f"task {self.name}"
        if self.missing:
            return (
                f"{kind} waits for {self.missing} of its arguments, first "
                f"ObjectRef({self.waiting_for.hex()[:16]}...)"
            )
        if self.actor is not None:
            return f"{kind} {self.actor.describe_call(self)}"
        slot, scheduling = self.slot, self.scheduling
        if slot is not None:
            ahead = list(slot.inflight).index(self.task_id)
            where = f"executor pid {slot.pid}"
            if ahead:
                return f"{kind} is pushed to {where}, behind {ahead} calls"
            kills = ""
            if self.memory_kills:
                kills = f", after it was killed for memory {self.memory_kills} time(s)"
            return f"{kind} runs on {where}{kills}"
        if scheduling is None:
            return f"{kind} is being submitted"
        if self.memory_kills and self not in scheduling.queue:
            return (
                f"{kind} was killed for memory {self.memory_kills} time(s) and waits a "
                "while before it runs again"
            )
        return (
            f"{kind} waits for a lease of {scheduling.label}: {len(scheduling.queue)} "
            f"call(s) queued, {len(scheduling.slots)} lease(s) held, "
            f"{len(scheduling.requested)} requested"
        )
