"""What must hold of a graph that is compiled.

Ray's rules: calls of actors that exist, each with a node among its positional
arguments, all on the way from the one InputNode to the output, no nodes in containers.
"""

from __future__ import annotations

from dataclasses import dataclass

from rayshim.dag.arguments import iterate_nested
from rayshim.dag.class_node import ClassMethodNode
from rayshim.dag.dag_node import DAGNode
from rayshim.dag.function_node import FunctionNode
from rayshim.dag.input_node import InputAttributeNode, InputNode
from rayshim.dag.output_node import MultiOutputNode


@dataclass(frozen=True, slots=True)
class InputShape:
    """What ``execute`` takes: a number of arguments, and names."""

    #: The InputNode itself is used, not parts of it.
    direct: bool
    positional: int
    names: tuple[str, ...]

    def check(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Compare what ``execute`` was given.

        Raises:
            ValueError: another number of arguments, or a name is missing.
        """
        if len(args) != self.positional:
            raise ValueError(
                "dag.execute() or dag.execute_async() must be called with "
                f"{self.positional} positional args, got {len(args)}"
            )
        for name in self.names:
            if name not in kwargs:
                raise ValueError(
                    "dag.execute() or dag.execute_async() must be called with kwarg "
                    f"`{name}`"
                )


def check_no_nested_nodes(node: DAGNode) -> None:
    """Refuse nodes in a container among the positional arguments."""
    for arg, count in iterate_nested(iter(node._bound_args)):
        raise ValueError(
            f"Found {count} DAGNodes from the arg {arg} in {node}. Please ensure that "
            "the argument is a single DAGNode and that a DAGNode is not allowed to be "
            "placed inside any type of container."
        )


def check_compiled_once(known: DAGNode | None, node: DAGNode) -> DAGNode | None:
    """Refuse a second output in one graph; returns the output known so far."""
    if not node.is_cgraph_output_node:
        return known
    if known is not None:
        raise ValueError(
            "The DAG was compiled more than once. The following two nodes call "
            f"`experimental_compile`: (1) {known}, (2) {node}"
        )
    return node


def check_graph(nodes: list[DAGNode]) -> InputShape:
    """Check all connected nodes of a graph, output included.

    Raises:
        ValueError, NotImplementedError: what does not fit; the message names the node.
    """
    for node in nodes:
        _check_kind(node)
        if any(isinstance(value, DAGNode) for value in node._bound_kwargs.values()):
            raise ValueError(
                "Compiled DAG currently does not support binding to other DAG nodes as "
                f"kwargs: pass them by position to {node}"
            )
    shape = _input_shape(nodes)
    _check_leaves(nodes)
    for node in nodes:
        if isinstance(node, ClassMethodNode) and not any(
            isinstance(arg, DAGNode) for arg in node._bound_args
        ):
            raise ValueError(
                "Compiled DAGs require each task to take a ray.dag.InputNode or at "
                f"least one other DAGNode as an input. Invalid task node:\n{node}\n"
                "Please bind the task to proper DAG nodes."
            )
    return shape


def _check_kind(node: DAGNode) -> None:
    if isinstance(node, FunctionNode):
        raise NotImplementedError(
            "Compiled DAGs currently only support actor method nodes; "
            f"{node._body_line()} is a function: make it a method of an actor, or use "
            "execute() without compiling"
        )
    if not isinstance(
        node, (InputNode, InputAttributeNode, MultiOutputNode, ClassMethodNode)
    ):
        raise ValueError(f"Found unsupported node of type {type(node)}")
    if isinstance(node, ClassMethodNode) and node._get_actor_handle() is None:
        raise ValueError(
            "Compiled DAGs can only bind methods to an actor that is already created "
            f"with Actor.remote(); {node._body_line()} belongs to a class bound with "
            "bind()"
        )


def _input_shape(nodes: list[DAGNode]) -> InputShape:
    inputs = [node for node in nodes if isinstance(node, InputNode)]
    if len(inputs) != 1:
        raise NotImplementedError(
            f"Compiled DAGs currently require exactly one InputNode, not {len(inputs)}"
        )
    used = [arg for node in nodes for arg in node._bound_args]
    direct = any(isinstance(arg, InputNode) for arg in used)
    keys = {arg.key for arg in used if isinstance(arg, InputAttributeNode)}
    if direct and keys:
        raise ValueError(
            "All tasks must either use InputNode() directly, or they must index to "
            "specific args or kwargs."
        )
    unused = set(inputs[0].input_attribute_nodes) - keys
    if unused:
        raise ValueError(
            "Compiled Graph expects input to be accessed using all of attributes "
            f"{', '.join(map(str, inputs[0].input_attribute_nodes))}, but "
            f"{', '.join(sorted(map(str, unused)))} is unused. Ensure all input "
            "attributes are used and contribute to the computation of the output."
        )
    indexes = [key for key in keys if isinstance(key, int)]
    names = sorted(key for key in keys if isinstance(key, str))
    positional = 1 if direct else max(indexes, default=-1) + 1
    return InputShape(direct, positional, tuple(names))


def _check_leaves(nodes: list[DAGNode]) -> None:
    leaves = [
        node.get_method_name()
        for node in nodes
        if isinstance(node, ClassMethodNode)
        and not node._downstream_nodes
        and not node.is_cgraph_output_node
    ]
    if leaves:
        raise ValueError(
            "Compiled DAG doesn't support leaf nodes, i.e., nodes that don't have "
            "downstream nodes and are not output nodes. There are "
            f"{len(leaves)} leaf nodes in the DAG. Please add the outputs of {leaves} "
            "to the MultiOutputNode."
        )
