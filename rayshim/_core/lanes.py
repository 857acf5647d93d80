"""How an executor runs its calls: one by one, on threads, or in an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from rayshim import exceptions
from rayshim._core import current
from rayshim._core.running import ActorExit, CallContext
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel

if TYPE_CHECKING:
    from rayshim._core.executor import Executor

#: An asynchronous generator lets others have the event loop after this long.
LOOP_TURN_S = 0.001

Construct = Callable[[], "m.Payload | None"]


class Lane(Protocol):
    """A way to run calls."""

    def work_arrived(self) -> None:
        """Calls were queued, or the executor is to leave (under the lock)."""

    def interrupt(self, context: CallContext) -> None:
        """Cancel a call that runs (under the lock)."""

    def serve(self, construct: Construct) -> None:
        """Construct the actor and run its calls; never returns."""


class MainLane:
    """One call at a time, in the main thread, in the order of arrival."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def work_arrived(self) -> None:
        """The main thread looks at the queue when it has read the channels."""
        if threading.current_thread() is not threading.main_thread():
            self._executor.peer.reactor.notify()

    def interrupt(self, context: CallContext) -> None:
        """Signal the main thread."""
        self._executor.interrupt_for = context.task_id
        self._executor.interrupt_main()

    def serve(self, construct: Construct) -> None:
        """See :meth:`Lane.serve`."""
        executor = self._executor
        assert executor.actor is not None
        error = construct()
        if not executor.constructed(executor.actor, error):
            return
        reactor = executor.peer.reactor
        while True:
            reactor.wait(lambda: executor.run or executor.should_leave())
            if executor.run:
                executor._run_batch()
            else:
                executor.leave()


class ThreadPool:
    """Threads for the calls of one concurrency group, started as calls need them."""

    def __init__(self, name: str, limit: int, run: Callable[[Any], None]) -> None:
        self._name = name
        self._limit = limit
        self._run = run
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        #: Threads that wait for a call and that no queued call is meant for.
        self._idle = 0
        #: Queued calls that no thread is free for.
        self.backlog = 0

    def submit(self, call: Any) -> None:
        """Have a thread run a call as soon as one is free."""
        start = False
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._started < self._limit:
                self._started += 1
                start = True
            else:
                self.backlog += 1
        self._calls.put(call)
        if start:
            name = f"rayshim-{self._name}_{self._started - 1}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            call = self._calls.get()
            try:
                self._run(call)
            except Exception:
                traceback.print_exc()
            del call  # it holds the arguments
            with self._lock:
                if self.backlog:
                    self.backlog -= 1
                else:
                    self._idle += 1


class ThreadLane:
    """A pool of threads for each concurrency group; order is not kept."""

    def __init__(self, executor: Executor, limit: int, groups: dict[str, int]) -> None:
        self._executor = executor
        self._pools = {
            name: ThreadPool(name, count, self._run)
            for name, count in {**groups, "": limit}.items()
        }
        #: Calls whose answers are not held yet; changed under the lock. A call has
        #: left the running ones a moment before.
        self._unanswered = 0

    def work_arrived(self) -> None:
        """Hand queued calls to their pools; the main thread only waits."""
        executor = self._executor
        if executor.instance is None:
            return
        run = executor.run
        while run:
            channel, spec = run.popleft()
            pool = self._pools.get(spec.concurrency_group) or self._pools[""]
            executor.running.setdefault(
                spec.task_id,
                CallContext(channel, spec, executor.lease_of(channel)),
            )
            self._unanswered += 1
            pool.submit((channel, spec, pool))
        if self._may_leave():
            executor.peer.reactor.notify()

    def _run(self, call: tuple[Channel, m.TaskSpec, ThreadPool]) -> None:
        channel, spec, pool = call
        executor = self._executor
        waiting = executor.running.get(spec.task_id)
        if waiting is not None and waiting.cancelled:
            executor.running.pop(spec.task_id, None)
            result = executor.runner.cancelled(channel, spec)
            now = time.perf_counter()
            executor.runner.note_end(spec, now, now)
        else:
            begun = time.perf_counter()
            result = executor.runner.run(channel, spec, begun)
            executor.runner.note_end(spec, begun, time.perf_counter())
        executor.hold(channel, result)
        executor.answer_soon(more=pool.backlog > 0)
        with executor.peer.lock:
            self._unanswered -= 1
        if self._may_leave():
            executor.peer.reactor.notify()

    def _may_leave(self) -> bool:
        return self._executor.should_leave() and not self._unanswered

    def interrupt(self, context: CallContext) -> None:
        """A thread cannot be interrupted: the call sees ``is_canceled``."""

    def serve(self, construct: Construct) -> None:
        """See :meth:`Lane.serve`."""
        executor = self._executor
        assert executor.actor is not None
        error = construct()
        if not executor.constructed(executor.actor, error):
            return
        with executor.peer.lock:
            self.work_arrived()
        executor.peer.reactor.wait(self._may_leave)
        executor.leave()


class AsyncLane:
    """Coroutines in an event loop that reads the channels itself.

    The loop has a thread of its own, as in Ray; the main thread waits for its end.
    """

    def __init__(self, executor: Executor, limit: int, groups: dict[str, int]) -> None:
        self._executor = executor
        self._limits = {**groups, "": limit}
        self._semaphores: dict[str, asyncio.Semaphore] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._scheduled = False
        self._ready = False
        self._tasks: set[asyncio.Task[None]] = set()
        #: Answers of this turn of the loop.
        self._answers: deque[tuple[Channel, m.Result]] = deque()

    def work_arrived(self) -> None:
        """Start queued calls in the loop's next turn."""
        loop = self._loop
        if loop is None or self._scheduled:
            return
        self._scheduled = True
        if threading.get_ident() == self._thread_id:
            loop.call_soon(self._start_calls)
        else:
            loop.call_soon_threadsafe(self._start_calls)

    def interrupt(self, context: CallContext) -> None:
        """Cancel the coroutine."""
        loop, task = self._loop, context.async_task
        if loop is not None and task is not None:
            loop.call_soon_threadsafe(task.cancel)

    def serve(self, construct: Construct) -> None:
        """See :meth:`Lane.serve`."""
        thread = threading.Thread(
            target=asyncio.run, args=(self._main(construct),), name="rayshim-actor"
        )
        thread.start()
        thread.join()

    async def _main(self, construct: Construct) -> None:
        executor = self._executor
        assert executor.actor is not None
        self._thread_id = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._semaphores = {n: asyncio.Semaphore(c) for n, c in self._limits.items()}
        error = construct()
        if not executor.constructed(executor.actor, error):
            return
        self._ready = True
        self._stopped = asyncio.Event()
        reactor = executor.peer.reactor
        reactor.hand_over()
        self._loop.add_reader(reactor.fileno, self._readable)
        with executor.peer.lock:
            self.work_arrived()
        await self._stopped.wait()
        self._flush()
        executor.leave()

    def _readable(self) -> None:
        self._executor.peer.reactor.read_now()

    def _start_calls(self) -> None:
        self._scheduled = False
        if not self._ready:
            return
        executor = self._executor
        assert self._loop is not None
        run = executor.run
        while run:
            channel, spec = run.popleft()
            context = CallContext(channel, spec, executor.lease_of(channel))
            executor.running[spec.task_id] = context
            task = self._loop.create_task(self._run(context))
            context.async_task = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._maybe_stop()

    def _maybe_stop(self) -> None:
        if self._ready and self._executor.should_leave():
            self._stopped.set()

    async def _run(self, context: CallContext) -> None:
        executor = self._executor
        channel, spec = context.channel, context.spec
        runner = executor.runner
        semaphore = self._semaphores.get(spec.concurrency_group)
        if semaphore is None:
            semaphore = self._semaphores[""]
        current.call.set(context)
        try:
            async with semaphore:
                context.begun = time.perf_counter()
                result = await self._invoke(context)
        except asyncio.CancelledError:
            result = runner.cancelled(channel, spec)
        except exceptions.TaskCancelledError:
            result = runner.cancelled(channel, spec)
        finally:
            executor.running.pop(spec.task_id, None)
            now = time.perf_counter()
            runner.note_end(spec, context.begun or now, now)
        if not self._answers:
            assert self._loop is not None
            self._loop.call_soon(self._flush)
        self._answers.append((channel, result))

    async def _invoke(self, context: CallContext) -> m.Result:
        executor = self._executor
        channel, spec = context.channel, context.spec
        runner = executor.runner
        try:
            method = runner.function_of(spec)
            if spec.dependencies:
                locating = executor.peer.objects.locating
                if locating.is_far(spec):
                    runner.receive(channel, spec)
                    await locating.bring(spec)
            args, kwargs = runner.arguments(channel, spec)
            value = method(*args, **kwargs)
            del args, kwargs
            if inspect.isawaitable(value):
                value = await value
            if spec.num_returns < 0:
                value = await self._stream_out(context, value)
            return runner.succeeded(channel, spec, context, value)
        except asyncio.CancelledError:
            if context.cancelled:
                raise
            error = asyncio.CancelledError("a coroutine of the actor was cancelled")
            return runner._failed(channel, spec, context, error, skip_frames=1)
        except ActorExit as request:
            self._flush()
            executor.exit_actor(str(request.code))
            raise AssertionError("unreachable") from None
        except SystemExit as error:
            self._flush()
            runner._exit_process(error)
            raise AssertionError("unreachable") from None
        except BaseException as error:
            # They may hold the last references to what the caller wants freed.
            args = kwargs = None  # type: ignore[assignment]  # noqa: F841
            return runner._failed(channel, spec, context, error, skip_frames=1)

    async def _stream_out(self, context: CallContext, value: Any) -> int:
        runner = self._executor.runner
        count = 0
        if not hasattr(value, "__aiter__"):
            runner.require_generator(context, value)
            value = _in_turns(value)
        turn_s = time.monotonic()
        try:
            async for item in value:
                while not context.may_yield(count):
                    await asyncio.sleep(0.001)
                if context.consumed < 0:
                    break
                runner.send_item(context.channel, context.spec, count, item)
                count += 1
                if time.monotonic() - turn_s > LOOP_TURN_S:
                    # One that never waits would keep out other calls, and its own
                    # cancellation.
                    await asyncio.sleep(0)
                    turn_s = time.monotonic()
        finally:
            if inspect.isasyncgen(value):
                await value.aclose()
        return count

    def _flush(self) -> None:
        executor = self._executor
        by_channel: dict[Channel, list[m.Result]] = {}
        while self._answers:
            channel, result = self._answers.popleft()
            by_channel.setdefault(channel, []).append(result)
        with executor.peer.lock:
            for channel, results in by_channel.items():
                channel.send(m.Results(results, 0.0))
        self._maybe_stop()


async def _in_turns(items: Iterable[Any]) -> AsyncIterator[Any]:
    """A plain generator for an event loop that has others to run."""
    try:
        for item in items:
            yield item
    finally:
        if inspect.isgenerator(items):
            items.close()
