"""The labels of a node: from ``init`` and from the environment."""

from __future__ import annotations

import pytest

import ray


def labels(start, **options):
    """Return the labels of a session's node, but for its id."""
    start(num_cpus=1, **options)
    shown = dict(ray.nodes()[0]["Labels"])
    assert shown == ray.get_runtime_context().get_node_labels()
    assert shown.pop("ray.io/node-id") == ray.get_runtime_context().get_node_id()
    return shown


def test_labels_of_init(ray_fresh):
    mine = {"zone": "north", "empty": "", "ray.io/mine": "x", "example.org/a": "b"}
    assert labels(ray_fresh, labels=mine) == mine

    @ray.remote(num_cpus=0, label_selector={"zone": "in(north,south)"})
    def found():
        return ray.get_runtime_context().get_node_labels()["zone"]

    assert ray.get(found.remote(), timeout=30) == "north"


def test_the_environment_says_where_a_node_is(ray_fresh, monkeypatch):
    for name in ("TYPE_NAME", "MARKET_TYPE", "REGION", "ZONE"):
        monkeypatch.setenv(f"RAY_NODE_{name}", name.lower())
    mine = {"ray.io/market-type": "mine", "a": "b"}
    assert labels(ray_fresh, labels=mine) == {
        "ray.io/node-group": "type_name",
        "ray.io/market-type": "mine",
        "ray.io/availability-region": "region",
        "ray.io/availability-zone": "zone",
        "a": "b",
    }


def test_the_override_has_the_last_word(ray_fresh, monkeypatch):
    monkeypatch.setenv("RAY_OVERRIDE_LABELS", '{"a": "over", "c": "d"}')
    mine = {"a": "mine", "b": "2"}
    assert labels(ray_fresh, labels=mine) == {"a": "over", "b": "2", "c": "d"}


def test_an_override_that_is_no_json_is_refused(ray_fresh, monkeypatch):
    monkeypatch.setenv("RAY_OVERRIDE_LABELS", "{")
    with pytest.raises(ValueError):
        ray_fresh(num_cpus=1)


def test_a_cluster_does_not_take_labels(ray_fresh):
    ray_fresh(num_cpus=1)
    ray.shutdown()
    with pytest.raises((ValueError, ConnectionError)):
        ray.init(address="127.0.0.1:1", labels={"a": "b"})
