"""What a graph is given when it runs."""

from __future__ import annotations

from typing import Any

from rayshim.dag.dag_node import DAGNode

#: Set by ``with``, as Ray's name of it.
IN_CONTEXT_MANAGER = "__in_context_manager__"
_NODE_ATTRIBUTES = ("bind", "remote")


def _check_key(key: Any) -> None:
    if not isinstance(key, (str, int)):
        raise AssertionError(
            "Please only use int index or str as first-level key to access fields of "
            f"dag input; got {key!r}."
        )


class InputNode(DAGNode):
    """Stands for the arguments of ``execute``. Use it in ``with``, one for a graph.

    The node itself is the one argument; ``node[0]``, ``node["key"]`` and ``node.key``
    are parts of it, or of several arguments.

    Args:
        args, kwargs: refused; input comes with ``execute``.
        input_type: a type, or key -> type, kept for `get_result_type`.
        _other_args_to_resolve: what a copy takes over.

    Raises:
        ValueError: there are arguments.

    Example:
        >>> with InputNode() as given:  # doctest: +SKIP
        ...     graph = add.bind(given[0], given.other)
        >>> graph.execute(1, other=2)  # doctest: +SKIP
    """

    def __init__(
        self,
        *args: Any,
        input_type: type | dict[int | str, type] | None = None,
        _other_args_to_resolve: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if args or kwargs:
            raise ValueError("InputNode should not take any args or kwargs.")
        other = dict(_other_args_to_resolve or {})
        if isinstance(input_type, type):
            other["result_type_string"] = input_type.__name__
        self.input_attribute_nodes: dict[int | str, InputAttributeNode] = {}
        self.input_type = input_type
        super().__init__([], {}, {}, other)

    def _is_input(self) -> bool:
        return True

    def _copy_impl(
        self,
        new_args: Any,
        new_kwargs: dict[str, Any],
        new_options: dict[str, Any],
        new_other_args_to_resolve: dict[str, Any],
    ) -> InputNode:
        return InputNode(_other_args_to_resolve=new_other_args_to_resolve)

    def _run(
        self,
        bound: Any,
        bound_kwargs: dict[str, Any],
        other: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not other.get(IN_CONTEXT_MANAGER):
            raise AssertionError(
                "InputNode is a singleton instance that should be only used in context "
                "manager for dag building and execution: "
                "`with InputNode() as inp: ...`"
            )
        if len(args) == 1 and not kwargs:
            return args[0]
        return DAGInputData(*args, **kwargs)

    def set_context(self, key: str, val: Any) -> None:
        """Keep something with the node, by name."""
        self._bound_other_args_to_resolve[key] = val

    def get_result_type(self) -> str | None:
        """Name of the type of the input, if it was given."""
        name: str | None = self._bound_other_args_to_resolve.get("result_type_string")
        return name

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__") or "input_attribute_nodes" not in self.__dict__:
            raise AttributeError(key)
        if key in _NODE_ATTRIBUTES:
            return super().__getattr__(key)
        return self._attribute(key, "__getattr__", None)

    def __getitem__(self, key: int | str) -> InputAttributeNode:
        _check_key(key)
        input_type = None
        if isinstance(self.input_type, dict) and key in self.input_type:
            input_type = self.input_type[key].__name__
        return self._attribute(key, "__getitem__", input_type)

    def _attribute(
        self, key: int | str, accessor: str, input_type: str | None
    ) -> InputAttributeNode:
        node = self.input_attribute_nodes.get(key)
        if node is None:
            node = InputAttributeNode(self, key, accessor, input_type)
            self.input_attribute_nodes[key] = node
        return node

    def __enter__(self) -> InputNode:
        self.set_context(IN_CONTEXT_MANAGER, True)
        return self

    def __exit__(self, *args: object) -> None:
        pass


class InputAttributeNode(DAGNode):
    """Part of the input: an argument, an item or an attribute.

    Args:
        dag_input_node: the node that it is part of.
        key: index or name.
        accessor_method: ``"__getitem__"`` or ``"__getattr__"``.
        input_type: name of its type, kept for `get_result_type`.
    """

    def __init__(
        self,
        dag_input_node: InputNode,
        key: int | str,
        accessor_method: str,
        input_type: str | None = None,
    ) -> None:
        self._dag_input_node = dag_input_node
        self._key = key
        self._accessor_method = accessor_method
        super().__init__(
            [],
            {},
            {},
            {
                "dag_input_node": dag_input_node,
                "key": key,
                "accessor_method": accessor_method,
                "result_type_string": input_type,
            },
        )

    def _copy_impl(
        self,
        new_args: Any,
        new_kwargs: dict[str, Any],
        new_options: dict[str, Any],
        new_other_args_to_resolve: dict[str, Any],
    ) -> InputAttributeNode:
        return InputAttributeNode(
            new_other_args_to_resolve["dag_input_node"],
            new_other_args_to_resolve["key"],
            new_other_args_to_resolve["accessor_method"],
            new_other_args_to_resolve["result_type_string"],
        )

    def _run(
        self,
        bound: Any,
        bound_kwargs: dict[str, Any],
        other: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        given = other["dag_input_node"]
        if isinstance(given, DAGInputData):
            return given[self._key]
        if isinstance(self._key, str) and self._accessor_method == "__getattr__":
            return getattr(given, self._key)
        return given[self._key]

    def get_result_type(self) -> str | None:
        """Name of the type of this part, if it was given."""
        name: str | None = self._bound_other_args_to_resolve.get("result_type_string")
        return name

    @property
    def key(self) -> int | str:
        """Index or name of the part."""
        return self._key

    def _body_line(self) -> str:
        return f'["{self._key}"]'


class DAGInputData:
    """Several arguments of ``execute`` as one value, by index or name.

    Args:
        args: found by index.
        kwargs: found by name.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._args = list(args)
        self._kwargs = kwargs

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, int):
            return self._args[key]
        if isinstance(key, str):
            return self._kwargs[key]
        raise ValueError(
            "Please only use int index or str as first-level key to access fields of "
            f"dag input; got {key!r}."
        )
