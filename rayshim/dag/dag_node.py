"""What all nodes of a graph have."""

from __future__ import annotations

import copy
import uuid
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from rayshim.dag.arguments import NodeBase, find_nodes, replace_nodes
from rayshim.dag.tensor_transport import ChannelOutputType, choose_transport

if TYPE_CHECKING:
    from rayshim.dag.compiled_dag_node import CompiledDAG

T = TypeVar("T")
_Node = TypeVar("_Node", bound="DAGNode")


class DAGNode(NodeBase):
    """A call that was noted, with arguments that may be nodes.

    Args:
        args: positional arguments, nodes in them at any depth.
        kwargs: arguments by name.
        options: options of the call, as ``.options()`` takes them.
        other_args_to_resolve: what else a kind of node depends on.
    """

    def __init__(
        self,
        args: Iterable[Any],
        kwargs: dict[str, Any],
        options: dict[str, Any],
        other_args_to_resolve: dict[str, Any] | None = None,
    ) -> None:
        self._bound_args: Any = args or []
        self._bound_kwargs = kwargs or {}
        self._bound_options = options or {}
        self._bound_other_args_to_resolve = other_args_to_resolve or {}
        #: The same in all copies of the node.
        self._stable_uuid = uuid.uuid4().hex
        self._downstream_nodes: list[DAGNode] = []
        self._upstream_nodes: list[DAGNode] = self._get_all_child_nodes()
        for node in self._upstream_nodes:
            node._downstream_nodes.append(self)
        #: Stable id -> result of the last ``execute(_ray_cache_refs=True)``.
        self.cache_from_last_execute: dict[str, Any] = {}
        self._type_hint: ChannelOutputType = ChannelOutputType()
        self.is_cgraph_output_node = False

    def with_tensor_transport(
        self: _Node,
        transport: Any = "auto",
        device: str = "default",
        _static_shape: bool = False,
        _direct_return: bool = False,
    ) -> _Node:
        """Say how this node's tensors travel: here, through the shared store.

        Args:
            transport: "auto" or "shm". "nccl", "accelerator" and communicators are
                refused.
            device: "default" or "cpu".
            _static_shape, _direct_return: make Ray's channels of GPUs faster; nothing
                depends on them in the shared store.

        Raises:
            ValueError: no such transport or device.
            NotImplementedError: a transport or device that needs GPUs.
        """
        self._type_hint = choose_transport(
            transport, device, static_shape=_static_shape, direct_return=_direct_return
        )
        return self

    @property
    def type_hint(self) -> ChannelOutputType:
        """How the result travels, see `with_tensor_transport`."""
        return self._type_hint

    @type_hint.setter
    def type_hint(self, type_hint: ChannelOutputType) -> None:
        self._type_hint = type_hint

    def get_args(self) -> Any:
        """The positional arguments."""
        return self._bound_args

    def get_kwargs(self) -> dict[str, Any]:
        """The arguments by name, copied."""
        return dict(self._bound_kwargs)

    def get_options(self) -> dict[str, Any]:
        """The options of the call, copied."""
        return dict(self._bound_options)

    def get_other_args_to_resolve(self) -> dict[str, Any]:
        """What else the node depends on, copied."""
        return dict(self._bound_other_args_to_resolve)

    def get_stable_uuid(self) -> str:
        """An id that copies of the node share."""
        return self._stable_uuid

    async def get_object_refs_from_last_execute(self) -> dict[str, Any]:
        """Stable id -> result of the last ``execute(_ray_cache_refs=True)``."""
        return dict(self.cache_from_last_execute)

    def clear_cache(self) -> None:
        """Forget the results of the last ``execute(_ray_cache_refs=True)``."""
        self.cache_from_last_execute = {}

    def experimental_compile(
        self,
        _submit_timeout: float | None = None,
        _buffer_size_bytes: int | None = None,
        enable_asyncio: bool = False,
        _max_inflight_executions: int | None = None,
        _max_buffered_results: int | None = None,
        _overlap_gpu_communication: bool | None = None,
        _default_communicator: Any = "create",
    ) -> CompiledDAG:
        """Check the graph that ends here, and make it ready to run many times.

        Its calls are calls of the actors, as ``.remote()`` makes them. Executions
        follow each other without waiting, at most ``_max_inflight_executions`` at a
        time; results are fetched once.

        Args:
            _submit_timeout: seconds; see `DAGContext.submit_timeout`.
            _buffer_size_bytes: see `DAGContext.buffer_size_bytes`.
            enable_asyncio: True: `CompiledDAG.execute_async` instead of ``execute``.
            _max_inflight_executions: executions that may be under way, >= 1.
            _max_buffered_results: results that may wait for being fetched, >= 1.
            _overlap_gpu_communication: True is refused.
            _default_communicator: "create" or None; communicators are refused.

        Raises:
            ValueError: the graph cannot be compiled; the message says which node.
            NotImplementedError: the graph has functions in it or no InputNode, or a
                parameter needs GPUs.
        """
        from rayshim.dag.compiled_dag_node import build_compiled_dag_from_ray_dag

        if self.is_cgraph_output_node:
            raise ValueError(
                "It is not allowed to call `experimental_compile` on the same DAG "
                "object multiple times, after `teardown` either. Use the compiled DAG "
                "that there is, or bind a new one."
            )
        self.is_cgraph_output_node = True
        return build_compiled_dag_from_ray_dag(
            self,
            _submit_timeout,
            _buffer_size_bytes,
            enable_asyncio,
            _max_inflight_executions,
            _max_buffered_results,
            _overlap_gpu_communication,
            _default_communicator,
        )

    def execute(self, *args: Any, _ray_cache_refs: bool = False, **kwargs: Any) -> Any:
        """Submit the calls of the graph that ends here, each node once.

        Args:
            args: what the InputNode stands for: one value, or several to be indexed.
            _ray_cache_refs: keep what each node gave, see
                `get_object_refs_from_last_execute`.
            kwargs: what ``input_node.NAME`` stands for.

        Returns:
            An ObjectRef; a list for a MultiOutputNode; a handle for a ClassNode.

        Raises:
            AssertionError: there are several InputNodes, or one outside of ``with``.
        """
        from rayshim.util.annotations import RayDeprecationWarning

        warnings.warn(
            "DAGNode.execute() is deprecated in Ray. It stays here.",
            RayDeprecationWarning,
            stacklevel=2,
        )
        results: dict[str, Any] = {}
        input_uuid = ""
        for node in self._in_order():
            uid = node._stable_uuid
            if uid in results:
                continue
            if node._is_input():
                _check_single_input(input_uuid, uid)
                input_uuid = uid
            bound, bound_kwargs, other = replace_nodes(
                [node._bound_args, node._bound_kwargs, node._other_values()],
                lambda child: results[child._stable_uuid],
            )
            results[uid] = node._run(bound, bound_kwargs, other, args, kwargs)
        if _ray_cache_refs:
            self.cache_from_last_execute = results
        return results[self._stable_uuid]

    def _in_order(self) -> list[DAGNode]:
        """The nodes that this one depends on, and it, each after its arguments."""
        order: list[DAGNode] = []
        seen: set[int] = set()
        stack: list[tuple[DAGNode, bool]] = [(self, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                order.append(node)
                continue
            if id(node) in seen:
                continue
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node._upstream_nodes))
        return order

    def _is_input(self) -> bool:
        return False

    def _other_values(self) -> dict[str, Any]:
        """What `_run` gets as ``other``, nodes in it included."""
        return self._bound_other_args_to_resolve

    def _run(
        self,
        bound: Any,
        bound_kwargs: dict[str, Any],
        other: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Submit this call; what were nodes in its arguments are their results."""
        raise NotImplementedError(f"{type(self).__name__} cannot be executed")

    def _execute_impl(self, *args: Any, **kwargs: Any) -> Any:
        """Submit this call, if no argument is a node any more."""
        return self._run(
            self._bound_args,
            self._bound_kwargs,
            self._bound_other_args_to_resolve,
            args,
            kwargs,
        )

    def _get_toplevel_child_nodes(self) -> list[DAGNode]:
        """The nodes that are arguments themselves, not those in containers."""
        found: list[DAGNode] = []
        for value in (
            *self._bound_args,
            *self._bound_kwargs.values(),
            *self._bound_other_args_to_resolve.values(),
        ):
            if isinstance(value, DAGNode) and value not in found:
                found.append(value)
        return found

    def _get_all_child_nodes(self) -> list[DAGNode]:
        """The nodes in the arguments, at any depth."""
        return find_nodes(
            [
                self._bound_args,
                self._bound_kwargs,
                self._bound_other_args_to_resolve,
            ]
        )

    def _apply_and_replace_all_child_nodes(
        self, fn: Callable[[DAGNode], Any]
    ) -> DAGNode:
        """A copy with ``fn(child)`` in the place of each child."""
        done: dict[int, Any] = {}

        def visit(node: DAGNode) -> Any:
            if id(node) not in done:
                done[id(node)] = fn(node)
            return done[id(node)]

        args, kwargs, other = replace_nodes(
            [
                self._bound_args,
                self._bound_kwargs,
                self._bound_other_args_to_resolve,
            ],
            visit,
        )
        return self._copy(args, kwargs, self.get_options(), other)

    def apply_recursive(self, fn: Callable[[DAGNode], T]) -> T:
        """Apply ``fn`` to a copy of each node once, arguments first.

        Args:
            fn: gets a copy of the node, with what it gave for the arguments in their
                place.

        Returns:
            What ``fn`` gave for this node.
        """
        results: dict[str, Any] = {}
        input_uuid = ""
        for node in self._in_order():
            uid = node._stable_uuid
            if uid in results:
                continue
            if node._is_input():
                _check_single_input(input_uuid, uid)
                input_uuid = uid
            results[uid] = fn(
                node._apply_and_replace_all_child_nodes(
                    lambda child: results[child._stable_uuid]
                )
            )
        result: T = results[self._stable_uuid]
        return result

    def apply_functional(
        self,
        source_input_list: Any,
        predicate_fn: Callable[[DAGNode], bool],
        apply_fn: Callable[[DAGNode], Any],
    ) -> Any:
        """A copy of ``source_input_list`` with some of its nodes replaced.

        Args:
            source_input_list: any value with nodes in it.
            predicate_fn: whether a node is to be replaced.
            apply_fn: what to put in its place.
        """
        done: dict[int, Any] = {}

        def visit(node: DAGNode) -> Any:
            if not predicate_fn(node):
                return node
            if id(node) not in done:
                done[id(node)] = apply_fn(node)
            return done[id(node)]

        return replace_nodes(source_input_list, visit)

    def traverse_and_apply(self, fn: Callable[[DAGNode], Any]) -> None:
        """Apply ``fn`` to all nodes that are connected with this one, in any direction.

        Raises:
            ValueError: a node has others in a container of its arguments, or the graph
                was compiled twice.
        """
        from rayshim.dag.graph_checks import (
            check_compiled_once,
            check_no_nested_nodes,
        )

        seen: set[int] = {id(self)}
        queue: list[DAGNode] = [self]
        output: DAGNode | None = None
        for node in queue:
            check_no_nested_nodes(node)
            output = check_compiled_once(output, node)
            fn(node)
            for other in (*node._downstream_nodes, *node._upstream_nodes):
                if id(other) not in seen:
                    seen.add(id(other))
                    queue.append(other)

    def _find_root(self) -> DAGNode:
        """The InputNode above.

        Raises:
            ValueError: there is none.
        """
        node = self
        while not node._is_input():
            if not node._upstream_nodes:
                raise ValueError(
                    "No InputNode found in the DAG: when traversing upwards, no "
                    f"upstream node was found for {node}. A compiled DAG needs one: "
                    "bind something to an InputNode."
                )
            node = node._upstream_nodes[0]
        return node

    def _copy_impl(
        self,
        new_args: Any,
        new_kwargs: dict[str, Any],
        new_options: dict[str, Any],
        new_other_args_to_resolve: dict[str, Any],
    ) -> DAGNode:
        raise NotImplementedError(f"{type(self).__name__} cannot be copied")

    def _copy(
        self,
        new_args: Any,
        new_kwargs: dict[str, Any],
        new_options: dict[str, Any],
        new_other_args_to_resolve: dict[str, Any],
    ) -> DAGNode:
        """A copy with other arguments and the same stable id."""
        instance = self._copy_impl(
            new_args, new_kwargs, new_options, new_other_args_to_resolve
        )
        instance._stable_uuid = self._stable_uuid
        instance._type_hint = copy.copy(self._type_hint)
        return instance

    def _body_line(self) -> str:
        return type(self).__name__

    def __str__(self) -> str:
        lines = [f"({type(self).__name__}, {self._stable_uuid})("]
        for name, value in (
            ("body", self._body_line()),
            ("args", self._bound_args),
            ("kwargs", self._bound_kwargs),
            ("options", self._bound_options),
        ):
            lines.append(f"    {name}={value if name == 'body' else repr(value)}")
        return "\n".join([*lines, ")"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._body_line()}, {self._stable_uuid[:8]})"

    # Pickling asks for these; without them __getattr__ of subclasses would answer.

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __getattr__(self, name: str) -> Any:
        if name == "bind":
            raise AttributeError(f".bind() cannot be used again on {type(self)}")
        if name == "remote":
            raise AttributeError(
                f".remote() cannot be used on {type(self)}. To run the graph that ends "
                "in this node, use .execute()."
            )
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")


def _check_single_input(known: str, found: str) -> None:
    if known and known != found:
        raise AssertionError("Each DAG should only have one unique InputNode.")
