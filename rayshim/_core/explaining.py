"""What this process knows of why something waits, and the whole of it on demand.

Loaded by the first explanation. The words of one process (:func:`entry_told`,
:func:`executor_told`) go to whoever asks; :func:`explain` adds what the control service
finds out from the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rayshim import exceptions
from rayshim._core import failures
from rayshim._core.calls import CallRecord
from rayshim._core.group_waits import GroupWait
from rayshim._core.lanes import AsyncLane, ThreadLane
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire import why_payloads as why
from rayshim.adapters.wire.why_messages import AskWhy, WhyTold
from rayshim.lineage.actor_calls import ActorState
from rayshim.lineage.reasons import Explanation, Reason, merged
from rayshim.lineage.references import ObjectEntry

if TYPE_CHECKING:
    from rayshim._core.peer import Peer

#: Seconds that the control service may take to answer.
ANSWER_LIMIT_S = 5.0
#: Arguments, leases and running calls that are named.
SHOWN = 5
#: Bytes of an object's and of a call's id.
_OBJECT_BYTES, _TASK_BYTES = 28, 24


# -- the whole -------------------------------------------------------------------


def explain(peer: Peer, told: why.Told, *, limit_s: float = 1.0) -> Explanation:
    """An explanation of what this process says, and what others add.

    Args:
        peer: this process.
        told: its own words.
        limit_s: seconds that each of the others may take.
    """
    reasons = list(told.reasons)
    question = why.Why(
        lease_ids=told.lease_ids,
        actor_ids=told.actor_ids,
        groups=told.groups,
        objects=told.objects,
        places=told.places,
        limit_s=limit_s,
    )
    if question != why.Why(limit_s=limit_s):
        for one in ask(peer, question):
            reasons += one.reasons
    return Explanation(told.subject, told.state, merged(reasons))


def ask(peer: Peer, question: why.Why) -> list[Explanation]:
    """What the control service answers; nothing when it does not, in time.

    Raises:
        ValueError: it knows no such id.
    """
    payload = msgspec.structs.asdict(question)
    try:
        limit_s = ANSWER_LIMIT_S * question.limit_s
        answer = peer.request("why", payload, timeout_s=limit_s)
    except (exceptions.RaySystemError, exceptions.GetTimeoutError):
        return []
    return msgspec.convert(answer, list[Explanation])


def sentence(peer: Peer, entry: ObjectEntry, *, limit_s: float = 0.0) -> str:
    """The first reasons on one line, for errors and notices.

    Args:
        peer: this process.
        entry: the object that is waited for.
        limit_s: seconds that others may take; 0: only what is known here.
    """
    with peer.lock:
        told = entry_told(peer, entry)
    if limit_s <= 0:
        return Explanation(told.subject, told.state, merged(told.reasons)).sentence()
    return explain(peer, told, limit_s=limit_s).sentence()


def object_explained(peer: Peer, entry: ObjectEntry) -> Explanation:
    """Why a value is not here."""
    with peer.lock:
        told = entry_told(peer, entry)
    return explain(peer, told)


def actor_explained(peer: Peer, actor_id: bytes) -> Explanation:
    """Why an actor does not do more."""
    with peer.lock:
        client = peer.actors.clients.get(actor_id)
        reasons: list[Reason] = []
        state, subject = "waiting", f"actor {actor_id.hex()}"
        if client is not None:
            queue = client.queue
            subject = f"Actor({client.class_name}, {actor_id.hex()})"
            if queue.state in (ActorState.ALIVE, ActorState.DEAD):
                state = queue.state.value.lower()
            text = (
                f"it is {queue.state.value}; {len(queue)} calls of this process wait "
                "for it"
            )
            numbers = {"state": queue.state.value, "calls": len(queue)}
            reasons.append(Reason("actor", text, numbers))
            if queue.pending:
                reasons += call_told(peer, queue.pending[0]).reasons[:1]
    told = why.Told(subject, state, reasons, actor_ids=[actor_id])
    return explain(peer, told)


def group_explained(peer: Peer, group_id: bytes) -> Explanation:
    """Why a placement group is not there."""
    found = ask(peer, why.Why(groups=[group_id]))
    return found[0] if found else _no_answer(f"placement group {group_id.hex()}")


def id_explained(peer: Peer, text: str) -> Explanation:
    """What an id in hex, or the beginning of one, stands for, and why it waits.

    Raises:
        ValueError: nobody knows it, or it stands for several things.
    """
    # An empty id would ask for nothing.
    found = ask(peer, why.Why(id=text or " "))
    return found[0] if found else _no_answer(text)


def _no_answer(subject: str) -> Explanation:
    text = f"the control service said nothing within {ANSWER_LIMIT_S:g} s"
    return Explanation(subject, "unknown", (Reason("unknown", text),))


# -- the words of an owner ---------------------------------------------------------


def answer(peer: Peer, message: AskWhy) -> None:
    """Answer the control service (under the lock)."""
    question = msgspec.msgpack.decode(message.payload, type=why.Question)
    told = None
    if question.call:
        told = executor_told(peer, question.call)
    elif question.about:
        told = _about_told(peer, question.about)
    payload = b"" if told is None else msgspec.msgpack.encode(told)
    peer.control.send(WhyTold(message.request_id, payload))


def _about_told(peer: Peer, about: bytes) -> why.Told | None:
    """What this process says of an object or call of its own."""
    entries = peer.objects.entries
    entry = entries.get(about)
    if entry is None and len(about) < _OBJECT_BYTES:
        record = peer.tasks.records.get(about)
        if record is None:
            records = peer.tasks.records.items()
            record = next((r for key, r in records if key.startswith(about)), None)
        if record is not None:
            return call_told(peer, record)
        found = (one for key, one in entries.items() if key.startswith(about))
        entry = next((one for one in found if not one.owner), None)
    if entry is None or entry.owner:
        return None
    return entry_told(peer, entry)


def entry_told(peer: Peer, entry: ObjectEntry) -> why.Told:
    """What this process says of an object that it knows (under the lock)."""
    subject = f"ObjectRef({entry.object_id.hex()})"
    value = entry.value
    if value is not None:
        if value.kind == m.ERROR:
            error = failures.load_error(value)
            reason = Reason("running", str(error), {"error": type(error).__name__})
            return why.Told(subject, "failed", [reason])
        if peer.objects.pulling.is_here(entry):
            return why.Told(subject, "ready")
        return why.Told(subject, "waiting", [_transfer(peer, entry)])
    if entry.owner:
        where = peer.nodes.describe(entry.owner) if peer.nodes.nodes else ""
        text = f"it is made by another process, {entry.owner}"
        if where:
            text += f" on {where}"
        reason = Reason("owner", text, {"owner": entry.owner})
        objects = [(entry.object_id, entry.owner)]
        return why.Told(subject, "waiting", [reason], objects=objects)
    task: Any = entry.task
    if isinstance(task, CallRecord):
        told = call_told(peer, task)
        told.subject = subject
        return told
    if isinstance(task, GroupWait):
        return why.Told(
            subject,
            "waiting",
            [Reason("group", task.describe(), {"group": task.group_id.hex()})],
            groups=[task.group_id],
        )
    creation = peer.actors._creations.get(getattr(task, "actor_id", b""))
    if creation is not None:
        return _creation_told(peer, subject, creation)
    text = task.describe() if task is not None else "no call of this process makes it"
    return why.Told(subject, "waiting", [Reason("unknown", text)])


def _transfer(peer: Peer, entry: ObjectEntry) -> Reason:
    segment = entry.value.segment
    text = f"it {peer.objects.pulling.describe(entry)}"
    numbers: dict[str, Any] = {}
    if segment is not None:
        size = sum(segment.layout[1::2])
        numbers = {"node": segment.node, "size_bytes": size}
        text += f" ({size / 1e6:.1f} MB)"
        node = peer.nodes.nodes.get(segment.node)
        if node is not None and not node.alive:
            text += f"; that node died: {node.death}"
    return Reason("transfer", text, numbers)


def _creation_told(peer: Peer, subject: str, creation: Any) -> why.Told:
    objects = missing(peer, creation.encoded.dependencies)
    name = creation.register.class_name
    if not objects:
        return why.Told(subject, "waiting", [Reason("actor", f"{name} is created")])
    text = (
        f"the constructor of {name} waits for {len(objects)} of its arguments, first "
        f"ObjectRef({objects[0][0].hex()[:16]}...)"
    )
    numbers = {"missing": len(objects), "first": objects[0][0].hex()}
    reason = Reason("argument", text, numbers)
    return why.Told(subject, "waiting", [reason], objects=objects[:SHOWN])


def missing(peer: Peer, dependencies: Iterable[Any]) -> list[tuple[bytes, str]]:
    """Arguments that are not known yet: id and address of the owner."""
    found = []
    for _, _, ref in dependencies:
        entry = peer.objects.entries.get(ref._bytes)
        if entry is not None and entry.value is None:
            found.append((ref._bytes, entry.owner or peer.address))
    return found


def call_told(peer: Peer, record: CallRecord) -> why.Told:
    """What this process says of a call that it submitted (under the lock)."""
    kind = "method" if record.actor is not None else "task"
    told = why.Told(f"{kind} {record.name} ({record.task_id.hex()})", "waiting")
    site = _call_site(peer, record)
    numbers: dict[str, Any] = {"call": record.name, "attempt": record.attempt}
    if record.attempt:
        numbers["retries_left"] = record.retries_left
    text = record.describe() + site

    def add(kind: str, **more: Any) -> None:
        told.reasons.append(Reason(kind, text, {**numbers, **more}))

    if record.missing:
        told.objects = missing(peer, record.encoded.dependencies)[:SHOWN]
        first = record.waiting_for.hex()
        add("argument", missing=record.missing, first=first)
    elif record.actor is not None:
        _method_told(peer, record, told, add)
    elif record.slot is not None:
        slot = record.slot
        ahead = list(slot.inflight).index(record.task_id)
        seconds = time.monotonic() - slot.progress_s
        add(
            "queued" if ahead else "running", pid=slot.pid, ahead=ahead, since_s=seconds
        )
        told.state = "waiting" if ahead else "running"
        told.places = [(slot.address, record.task_id)]
    elif record.scheduling is not None:
        scheduling = record.scheduling
        if record not in scheduling.queue:
            due_s = peer.deaths.due_s.get(record.task_id)
            wait_s = max(0.0, due_s - time.monotonic()) if due_s else 0.0
            if due_s:
                text += f", in {wait_s:.1f} s"
            add("backoff", kills=record.memory_kills, wait_s=wait_s)
            return told
        leases = [
            {"pid": one.pid, "calls": len(one.inflight), "lease": one.lease_id.hex()}
            for one in scheduling.slots[:SHOWN]
        ]
        ahead = list(scheduling.queue).index(record)
        add(
            "queued",
            ahead=ahead,
            queued=len(scheduling.queue),
            leases=leases,
            requested=len(scheduling.requested),
        )
        told.lease_ids = list(scheduling.requested)[:SHOWN]
    else:
        add("queued")
    return told


def _call_site(peer: Peer, record: CallRecord) -> str:
    for object_id in record.return_ids:
        entry = peer.objects.entries.get(object_id)
        if entry is not None and entry.call_site:
            return f" (called at {entry.call_site})"
    return ""


def _method_told(peer: Peer, record: CallRecord, told: why.Told, add: Any) -> None:
    client = record.actor
    queue = client.queue
    if record.task_id in queue.inflight:
        ahead = list(queue.inflight).index(record.task_id)
        pid = client.update.pid if client.update is not None else 0
        add("queued" if ahead else "running", ahead=ahead, pid=pid)
        told.state = "waiting" if ahead else "running"
        if client.channel is not None:
            told.places = [(client.channel.address, record.task_id)]
        return
    pending = list(queue.pending)
    ahead = pending.index(record) if record in pending else 0
    alive = queue.state is ActorState.ALIVE
    state = queue.state.value
    add("queued" if alive else "actor", ahead=ahead, state=state)
    if not alive:
        told.actor_ids = [client.actor_id]
    elif pending and pending[0].missing:
        first = pending[0]
        told.objects = missing(peer, first.encoded.dependencies)[:SHOWN]


# -- the words of an executor ------------------------------------------------------


def executor_told(peer: Peer, task_id: bytes) -> why.Told | None:
    """What this executor says of a call that came to it (under the lock)."""
    executor = peer.executor
    if executor is None:
        return None
    names = executor.runner.display_name
    waits = _waiting_told(peer)
    specs = {key: one.spec for key, one in list(executor.running.items())}
    started = list(specs)
    specs.update({spec.task_id: spec for _, spec in list(executor.run)})
    spec = specs.get(task_id)
    if spec is None:
        return None
    limits = _limits(executor)

    def group_of(one: m.TaskSpec) -> str:
        return one.concurrency_group if one.concurrency_group in limits else ""

    group = group_of(spec)
    limit = limits.get(group, 1)
    same = [key for key, one in specs.items() if group_of(one) == group]
    place = same.index(task_id)
    runs = [names(specs[key]) for key in same if key in started][:limit]
    if task_id in started and place < limit:
        return waits
    ahead = place - len(runs)
    shown = ", ".join(runs[:SHOWN])
    where = f"group {group!r} of the actor" if group else "the process"
    text = (
        f"it is at pid {peer.pid}: {where} runs {limit} at once and is busy with "
        f"{shown or 'its start'}; {max(0, ahead)} calls are ahead of it there"
    )
    numbers = {"pid": peer.pid, "running": runs[:SHOWN], "ahead": max(0, ahead)}
    reason = Reason("queued", text, {**numbers, "group": group, "limit": limit})
    waits.reasons.insert(0, reason)
    return waits


def _waiting_told(peer: Peer) -> why.Told:
    """The waits of this process that last."""
    reasons = []
    objects: list[tuple[bytes, str]] = []
    standing = [] if peer.wait_reports is None else peer.wait_reports.standing_waits()
    for wait in standing[:SHOWN]:
        lacking = [entry for entry in wait.entries if entry.value is None]
        if not lacking:
            continue
        first = lacking[0]
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        text = (
            f"{wait.label or 'a thread'} (pid {peer.pid}) waits for "
            f"ObjectRef({first.object_id.hex()[:16]}...){more}"
        )
        numbers = {"pid": peer.pid, "objects": len(lacking)}
        reasons.append(Reason("argument", text, numbers))
        if wait.is_certain and wait.call:
            text = (
                "it waits without a timeout: DeadlockError ends that if it is a circle "
                "that nothing else can end"
            )
            reasons.append(Reason("deadlock", text, {"pid": peer.pid}))
        objects.append((first.object_id, first.owner or peer.address))
    return why.Told("", "", reasons, objects=objects)


def _limits(executor: Any) -> Mapping[str, int]:
    lane = executor.lane
    if isinstance(lane, ThreadLane):
        return {name: pool._limit for name, pool in lane._pools.items()}
    if isinstance(lane, AsyncLane):
        return lane._limits
    return {"": 1}
