"""Strategies that say where a task or actor runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rayshim.lineage.affinity import FAIL, WAIT
from rayshim.lineage.ids import NodeID
from rayshim.lineage.labels import ANY_VALUE, both
from rayshim.util.placement_group import PlacementGroup


class PlacementGroupSchedulingStrategy:
    """Runs in a bundle of a placement group.

    Args:
        placement_group: the group.
        placement_group_bundle_index: bundle, or -1 for any.
        placement_group_capture_child_tasks: calls made from inside go there too.
    """

    def __init__(
        self,
        placement_group: PlacementGroup,
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        self.placement_group = placement_group
        self.placement_group_bundle_index = placement_group_bundle_index
        self.placement_group_capture_child_tasks = placement_group_capture_child_tasks


class NodeAffinitySchedulingStrategy:
    """Runs on one node, or with ``soft`` elsewhere if that node is not there.

    A node that is there, and large enough, is waited for while it is full.

    Args:
        node_id: hex id of the node.
        soft: True to fall back to other nodes if it is dead or too small.
        _spill_on_unavailable: with ``soft``, fall back if it is full, too.
        _fail_on_unavailable: without ``soft``, fail if it is full.

    Raises:
        ValueError: ``node_id`` is no id of a node, or a flag does not go with ``soft``.
        AttributeError: ``node_id`` is neither text nor an id.
    """

    def __init__(
        self,
        node_id: Any,
        soft: bool,
        _spill_on_unavailable: bool = False,
        _fail_on_unavailable: bool = False,
    ) -> None:
        self.node_id = node_id if isinstance(node_id, str) else node_id.hex()
        self.soft = soft
        self._spill_on_unavailable = _spill_on_unavailable
        self._fail_on_unavailable = _fail_on_unavailable
        try:
            is_nil = NodeID.from_hex(self.node_id).is_nil()
        except ValueError as error:
            raise ValueError(
                f"{self.node_id!r} is no node_id: it needs 56 hex digits, as the "
                f"NodeID of ray.nodes() ({error})"
            ) from error
        if is_nil:
            raise ValueError(f"node_id {self.node_id} is the nil id; pass a real one")
        if _spill_on_unavailable and not soft:
            raise ValueError(
                "_spill_on_unavailable lets a call run on other nodes and soft=False "
                "forbids it; set soft=True or leave _spill_on_unavailable out"
            )
        if _fail_on_unavailable and soft:
            raise ValueError(
                "_fail_on_unavailable is for calls that may run on one node only; set "
                "soft=False or leave _fail_on_unavailable out"
            )

    def rayshim_reject(self, node_ids: Sequence[str]) -> str:
        """Why a cluster of ``node_ids`` cannot run it, or an empty string."""
        if self.soft or self.node_id.lower() in node_ids:
            return ""
        return (
            "The node specified via NodeAffinitySchedulingStrategy doesn't exist any "
            f"more or is infeasible, and soft=False was specified: {self.node_id} is "
            f"not among {', '.join(node_ids)}. Pass soft=True to run elsewhere."
        )

    def rayshim_kind(self) -> str:
        """What a full node means: wait for it, fail, or (empty) go elsewhere."""
        if self._fail_on_unavailable:
            return FAIL
        return "" if self._spill_on_unavailable else WAIT


class In:
    """The label has one of these values.

    Args:
        *values: text, at least one.

    Raises:
        ValueError: there is none, or one is no text.
    """

    def __init__(self, *values: str) -> None:
        self.values = _checked("In", values)

    def condition(self) -> str:
        """As a label selector says it."""
        return f"in({','.join(self.values)})"


class NotIn:
    """The label has none of these values, or is not there.

    Args:
        *values: text, at least one.

    Raises:
        ValueError: there is none, or one is no text.
    """

    def __init__(self, *values: str) -> None:
        self.values = _checked("NotIn", values)

    def condition(self) -> str:
        """As a label selector says it."""
        return f"!in({','.join(self.values)})"


class Exists:
    """The node has the label, whatever its value."""

    def condition(self) -> str:
        """As the rule for labels says it; users cannot write it."""
        return ANY_VALUE


class DoesNotExist:
    """The node does not have the label."""

    def condition(self) -> str:
        """As the rule for labels says it; users cannot write it."""
        return f"!{ANY_VALUE}"


class NodeLabelSchedulingStrategy:
    """Runs on a node whose labels fit.

    Args:
        hard: label name -> In, NotIn, Exists or DoesNotExist; all must hold. None or
            empty: nothing has to.
        soft: the same; nodes where these hold too are preferred.

    Raises:
        ValueError: both are empty, or one has another form.

    Example:
        >>> NodeLabelSchedulingStrategy(hard={"zone": In("north", "south")}).hard
        {'zone': 'in(north,south)'}
    """

    def __init__(
        self, hard: dict[str, Any] | None, *, soft: dict[str, Any] | None = None
    ) -> None:
        if not hard and not soft:
            raise ValueError(
                "The `hard` and `soft` parameter of NodeLabelSchedulingStrategy cannot "
                "both be empty."
            )
        #: Label name -> condition.
        self.hard = _conditions("hard", hard)
        self.soft = _conditions("soft", soft)

    def rayshim_labels(self) -> tuple[dict[str, str], ...]:
        """Selectors in order of preference."""
        if not self.soft:
            return (self.hard,)
        return (both(self.hard, self.soft), self.hard)


def _checked(operator: str, values: tuple[Any, ...]) -> list[str]:
    if not values:
        raise ValueError(
            f"The variadic parameter of the {operator} operator must be a non-empty "
            f'tuple: e.g. {operator}("value1", "value2").'
        )
    for position, value in enumerate(values):
        if not isinstance(value, str):
            raise ValueError(
                f"Type of value in position {position} for the {operator} operator "
                f'must be str (e.g. {operator}("value1", "value2")) but got {value!r} '
                f"of type {type(value)}."
            )
    return list(values)


def _conditions(name: str, wanted: Any) -> dict[str, str]:
    if wanted is None:
        return {}
    example = 'e.g. {"key1": In("value1")}'
    if not isinstance(wanted, dict):
        raise ValueError(
            f"The {name} parameter must be a map ({example}) but got type "
            f"{type(wanted)}."
        )
    for key, value in wanted.items():
        if not isinstance(key, str):
            raise ValueError(
                f"The map key of the {name} parameter must be of type str ({example}) "
                f"but got {key!r} of type {type(key)}."
            )
        if not isinstance(value, In | NotIn | Exists | DoesNotExist):
            raise ValueError(
                f"The map value for key {key} of the {name} parameter must be one of "
                f"the `In`, `NotIn`, `Exists` or `DoesNotExist` operator ({example}) "
                f"but got {value!r} of type {type(value)}."
            )
    return {key: value.condition() for key, value in wanted.items()}
