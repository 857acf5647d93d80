"""Where the labels of a node come from."""

from __future__ import annotations

from typing import Any

import pytest

from rayshim._core.node_labels import node_labels

PLACE = {
    "RAY_NODE_TYPE_NAME": "workers",
    "RAY_NODE_MARKET_TYPE": "spot",
    "RAY_NODE_REGION": "north",
    "RAY_NODE_ZONE": "north-1",
}


def test_the_environment_says_where_a_node_is() -> None:
    assert node_labels(None, "H100", PLACE) == {
        "ray.io/node-group": "workers",
        "ray.io/market-type": "spot",
        "ray.io/availability-region": "north",
        "ray.io/availability-zone": "north-1",
        "ray.io/accelerator-type": "H100",
    }
    assert node_labels({}, "", {"RAY_NODE_ZONE": ""}) == {}


def test_users_go_before_the_environment_and_the_override_before_users() -> None:
    mine = {"ray.io/market-type": "mine", "a": "1", "b": "2"}
    environment = {**PLACE, "RAY_OVERRIDE_LABELS": '{"a": "over", "c": "3"}'}
    labels = node_labels(mine, "", environment)
    assert labels["ray.io/market-type"] == "mine"
    assert {name: labels[name] for name in "abc"} == {"a": "over", "b": "2", "c": "3"}


@pytest.mark.parametrize("wrong", ["a", {"a": 1}, {1: "a"}, {"a": None}])
def test_labels_map_text_to_text(wrong: Any) -> None:
    with pytest.raises(TypeError, match="labels"):
        node_labels(wrong, "", {})


@pytest.mark.parametrize(
    ("text", "error"), [("{", ValueError), ("[]", TypeError), ('{"a": 1}', TypeError)]
)
def test_a_wrong_override_is_named(text: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="RAY_OVERRIDE_LABELS"):
        node_labels({}, "", {"RAY_OVERRIDE_LABELS": text})
