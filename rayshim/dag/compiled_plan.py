"""The calls of a compiled graph, in an order in which they can be submitted."""

from __future__ import annotations

from typing import Any

from rayshim.dag.class_node import ClassMethodNode
from rayshim.dag.dag_node import DAGNode
from rayshim.dag.input_node import InputAttributeNode
from rayshim.dag.output_node import MultiOutputNode

#: An input that several calls take is stored once from this size on, in bytes.
SHARED_INPUT_BYTES = 100_000


class _Step:
    """One call: where its arguments are, and where its results go."""

    __slots__ = ("args", "count", "kwargs", "remote", "slot", "variables")

    def __init__(self, node: ClassMethodNode, slots: dict[int, int]) -> None:
        self.remote = node._remote_method().remote
        self.kwargs = node._bound_kwargs
        #: Constant arguments; the others are filled in.
        self.args = list(node._bound_args)
        #: (position, slot) of each argument that is a node.
        self.variables = [
            (position, slots[id(arg)])
            for position, arg in enumerate(node._bound_args)
            if isinstance(arg, DAGNode)
        ]
        self.count = node.num_returns
        self.slot = slots[id(node)]


class Plan:
    """What one execution does.

    Args:
        output: the last node of a checked graph.
        nodes: all its nodes.
    """

    def __init__(self, output: DAGNode, nodes: list[DAGNode]) -> None:
        slots = {id(node): index for index, node in enumerate(nodes)}
        self._size = len(nodes)
        self._inputs: list[tuple[int, int | str | None]] = []
        self._shared: set[int] = set()
        steps: list[tuple[int, _Step]] = []
        #: (slot of a result, slot of its call, index)
        self._parts: dict[int, list[tuple[int, int]]] = {}
        takers: dict[int, int] = {}
        for position, node in enumerate(output._in_order()):
            if node._is_input():
                self._inputs.append((slots[id(node)], None))
            elif isinstance(node, InputAttributeNode):
                self._inputs.append((slots[id(node)], node.key))
            elif isinstance(node, ClassMethodNode):
                if node.is_class_method_output:
                    call, index = node._bound_args
                    self._parts.setdefault(slots[id(call)], []).append(
                        (slots[id(node)], index)
                    )
                    continue
                step = _Step(node, slots)
                # Calls of one actor run in the order of their binds.
                steps.append((position, step))
                for slot in {slot for _, slot in step.variables}:
                    takers[slot] = takers.get(slot, 0) + 1
        self._steps = [step for _, step in steps]
        self._shared = {slot for slot, count in takers.items() if count > 1}
        ends = output._bound_args if isinstance(output, MultiOutputNode) else [output]
        self._ends = [slots[id(node)] for node in ends]

    def submit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Submit all calls; returns the references (or inputs) that come out."""
        values: list[Any] = [None] * self._size
        for slot, key in self._inputs:
            if key is None:
                value = args[0] if len(args) == 1 else None
            elif isinstance(key, int):
                value = args[key]
            else:
                value = kwargs[key]
            if slot in self._shared and _size_of(value) >= SHARED_INPUT_BYTES:
                from rayshim._core.api import put

                value = put(value)
            values[slot] = value
        for step in self._steps:
            arguments = step.args
            for position, slot in step.variables:
                arguments[position] = values[slot]
            result = step.remote(*arguments, **step.kwargs)
            if step.count > 1:
                for slot, index in self._parts.get(step.slot, ()):
                    values[slot] = result[index]
            else:
                values[step.slot] = result
        for step in self._steps:
            # No argument outlives its execution.
            for position, _ in step.variables:
                step.args[position] = None
        return [values[slot] for slot in self._ends]


def _size_of(value: Any) -> int:
    """Bytes of a buffer or an array; 0 for anything else."""
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return size
    return len(value) if isinstance(value, (bytes, bytearray)) else 0
