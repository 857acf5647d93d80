"""Remote functions: what ``@remote`` makes of a function."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from rayshim._core import current
from rayshim._core.arguments import encode
from rayshim._core.calls import CallRecord, FunctionRecord
from rayshim._core.functions import pickle_function
from rayshim._core.generators import ObjectRefGenerator
from rayshim._core.options import TaskOptions
from rayshim._core.resources import lease_template, place_of, resources_of
from rayshim._core.runtime_env_merge import rest_for_call, runtime_env_fields
from rayshim._core.signatures import CallSignature
from rayshim.adapters.wire import messages as m
from rayshim.lineage.dispatch import MAX_DEPTH

if TYPE_CHECKING:
    from rayshim._core.peer import Peer
    from rayshim.dag.function_node import FunctionNode

logger = logging.getLogger("rayshim")

_NO_DEPENDENCIES: tuple[m.Dependency, ...] = ()
_NO_NESTED: tuple[m.Nested, ...] = ()


class _Plan:
    """What all calls of one function with the same options share in a session."""

    __slots__ = (
        "backpressure",
        "function",
        "group",
        "key",
        "max_calls",
        "max_depth",
        "name",
        "num_returns",
        "peer",
        "reject",
        "retries",
        "retry_exceptions",
        "suffixes",
        "template",
    )

    def __init__(
        self, peer: Peer, function: FunctionRecord, options: TaskOptions
    ) -> None:
        self.peer = peer
        self.function = function
        self.name = options.name or function.name
        self.num_returns = _returns(options.num_returns)
        count = max(1, self.num_returns) if self.num_returns else 0
        self.suffixes = [i.to_bytes(4, "little") for i in range(1, count + 1)]
        self.retries = 3 if options.max_retries is None else options.max_retries
        self.retry_exceptions = options.retry_exceptions
        self.max_calls = options.max_calls or 0
        self.backpressure = options.generator_backpressure
        # An executor that must not run a call twice, or that may leave after it, holds
        # one at a time.
        single = self.max_calls or self.retries == 0
        self.max_depth = 1 if single else MAX_DEPTH
        env = runtime_env_fields(options.runtime_env)
        resources = resources_of(options, default_cpus=1.0)
        self.group = peer.lease_group
        place = place_of(options, resources, peer, function.name.rpartition(".")[2])
        self.reject = place.reject
        self.template = lease_template(
            peer,
            self.name,
            resources,
            env.get("env_vars") or {},
            place,
            rest_for_call(peer, env),
        )
        self.template.retriable = self.retries != 0
        self.key = (
            function.key,
            tuple(sorted(resources.items())),
            self.template.env_key(),
            self.max_depth,
            self.template.placement_group,
            self.template.bundle_index,
            self.template.capture_group,
            place.nodes,
            place.soft,
            place.strategy,
            tuple(tuple(selector.items()) for selector in place.labels),
        )


def _returns(value: Any) -> int:
    if value == "streaming":
        return m.STREAMING
    if value == "dynamic":
        return m.DYNAMIC
    return 1 if value is None else int(value)


class RemoteFunction:
    """A function whose calls run in executors.

    Example:
        >>> @ray.remote  # doctest: +SKIP
        ... def square(x):
        ...     return x * x
        >>> ray.get(square.remote(3))  # doctest: +SKIP
        9
    """

    def __init__(self, function: Callable[..., Any], options: TaskOptions) -> None:
        self._function = function
        self._function_name = f"{function.__module__}.{function.__qualname__}"
        self._default_options = options
        self._signature = CallSignature.of(function)
        self._is_generator = inspect.isgeneratorfunction(
            function
        ) or inspect.isasyncgenfunction(function)
        self._record: FunctionRecord | None = None
        self._record_peer: Peer | None = None
        self._plan: _Plan | None = None
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError(
            "Remote functions cannot be called directly. Instead of running "
            f"'{self._function_name}()', try '{self._function_name}.remote()'."
        )

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Submit a call.

        Returns:
            An ObjectRef; a list of them for ``num_returns`` > 1, None for 0, an
            ObjectRefGenerator for a generator function.

        Raises:
            TypeError: the arguments do not fit the function, or cannot be pickled.
        """
        peer = current.peer
        if peer is None:
            peer = current.require_peer()
        plan = self._plan
        if plan is None or plan.peer is not peer or plan.group is not peer.lease_group:
            plan = self._plan = self._make_plan(peer, self._default_options)
        return self._submit(plan, args, kwargs)

    def _make_plan(self, peer: Peer, options: TaskOptions) -> _Plan:
        if options.num_returns is None and self._is_generator:
            options = options.merge(num_returns="streaming")
        if self._record is None or self._record_peer is not peer:
            if self._record is None:
                self._record = pickle_function(
                    self._function, self._function_name, peer.settings
                )
            self._record_peer = peer
        return _Plan(peer, self._record, options)

    def _submit(
        self, plan: _Plan, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._signature.check(args, kwargs)
        peer = plan.peer
        encoded = encode(peer, plan.name, args, kwargs)
        task_id = peer.unique() + peer.objects.id_tail
        spec = m.TaskSpec(
            task_id,
            plan.function.key,
            "",
            encoded.data,
            encoded.buffers,
            _NO_DEPENDENCIES,
            _NO_NESTED,
            plan.num_returns,
            plan.name,
            0,
            0,
            "",
            plan.backpressure,
            plan.max_calls,
        )
        return_ids = [task_id + suffix for suffix in plan.suffixes]
        record = CallRecord(spec, encoded, return_ids, plan.retries)
        record.retry_exceptions = plan.retry_exceptions
        if plan.reject:
            refs = peer.tasks.refuse(record, plan.reject)
        else:
            refs = peer.tasks.submit(
                record, plan.function, plan.template, plan.key, plan.max_depth
            )
        if plan.num_returns == 1:
            return refs[0]
        if plan.num_returns == m.STREAMING:
            return ObjectRefGenerator(refs[0], peer)
        if plan.num_returns == m.DYNAMIC:
            return refs[0]
        return refs or None

    def options(self, **task_options: Any) -> _WithOptions:
        """The same function with other options; this one is unchanged.

        Raises:
            ValueError, TypeError: an option is unknown or has a wrong value.
        """
        options = self._default_options.merge_validated(
            is_generator=self._is_generator, **task_options
        )
        return _WithOptions(self, options, task_options)

    def bind(self, *args: Any, **kwargs: Any) -> FunctionNode:
        """Note a call in a graph; see `rayshim.dag`."""
        from rayshim.dag.function_node import FunctionNode

        return FunctionNode(self._function, args, kwargs, {}, remote_function=self)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "function": self._function,
            "options": self._default_options,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["function"], state["options"])  # type: ignore[misc]

    def __reduce__(self) -> tuple[Any, ...]:
        # The function may refer to this object (recursion), so it is set after
        # the object exists.
        return _new_function, (), self.__getstate__()

    def __repr__(self) -> str:
        return f"RemoteFunction({self._function_name})"


def _new_function() -> RemoteFunction:
    return RemoteFunction.__new__(RemoteFunction)


class _WithOptions:
    """``function.options(...)``: has ``remote`` and ``bind``."""

    def __init__(
        self, function: RemoteFunction, options: TaskOptions, given: dict[str, Any]
    ) -> None:
        self._remote_function = function
        self._options = options
        #: As ``options()`` was called; nodes of graphs tell it.
        self._given = given
        self._plan: _Plan | None = None

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """See :meth:`RemoteFunction.remote`."""
        peer = current.require_peer()
        plan = self._plan
        if plan is None or plan.peer is not peer or plan.group is not peer.lease_group:
            plan = self._remote_function._make_plan(peer, self._options)
            self._plan = plan
        return self._remote_function._submit(plan, args, kwargs)

    def bind(self, *args: Any, **kwargs: Any) -> FunctionNode:
        """Note a call in a graph; see `rayshim.dag`."""
        from rayshim.dag.function_node import FunctionNode

        return FunctionNode(
            self._remote_function._function,
            args,
            kwargs,
            self._given,
            remote_function=self,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"f": self._remote_function, "o": self._options, "g": self._given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["f"], state["o"], state["g"])  # type: ignore[misc]
