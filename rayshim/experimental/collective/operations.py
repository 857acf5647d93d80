"""Collective operations, as calls and as nodes of graphs."""

from __future__ import annotations

from typing import Any

from rayshim.dag.collective_node import CollectiveOutputNode, bind_collective
from rayshim.util.collective import collective
from rayshim.util.collective.types import ReduceOp


class AllGatherWrapper:
    """``allgather(...)`` in an actor, ``allgather.bind(...)`` in a graph."""

    def bind(
        self, input_nodes: list[Any], transport: Any = None
    ) -> list[CollectiveOutputNode]:
        """A node for each actor: the tensors of all, one after the other."""
        return bind_collective(input_nodes, "allgather", ReduceOp.SUM, transport)

    def __call__(
        self, tensor_list: list[Any], tensor: Any, group_name: str = "default"
    ) -> None:
        """See `rayshim.util.collective.allgather`."""
        collective.allgather(tensor_list, tensor, group_name)


class AllReduceWrapper:
    """``allreduce(...)`` in an actor, ``allreduce.bind(...)`` in a graph."""

    def bind(
        self, input_nodes: list[Any], op: Any = ReduceOp.SUM, transport: Any = None
    ) -> list[CollectiveOutputNode]:
        """A node for each actor: the tensors of all as one."""
        return bind_collective(input_nodes, "allreduce", op, transport)

    def __call__(
        self, tensor: Any, group_name: str = "default", op: ReduceOp = ReduceOp.SUM
    ) -> None:
        """See `rayshim.util.collective.allreduce`."""
        collective.allreduce(tensor, group_name, op)


class ReduceScatterWrapper:
    """``reducescatter(...)`` in an actor, ``reducescatter.bind(...)`` in a graph."""

    def bind(
        self, input_nodes: list[Any], op: Any = ReduceOp.SUM, transport: Any = None
    ) -> list[CollectiveOutputNode]:
        """A node for each actor: its part of the tensors of all as one."""
        return bind_collective(input_nodes, "reducescatter", op, transport)

    def __call__(
        self,
        tensor: Any,
        tensor_list: list[Any],
        group_name: str = "default",
        op: ReduceOp = ReduceOp.SUM,
    ) -> None:
        """See `rayshim.util.collective.reducescatter`."""
        collective.reducescatter(tensor, tensor_list, group_name, op)


allgather = AllGatherWrapper()
allreduce = AllReduceWrapper()
reducescatter = ReduceScatterWrapper()
