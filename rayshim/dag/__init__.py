"""Task graphs: ``bind`` notes calls, ``execute`` runs them.

A graph is made of nodes. ``function.bind(...)`` gives a `FunctionNode`,
``Class.bind(...)`` a `ClassNode`, ``handle.method.bind(...)`` a `ClassMethodNode`;
arguments may be nodes, in containers too. `InputNode` stands for what ``execute`` is
given, `MultiOutputNode` for several results. ``node.experimental_compile()`` checks a
graph of actor methods once, and gives a `CompiledDAG`.

Example:
    >>> with InputNode() as number:  # doctest: +SKIP
    ...     doubled = double.bind(number)
    ...     graph = add.bind(doubled, number)
    >>> ray.get(graph.execute(3))  # doctest: +SKIP
    9
"""

from __future__ import annotations

from rayshim.dag.class_node import ClassMethodNode, ClassNode
from rayshim.dag.collective_node import CollectiveOutputNode
from rayshim.dag.compiled_dag_node import CompiledDAG
from rayshim.dag.constants import (
    BIND_INDEX_KEY,
    COLLECTIVE_OPERATION_KEY,
    DAGNODE_TYPE_KEY,
    IS_CLASS_METHOD_OUTPUT_KEY,
    PARENT_CLASS_NODE_KEY,
    PREV_CLASS_METHOD_CALL_KEY,
)
from rayshim.dag.context import DAGContext
from rayshim.dag.dag_node import DAGNode
from rayshim.dag.function_node import FunctionNode
from rayshim.dag.input_node import DAGInputData, InputAttributeNode, InputNode
from rayshim.dag.output_node import MultiOutputNode
from rayshim.dag.vis_utils import plot

__all__ = [
    "BIND_INDEX_KEY",
    "COLLECTIVE_OPERATION_KEY",
    "DAGNODE_TYPE_KEY",
    "IS_CLASS_METHOD_OUTPUT_KEY",
    "PARENT_CLASS_NODE_KEY",
    "PREV_CLASS_METHOD_CALL_KEY",
    "ClassMethodNode",
    "ClassNode",
    "CollectiveOutputNode",
    "CompiledDAG",
    "DAGContext",
    "DAGInputData",
    "DAGNode",
    "FunctionNode",
    "InputAttributeNode",
    "InputNode",
    "MultiOutputNode",
    "plot",
]
