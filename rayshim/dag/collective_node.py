"""Collective operations in a graph, over the shared store.

Each actor of the operation gets the values of all and computes its own result; there
are no channels between the actors.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from rayshim.dag.class_node import ClassMethodNode
from rayshim.dag.constants import COLLECTIVE_OPERATION_KEY, PARENT_CLASS_NODE_KEY
from rayshim.dag.dag_node import DAGNode

_REDUCTIONS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")


@dataclass(frozen=True, slots=True)
class CollectiveOperation:
    """What is computed: "allreduce", "allgather" or "reducescatter", and how."""

    kind: str
    reduction: str
    #: Handles of the actors that take part, by rank.
    actor_handles: tuple[Any, ...]


class CollectiveOutputNode(ClassMethodNode):
    """What one actor has after a collective operation."""

    @property
    def collective_op(self) -> CollectiveOperation:
        """The operation that this node is a result of."""
        operation: CollectiveOperation = self._bound_other_args_to_resolve[
            COLLECTIVE_OPERATION_KEY
        ]
        return operation

    @property
    def num_returns(self) -> int:
        """One: the result of this actor."""
        return 1

    def _remote_method(self) -> Any:
        handle = self._get_actor_handle()
        operation = self.collective_op
        rank = operation.actor_handles.index(handle)
        return _Bound(
            handle.__ray_call__,  # type: ignore[union-attr]  # set by `bind_collective`
            functools.partial(
                _compute, kind=operation.kind, reduction=operation.reduction, rank=rank
            ),
        )

    def _run(
        self,
        bound: Any,
        bound_kwargs: dict[str, Any],
        other: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        return self._remote_method().remote(*bound)


class _Bound:
    """``handle.__ray_call__`` with its function."""

    def __init__(self, method: Any, function: Any) -> None:
        self._method = method
        self._function = function

    def remote(self, *values: Any) -> Any:
        return self._method.remote(self._function, *values)


def bind_collective(
    inputs: Any, kind: str, reduction: Any, transport: Any
) -> list[CollectiveOutputNode]:
    """Bind one operation to a node of each actor.

    Args:
        inputs: calls of different actors, by rank.
        kind: see `CollectiveOperation`.
        reduction: a ``ReduceOp`` of any of Ray's modules.
        transport: None.

    Raises:
        ValueError: ``inputs`` are not calls of different actors.
        NotImplementedError: a transport, or lists of inputs.
    """
    if transport is not None:
        raise NotImplementedError(
            f"{kind}.bind(transport={transport!r}): values travel through the shared "
            "store; leave transport out, or use ray.util.collective in the methods"
        )
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise ValueError(f"{kind}.bind() takes a list with a node of each actor")
    if isinstance(inputs[0], (list, tuple)):
        raise NotImplementedError(
            f"{kind}.bind() with lists of nodes: bind each list on its own"
        )
    name = getattr(reduction, "name", str(reduction))
    if name not in _REDUCTIONS:
        raise ValueError(f"Unexpected operation: {reduction}")
    handles = [
        node._get_actor_handle() if isinstance(node, ClassMethodNode) else None
        for node in inputs
    ]
    if None in handles or len(set(handles)) != len(handles):
        raise ValueError(
            "Expected unique actor handles for a collective operation: each node must "
            "be a method call of another actor, created with Actor.remote()"
        )
    operation = CollectiveOperation(kind, name, tuple(handles))
    return [
        CollectiveOutputNode(
            kind,
            tuple(inputs),
            {},
            {},
            {PARENT_CLASS_NODE_KEY: handle, COLLECTIVE_OPERATION_KEY: operation},
        )
        for handle in handles
    ]


def _compute(_actor: Any, *values: Any, kind: str, reduction: str, rank: int) -> Any:
    """What the actor with ``rank`` has after the operation."""
    if kind == "allgather":
        return _module_of(values[0]).concatenate(values)
    if kind == "reducescatter":
        count = len(values)
        if values[0].shape[0] % count:
            raise ValueError(
                f"reducescatter: the first dimension, {values[0].shape[0]}, is not "
                f"divisible by the {count} actors"
            )
        part = values[0].shape[0] // count
        values = tuple(value[rank * part : (rank + 1) * part] for value in values)
    return reduce_values(list(values), reduction)


def reduce_values(values: list[Any], reduction: str) -> Any:
    """Arrays or tensors of one shape as one; SUM, PRODUCT, MIN, MAX or AVG."""
    module = _module_of(values[0])
    if reduction in ("SUM", "AVG"):
        total = functools.reduce(lambda a, b: a + b, values)
        return total / len(values) if reduction == "AVG" else total
    if reduction == "PRODUCT":
        return functools.reduce(lambda a, b: a * b, values)
    pick = module.minimum if reduction == "MIN" else module.maximum
    return functools.reduce(pick, values)


def _module_of(value: Any) -> Any:
    """torch for a tensor, numpy for anything else."""
    if type(value).__module__.partition(".")[0] == "torch":
        import torch

        return torch
    import numpy as np

    return np


__all__ = ["CollectiveOperation", "CollectiveOutputNode", "DAGNode"]
