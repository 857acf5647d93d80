"""Several results of a graph."""

from __future__ import annotations

from typing import Any

from rayshim.dag.dag_node import DAGNode


class MultiOutputNode(DAGNode):
    """Ends a graph with several results: ``execute`` gives a list.

    Args:
        args: list or tuple of nodes.
        other_args_to_resolve: not used.

    Raises:
        ValueError: neither a list nor a tuple.
    """

    def __init__(
        self,
        args: list[Any] | tuple[Any, ...],
        other_args_to_resolve: dict[str, Any] | None = None,
    ) -> None:
        if isinstance(args, tuple):
            args = list(args)
        if not isinstance(args, list):
            raise ValueError(f"Invalid input type for `args`, {type(args)}.")
        super().__init__(args, {}, {}, other_args_to_resolve)

    def _copy_impl(
        self,
        new_args: Any,
        new_kwargs: dict[str, Any],
        new_options: dict[str, Any],
        new_other_args_to_resolve: dict[str, Any],
    ) -> MultiOutputNode:
        return MultiOutputNode(new_args, new_other_args_to_resolve)

    def _run(
        self,
        bound: Any,
        bound_kwargs: dict[str, Any],
        other: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        return bound
