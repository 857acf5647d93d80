"""Takes note of calls that end in this process, for tools, and tells the raylet.

A call that ran here costs a tuple; everything else is done a few times a second, for
all calls since the last time, by whoever reads the channels. Owners note what ends
without having run.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim import exceptions
from rayshim._core import failures
from rayshim.adapters.wire import event_messages as ev
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.codec import as_text

if TYPE_CHECKING:
    from rayshim._core.calls import CallRecord
    from rayshim._core.peer import Peer

#: Seconds in which ends of calls are gathered: few are told soon, since those that are
#: not told yet go with a process that crashes.
SEND_FEW_AFTER_S, SEND_MANY_AFTER_S = 0.05, 0.5
#: Calls in one message that are few.
FEW = 100
#: Calls in one message.
MAX_BATCH = 5_000
#: Characters of an error's text that are kept.
MAX_TEXT = 4_000
#: Marks a call that did not begin, as arguments were lost.
GIVEN_BACK = "GIVEN_BACK"

#: Error -> the name that Ray has for it; the first that fits counts.
_TYPES: tuple[tuple[type[BaseException], str], ...] = (
    (exceptions.TaskCancelledError, "TASK_CANCELLED"),
    (exceptions.OutOfMemoryError, "OUT_OF_MEMORY"),
    (exceptions.NodeDiedError, "NODE_DIED"),
    (exceptions.LocalRayletDiedError, "LOCAL_RAYLET_DIED"),
    (exceptions.WorkerCrashedError, "WORKER_DIED"),
    (exceptions.RuntimeEnvSetupError, "RUNTIME_ENV_SETUP_FAILED"),
    (exceptions.TaskPlacementGroupRemoved, "TASK_PLACEMENT_GROUP_REMOVED"),
    (exceptions.ActorPlacementGroupRemoved, "ACTOR_PLACEMENT_GROUP_REMOVED"),
    (exceptions.TaskUnschedulableError, "TASK_UNSCHEDULABLE_ERROR"),
    (exceptions.ActorUnschedulableError, "ACTOR_UNSCHEDULABLE_ERROR"),
    (exceptions.ActorUnavailableError, "ACTOR_UNAVAILABLE"),
    (exceptions.ActorDiedError, "ACTOR_DIED"),
    (exceptions.OwnerDiedError, "OWNER_DIED"),
    (exceptions.ObjectLostError, "OBJECT_LOST"),
    (exceptions.RayTaskError, "TASK_EXECUTION_EXCEPTION"),
)


class CallLog:
    """The calls that ended here and were not told yet.

    Thread safety: :attr:`noted` is appended to by any thread; the rest happens under
    the lock of the process.

    Args:
        peer: this process.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        #: What ran here.
        self.noted: deque[ev.Noted] = deque()
        #: What did not run anywhere.
        self._failed: deque[ev.CallEvent] = deque()
        #: Whether :meth:`send` is due. Cleared before anything is taken out, so that
        #: what is noted meanwhile asks for the next time.
        self.is_armed = False
        self._delay_s = SEND_FEW_AFTER_S
        #: (task id, attempt) -> how a call that ran here failed.
        self._errors: dict[tuple[bytes, int], tuple[str, str]] = {}
        #: The error of the last call that did not run, pickled and as it is told.
        self._last_error: tuple[bytes, tuple[str, str]] = (b"", ("", ""))

    def arm(self) -> None:
        """Something was noted: send it soon."""
        self.is_armed = True
        self._peer.reactor.call_later(self._delay_s, self.send)

    def failed(self, spec: m.TaskSpec, kind: str, text: str) -> None:
        """A call that is noted next did not return a value."""
        self._errors[spec.task_id, spec.attempt] = (kind, as_text(text[:MAX_TEXT]))

    def raised(self, spec: m.TaskSpec, error: BaseException, text: str) -> None:
        """A call that is noted next raised an error."""
        self.failed(spec, error_type(error), text)

    def never_ran(
        self, record: CallRecord, payload: m.Payload | None, *, attempt: int = -1
    ) -> None:
        """A call of this process ended without having run to its end anywhere.

        Args:
            record: the call.
            payload: its error; None if its executor died and it runs again.
            attempt: which run; -1: the last one.
        """
        reason = "WORKER_DIED", "the executor that ran it died"
        if payload is not None:
            if payload.data != self._last_error[0]:
                # Calls that fail together, a hundred thousand maybe, fail alike.
                self._last_error = (payload.data, _reason_of(payload))
            reason = self._last_error[1]
        actor_id = record.actor_id
        self._failed.append(
            ev.CallEvent(
                record.task_id,
                record.name,
                ev.METHOD if actor_id else ev.TASK,
                record.attempt if attempt < 0 else attempt,
                "FAILED",
                0.0,
                time.time(),
                record.parent,
                actor_id,
                *reason,
                function_of(record),
            )
        )
        if not self.is_armed:
            self.arm()

    def send(self) -> None:
        """Tell the raylet (under the lock)."""
        self.is_armed = False
        peer = self._peer
        if peer.ended or peer.raylet.closed:
            self.noted.clear()
            self._failed.clear()
            return
        is_few = len(self.noted) < FEW
        self._delay_s = SEND_FEW_AFTER_S if is_few else SEND_MANY_AFTER_S
        while self.noted:
            self._send_noted()
        while self._failed:
            count = min(MAX_BATCH, len(self._failed))
            self._send(self._batch([self._failed.popleft() for _ in range(count)]))

    def _send_noted(self) -> None:
        pop = self.noted.popleft
        noted = [pop() for _ in range(min(MAX_BATCH, len(self.noted)))]
        batch = self._batch([], is_executor=True)
        executor = self._peer.executor
        if executor is not None:
            keys = {one[6] for one in noted}
            name_of = executor.runner.function_name
            batch.names = {key: name_of(key) for key in keys if isinstance(key, bytes)}
        batch.offset_s = time.time() - time.perf_counter()
        batch.ended = self._take_failed(batch, noted) if self._errors else noted
        self._send(batch)

    def _take_failed(
        self, batch: ev.EventBatch, noted: list[ev.Noted]
    ) -> list[ev.Noted]:
        """Adds those that failed to the events of a batch, and returns the others."""
        others = []
        for one in noted:
            error = self._errors.pop((one[0], one[2]), None)
            if error is None:
                others.append(one)
            elif error[0] != GIVEN_BACK:
                event = ev.event_of(batch, one)
                event.state = "FAILED"
                event.error_type, event.error_message = error
                batch.events.append(event)
        return others

    def _batch(
        self, events: list[ev.CallEvent], *, is_executor: bool = False
    ) -> ev.EventBatch:
        """A batch of this process."""
        peer, lease, facts = self._peer, None, None
        executor = peer.executor if is_executor else None
        if executor is not None:
            create = executor.actor
            if create is None:
                lease = executor.any_lease()
            else:
                lease = create.lease
                facts = ev.ActorFacts(
                    create.actor_id,
                    create.class_name,
                    create.spec.task_id,
                    creation_name(create),
                )
        return ev.EventBatch(
            peer.node_id,
            peer.node_ip,
            peer.worker_id,
            peer.pid,
            "executor" if is_executor else "owner",
            lease.resources if lease is not None else {},
            lease.placement_group if lease is not None else b"",
            lease.env_vars if lease is not None else {},
            events,
            actor=facts,
        )

    def _send(self, batch: ev.EventBatch) -> None:
        count = len(batch.events) + len(batch.ended)
        if count:
            data = msgspec.msgpack.encode(batch)
            has_values = bool(batch.env_vars)
            self._peer.raylet.send(ev.TaskEvents(count, data, has_values))


def flush(peer: Peer, payload: bytes) -> bytes:
    """Answers the question ``flush_events``: tells the raylet what it does not know."""
    del payload
    peer.call_log.send()
    return b""


def _reason_of(payload: m.Payload) -> tuple[str, str]:
    """How and why a call failed that did not run."""
    error = failures.load_error(payload)
    kind = error_type(error)
    if isinstance(error, exceptions.RayTaskError):
        kind = "DEPENDENCY_RESOLUTION_FAILED"
        if isinstance(error.cause, exceptions.TaskCancelledError):
            kind = "TASK_CANCELLED"
    try:
        text = str(error)
    except Exception:  # the user's own
        text = type(error).__name__
    return kind, as_text(text[:MAX_TEXT])


def error_type(error: BaseException) -> str:
    """The name that Ray has for an error of a call."""
    cause: Any = error
    if isinstance(error, exceptions.RayTaskError):
        cause = error.cause
        if not isinstance(cause, exceptions.TaskCancelledError):
            return "TASK_EXECUTION_EXCEPTION"
    for kind, name in _TYPES:
        if isinstance(cause, kind):
            return name
    return "TASK_EXECUTION_EXCEPTION"


def function_of(record: CallRecord) -> str:
    """The name of a call's function or method; empty where the call goes by it."""
    if record.actor is not None:
        name = f"{record.actor.class_name}.{record.spec.method}"
    else:
        name = record.function.name if record.function is not None else ""
    return "" if name == record.name else name


def creation_name(create: Any) -> str:
    """What lists call the constructor of an actor."""
    name = f"{create.class_name}.__init__"
    return f"{create.name}:{name}" if create.name else name
