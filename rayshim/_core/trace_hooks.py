"""OpenTelemetry spans of calls: one where they are submitted, one where they run.

Off unless ``init(_tracing_startup_hook=)`` names a hook; then, and only then, the
functions that encode arguments and look up what a call runs are replaced by ones that
make spans. The context travels as a hidden keyword argument of the call.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from rayshim._core import arguments, current

if TYPE_CHECKING:
    from rayshim._core.peer import Peer
    from rayshim.adapters.wire import messages as m

#: Keyword argument that carries the context; Ray's name.
CONTEXT = "_ray_trace_ctx"
#: Calls of constructors are named so; their context does not travel.
_CONSTRUCTOR = ".__init__"

#: The hook by which calls of this process are traced; empty: they are not.
hook = ""
#: Those that have run: a tracer provider is set up once.
_ran: set[str] = set()
_EXTRA = (
    "tracing needs OpenTelemetry: pip install 'rayshim[tracing]' (opentelemetry-api "
    "and opentelemetry-sdk), here and on all nodes"
)


def begin(place: str) -> None:
    """Run the hook in this process, and make spans of what it submits from now on.

    Args:
        place: ``module:function`` of the hook, which sets up a tracer provider.

    Raises:
        ImportError: OpenTelemetry is not installed.
        ValueError: there is no such function.
    """
    global hook
    if hook == place:
        return
    try:
        import opentelemetry.trace  # noqa: F401
    except ImportError as error:
        raise ImportError(_EXTRA) from error
    if place not in _ran:
        _find(place)()
        _ran.add(place)
    hook = place
    _replace_encode(_encode)


def end() -> None:
    """Make no more spans of what this process submits: its session is over."""
    global hook
    if hook:
        hook = ""
        _replace_encode(arguments.encode)


def _replace_encode(encode: Callable[..., Any]) -> None:
    from rayshim import actor, remote_function

    for module in (actor, remote_function):
        setattr(module, "encode", encode)  # noqa: B010 (not for type checkers)


def enter(peer: Peer, place: str) -> None:
    """The same in an executor, with spans of what it runs, too."""
    begin(place)
    assert peer.executor is not None
    runner = peer.executor.runner
    if not hasattr(runner, "traced"):
        plain = runner.function_of
        traced = functools.partial(_function_of, peer, plain)
        setattr(runner, "function_of", traced)  # noqa: B010
        setattr(runner, "traced", True)  # noqa: B010


def _find(place: str) -> Callable[[], Any]:
    module_name, _, name = place.partition(":")
    try:
        found: Callable[[], Any] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"_tracing_startup_hook {place!r}: there is no such function ({error}); it "
            "must be importable in the driver and on all nodes"
        ) from error
    return found


# Where calls are submitted.


def _encode(
    peer: Peer, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> arguments.Encoded:
    """As ``arguments.encode``, with a span and its context."""
    from opentelemetry import propagate, trace

    span = trace.get_tracer("rayshim").start_as_current_span(
        f"{name} ray.remote",
        kind=trace.SpanKind.PRODUCER,
        attributes=_attributes(peer, name),
    )
    with span:
        if not name.endswith(_CONSTRUCTOR):
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            kwargs = {**kwargs, CONTEXT: carrier}
        return arguments.encode(peer, name, args, kwargs)


# Where they run.


def _function_of(
    peer: Peer, plain: Callable[[m.TaskSpec], Callable[..., Any]], spec: m.TaskSpec
) -> Callable[..., Any]:
    function = plain(spec)
    assert peer.executor is not None
    name = peer.executor.runner.display_name(spec)
    span = functools.partial(_span, peer, name)
    wrapper: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with span(kwargs.pop(CONTEXT, None)):
                return await function(*args, **kwargs)

        wrapper = awaited
    elif inspect.isasyncgenfunction(function):

        async def streamed(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with span(kwargs.pop(CONTEXT, None)):
                async for item in function(*args, **kwargs):
                    yield item

        wrapper = streamed
    elif inspect.isgeneratorfunction(function):

        def generated(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with span(kwargs.pop(CONTEXT, None)):
                yield from function(*args, **kwargs)

        wrapper = generated
    else:

        def called(*args: Any, **kwargs: Any) -> Any:
            with span(kwargs.pop(CONTEXT, None)):
                return function(*args, **kwargs)

        wrapper = called
    return wrapper


@contextlib.contextmanager
def _span(peer: Peer, name: str, carrier: dict[str, str] | None) -> Iterator[None]:
    from opentelemetry import propagate, trace

    context = propagate.extract(carrier) if carrier else None
    span = trace.get_tracer("rayshim").start_as_current_span(
        f"{name} ray.remote_worker",
        context=context,
        kind=trace.SpanKind.CONSUMER,
        attributes=_attributes(peer, name),
    )
    with span:
        yield


def _attributes(peer: Peer, name: str) -> dict[str, Any]:
    """What a span says; the names are Ray's."""
    found: dict[str, Any] = {
        "ray.remote": "actor" if "." in name else "task",
        "ray.function": name,
        "ray.pid": str(peer.pid),
        "ray.job_id": peer.job_id.hex(),
        "ray.node_id": peer.node_id,
        "ray.worker_id": peer.worker_id.hex(),
    }
    executor = peer.executor
    if executor is not None and executor.actor is not None:
        found["ray.actor_id"] = executor.actor.actor_id.hex()
        found["ray.actor_class"] = executor.actor.class_name
    call = current.call.get()
    if call is not None:
        found["ray.task_id"] = call.task_id.hex()
    return found
