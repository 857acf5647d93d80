"""One call inside an executor: arguments in, user code, results out."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core import current, event_log, failures
from rayshim._core.arguments import ALL_ARGUMENTS, brings_references
from rayshim._core.brought import BroughtReferences
from rayshim._core.locating import ArgumentsLost, NotHere
from rayshim._core.serialization import PICKLED_NONE, deserialize, serialize
from rayshim._core.unpicklable import describe_failure
from rayshim.adapters.wire import messages as m
from rayshim.adapters.wire.channel import Channel
from rayshim.adapters.wire.codec import as_text

if TYPE_CHECKING:
    from rayshim._core.executor import Executor

#: Marks, in the output of an executor, who writes from here on.
NAME_MARK = "\x1e"


class ActorExit(SystemExit):
    """Raised by ``exit_actor``; passes through ``except Exception``."""


class CallContext:
    """A call that runs here, as the runtime context and cancellation see it."""

    __slots__ = (
        "async_task",
        "begun",
        "cancelled",
        "channel",
        "consumed",
        "lease",
        "spec",
        "task_id",
    )

    def __init__(
        self,
        channel: Channel,
        spec: m.TaskSpec,
        lease: m.BindLease | None,
        begun: float = 0.0,
    ) -> None:
        #: Where the call came from and its answer goes.
        self.channel = channel
        self.spec = spec
        self.task_id = spec.task_id
        self.lease = lease
        #: As of ``perf_counter``; 0 before, and in main threads (``Executor.begun``).
        self.begun = begun
        self.cancelled = False
        self.async_task: asyncio.Task[Any] | None = None
        #: Items of its stream that were consumed; -1 when nobody wants more.
        self.consumed = 0

    def acknowledge(self, consumed: int) -> None:
        """The consumer took items, or gave up."""
        if consumed < 0 or consumed > self.consumed >= 0:
            self.consumed = consumed

    def may_yield(self, produced: int) -> bool:
        """True if a stream may send its next item."""
        limit = self.spec.backpressure
        return limit < 0 or self.consumed < 0 or produced - self.consumed < limit


class Runner:
    """Runs the calls of one executor."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._peer = executor.peer
        self._main_ident = threading.main_thread().ident
        #: Key -> pickled function, until its first call.
        self._blobs: dict[bytes, m.RegisterFunction] = {}
        #: Key -> (function, qualified name).
        self._functions: dict[bytes, Any] = {}
        #: Key -> ``module.name``.
        self._names: dict[bytes, str] = {}
        #: Key -> calls so far, for functions with max_calls.
        self._calls: dict[bytes, int] = {}
        self._shown_name = ""
        self.brought = BroughtReferences(self._peer)
        self._log = self._peer.call_log
        self._note = self._log.noted.append

    def register(self, function: m.RegisterFunction) -> None:
        """Take in a function for later calls."""
        if function.key not in self._functions:
            self._blobs[function.key] = function

    # -- before and after ------------------------------------------------------------

    def run(self, channel: Channel, spec: m.TaskSpec, begun: float = 0.0) -> m.Result:
        """Run a task or a plain method to its end (main or pool thread)."""
        context = CallContext(channel, spec, self._executor.lease_of(channel), begun)
        token = self._enter(context)
        try:
            try:
                function = self.function_of(spec)
                args, kwargs = self.arguments(channel, spec)
            except Exception as error:
                return self._failed(channel, spec, context, error, skip_frames=1)
            try:
                value = self._call(context, function, args, kwargs)
                del args, kwargs
                if context.cancelled and self._executor.actor is not None:
                    # A method that was asked to stop: what it returned is not wanted.
                    del value
                    refusal = exceptions.TaskCancelledError()
                    payload = failures.error_payload(refusal)
                    self._log.failed(spec, "TASK_CANCELLED", str(refusal))
                    with self._peer.lock:
                        kept = self.kept(channel, spec)
                    return m.Result(spec.task_id, [payload], kept)
                return self.succeeded(channel, spec, context, value)
            except ActorExit as request:
                self._executor.exit_actor(str(request.code))
                raise AssertionError("unreachable") from None
            except KeyboardInterrupt as error:
                # Also when user code raised it: that is what Ray makes of it.
                args = kwargs = None  # type: ignore[assignment]
                error.__traceback__ = None
                return self.cancelled(channel, spec)
            except SystemExit as error:
                self._exit_process(error)
                raise AssertionError("unreachable") from None
            except BaseException as error:
                # They may hold the last references to what the caller wants freed.
                args = kwargs = None  # type: ignore[assignment]  # noqa: F841
                return self._failed(channel, spec, context, error, skip_frames=2)
        finally:
            self._exit(context, token)

    def _call(
        self,
        context: CallContext,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        executor = self._executor
        executor.interruptible = threading.get_ident() == self._main_ident
        try:
            value = function(*args, **kwargs)
            if context.spec.num_returns < 0:
                # A generator's body is user code too.
                return self._stream_out(context, value)
            return value
        finally:
            executor.interruptible = False

    def _enter(self, context: CallContext) -> Any:
        """Make a call the running one of this thread; the token is for the end."""
        self._executor.running[context.task_id] = context
        token = current.call.set(context)
        self._show_name(context.spec)
        return token

    def _exit(self, context: CallContext, token: Any) -> None:
        current.call.reset(token)
        self._executor.running.pop(context.task_id, None)

    def note_cancelled(self, spec: m.TaskSpec) -> None:
        """The same, of one that was taken back before it began (under the lock)."""
        self._log.failed(spec, "TASK_CANCELLED", "it was cancelled before it began")
        now = perf_counter()
        self.note_end(spec, now, now)

    def note_end(self, spec: m.TaskSpec, begun: float, ended: float) -> None:
        """Have it told, later, when a call began and ended (``perf_counter``)."""
        function = spec.function or spec.method
        self._note(
            (spec.task_id, spec.name, spec.attempt, begun, ended, spec.parent, function)
        )
        if not self._log.is_armed:
            self._log.arm()

    @contextlib.contextmanager
    def _entered(self, context: CallContext) -> Iterator[None]:
        token = self._enter(context)
        try:
            yield
        finally:
            self._exit(context, token)

    def _show_name(self, spec: m.TaskSpec) -> None:
        """Tell the log relay who writes from here on."""
        if spec.method or spec.name == self._shown_name:
            return
        self.show_name(spec.name)

    def show_name(self, name: str) -> None:
        """Mark the output as written by ``name``."""
        self._shown_name = name
        mark = f"{NAME_MARK}{name}\n".encode()
        for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
            with contextlib.suppress(Exception):
                stream.flush()
            with contextlib.suppress(OSError):
                os.write(fd, mark)

    def _exit_process(self, error: SystemExit) -> None:
        """``sys.exit`` in a task ends its executor, as any crash does."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        code = error.code if isinstance(error.code, int) else 0 if not error.code else 1
        if self._executor.actor is not None and code == 0:
            self._executor.exit_actor("INTENDED_USER_EXIT: a method called sys.exit(0)")
        os._exit(code)

    # -- arguments and results ---------------------------------------------------------

    def function_of(self, spec: m.TaskSpec) -> Callable[..., Any]:
        """The function or bound method that a spec calls."""
        if spec.method:
            return self._method(spec.method)
        function = self._functions.get(spec.function)
        if function is None:
            registered = self._blobs.pop(spec.function)
            try:
                function = pickle.loads(registered.blob)
            except BaseException as error:
                self._blobs[spec.function] = registered
                raise RuntimeError(
                    f"the function {registered.name} could not be loaded in the "
                    f"executor: {type(error).__name__}: {error}. Is a module that it "
                    "imports missing there?"
                ) from error
            self._functions[spec.function] = function
            self._names[spec.function] = registered.name
        if spec.max_calls:
            calls = self._calls[spec.function] = self._calls.get(spec.function, 0) + 1
            if calls >= spec.max_calls:
                self._executor.draining = True
        return function  # type: ignore[no-any-return]

    def function_name(self, key: bytes) -> str:
        """The name of a function, without its module; empty if it is not known."""
        return self._names.get(key, "").rpartition(".")[2]

    def qualified_name(self, spec: m.TaskSpec) -> str:
        """``module.function`` or ``module.Class.method`` of a spec."""
        if spec.method:
            cls = type(self._executor.instance)
            return f"{cls.__module__}.{cls.__qualname__}.{spec.method}"
        return self._names.get(spec.function, spec.name)

    def _method(self, name: str) -> Callable[..., Any]:
        instance = self._executor.instance
        if name == "__ray_ready__":
            return lambda: True
        if name == "__ray_terminate__":
            return lambda: self._terminate()
        if name == "__ray_call__":
            return lambda function, *args, **kwargs: function(instance, *args, **kwargs)
        method = getattr(instance, name)
        return method  # type: ignore[no-any-return]

    @staticmethod
    def _terminate() -> None:
        raise ActorExit("INTENDED_USER_EXIT: __ray_terminate__ was called")

    def arguments(
        self, channel: Channel, spec: m.TaskSpec
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Deserialize the arguments of a call."""
        if not spec.args and not spec.dependencies:
            return (), {}
        if brings_references(spec) and not self.brought.has(spec):
            self.receive(channel, spec)
        try:
            return self._deserialized(spec)
        except NotHere:
            self._peer.objects.locating.bring_arguments(spec)
            return self._deserialized(spec)

    def _deserialized(self, spec: m.TaskSpec) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: Any = ()
        kwargs: Any = {}
        if spec.args:
            args, kwargs = deserialize(spec.args, spec.buffers)
        resolved: dict[int, Any] = {}
        for dependency in spec.dependencies:
            value = self._dependency(dependency)
            if dependency.position == ALL_ARGUMENTS:
                args, kwargs = value
            elif dependency.position >= 0:
                resolved[dependency.position] = value
            else:
                kwargs[dependency.name] = value
        if resolved:
            args = tuple(resolved.get(i, value) for i, value in enumerate(args))
        return args, kwargs

    def receive(self, channel: Channel, spec: m.TaskSpec) -> None:
        """Take in the references of a call, before its arguments."""
        with self._peer.lock:
            self.brought.receive(spec, channel.address)

    def _dependency(self, dependency: m.Dependency) -> Any:
        payload = dependency.value
        if payload.kind == m.SEGMENT:
            return self._peer.objects.locating.read(dependency.object_id, payload)
        if payload.kind == m.ERROR:
            raise failures.to_raise(payload)
        return deserialize(payload.data, payload.buffers)

    def kept(self, channel: Channel, spec: m.TaskSpec) -> tuple[bytes, ...]:
        """Ids from the arguments that are still in use (under the lock)."""
        return self.brought.ended(spec, channel.address)

    def succeeded(
        self, channel: Channel, spec: m.TaskSpec, context: CallContext, value: Any
    ) -> m.Result:
        """Pack what a call returned."""
        wanted = spec.num_returns
        streamed = -1
        try:
            if wanted < 0:
                streamed = value
                values = [m.Payload(m.PICKLE, PICKLED_NONE)]
            elif inspect.isgenerator(value):
                values = self._pack_generator(channel, spec, value)
            elif wanted == 1:
                values = [self._pack(channel, value)]
            else:
                values = [
                    self._pack(channel, item) for item in self._split(value, wanted)
                ]
        except Exception as error:
            return self._failed(channel, spec, context, error, skip_frames=2)
        del value
        if not spec.nested and not spec.dependencies:
            return m.Result(spec.task_id, values, (), streamed)
        with self._peer.lock:
            kept = self.kept(channel, spec)
        return m.Result(spec.task_id, values, kept, streamed)

    @staticmethod
    def _split(value: Any, wanted: int) -> list[Any]:
        if wanted == 0:
            return []
        items = list(value)
        if len(items) != wanted:
            raise ValueError(
                f"Task returned {len(items)} objects, but num_returns={wanted}."
            )
        return items

    def _pack_generator(
        self, channel: Channel, spec: m.TaskSpec, generator: Any
    ) -> list[m.Payload]:
        """The first values of a generator; a failure is the value of the rest."""
        wanted = spec.num_returns
        values: list[m.Payload] = []
        try:
            for item in generator:
                if len(values) == wanted:
                    break
                values.append(self._pack(channel, item))
            if len(values) < wanted:
                raise ValueError(
                    f"Task returned {len(values)} objects, but num_returns={wanted}."
                )
        except Exception as error:
            if not values:
                raise
            wrapped = failures.task_error(self._peer, self.display_name(spec), error)
            failure = failures.error_payload(wrapped)
            values += [failure] * (wanted - len(values))
        return values

    def _pack(self, channel: Channel, value: Any) -> m.Payload:
        if isinstance(value, exceptions.RayError):
            return failures.error_payload(value)
        try:
            serialized = serialize(value)
        except Exception as error:
            raise TypeError(
                f"Could not serialize the return value {value!r:.200}: "
                f"{describe_failure(value, error)}"
            ) from error
        objects = self._peer.objects
        if not serialized.refs:
            return objects.pack(serialized, channel.address)
        segment = objects.storing.write_if_large(serialized, channel.address)
        with self._peer.lock:
            return objects.pack(serialized, channel.address, segment)

    def _failed(
        self,
        channel: Channel,
        spec: m.TaskSpec,
        context: CallContext,
        error: BaseException,
        *,
        skip_frames: int,
    ) -> m.Result:
        if isinstance(error, (ArgumentsLost, NotHere)):
            return self._given_back(channel, spec, error)
        wrapped = failures.task_error(
            self._peer,
            self.display_name(spec),
            error,
            skip_frames=skip_frames,
            **self._who(),
        )
        self._log.raised(spec, wrapped, str(wrapped))
        error.__traceback__ = None  # its frames hold the arguments
        payload = failures.error_payload(wrapped)
        del error
        with self._peer.lock:
            kept = self.kept(channel, spec)
        return m.Result(spec.task_id, [payload], kept)

    def _given_back(
        self, channel: Channel, spec: m.TaskSpec, error: ArgumentsLost | NotHere
    ) -> m.Result:
        """The answer of a call that did not start, as arguments are lost."""
        lost = [error.object_id] if isinstance(error, NotHere) else error.object_ids
        self._log.failed(spec, event_log.GIVEN_BACK, "")
        with self._peer.lock:
            kept = self.kept(channel, spec)
        return m.Result(spec.task_id, [], kept, -1, tuple(lost))

    def cancelled(self, channel: Channel, spec: m.TaskSpec) -> m.Result:
        """The answer of a call that was interrupted."""
        from rayshim.lineage.ids import TaskID

        cause = exceptions.TaskCancelledError(TaskID(spec.task_id))
        wrapped = failures.task_error(self._peer, self.display_name(spec), cause)
        self._log.failed(spec, "TASK_CANCELLED", str(cause))
        with self._peer.lock:
            kept = self.kept(channel, spec)
        return m.Result(spec.task_id, [failures.error_payload(wrapped)], kept)

    def _who(self) -> dict[str, str]:
        actor = self._executor.actor
        if actor is None:
            return {}
        try:
            name = repr(self._executor.instance)
        except Exception:
            name = actor.class_name
        return {"actor_id": actor.actor_id.hex(), "actor_repr": name}

    def display_name(self, spec: m.TaskSpec) -> str:
        """``name`` or ``Class.method``, as error texts show it."""
        actor = self._executor.actor
        if actor is not None and spec.method:
            return f"{actor.class_name}.{spec.method}"
        return spec.name

    # -- streams -----------------------------------------------------------------------

    def _stream_out(self, context: CallContext, value: Any) -> int:
        """Send each item of a generator; returns how many there were."""
        self.require_generator(context, value)
        count = 0
        for item in value:
            if context.cancelled:
                raise KeyboardInterrupt
            if not context.may_yield(count):
                self.wait_for_consumer(context, count)
            if context.consumed < 0:
                value.close()
                break
            self.send_item(context.channel, context.spec, count, item)
            count += 1
            if not context.may_yield(count):
                self.wait_for_consumer(context, count)
        return count

    @staticmethod
    def require_generator(context: CallContext, value: Any) -> None:
        """Refuse what a streaming call may not return.

        Raises:
            ValueError: it is not a generator.
        """
        if not _is_generator(value):
            raise ValueError(
                f"{context.spec.name} was called with a streaming num_returns, but "
                f"returned a {type(value).__name__} and not a generator"
            )

    def wait_for_consumer(self, context: CallContext, produced: int) -> None:
        """Block until a stream may go on."""
        self._peer.reactor.wait(
            lambda: context.may_yield(produced) or context.cancelled
        )
        if context.cancelled:
            raise KeyboardInterrupt

    def send_item(
        self, channel: Channel, spec: m.TaskSpec, index: int, item: Any
    ) -> None:
        """Send one item of a stream to its consumer."""
        payload = self._pack(channel, item)
        with self._peer.lock:
            channel.send(m.StreamItem(spec.task_id, index, payload, spec.attempt))

    # -- actors ------------------------------------------------------------------------

    def load_class(self, create: m.CreateActor) -> Any:
        """The actor's class, or the ERROR payload of why it cannot be loaded."""
        try:
            return pickle.loads(create.class_blob)
        except BaseException as error:
            wrapped = failures.task_error(
                self._peer, f"{create.class_name}.__init__", error
            )
            return failures.error_payload(wrapped)

    @staticmethod
    def is_async(cls: type) -> bool:
        """True if any method of a class is a coroutine or async generator."""
        return any(
            inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f)
            for _, f in inspect.getmembers(cls, inspect.isfunction)
        )

    def construct(self, create: m.CreateActor, cls: Any) -> m.Payload | None:
        """Make the instance; an ERROR payload if the constructor raised."""
        executor = self._executor
        spec = create.spec
        begun = perf_counter()
        context = CallContext(self._peer.raylet, spec, create.lease, begun)
        self.show_name(create.class_name)
        with self._entered(context):
            try:
                args, kwargs = self._constructor_arguments(spec)
                instance = cls.__new__(cls)
                executor.instance = instance
                executor.interruptible = True
                try:
                    instance.__init__(*args, **kwargs)
                finally:
                    executor.interruptible = False
            except ActorExit as request:
                executor.exit_actor(str(request.code))
            except SystemExit as error:
                self._exit_process(error)
            except BaseException as error:
                wrapped = failures.task_error(
                    self._peer, f"{create.class_name}.__init__", error, skip_frames=1
                )
                self._log.raised(spec, wrapped, str(wrapped))
                self.note_end(spec, begun, perf_counter())
                return failures.error_payload(wrapped)
        del args, kwargs
        self.note_end(spec, begun, perf_counter())
        with self._peer.lock:
            self.kept(self._peer.raylet, spec)
        return None

    def _constructor_arguments(
        self, spec: m.TaskSpec
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """As :meth:`arguments`; what is lost is asked of its owner anew."""
        while True:
            try:
                return self.arguments(self._peer.raylet, spec)
            except ArgumentsLost as error:
                self._peer.objects.locating.renew_arguments(spec, error.object_ids)

    def repr_name(self, instance: Any) -> str:
        """What the instance calls itself in logs, where it has an own repr."""
        cls: Any = type(instance)
        if cls.__repr__ is object.__repr__:
            return ""
        try:
            name = as_text(repr(instance))
        except Exception:
            return ""
        self.show_name(name)
        return name


def _is_generator(value: Any) -> bool:
    return inspect.isgenerator(value) or (
        hasattr(value, "__next__") and hasattr(value, "__iter__")
    )
