"""What a process tells the control service of its waits, and hears about them.

Loaded by the first wait that lasts ``deadlock_report_s``, or by a question. Only a
wait without timeout in the thread that a call has for itself is *certain*; an ``await``
in an asyncio actor is if nothing else lives in its event loop that could end it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core import current
from rayshim._core.actor_calls import HandleCount
from rayshim._core.calls import CallRecord
from rayshim._core.group_waits import GroupWait
from rayshim._core.lanes import AsyncLane, ThreadLane
from rayshim.adapters.wire import node_messages as n
from rayshim.lineage.actor_calls import ActorState
from rayshim.lineage.references import ObjectEntry
from rayshim.lineage.wait_graph import GROUP_PREFIX

if TYPE_CHECKING:
    from rayshim._core.peer import Peer
    from rayshim._core.running import CallContext

#: Objects of one wait that are told: one that never comes is enough.
MAX_OBJECTS = 64


class StandingWait:
    """One wait that has lasted a while."""

    def __init__(
        self, number: int, entries: Sequence[ObjectEntry], *, is_certain: bool
    ) -> None:
        self.number = number
        self.entries = entries
        self.is_certain = is_certain
        self.call = b""
        self.group = ""
        self.label = ""
        self.stops_all = False
        #: Set when it is known never to end.
        self.cycle: list[str] | None = None

    def until(self, done: Callable[[], Any]) -> Callable[[], Any]:
        """``done``, or the verdict."""
        return lambda: done() or self.cycle is not None

    def check(self) -> None:
        """After the wait.

        Raises:
            DeadlockError: it was found that it can never end.
        """
        if self.cycle is not None and any(e.value is None for e in self.entries):
            raise _error(self.cycle)


class WaitReports:
    """The waits of one process that last."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._numbers = itertools.count(1)
        #: Number -> wait of a thread.
        self._standing: dict[int, StandingWait] = {}
        #: Future that a coroutine awaits -> number.
        self._futures: weakref.WeakKeyDictionary[asyncio.Future[Any], int] = (
            weakref.WeakKeyDictionary()
        )

    # -- waits of threads ----------------------------------------------------------

    @contextmanager
    def standing(
        self, entries: Sequence[ObjectEntry], *, is_certain: bool
    ) -> Iterator[StandingWait]:
        """Tell of a wait of this thread until the block ends."""
        wait = StandingWait(next(self._numbers), entries, is_certain=is_certain)
        self._attribute(wait)
        with self._peer.lock:
            self._standing[wait.number] = wait
            self._tell(wait)
        try:
            yield wait
        finally:
            with self._peer.lock:
                del self._standing[wait.number]
                if not self._standing and not self._peer.ended:
                    self._tell(None)

    def standing_waits(self) -> list[StandingWait]:
        """Those that last now, oldest first (under the lock)."""
        return list(self._standing.values())

    def _tell(self, wait: StandingWait | None) -> None:
        waits = [self._message(wait)] if wait is not None else []
        control = self._peer.control
        if not getattr(control, "closed", False):
            control.send(n.WaitReport(0, "", waits))

    def _attribute(self, wait: StandingWait) -> None:
        """Say which call waits, if it is its own thread that does."""
        peer, thread = self._peer, threading.current_thread()
        executor = peer.executor
        context: CallContext | None = current.call.get()
        is_main = thread is threading.main_thread()
        if executor is None or context is None:
            wait.label = (
                "the main thread"
                if executor is None and is_main
                else (f"thread {thread.name}")
            )
            return
        wait.label = executor.runner.display_name(context.spec)
        lane = executor.lane
        if isinstance(lane, AsyncLane):
            is_own = wait.stops_all = threading.get_ident() == lane._thread_id
        elif isinstance(lane, ThreadLane):
            is_own = is_main or thread.name.startswith("rayshim-")
        else:
            is_own = is_main
        if is_own:
            wait.call = context.task_id
            wait.group = self._group(context.spec.concurrency_group)

    # -- questions and verdicts ----------------------------------------------------

    def asked(self, ask: n.AskWaits) -> None:
        """Answer the control service (under the lock)."""
        peer = self._peer
        waits = [self._message(wait) for wait in self._standing.values()]
        waits += self._awaits()
        wanted = dict.fromkeys(ask.objects)
        for wait in waits:
            wanted.update(dict.fromkeys(wait.objects))
        slots, accepted, constructing = self._calls(ask.tasks)
        peer.control.send(
            n.WaitReport(
                ask.round,
                self._title(),
                waits,
                self._makings(wanted),
                slots,
                accepted,
                constructing,
                peer.role != "driver" or self._program_waits(),
            )
        )

    def told(self, verdict: n.Deadlock) -> None:
        """Some waits never end: end them with an error (under the lock)."""
        for number in verdict.numbers:
            wait = self._standing.get(number)
            if wait is not None:
                wait.cycle = verdict.cycle
        for future, number in list(self._futures.items()):
            if number in verdict.numbers:
                self._peer.loops.call_soon(
                    future.get_loop(), functools.partial(_fail, future, verdict.cycle)
                )

    def _message(self, wait: StandingWait) -> n.Standing:
        missing = [entry for entry in wait.entries if entry.value is None]
        missing = missing[:MAX_OBJECTS]
        return n.Standing(
            wait.number,
            wait.call,
            wait.group,
            [entry.object_id for entry in missing],
            [entry.owner or self._peer.address for entry in missing],
            wait.is_certain,
            wait.label,
            wait.stops_all,
        )

    def _title(self) -> str:
        peer = self._peer
        where = f"pid {peer.pid}, node {peer.node_id[:8]} at {peer.node_ip}"
        executor = peer.executor
        if executor is None:
            return f"driver, {where}"
        create = executor.actor
        if create is None:
            return f"task, {where}"
        name = f" named {create.name!r}" if create.name else ""
        return f"actor {create.class_name}({create.actor_id.hex()[:12]}){name}, {where}"

    @staticmethod
    def _program_waits() -> bool:
        """Whether the program of a driver can do nothing at the moment.

        Its main thread waits, and so does every thread that runs code of the program:
        it may be about to kill, cancel or remove something. What libraries do in
        threads of theirs does not count.
        """
        main = threading.main_thread().ident
        here = threading.get_ident()
        for ident, frame in sys._current_frames().items():
            if not _waits(frame) and (
                ident == main or (ident != here and _is_of_program(frame))
            ):
                return False
        return True

    # -- what runs here ------------------------------------------------------------

    def _group(self, name: str) -> str:
        return name if name in self._limits() else ""

    def _limits(self) -> dict[str, int]:
        executor = self._peer.executor
        if executor is None:
            return {}
        lane = executor.lane
        if isinstance(lane, AsyncLane):
            return lane._limits
        if isinstance(lane, ThreadLane):
            return {name: pool._limit for name, pool in lane._pools.items()}
        return {"": 1}

    def _calls(
        self, tasks: Iterable[bytes]
    ) -> tuple[dict[str, int], dict[bytes, str], bytes]:
        executor = self._peer.executor
        if executor is None:
            return {}, {}, b""
        running = dict(executor.running)
        specs = {context.task_id: context.spec for context in running.values()}
        if tasks:
            specs.update({spec.task_id: spec for _, spec in list(executor.run)})
        accepted = {
            task_id: self._group(specs[task_id].concurrency_group)
            for task_id in tasks
            if task_id in specs
        }
        constructing = b""
        if executor.actor is not None and executor.actor.spec.task_id in running:
            constructing = executor.actor.spec.task_id
        return self._limits(), accepted, constructing

    def _awaits(self) -> list[n.Standing]:
        """What the coroutines of an asyncio actor await."""
        executor = self._peer.executor
        if executor is None or not isinstance(executor.lane, AsyncLane):
            return []
        loop = executor.lane._loop
        if loop is None:
            return []
        contexts = list(executor.running.values())
        own = {context.async_task for context in contexts}
        is_certain = not _has_others(loop, own)
        waits = []
        for context in contexts:
            future = getattr(context.async_task, "_fut_waiter", None)
            object_id = _awaited(future)
            entry = self._peer.objects.entries.get(object_id)
            if future is None or entry is None or entry.value is not None:
                continue
            number = self._futures.setdefault(future, next(self._numbers))
            waits.append(
                n.Standing(
                    number,
                    context.task_id,
                    self._group(context.spec.concurrency_group),
                    [object_id],
                    [entry.owner or self._peer.address],
                    is_certain,
                    executor.runner.display_name(context.spec),
                )
            )
        return waits

    # -- what makes the objects ----------------------------------------------------

    def _makings(self, object_ids: Iterable[bytes]) -> list[n.Making]:
        entries = self._peer.objects.entries
        makings = []
        for object_id in object_ids:
            entry = entries.get(object_id)
            if entry is None or entry.owner:
                continue
            task = entry.task
            if isinstance(task, HandleCount):
                makings.append(self._creation(object_id, task))
            elif entry.value is None and isinstance(task, GroupWait):
                label = f"placement group {task.group_id.hex()[:12]}"
                making = n.Making(object_id, b"", "lease", label)
                making.lease_ids = [GROUP_PREFIX + task.group_id]
                makings.append(making)
            elif entry.value is None and isinstance(task, CallRecord):
                makings.append(self._making(object_id, task))
        return makings

    def _creation(self, object_id: bytes, task: HandleCount) -> n.Making:
        """The constructor of an actor, as long as it waits for arguments."""
        making = n.Making(object_id, b"", "other", "the constructor of an actor")
        creation = self._peer.actors._creations.get(task.actor_id)
        if creation is not None and creation.missing:
            self._needs(making, creation.encoded.dependencies)
        return making

    def _making(self, object_id: bytes, call: CallRecord) -> n.Making:
        kind = "method" if call.actor is not None else "task"
        label = call.name
        if call.actor is not None:
            label = f"{call.actor.class_name}.{call.spec.method}"
        making = n.Making(object_id, call.task_id, "other", f"{kind} {label}")
        if call.actor is not None:
            self._method(making, call)
        elif call.missing:
            self._needs(making, call.encoded.dependencies)
        elif call.slot is not None:
            if next(iter(call.slot.inflight), b"") == call.task_id:
                making.kind = "executor"
                making.address = call.slot.address
        elif call.scheduling is not None:
            making.kind = "lease"
            making.lease_ids = list(call.scheduling.requested)
            making.slots = [
                (slot.address, next(iter(slot.inflight), b""))
                for slot in call.scheduling.slots
            ]
        return making

    def _method(self, making: n.Making, call: CallRecord) -> None:
        client = call.actor
        queue = client.queue
        making.actor_id = client.actor_id
        if call.task_id in queue.inflight:
            if client.channel is not None and queue.verdict is None:
                making.kind = "actor"
                making.address = client.channel.address
        elif queue.state in (ActorState.PENDING, ActorState.RESTARTING):
            making.kind = "actor"
        elif queue.pending and queue.pending[0].missing:
            # It holds back the calls behind it.
            self._needs(making, queue.pending[0].encoded.dependencies)

    def _needs(self, making: n.Making, dependencies: Iterable[Any]) -> None:
        entries = self._peer.objects.entries
        making.kind = "arguments"
        for _, _, ref in dependencies:
            entry = entries.get(ref._bytes)
            if entry is not None and entry.value is None:
                making.objects.append(ref._bytes)
                making.owners.append(entry.owner or self._peer.address)


def _waits(frame: FrameType | None) -> bool:
    """Whether a thread is in a wait of ours, or in one for another thread."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name in ("rayshim._core.blocking", "threading"):
            return True
        if not name.startswith("rayshim."):
            return False
        frame = frame.f_back
    return False


def _is_of_program(frame: FrameType | None) -> bool:
    """Whether a thread runs code that is no library's."""
    paths = sysconfig.get_paths()
    libraries = tuple({paths[name] for name in ("stdlib", "purelib", "platlib")})
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        is_ours = name.startswith("rayshim.") or name == "rayshim"
        if not is_ours and not frame.f_code.co_filename.startswith((*libraries, "<")):
            return True
        frame = frame.f_back
    return False


def of(peer: Peer) -> WaitReports:
    """The reports of a process, made at the first use."""
    reports = peer.wait_reports
    if reports is None:
        reports = peer.wait_reports = WaitReports(peer)
    return reports


def _error(cycle: Sequence[str]) -> exceptions.DeadlockError:
    lines = "\n".join(f"  {place}. {line}" for place, line in enumerate(cycle, 1))
    return exceptions.DeadlockError(
        "Deadlock: this value can never be made, because what makes it waits, "
        f"directly or through others, for the one who asks for it:\n{lines}\n"
        "and so on in a circle. Break it: do not wait inside a call for what needs the "
        "same actor, slot or resources; or give the actor more slots "
        "(max_concurrency), the calls less resources, or get() a timeout."
    )


def _fail(future: asyncio.Future[Any], cycle: Sequence[str]) -> None:
    if not future.done():
        future.set_exception(_error(cycle))


def _awaited(future: asyncio.Future[Any] | None) -> bytes:
    """The object whose value a future stands for; empty for other futures."""
    from rayshim._core.futures import AwaitedValue

    for item in getattr(future, "_callbacks", None) or ():
        callback = item[0] if isinstance(item, tuple) else item
        if isinstance(callback, AwaitedValue):
            return callback.object_id
    return b""


def _has_others(loop: asyncio.AbstractEventLoop, own: set[Any]) -> bool:
    """Whether anything but the calls themselves lives in an actor's event loop."""
    for task in asyncio.all_tasks(loop):
        name = getattr(task.get_coro(), "__qualname__", "")
        if task not in own and name != "AsyncLane._main":
            return True
    scheduled: list[Any] | None = getattr(loop, "_scheduled", None)
    if scheduled is None or any(not timer.cancelled() for timer in scheduled):
        return True
    return any(
        thread is not threading.main_thread() and not thread.name.startswith("rayshim-")
        for thread in threading.enumerate()
    )
