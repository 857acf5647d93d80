"""What this process says of calls that have not ended: its own, and those it runs.

Loaded by the first question.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim._core.calls import CallRecord
from rayshim._core.event_log import creation_name, function_of
from rayshim._core.lanes import MainLane
from rayshim.adapters.wire import event_messages as ev
from rayshim.adapters.wire import messages as m

if TYPE_CHECKING:
    from rayshim._core.peer import Peer


def answer(peer: Peer, payload: bytes) -> bytes:
    """Answers the question ``calls``; what has ended is told to the raylet before."""
    del payload
    peer.call_log.send()
    return msgspec.msgpack.encode([*owned(peer), *running(peer)])


def owned(peer: Peer) -> Iterator[ev.LiveCall]:
    """The calls of this process that have no result (under the lock)."""
    for record in peer.tasks.records.values():
        template = record.scheduling.template if record.scheduling else None
        yield ev.LiveCall(
            record.task_id,
            record.name,
            ev.TASK if record.actor is None else ev.METHOD,
            record.attempt,
            state_of(record),
            record.parent,
            record.actor_id,
            record.slot.pid if record.slot is not None else 0,
            resources=dict(template.resources) if template is not None else {},
            group=template.placement_group if template is not None else b"",
            labels=dict(template.labels[0])
            if template is not None and template.labels
            else {},
            call_site=site_of(peer, record),
            function=function_of(record),
        )
    for creation in peer.actors._creations.values():
        register = creation.register
        yield ev.LiveCall(
            creation.start.spec.task_id,
            creation_name(register),
            ev.CREATION,
            0,
            "PENDING_NODE_ASSIGNMENT" if creation.sent else "PENDING_ARGS_AVAIL",
            creation.start.spec.parent,
            register.actor_id,
            resources=dict(register.placement_resources),
            group=register.placement_group,
        )


def state_of(record: CallRecord) -> str:
    """The state of a call as its owner knows it, as lists of tasks have it."""
    if record.missing:
        return "PENDING_ARGS_AVAIL"
    actor = record.actor
    if actor is not None:
        is_sent = record.task_id in actor.queue.inflight
        return "SUBMITTED_TO_WORKER" if is_sent else "PENDING_NODE_ASSIGNMENT"
    return "PENDING_NODE_ASSIGNMENT" if record.slot is None else "SUBMITTED_TO_WORKER"


def site_of(peer: Peer, record: CallRecord) -> str:
    """Where in the program a call was made, if that is recorded."""
    for object_id in record.return_ids[:1]:
        entry = peer.objects.entries.get(object_id)
        if entry is not None:
            return entry.call_site
    return ""


def running(peer: Peer) -> Iterator[ev.LiveCall]:
    """The calls that this process runs or has accepted (under the lock)."""
    executor = peer.executor
    if executor is None:
        return
    create = executor.actor
    is_main = isinstance(executor.lane, MainLane)
    is_blocked = executor._blocked > 0 and is_main
    since_epoch_s = time.time() - time.perf_counter()
    for context in list(executor.running.values()):
        spec, lease = context.spec, context.lease
        state = "RUNNING_IN_RAY_GET" if is_blocked else "RUNNING"
        begun = executor.begun if is_main else 0.0
        begun = context.begun or begun
        if not begun:
            state = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"
        start_s = begun + since_epoch_s if begun else 0.0
        yield _accepted(peer, spec, lease, state, start_s, create)
    if create is not None:
        for _, spec in list(executor.run):
            state = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"
            yield _accepted(peer, spec, create.lease, state, 0.0, create)


def _accepted(
    peer: Peer,
    spec: m.TaskSpec,
    lease: m.BindLease | None,
    state: str,
    begun: float,
    create: m.CreateActor | None,
) -> ev.LiveCall:
    kind, name, actor_id = ev.TASK, spec.name, b""
    if create is not None:
        actor_id = create.actor_id
        is_constructor = spec.task_id == create.spec.task_id
        kind = ev.CREATION if is_constructor else ev.METHOD
        name = creation_name(create) if is_constructor else name
    return ev.LiveCall(
        spec.task_id,
        name,
        kind,
        spec.attempt,
        state,
        spec.parent,
        actor_id,
        peer.pid,
        begun,
        dict(lease.resources) if lease is not None else {},
        lease.placement_group if lease is not None else b"",
    )


def about_process(peer: Peer, payload: bytes) -> bytes:
    """Answers the question ``about_process``: what program it is."""
    del payload
    words = sys.orig_argv or [sys.executable, *sys.argv]
    told: dict[str, Any] = {
        "entrypoint": " ".join(words),
        "cwd": os.getcwd(),
        "pid": peer.pid,
        "node_ip": peer.node_ip,
        "namespace": peer.namespace,
        "runtime_env": peer.runtime_env,
    }
    return msgspec.msgpack.encode(told)
