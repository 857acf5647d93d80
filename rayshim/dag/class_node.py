"""Actors and calls of their methods in a graph."""

from __future__ import annotations

from typing import Any

from rayshim.actor import ActorHandle
from rayshim.dag.constants import (
    BIND_INDEX_KEY,
    IS_CLASS_METHOD_OUTPUT_KEY,
    PARENT_CLASS_NODE_KEY,
    PREV_CLASS_METHOD_CALL_KEY,
)
from rayshim.dag.dag_node import DAGNode


class ClassNode(DAGNode):
    """An actor that each ``execute`` creates, as ``Class.bind(...)`` notes it.

    ``node.method.bind(...)`` notes calls of it, which run in the order of their binds.

    Args:
        cls: the plain class.
        cls_args, cls_kwargs: arguments of the constructor.
        cls_options: as ``.options()`` takes them.
        other_args_to_resolve: not used.
        actor_class: what creates the actor; made of ``cls`` when not given.

    Raises:
        ValueError: an argument is an InputNode.
    """

    def __init__(
        self,
        cls: type,
        cls_args: Any,
        cls_kwargs: dict[str, Any],
        cls_options: dict[str, Any],
        other_args_to_resolve: dict[str, Any] | None = None,
        *,
        actor_class: Any = None,
    ) -> None:
        self._body = cls
        self._actor_class = actor_class
        self._last_call: ClassMethodNode | None = None
        super().__init__(cls_args, cls_kwargs, cls_options, other_args_to_resolve)
        if any(node._is_input() for node in self._upstream_nodes):
            raise ValueError(
                "InputNode handles user dynamic input of the DAG, and cannot be used "
                f"as an argument of the constructor of {cls.__name__}: the actor is "
                "made before there is input. Pass it to a method."
            )

    def _copy_impl(
        self,
        new_args: Any,
        new_kwargs: dict[str, Any],
        new_options: dict[str, Any],
        new_other_args_to_resolve: dict[str, Any],
    ) -> ClassNode:
        return ClassNode(
            self._body,
            new_args,
            new_kwargs,
            new_options,
            new_other_args_to_resolve,
            actor_class=self._actor_class,
        )

    def _run(
        self,
        bound: Any,
        bound_kwargs: dict[str, Any],
        other: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._actor_class is None:
            from rayshim._core.api import remote

            self._actor_class = remote(self._body)
            if self._bound_options:
                self._actor_class = self._actor_class.options(**self._bound_options)
        return self._actor_class.remote(*bound, **bound_kwargs)

    def _body_line(self) -> str:
        return self._body.__qualname__

    def __getattr__(self, name: str) -> Any:
        body = self.__dict__.get("_body")
        if body is None or name.startswith("__"):
            raise AttributeError(name)
        if not hasattr(body, name):
            if name in ("bind", "remote"):
                return super().__getattr__(name)
            raise AttributeError(
                f"class {body.__qualname__} has no method {name!r} to bind"
            )
        return _UnboundClassMethodNode(self, name, {})


class _UnboundClassMethodNode:
    """``class_node.method``: has ``bind`` and ``options``."""

    def __init__(self, actor: ClassNode, name: str, options: dict[str, Any]) -> None:
        self._actor = actor
        self._method_name = name
        self._options = options

    def bind(self, *args: Any, **kwargs: Any) -> ClassMethodNode:
        """Note a call that runs after those bound before."""
        node = ClassMethodNode(
            self._method_name,
            args,
            kwargs,
            self._options,
            {
                PARENT_CLASS_NODE_KEY: self._actor,
                PREV_CLASS_METHOD_CALL_KEY: self._actor._last_call,
            },
        )
        self._actor._last_call = node
        return node

    def options(self, **options: Any) -> _UnboundClassMethodNode:
        """The method with options of the call."""
        return _UnboundClassMethodNode(
            self._actor, self._method_name, {**self._options, **options}
        )

    def __getattr__(self, name: str) -> Any:
        if name == "remote":
            raise AttributeError(
                ".remote() cannot be used on ClassMethodNodes. Use .bind() instead, "
                "to note the call in a graph."
            )
        raise AttributeError(name)


class ClassMethodNode(DAGNode):
    """A call of an actor's method, or one of its several results.

    Args:
        method_name: name of the method.
        method_args, method_kwargs: its arguments; of a result, the call and the index.
        method_options: as ``.options()`` of a method takes them.
        other_args_to_resolve: the actor and the order, by the keys of
            `rayshim.dag.constants`.
    """

    def __init__(
        self,
        method_name: str,
        method_args: Any,
        method_kwargs: dict[str, Any],
        method_options: dict[str, Any],
        other_args_to_resolve: dict[str, Any],
    ) -> None:
        self._method_name = method_name
        self._parent_class_node = other_args_to_resolve.get(PARENT_CLASS_NODE_KEY)
        self._bind_index = other_args_to_resolve.get(BIND_INDEX_KEY)
        self._is_output = bool(other_args_to_resolve.get(IS_CLASS_METHOD_OUTPUT_KEY))
        super().__init__(
            method_args, method_kwargs, method_options, other_args_to_resolve
        )

    def _copy_impl(
        self,
        new_args: Any,
        new_kwargs: dict[str, Any],
        new_options: dict[str, Any],
        new_other_args_to_resolve: dict[str, Any],
    ) -> ClassMethodNode:
        return type(self)(
            self._method_name,
            new_args,
            new_kwargs,
            new_options,
            new_other_args_to_resolve,
        )

    def _run(
        self,
        bound: Any,
        bound_kwargs: dict[str, Any],
        other: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._is_output:
            return bound[0][bound[1]]
        method = getattr(other[PARENT_CLASS_NODE_KEY], self._method_name)
        if self._bound_options:
            method = method.options(**self._bound_options)
        return method.remote(*bound, **bound_kwargs)

    def _remote_method(self) -> Any:
        """The method of the actor that exists, with the options of the call."""
        method = getattr(self._get_actor_handle(), self._method_name)
        return method.options(**self._bound_options) if self._bound_options else method

    def get_method_name(self) -> str:
        """Name of the method."""
        return self._method_name

    def _get_actor_handle(self) -> ActorHandle | None:
        """The actor, if it was created before the graph was bound."""
        parent = self._parent_class_node
        return parent if isinstance(parent, ActorHandle) else None

    @property
    def num_returns(self) -> int:
        """How many results the call has; of a result, those of its call."""
        if self._is_output:
            return int(self._bound_args[0].num_returns)
        count = self._bound_options.get("num_returns")
        if count is None:
            actor = self._get_actor_handle()
            if actor is None:
                return 1
            count = getattr(actor, self._method_name)._info.num_returns
        return int(count)

    @property
    def is_class_method_call(self) -> bool:
        """Whether the node is a call."""
        return not self._is_output

    @property
    def is_class_method_output(self) -> bool:
        """Whether the node is one of the results of a call."""
        return self._is_output

    @property
    def class_method_call(self) -> ClassMethodNode | None:
        """The call that a result belongs to; None for a call."""
        return self._bound_args[0] if self._is_output else None

    @property
    def output_idx(self) -> int | None:
        """The index of a result among those of its call; None for a call."""
        return self._bound_args[1] if self._is_output else None

    def _body_line(self) -> str:
        return f"{self._method_name}()"


def bind_method(
    handle: ActorHandle,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    """What ``handle.method.bind(...)`` gives.

    Returns:
        A node; for a method with several results a tuple of nodes.
    """
    index = handle.__dict__.setdefault("_ray_dag_bind_index", 0)
    other = {PARENT_CLASS_NODE_KEY: handle, BIND_INDEX_KEY: index}
    call = ClassMethodNode(name, args, kwargs, options, other)
    handle.__dict__["_ray_dag_bind_index"] = index + 1
    count = call.num_returns
    if count <= 1:
        return call
    return tuple(
        ClassMethodNode(
            f"return_idx_{i}",
            (call, i),
            {},
            {},
            {**other, IS_CLASS_METHOD_OUTPUT_KEY: True},
        )
        for i in range(count)
    )
