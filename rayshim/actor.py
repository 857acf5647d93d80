"""Actors: classes whose instances live in executors of their own."""

from __future__ import annotations

import functools
import inspect
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import cloudpickle

from rayshim import exceptions
from rayshim._core import current
from rayshim._core.actor_calls import ActorClient, handle_object_id
from rayshim._core.arguments import encode
from rayshim._core.calls import CallRecord, FunctionRecord
from rayshim._core.functions import pickle_function
from rayshim._core.generators import ObjectRefGenerator
from rayshim._core.methods import BUILTIN_METHODS, MethodInfo, method_table
from rayshim._core.options import ActorOptions, MethodOptions
from rayshim._core.refs import ObjectRef
from rayshim._core.resources import actor_resources, place_of
from rayshim._core.running import ActorExit
from rayshim._core.runtime_env_merge import rest_for_call, runtime_env_fields
from rayshim._core.signatures import CallSignature
from rayshim.adapters.wire import messages as m
from rayshim.lineage.ids import ActorID

if TYPE_CHECKING:
    from rayshim._core.peer import Peer
    from rayshim.dag.class_node import ClassNode

#: Concurrent coroutines of an async actor by default.
ASYNC_CONCURRENCY = 1000

_NO_DEPENDENCIES: tuple[m.Dependency, ...] = ()
_NO_NESTED: tuple[m.Nested, ...] = ()


class ActorClassInheritanceException(TypeError):
    """A class was derived from an actor class; derive from the plain class."""


class ActorMethod:
    """A method of an actor handle: has ``remote`` and ``options``."""

    __slots__ = ("_handle", "_info", "_name")

    def __init__(self, handle: ActorHandle, name: str, info: MethodInfo) -> None:
        self._handle = handle
        self._name = name
        self._info = info

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "Actor methods cannot be called directly. Instead of running "
            f"'object.{self._name}()', try 'object.{self._name}.remote()'."
        )

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Submit a call; returns as :meth:`RemoteFunction.remote` does."""
        return self._handle._submit(self._name, self._info, args, kwargs)

    def options(self, **options: Any) -> _MethodWithOptions:
        """The method with other options (num_returns, name, concurrency_group...)."""
        return _MethodWithOptions(self._handle, self._name, self._info, options)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Note a call in a graph; see `rayshim.dag`.

        Returns:
            A ClassMethodNode; for a method with several results a tuple of them.
        """
        from rayshim.dag.class_node import bind_method

        return bind_method(self._handle, self._name, args, kwargs, {})

    def __getstate__(self) -> tuple[Any, ...]:
        return (self._handle, self._name, self._info)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._handle, self._name, self._info = state


class _MethodWithOptions:
    """``handle.method.options(...)``."""

    def __init__(
        self, handle: ActorHandle, name: str, info: MethodInfo, options: dict[str, Any]
    ) -> None:
        self._handle = handle
        self._name = name
        self._info = info
        self._options = options

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Submit a call.

        Raises:
            TypeError, ValueError: an option is unknown or wrong.
        """
        options = MethodOptions.for_call(**self._options)
        info = self._info.with_options(options)
        group = info.concurrency_group
        groups = self._handle._meta.groups
        if group and group not in groups:
            raise ValueError(
                f"actor {self._handle._meta.class_name} has no concurrency group "
                f"{group!r}; it has {sorted(groups) or 'none'}"
            )
        return self._handle._submit(self._name, info, args, kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Note a call in a graph, as :meth:`ActorMethod.bind` does."""
        from rayshim.dag.class_node import bind_method

        return bind_method(self._handle, self._name, args, kwargs, self._options)


class HandleMeta:
    """What every handle of an actor knows of its class."""

    __slots__ = ("class_name", "groups", "max_pending", "methods", "retries")

    def __init__(
        self,
        class_name: str,
        methods: dict[str, MethodInfo],
        groups: list[str],
        max_pending: int,
        retries: int,
    ) -> None:
        self.class_name = class_name
        self.methods = methods
        self.groups = groups
        self.max_pending = max_pending
        #: ``max_task_retries``.
        self.retries = retries

    def __reduce__(self) -> tuple[Any, ...]:
        return HandleMeta, (
            self.class_name,
            self.methods,
            self.groups,
            self.max_pending,
            self.retries,
        )


class ActorHandle:
    """Refers to an actor. Handles are counted: the actor ends with the last one.

    Attributes are the actor's methods: ``handle.method.remote(...)``.
    """

    def __init__(
        self, actor_id: bytes, meta: HandleMeta, ref: ObjectRef | None
    ) -> None:
        self._id = actor_id
        self._meta = meta
        #: Counts this handle; None for detached actors.
        self._ref = ref
        self._client: ActorClient | None = None
        self._client_peer: Peer | None = None

    @property
    def _actor_id(self) -> ActorID:
        return ActorID(self._id)

    @property
    def _ray_actor_id(self) -> ActorID:
        return ActorID(self._id)

    def __getattr__(self, name: str) -> ActorMethod:
        meta = self.__dict__.get("_meta")
        if meta is None:
            raise AttributeError(name)
        info = meta.methods.get(name) or BUILTIN_METHODS.get(name)
        if info is None:
            raise AttributeError(
                f"'{meta.class_name}' object has no attribute '{name}': actor "
                f"{self._id.hex()} has no such method. Attributes of the instance "
                "cannot be read through a handle; add a method that returns them."
            )
        method = ActorMethod(self, name, info)
        return method

    def _submit(
        self,
        name: str,
        info: MethodInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        peer = current.peer
        if peer is None:
            peer = current.require_peer()
        client = self._client
        if client is None or self._client_peer is not peer:
            client = self._connect(peer)
        info.signature.check(args, kwargs)
        label = info.call_name or f"{self._meta.class_name}.{name}"
        encoded = encode(peer, label, args, kwargs)
        task_id = peer.unique() + self._id
        count = info.num_returns
        spec = m.TaskSpec(
            task_id,
            b"",
            name,
            encoded.data,
            encoded.buffers,
            _NO_DEPENDENCIES,
            _NO_NESTED,
            count,
            label,
            0,
            0,
            info.concurrency_group,
            info.backpressure,
        )
        if count == 1:
            return_ids = [task_id + b"\x01\x00\x00\x00"]
        else:
            total = max(1, count) if count else 0
            return_ids = [
                task_id + i.to_bytes(4, "little") for i in range(1, total + 1)
            ]
        retries = info.max_task_retries
        record = CallRecord(
            spec,
            encoded,
            return_ids,
            self._meta.retries if retries is None else retries,
        )
        record.retry_exceptions = info.retry_exceptions
        record.handle_ref = self._ref
        refs = client.submit(record, self._meta.max_pending)
        if count == 1:
            return refs[0]
        if count == m.STREAMING:
            return ObjectRefGenerator(refs[0], peer)
        if count == m.DYNAMIC:
            return refs[0]
        return refs or None

    def _connect(self, peer: Peer) -> ActorClient:
        if self._ref is not None and self._ref._bytes not in peer.objects.entries:
            raise ValueError(
                f"actor {self._meta.class_name}({self._id.hex()}) belongs to a session "
                "that has ended; create it again"
            )
        with peer.lock:
            client = peer.actors.client(self._id, self._meta.class_name)
        self._client, self._client_peer = client, peer
        return client

    def __dir__(self) -> list[str]:
        return sorted(self._meta.methods)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"Actor({self._meta.class_name}, {self._id.hex()})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ActorHandle, (self._id, self._meta, self._ref)

    def __copy__(self) -> ActorHandle:
        return ActorHandle(self._id, self._meta, self._ref)

    def __deepcopy__(self, memo: Any) -> ActorHandle:
        return ActorHandle(self._id, self._meta, self._ref)


class ActorClass:
    """A class whose instances are actors.

    Example:
        >>> @ray.remote  # doctest: +SKIP
        ... class Counter:
        ...     def __init__(self):
        ...         self.value = 0
        ...     def add(self, n=1):
        ...         self.value += n
        ...         return self.value
        >>> counter = Counter.remote()  # doctest: +SKIP
        >>> ray.get(counter.add.remote())  # doctest: +SKIP
        1
    """

    def __init__(
        self, name: str, bases: tuple[type, ...], attr: dict[str, Any]
    ) -> None:
        # Called as a metaclass when somebody derives a class from an actor class.
        for base in bases:
            if isinstance(base, ActorClass):
                raise ActorClassInheritanceException(
                    f"class {name} is derived from the actor class "
                    f"{base._class_name}. Derive it from the plain class and decorate "
                    "the result with @ray.remote."
                )
        raise TypeError("an ActorClass is made with @ray.remote")

    @classmethod
    def _from_class(cls, modified: type, options: ActorOptions) -> ActorClass:
        self = cls.__new__(cls)
        self._setup(modified, options)
        _ = self._constructor, self._methods  # refuses what cannot be an actor
        return self

    def _setup(self, modified: type, options: ActorOptions) -> None:
        self._class = modified
        self._class_name = modified.__name__
        self._default_options = options
        self._record: FunctionRecord | None = None
        self._meta: HandleMeta | None = None
        self.__doc__ = modified.__doc__
        self.__module__ = modified.__module__

    # Later than _setup(): a class that refers to itself is still empty while it is
    # unpickled.

    @cached_property
    def _constructor(self) -> CallSignature:
        constructor = self._class.__init__  # type: ignore[misc]  # of this very class
        return CallSignature.of(constructor, skip_first=True)

    @cached_property
    def _methods(self) -> dict[str, MethodInfo]:
        return method_table(self._class)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "Actors cannot be instantiated directly. Instead of "
            f"'{self._class_name}()', use '{self._class_name}.remote()'."
        )

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        raise ActorClassInheritanceException(
            f"the actor class {self._class_name} cannot have a subclass. Derive from "
            "the plain class and decorate the result with @ray.remote."
        )

    def __getattr__(self, name: str) -> Any:
        plain = self.__dict__.get("_class")
        if plain is None or name.startswith("__"):
            raise AttributeError(name)
        value = getattr(plain, name)
        if inspect.isfunction(value):
            # Not the function itself: a pickler that finds it under this name would
            # take it for importable, and its super() would see another class.
            return functools.wraps(value)(functools.partial(value))
        return value

    def remote(self, /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Create an actor and return its handle at once.

        Raises:
            TypeError: the arguments do not fit the constructor.
        """
        return self._create(self._default_options, args, kwargs)

    def options(self, **actor_options: Any) -> _ActorClassWithOptions:
        """The same class with other options; this one is unchanged."""
        return _ActorClassWithOptions(
            self, self._default_options.merge_validated(**actor_options), actor_options
        )

    def bind(self, *args: Any, **kwargs: Any) -> ClassNode:
        """Note a creation in a graph; see `rayshim.dag`."""
        from rayshim.dag.class_node import ClassNode

        return ClassNode(self._class, args, kwargs, {}, actor_class=self)

    def _create(
        self, options: ActorOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ActorHandle:
        peer = current.require_peer()
        self._constructor.check(args, kwargs)
        name, namespace = options.name or "", options.namespace or peer.namespace
        _check_name(options)
        if options.get_if_exists:
            found = find_actor(peer, name, namespace)
            if found is not None:
                return found
        if self._record is None:
            qualified = f"{self._class.__module__}.{self._class.__qualname__}"
            self._record = pickle_function(
                self._class, qualified, peer.settings, "actor class"
            )
        label = f"{self._class_name}.__init__"
        encoded = encode(peer, label, args, kwargs)
        actor_id = peer.unique() + os.urandom(4) + peer.job_id
        detached = options.lifetime == "detached"
        groups = options.concurrency_groups or {}
        self._check_groups(groups)
        meta = HandleMeta(
            self._class_name,
            self._methods,
            sorted(groups),
            options.max_pending_calls or -1,
            options.max_task_retries or 0,
        )
        asynchronous = any(info.is_async for info in self._methods.values())
        limit = options.max_concurrency or (ASYNC_CONCURRENCY if asynchronous else 1)
        placement, resources = actor_resources(options)
        place = place_of(options, placement, peer, self._class_name)
        env = runtime_env_fields(options.runtime_env)
        handle_blob = cloudpickle.dumps((meta, "" if detached else peer.address))
        register = m.RegisterActor(
            0,
            actor_id,
            peer.job_id,
            peer.address,
            self._class_name,
            name,
            namespace,
            detached,
            options.max_restarts or 0,
            placement,
            resources,
            {**peer.job_env, **(env.get("env_vars") or {})},
            limit,
            dict(groups),
            handle_blob,
            place.group,
            place.bundle,
            list(place.nodes),
            place.soft,
            place.strategy,
            list(place.labels),
            place.capture,
            peer.namespace,
            rest_for_call(peer, env),
        )
        spec = m.TaskSpec(
            b"\xff" * 8 + actor_id,
            b"",
            "__init__",
            encoded.data,
            encoded.buffers,
            _NO_DEPENDENCIES,
            _NO_NESTED,
            1,
            label,
            0,
        )
        start = m.StartActor(
            actor_id, self._record.key, self._record.blob, spec, peer.job_blob
        )
        try:
            ref = peer.actors.create(
                register,
                start,
                encoded,
                counted=not detached,
                captured=self._record.captured,
                reject=place.reject,
            )
        except exceptions.ActorAlreadyExistsError:
            if options.get_if_exists:
                found = find_actor(peer, name, namespace)
                if found is not None:
                    return found
            raise
        return ActorHandle(actor_id, meta, ref)

    def _check_groups(self, groups: dict[str, Any]) -> None:
        for name, limit in groups.items():
            if not isinstance(limit, int) or isinstance(limit, bool):
                raise TypeError(
                    f"the limit of concurrency group {name!r} of {self._class_name} "
                    f"must be a number of calls: an integer is required, got {limit!r}"
                )
            if limit < 1:
                raise ValueError(
                    f"the limit of concurrency group {name!r} of {self._class_name} "
                    f"must be at least 1, got {limit}"
                )
        for method, info in self._methods.items():
            group = info.concurrency_group
            if group and group not in groups:
                raise ValueError(
                    f"method {method} of {self._class_name} is in the concurrency "
                    f"group {group!r}, which the class does not define; it has "
                    f"{sorted(groups) or 'none'}"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        # The class may refer to this object, so it is set after the object exists.
        return _new_actor_class, (), (self._class, self._default_options)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._setup(*state)

    def __repr__(self) -> str:
        return f"ActorClass({self._class_name})"


def _new_actor_class() -> ActorClass:
    return ActorClass.__new__(ActorClass)


class _ActorClassWithOptions:
    """``Class.options(...)``: has ``remote`` and ``bind``."""

    def __init__(
        self, actor_class: ActorClass, options: ActorOptions, given: dict[str, Any]
    ) -> None:
        self._actor_class = actor_class
        self._options = options
        #: As ``options()`` was called; nodes of graphs tell it.
        self._given = given

    def remote(self, /, *args: Any, **kwargs: Any) -> ActorHandle:
        """See :meth:`ActorClass.remote`."""
        return self._actor_class._create(self._options, args, kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> ClassNode:
        """Note a creation in a graph; see `rayshim.dag`."""
        from rayshim.dag.class_node import ClassNode

        return ClassNode(
            self._actor_class._class, args, kwargs, self._given, actor_class=self
        )


def _check_name(options: ActorOptions) -> None:
    if options.name is not None:
        if not isinstance(options.name, str):
            raise TypeError(f"name must be None or a string, not {type(options.name)}")
        if not options.name:
            raise ValueError("Actor name cannot be an empty string.")
    if options.namespace is not None:
        if not isinstance(options.namespace, str):
            raise TypeError(
                f"namespace must be None or a string, not {type(options.namespace)}"
            )
        if not options.namespace:
            raise ValueError('"" is not a valid namespace.')
    if options.get_if_exists and not options.name:
        raise ValueError("The actor name must be specified to use get_if_exists.")


def find_actor(peer: Peer, name: str, namespace: str) -> ActorHandle | None:
    """The handle of a living named actor, or None."""
    try:
        answer = peer.request("get_actor", {"name": name, "namespace": namespace})
    except ValueError:
        return None
    meta, owner = cloudpickle.loads(answer["handle_blob"])
    actor_id = answer["actor_id"]
    ref = None
    if owner:
        ref = peer.objects.adopt(handle_object_id(actor_id), owner)
    return ActorHandle(actor_id, meta, ref)


def exit_actor() -> NoReturn:
    """End the actor that calls this, for good.

    Raises:
        TypeError: outside an actor.
    """
    peer = current.peer
    if peer is None or peer.executor is None or peer.executor.actor is None:
        raise TypeError(
            "exit_actor API is called on a non-actor worker: call it in a method of an "
            "actor"
        )
    raise ActorExit("INTENDED_USER_EXIT: exit_actor() was called")


def modify_class(cls: type, options: ActorOptions) -> ActorClass:
    """Make an actor class of a plain one.

    Raises:
        TypeError: ``cls`` is an actor class already.
    """
    if isinstance(cls, ActorClass) or not inspect.isclass(cls):
        raise TypeError(
            "The @ray.remote decorator must be applied to a plain class once"
        )
    return ActorClass._from_class(cls, options)
