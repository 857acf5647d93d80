"""Keys of a node's other arguments, as Ray names them."""

from __future__ import annotations

#: Of a method: the handle or `ClassNode` that it belongs to.
PARENT_CLASS_NODE_KEY = "parent_class_node"
#: Of a method: the one bound before it to the same `ClassNode`.
PREV_CLASS_METHOD_CALL_KEY = "prev_class_method_call"
#: Of a method: how many were bound before it to the same handle.
BIND_INDEX_KEY = "bind_index"
#: Of a method: whether the node is one of several results.
IS_CLASS_METHOD_OUTPUT_KEY = "is_class_method_output"
#: Of a collective node: its operation.
COLLECTIVE_OPERATION_KEY = "collective_operation"
#: Names the type of a node where graphs are written as text.
DAGNODE_TYPE_KEY = "__dag_node_type__"
