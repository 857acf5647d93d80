"""Nodes of Dask graphs as tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import dask
from dask._task_spec import Alias, DataNode, GraphNode, Task, convert_legacy_graph
from dask.base import normalize_token
from dask.highlevelgraph import HighLevelGraph

from rayshim._core.refs import ObjectRef

RESOURCES_ERROR = (
    'Use ray_remote_args={"resources": {...}} instead of resources={...} to specify '
    "required Ray task resources."
)


class Graph:
    """A graph as it is run.

    Args:
        dsk: a mapping, or an expression of Dask's.
        remote_args: options of all its tasks.

    Raises:
        ValueError: it is annotated with ``resources``.
    """

    def __init__(self, dsk: Any, remote_args: dict[str, Any]) -> None:
        self._common = {
            **remote_args,
            **_remote_args(dask.get_annotations()),
        }
        #: Key -> options of its task, beyond those of all.
        self._own: dict[Any, dict[str, Any]] = {}
        if not isinstance(dsk, Mapping):
            if hasattr(dsk, "__dask_annotations__"):
                self._annotate(dsk.__dask_annotations__())
            dsk = dsk.__dask_graph__()
        elif isinstance(dsk, HighLevelGraph):
            for layer in dsk.layers.values():
                found = _remote_args(layer.annotations or {})
                if found:
                    self._own.update(dict.fromkeys(layer.get_output_keys(), found))
        self.nodes: dict[Any, GraphNode] = convert_legacy_graph(dict(dsk))

    def _annotate(self, by_type: Mapping[str, Mapping[Any, Any]]) -> None:
        if "resources" in by_type:
            raise ValueError(RESOURCES_ERROR)
        for key, found in by_type.get("ray_remote_args", {}).items():
            self._own[key] = found

    def options(self, key: Any) -> dict[str, Any]:
        """Options of the task of a node."""
        return {"name": f"dask:{key}", **self._common, **self._own.get(key, {})}

    def in_order(self) -> list[Any]:
        """The keys, in the order in which Dask would run them."""
        from dask.order import order

        ranks = order(self.nodes)
        return sorted(self.nodes, key=ranks.__getitem__)


@normalize_token.register(ObjectRef)  # type: ignore[untyped-decorator]
def _token_of(ref: ObjectRef) -> tuple[str, str]:
    """What names of nodes with a reference are made of, instead of its pickle."""
    return "ObjectRef", ref.hex()


def _remote_args(annotations: Mapping[str, Any]) -> dict[str, Any]:
    if "resources" in annotations:
        raise ValueError(RESOURCES_ERROR)
    found: dict[str, Any] = annotations.get("ray_remote_args") or {}
    return found


def alias_of(node: GraphNode) -> Any:
    """The key that a node merely stands for; None for other nodes."""
    if not isinstance(node, Alias):
        return None
    return getattr(node.target, "key", node.target)


def value_of(node: GraphNode) -> tuple[bool, Any]:
    """Whether a node is a constant, and which."""
    if isinstance(node, DataNode):
        return True, node.value
    return False, None


def map_constants(node: Any, visit: Callable[[Any], Any]) -> Any:
    """Put ``visit(constant)`` in the place of each that ``visit`` may change.

    Nodes are changed in place: pass those of one's own. ``visit`` gets ObjectRefs and
    futures of Dask's; containers are looked through.
    """
    if isinstance(node, DataNode):
        node.value = map_constants(node.value, visit)
        return node
    if isinstance(node, Task):
        node.args = tuple(map_constants(arg, visit) for arg in node.args)
        node.kwargs = {
            name: map_constants(arg, visit) for name, arg in node.kwargs.items()
        }
        return node
    kind = type(node)
    if kind in (list, tuple, set):
        return kind([map_constants(item, visit) for item in node])
    if kind is dict:
        return {key: map_constants(item, visit) for key, item in node.items()}
    return visit(node)


def references_in(node: GraphNode) -> list[ObjectRef]:
    """The ObjectRefs among the constants of a node, in the order of `map_constants`."""
    found: list[ObjectRef] = []

    def visit(value: Any) -> Any:
        if isinstance(value, ObjectRef):
            found.append(value)
        return value

    map_constants(node.copy() if isinstance(node, Task) else node, visit)
    return found


def with_values(node: GraphNode, values: list[Any]) -> GraphNode:
    """The node with values in the place of its ObjectRefs; it is changed."""
    left = iter(values)
    result: GraphNode = map_constants(
        node, lambda value: next(left) if isinstance(value, ObjectRef) else value
    )
    return result
