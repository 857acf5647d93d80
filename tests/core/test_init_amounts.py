"""Amounts of a node, and groups of nodes, that no node could have."""

from __future__ import annotations

from typing import Any

import pytest

from rayshim._core.init_options import InitOptions
from rayshim.autoscaler.autoscaling_cluster import AutoscalingCluster
from rayshim.cluster_utils import Cluster

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_cpus": NAN}, ValueError),
        ({"num_cpus": INF}, ValueError),
        ({"object_store_memory": NAN}, ValueError),
        ({"object_store_memory": INF}, ValueError),
        ({"_memory": NAN}, ValueError),
        ({"_memory": -1}, ValueError),
        ({"resources": {"a": NAN}}, ValueError),
        ({"resources": {1: 1}}, TypeError),
    ],
    ids=str,
)
def test_a_node_has_no_such_amounts(options: dict[str, Any], error: type) -> None:
    with pytest.raises(error):
        InitOptions.validate(address="local", configure_logging=False, **options)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"resources": {"CPU": "x"}}, TypeError),
        ({"resources": {"CPU": NAN}}, ValueError),
        ({"resources": {"CPU": -1}}, ValueError),
        ({"resources": 1}, TypeError),
        ({"labels": {1: 2}}, TypeError),
        ({"labels": 1}, TypeError),
        ({"min_workers": 3, "max_workers": 1}, ValueError),
    ],
    ids=str,
)
def test_a_group_has_no_such_nodes(changes: dict[str, Any], error: type) -> None:
    with pytest.raises(error, match="'cpu'"):
        AutoscalingCluster({}, {"cpu": {"resources": {"CPU": 1}, **changes}})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"head_resources": None}, TypeError),
        ({"worker_node_types": None}, TypeError),
        ({"worker_node_types": {"a": None}}, TypeError),
        ({"max_workers": None}, TypeError),
        ({"max_workers": -1}, ValueError),
        ({"idle_timeout_minutes": "1"}, TypeError),
        ({"idle_timeout_minutes": NAN}, ValueError),
        ({"upscaling_speed": -1}, ValueError),
    ],
    ids=str,
)
def test_a_growing_cluster_is_not_such(options: dict[str, Any], error: type) -> None:
    (name,) = options
    arguments = {"head_resources": {}, "worker_node_types": {}, **options}
    with pytest.raises(error, match=name):
        AutoscalingCluster(**arguments)


def test_a_cluster_without_a_head_says_so() -> None:
    cluster = Cluster()
    for use in (cluster.connect, cluster.wait_for_nodes, cluster.launch_node):
        with pytest.raises(AssertionError, match=r"no head yet: call add_node"):
            use()
    cluster.shutdown()
