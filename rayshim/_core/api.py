"""The functions of the public API: thin, checked, delegating to the peer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rayshim import exceptions
from rayshim._core import current
from rayshim._core import session as sessions
from rayshim._core.generators import ObjectRefGenerator
from rayshim._core.init_options import InitOptions
from rayshim._core.methods import METHOD_OPTIONS
from rayshim._core.options import ActorOptions, MethodOptions, TaskOptions
from rayshim._core.ray_context import RayContext
from rayshim._core.refs import ObjectRef, bytes_of
from rayshim._core.unpicklable import describe_failure
from rayshim.actor import ActorClass, ActorHandle, find_actor, modify_class
from rayshim.adapters.wire import messages as m
from rayshim.remote_function import RemoteFunction

if TYPE_CHECKING:
    from rayshim.lineage.reasons import Explanation


def init(
    address: str | None = None,
    *,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    resources: dict[str, float] | None = None,
    labels: dict[str, str] | None = None,
    object_store_memory: int | None = None,
    local_mode: bool = False,
    ignore_reinit_error: bool = False,
    include_dashboard: bool | None = None,
    dashboard_host: str = "127.0.0.1",
    dashboard_port: int | None = None,
    job_config: Any = None,
    configure_logging: bool = True,
    logging_level: Any = "info",
    logging_format: str | None = None,
    logging_config: Any = None,
    log_to_driver: bool | None = None,
    namespace: str | None = None,
    runtime_env: Any = None,
    enable_resource_isolation: bool = False,
    cgroup_path: str | None = None,
    system_reserved_cpu: float | None = None,
    system_reserved_memory: int | None = None,
    proxy_server_url: str | None = None,
    **kwargs: Any,
) -> RayContext:
    """Start a session on this machine.

    Args:
        address: "local" for a session of its own; "auto", "host:port" or
            "ray://host:port" to join a cluster, from any host that has its token.
            None takes RAY_ADDRESS, else the cluster of `rayshim start` on this host,
            else a session of its own.
        num_cpus: CPUs of the node, >= 0; default: those this process may use.
        num_gpus: GPUs of the node; default: those visible.
        resources: custom resource name -> amount.
        labels: label name -> value of the node.
        object_store_memory: bytes of the node store; default 60 % of free memory
            (of which the node announces half as resource, as much as Ray does).
        local_mode: gone from Ray; raises.
        ignore_reinit_error: return the open session instead of raising.
        include_dashboard: False: none; it costs nothing until its first visit.
        dashboard_host: address that it listens at.
        dashboard_port: default: 8265, or the next one that is free.
        job_config: a JobConfig; its namespace and runtime_env are used.
        configure_logging, logging_level, logging_format: of this process' logger.
        logging_config: a ``LoggingConfig`` for driver and executors.
        log_to_driver: print the lines of executors here; default True.
        namespace: of named actors; default: one of its own.
        runtime_env: what tasks and actors of the job need around them, a dict.
        enable_resource_isolation, cgroup_path, system_reserved_cpu,
        system_reserved_memory, proxy_server_url: not supported.
        **kwargs: ``_temp_dir``, ``_memory`` (bytes), ``_system_config`` (settings).

    Returns:
        A context that may be used with ``with``: the session ends with the block.

    Raises:
        RuntimeError: a session is open, or a keyword is unknown.
        NotImplementedError: a parameter that is not supported, by name.
    """
    if ignore_reinit_error and sessions.session is not None:
        return RayContext(sessions.session)
    sessions.allow_after_fork()
    if current.peer is not None and current.peer.executor is not None:
        if ignore_reinit_error:
            return RayContext(None)
        raise RuntimeError(
            "Maybe you called ray.init twice by accident? This code runs in an "
            "executor, which belongs to a session already."
        )
    if sessions.session is not None:
        raise RuntimeError(
            "Maybe you called ray.init twice by accident? A session is open "
            f"({sessions.session.name}); call shutdown() first, or pass "
            "ignore_reinit_error=True."
        )
    options = InitOptions.validate(
        address=address,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        resources=resources,
        labels=labels,
        object_store_memory=object_store_memory,
        local_mode=local_mode,
        include_dashboard=include_dashboard,
        dashboard_host=dashboard_host,
        dashboard_port=dashboard_port,
        job_config=job_config,
        configure_logging=configure_logging,
        logging_level=logging_level,
        logging_format=logging_format,
        logging_config=logging_config,
        log_to_driver=log_to_driver,
        namespace=namespace,
        runtime_env=runtime_env,
        enable_resource_isolation=enable_resource_isolation,
        cgroup_path=cgroup_path,
        system_reserved_cpu=system_reserved_cpu,
        system_reserved_memory=system_reserved_memory,
        proxy_server_url=proxy_server_url,
        **kwargs,
    )
    opened = sessions.open_session(options)
    if options.address.startswith("ray://"):
        from rayshim.client_builder import ClientContext

        return ClientContext.of_session(opened)
    return RayContext(opened)


def shutdown(
    wait_for_processes: bool = False, _exiting_interpreter: bool = False
) -> None:
    """End the session; does nothing when none is open.

    Args:
        wait_for_processes: accepted as in Ray; the end always waits for them.
        _exiting_interpreter: as in Ray.
    """
    peer = current.peer
    if peer is not None and peer.executor is not None:
        raise RuntimeError("shutdown() cannot be called in a task or an actor")
    sessions.close_session()


def is_initialized() -> bool:
    """True while a session is open."""
    return current.peer is not None


def put(
    value: Any, *, _owner: Any = None, _tensor_transport: str | None = None
) -> ObjectRef:
    """Store a value and return a reference to it.

    Args:
        value: anything that can be pickled, except an ObjectRef.
        _owner: gone from Ray; raises.
        _tensor_transport: not supported; raises.

    Raises:
        TypeError: the value is an ObjectRef or cannot be pickled.
        ObjectStoreFullError: there is no room for it.
    """
    peer = current.require_peer()
    if _owner is not None:
        raise ValueError(
            "put(): _owner is not supported; create the value in the owner"
        )
    if _tensor_transport not in (None, "object_store", "OBJECT_STORE"):
        raise ValueError(
            f"put(): _tensor_transport={_tensor_transport!r} is not supported; leave "
            "it out, arrays are shared through the node store"
        )
    if isinstance(value, ObjectRef):
        raise TypeError(
            "Calling 'put' on an ray.ObjectRef is not allowed. To store the reference "
            "itself, put it into a list."
        )
    if isinstance(value, ObjectRefGenerator):
        raise TypeError(
            "Calling 'put' on an ObjectRefGenerator is not allowed: You cannot return "
            "or pass a generator to other task. Put its references instead."
        )
    try:
        return peer.objects.put(value)
    except (exceptions.RayError, MemoryError):
        raise
    except Exception as error:
        if peer.ended:
            raise exceptions.RaySystemError(
                RuntimeError("the session was shut down during put()")
            ) from None
        if peer.raylet.closed:
            raise exceptions.LocalRayletDiedError() from error
        text = describe_failure(value, error)
        raise TypeError(
            f"Could not serialize the put value {value!r:.200}: {text}"
        ) from error


def get(
    object_refs: Any, *, timeout: float | None = None, _use_object_store: bool = False
) -> Any:
    """The value of a reference, or a list of values.

    Args:
        object_refs: an ObjectRef, or a list of them.
        timeout: seconds; None (or a negative number) waits for ever, 0 only looks.
        _use_object_store: accepted as in Ray; values are always found where they are.

    Raises:
        GetTimeoutError: a value was not there in time.
        RayTaskError: a call failed; also an instance of what it raised.
    """
    peer = current.require_peer()
    if timeout is not None and timeout < 0:
        if hasattr(object_refs, "__rayshim_get__"):
            return object_refs.__rayshim_get__(timeout)
        timeout = None  # as Ray takes it
    if type(object_refs) is ObjectRef:
        return peer.reader.get((object_refs,), timeout)[0]
    if isinstance(object_refs, ObjectRef):
        return peer.reader.get((object_refs,), timeout)[0]
    if isinstance(object_refs, ObjectRefGenerator):
        return object_refs
    if not isinstance(object_refs, list):
        if hasattr(object_refs, "__rayshim_get__"):
            return object_refs.__rayshim_get__(timeout)
        raise ValueError(
            f"Invalid type of object refs, {type(object_refs)}, is given. "
            "'object_refs' must either be an ObjectRef or a list of ObjectRefs."
        )
    for ref in object_refs:
        if not isinstance(ref, ObjectRef):
            if all(hasattr(item, "__rayshim_get__") for item in object_refs):
                return [item.__rayshim_get__(timeout) for item in object_refs]
            raise TypeError(
                f"Attempting to call `get` on the value {ref!r:.200}, which is not an "
                "ray.ObjectRef."
            )
    if not object_refs:
        return []
    return peer.reader.get(object_refs, timeout)


def wait(
    ray_waitables: list[Any],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[Any], list[Any]]:
    """Split references into those that are ready and those that are not.

    Args:
        ray_waitables: distinct ObjectRefs or ObjectRefGenerators.
        num_returns: how many must be ready before it returns, >= 1.
        timeout: seconds; None waits for ever, 0 only looks.
        fetch_local: True: ready when the value is on this node; False: anywhere.

    Returns:
        Two lists in the order given; the first has at most ``num_returns``.

    Raises:
        TypeError: not a list of references.
        ValueError: duplicates, or a number out of range.
    """
    peer = current.require_peer()
    if isinstance(ray_waitables, (ObjectRef, ObjectRefGenerator)):
        raise TypeError(
            "wait() expected a list of ray.ObjectRef or ObjectRefGenerator, got a "
            f"single {type(ray_waitables).__name__}"
        )
    if not isinstance(ray_waitables, list):
        raise TypeError(
            "wait() expected a list of ray.ObjectRef or ObjectRefGenerator, got "
            f"{type(ray_waitables)}"
        )
    if timeout is not None and timeout < 0:
        raise ValueError(f"The 'timeout' argument must be nonnegative, not {timeout}")
    only_refs = set(map(type, ray_waitables)) == {ObjectRef}
    for item in () if only_refs else ray_waitables:
        if not isinstance(item, (ObjectRef, ObjectRefGenerator)):
            raise TypeError(
                "wait() expected a list of ray.ObjectRef or ObjectRefGenerator, got a "
                f"list with {type(item)}"
            )
    if not ray_waitables:
        return [], []
    distinct = set(map(bytes_of, ray_waitables) if only_refs else ray_waitables)
    if len(distinct) != len(ray_waitables):
        raise ValueError("Wait requires a list of unique ray_waitables.")
    if num_returns <= 0:
        raise ValueError(f"Invalid number of objects to return: {num_returns}.")
    if num_returns > len(ray_waitables):
        raise ValueError(
            f"num_returns cannot be greater than the number of ray_waitables: "
            f"{num_returns} > {len(ray_waitables)}."
        )
    if not only_refs and any(
        isinstance(item, ObjectRefGenerator) for item in ray_waitables
    ):
        return peer.reader.wait_mixed(ray_waitables, num_returns, timeout)
    return peer.reader.wait(
        ray_waitables, num_returns, timeout, fetch_local=fetch_local
    )


def cancel(ray_waitable: Any, *, force: bool = False, recursive: bool = True) -> None:
    """Cancel the call that makes a value; no effect if it has ended.

    Args:
        ray_waitable: an ObjectRef or ObjectRefGenerator of the call.
        force: kill the executor that runs it; not for actors.
        recursive: also cancel what the call has submitted.

    Raises:
        TypeError: not a reference.
        ValueError: ``force`` for an actor's method.
    """
    if isinstance(ray_waitable, ObjectRefGenerator):
        ray_waitable = ray_waitable.completed()
    if not isinstance(ray_waitable, ObjectRef):
        raise TypeError(
            "ray.cancel() only supported for object refs. For actors, call ray.kill(); "
            f"got {type(ray_waitable)}"
        )
    peer = current.require_peer()
    object_id = ray_waitable._bytes
    if force and not ray_waitable.task_id().actor_id().binary().startswith(
        b"\xff" * 12
    ):
        raise ValueError("force=True is not supported for actor tasks.")
    peer.objects.lookup((ray_waitable,))
    peer.canceller.cancel(object_id, ray_waitable._owner, force, recursive)


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """Kill an actor at once; its calls under way fail.

    Args:
        actor: a handle.
        no_restart: False uses one of its restarts.

    Raises:
        ValueError: not an actor handle.
    """
    if not isinstance(actor, ActorHandle):
        raise ValueError(
            f"ray.kill() only supported for actors. For tasks, try ray.cancel(). Got: "
            f"{type(actor)}."
        )
    peer = current.require_peer()
    with peer.lock:
        client = peer.actors.clients.get(actor._id)
        message = m.KillActor(actor._id, no_restart)
        if client is not None:
            client.killed = True
            client.kill = message
        peer.control.send(message)


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """The handle of a named actor.

    Args:
        name: its name.
        namespace: where to look; default: this job's.

    Raises:
        ValueError: no living actor has the name there.
    """
    if not isinstance(name, (str, type(None))):
        raise TypeError(f"name must be a string, not {type(name)}")
    if not name:
        raise ValueError("Please supply a non-empty value to get_actor")
    if namespace is not None:
        if not isinstance(namespace, str):
            raise TypeError(f"namespace must be a string, not {type(namespace)}")
        if not namespace:
            raise ValueError(
                '"" is not a valid namespace. Use None for the current one.'
            )
    peer = current.require_peer()
    found = find_actor(peer, name, namespace or peer.namespace)
    if found is None:
        raise ValueError(
            f"Failed to look up actor with name '{name}' in namespace "
            f"{namespace or peer.namespace!r}. It was not created, has died, or lives "
            "in another namespace."
        )
    return found


def remote(*args: Any, **kwargs: Any) -> Any:
    """Make a remote function or actor class: ``@remote`` or ``@remote(num_cpus=2)``.

    Raises:
        TypeError, ValueError, AssertionError: as Ray does for wrong use.
    """
    if len(args) == 1 and not kwargs and callable(args[0]):
        return _make_remote(args[0], {})
    assert not args and kwargs, (
        "The @ray.remote decorator must be applied either with no arguments and no "
        "parentheses, for example '@ray.remote', or with keyword arguments only, like "
        "'@ray.remote(num_returns=2, resources={\"gpu\": 1})'."
    )
    return lambda target: _make_remote(target, kwargs)


def _make_remote(target: Any, options: dict[str, Any]) -> Any:
    if isinstance(target, (RemoteFunction, ActorClass)):
        raise TypeError(
            "The @ray.remote decorator must be applied to either a function or a "
            "class, once; this one is remote already."
        )
    if inspect.isfunction(target) or _is_compiled_function(target):
        if inspect.iscoroutinefunction(target):
            raise ValueError(
                "'async def' should not be used for remote tasks. You can wrap the "
                "async function with `asyncio.run(f())`, or make it a method."
            )
        generator = inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(
            target
        )
        return RemoteFunction(
            target, TaskOptions.validated(is_generator=generator, **options)
        )
    if inspect.isclass(target):
        return modify_class(target, ActorOptions.validated(**options))
    raise TypeError(
        "The @ray.remote decorator must be applied to either a function or a class."
    )


def _is_compiled_function(target: Any) -> bool:
    return type(target).__name__ == "cython_function_or_method"


def method(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Set options of an actor's method: ``@ray.method(num_returns=2)``.

    Raises:
        AssertionError: an unknown keyword.
    """
    if len(args) == 1 and not kwargs and callable(args[0]):
        return args[0]  # type: ignore[no-any-return]
    assert not args, "@ray.method takes keyword arguments only"
    options = MethodOptions.for_decorator(**kwargs)

    def decorate(function: Any) -> Any:
        setattr(function, METHOD_OPTIONS, options)
        return function

    return decorate


def _require_started() -> Any:
    if current.peer is None:
        raise exceptions.RaySystemError(
            "Ray has not been started yet: this looks at a session, and none is open. "
            "Call ray.init() first."
        )
    return current.peer


def nodes() -> list[dict[str, Any]]:
    """One dict for each node, as Ray's."""
    rows: list[dict[str, Any]] = _require_started().request("nodes")
    return rows


def cluster_resources() -> dict[str, float]:
    """Resource name -> total of all nodes."""
    totals: dict[str, float] = _require_started().request("cluster_resources")
    return totals


def available_resources() -> dict[str, float]:
    """Resource name -> amount that no lease holds; used-up names are left out."""
    free: dict[str, float] = _require_started().request("available_resources")
    return free


def get_gpu_ids() -> list[int] | list[str]:
    """The GPUs that the running call may use, as ``CUDA_VISIBLE_DEVICES`` says.

    Numbers; where the node was started with ``CUDA_VISIBLE_DEVICES``, the names in it.
    """
    peer = current.require_peer()
    executor = peer.executor
    if executor is None:
        return []
    call = current.call.get() or executor.any_context()
    if call is None or call.lease is None:
        return []
    return executor.devices(call.lease)


def timeline(filename: str | None = None) -> Any:
    """What ran when and where, as trace events for Chrome or Perfetto.

    Every call that ran is a bar in the row of its process, those too that run now. What
    has ended is there as long as its node keeps it (setting ``task_events_kept``); of a
    session that is over there is ``rayshim timeline --session``.

    Args:
        filename: file to write; open it with https://ui.perfetto.dev. None: the
            events are returned.

    Returns:
        A list of events; None if they were written.

    Raises:
        RaySystemError: no session is open.

    Example:
        >>> import rayshim as ray
        >>> ray.timeline("timeline.json")  # doctest: +SKIP
    """
    _require_started()
    from rayshim.util.state import timelines

    return timelines.timeline(filename)


def explain(target: Any) -> Explanation:
    """Say why something is not there yet: ordered reasons, with numbers.

    Args:
        target: an ObjectRef, a generator, an ActorHandle, a PlacementGroup, an id (of
            an object, task, actor, placement group or node), or the hex digits of one,
            of which the first eight are enough.

    Returns:
        What is waited for; ``str()`` of it reads as a sentence or a list. Its
        ``reasons`` have a kind, the numbers, and what would end the wait.

    Raises:
        TypeError: none of these.
        ValueError: nobody in the cluster knows the id.

    Example:
        >>> import rayshim as ray
        >>> context = ray.init(num_cpus=1, log_to_driver=False)
        >>> @ray.remote
        ... def work():
        ...     return 1
        >>> ref = work.options(num_cpus=8).remote()
        >>> told = ray.explain(ref)
        >>> told.state
        'waiting'
        >>> told.kinds
        ('queued', 'infeasible')
        >>> told.reasons[1].numbers["lacking"]
        {'CPU': 7.0}
        >>> ray.shutdown()
    """
    peer = current.require_peer()
    from rayshim._core import explaining

    if isinstance(target, ObjectRefGenerator):
        target = target.completed()
    if isinstance(target, ActorHandle):
        target._connect(peer)
        return explaining.actor_explained(peer, target._id)
    if isinstance(target, ObjectRef):
        (entry,) = peer.objects.lookup((target,))
        return explaining.object_explained(peer, entry)
    if isinstance(target, str):
        return explaining.id_explained(peer, target)
    from rayshim.lineage.ids import BaseID
    from rayshim.util.placement_group import PlacementGroup

    if isinstance(target, PlacementGroup):
        return explaining.group_explained(peer, target.id.binary())
    if isinstance(target, BaseID):
        return explaining.id_explained(peer, target.hex())
    raise TypeError(
        "explain() takes an ObjectRef, ActorHandle, PlacementGroup, id or the hex "
        f"digits of one, not {type(target)}"
    )
