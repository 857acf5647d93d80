"""Nodes in arguments are found, and replaced, at any depth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rayshim.dag.arguments import NodeBase, find_nodes, replace_nodes


class Node(NodeBase):
    def __init__(self, name: str) -> None:
        self.name = name


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


class Unpicklable:
    def __init__(self) -> None:
        self.lambda_of = open

    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


A, B = Node("a"), Node("b")


def name_of(node: Node) -> str:
    return node.name


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (A, "a"),
        ([A, 1, (B,)], ["a", 1, ("b",)]),
        ({"x": A, "y": {"z": [B]}}, {"x": "a", "y": {"z": ["b"]}}),
        ({A, 1}, {"a", 1}),
        ([1, "text", None], [1, "text", None]),
    ],
)
def test_containers_are_copied_with_values(value: Any, expected: Any) -> None:
    assert replace_nodes(value, name_of) == expected


def test_attributes_of_objects_are_replaced_in_a_copy() -> None:
    holder = Holder([A])
    replaced = replace_nodes(holder, name_of)
    assert replaced.held == ["a"]
    assert holder.held == [A]


def test_objects_without_nodes_stay_themselves() -> None:
    holder, array = Holder(1), np.arange(3)
    first, second = replace_nodes([holder, array], name_of)
    assert first is holder
    assert second is array


def test_what_cannot_be_pickled_has_no_nodes() -> None:
    value = Unpicklable()
    assert replace_nodes(value, name_of) is value


def test_each_node_is_found_once_in_order() -> None:
    assert find_nodes([B, {"x": A}, Holder(B)]) == [B, A]
