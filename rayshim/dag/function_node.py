"""Calls of remote functions in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rayshim.dag.dag_node import DAGNode


class FunctionNode(DAGNode):
    """A call of a remote function, as ``function.bind(...)`` notes it.

    Args:
        func_body: the plain function.
        func_args, func_kwargs: its arguments.
        func_options: as ``.options()`` takes them.
        other_args_to_resolve: not used.
        remote_function: what submits the call; made of ``func_body`` when not given.
    """

    def __init__(
        self,
        func_body: Callable[..., Any],
        func_args: Any,
        func_kwargs: dict[str, Any],
        func_options: dict[str, Any],
        other_args_to_resolve: dict[str, Any] | None = None,
        *,
        remote_function: Any = None,
    ) -> None:
        self._body = func_body
        self._remote_function = remote_function
        super().__init__(func_args, func_kwargs, func_options, other_args_to_resolve)

    def _copy_impl(
        self,
        new_args: Any,
        new_kwargs: dict[str, Any],
        new_options: dict[str, Any],
        new_other_args_to_resolve: dict[str, Any],
    ) -> FunctionNode:
        return FunctionNode(
            self._body,
            new_args,
            new_kwargs,
            new_options,
            new_other_args_to_resolve,
            remote_function=self._remote_function,
        )

    def _run(
        self,
        bound: Any,
        bound_kwargs: dict[str, Any],
        other: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._remote_function is None:
            from rayshim._core.api import remote

            self._remote_function = remote(self._body)
            if self._bound_options:
                self._remote_function = self._remote_function.options(
                    **self._bound_options
                )
        return self._remote_function.remote(*bound, **bound_kwargs)

    def _body_line(self) -> str:
        return getattr(self._body, "__qualname__", str(self._body))
