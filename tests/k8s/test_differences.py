"""The structural comparison of `plan`, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from rayshim.k8s.differences import compare, quantity


def texts(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [change.text() for change in compare(wanted, found)]


def test_what_the_server_fills_in_is_no_difference() -> None:
    wanted = {"spec": {"ports": [{"port": 1}], "selector": {}, "hostNetwork": False}}
    found = {
        "metadata": {"uid": "1", "resourceVersion": "7"},
        "spec": {"ports": [{"port": 1, "protocol": "TCP"}], "type": "ClusterIP"},
    }

    assert texts(wanted, found) == []


def test_a_field_with_another_value_is_named_by_its_path() -> None:
    wanted = {"spec": {"containers": [{"name": "a", "image": "x:2"}]}}
    found = {"spec": {"containers": [{"name": "a", "image": "x:1"}]}}

    assert texts(wanted, found) == ['spec.containers[a].image: "x:1" -> "x:2"']


def test_a_list_of_another_length_differs_as_a_whole() -> None:
    assert texts({"spec": {"env": [1]}}, {"spec": {"env": [1, 2]}}) == [
        "spec.env: [1, 2] -> [1]"
    ]


def test_zero_is_not_the_same_as_nothing() -> None:
    assert texts({"spec": {"replicas": 0}}, {"spec": {}}) == [
        "spec.replicas: not set -> 0"
    ]


def test_equal_amounts_are_equal_however_they_are_written() -> None:
    wanted = {"spec": {"requests": {"cpu": "2000m", "memory": "1024Mi"}}}
    found = {"spec": {"requests": {"cpu": "2", "memory": "1Gi"}}}

    assert texts(wanted, found) == []


def test_texts_that_look_like_amounts_are_compared_as_texts() -> None:
    wanted = {"spec": {"env": [{"name": "A", "value": "2000m"}]}}
    found = {"spec": {"env": [{"name": "A", "value": "2"}]}}

    assert texts(wanted, found) == ['spec.env[A].value: "2" -> "2000m"']


def test_replicas_of_a_worker_group_belong_to_the_autoscaler() -> None:
    wanted = {"kind": "DaskWorkerGroup", "spec": {"worker": {"replicas": 0}}}
    found = {"kind": "DaskWorkerGroup", "spec": {"worker": {"replicas": 5}}}

    assert texts(wanted, found) == []


def managed(manager: str, fields: dict[str, Any]) -> dict[str, Any]:
    entry = {"manager": manager, "operation": "Apply", "fieldsV1": fields}
    return {"managedFields": [entry]}


def test_a_field_that_was_applied_and_is_not_wanted_any_more_goes() -> None:
    fields = {"f:data": {"f:old": {}, "f:new": {}}}
    found = {
        "metadata": managed("rayshim", fields),
        "data": {"old": "1", "new": "2", "of-others": "3"},
    }

    assert texts({"data": {"new": "2"}}, found) == ['data.old: "1" -> not set']


def test_what_others_applied_stays() -> None:
    found = {
        "metadata": managed("kubectl", {"f:data": {"f:theirs": {}}}),
        "data": {"theirs": "1"},
    }

    assert texts({"data": {}}, found) == []


def test_elements_of_lists_are_found_by_their_keys() -> None:
    fields = {
        "f:spec": {
            "f:ports": {
                'k:{"port":80,"protocol":"TCP"}': {"f:name": {}},
                'k:{"port":81,"protocol":"TCP"}': {".": {}, "f:name": {}},
            }
        }
    }
    found = {
        "metadata": managed("rayshim", fields),
        "spec": {"ports": [{"port": 80, "protocol": "TCP", "name": "web"}]},
    }

    assert texts({"spec": {"ports": [{"port": 80, "name": "web"}]}}, found) == []
    assert texts({"spec": {"ports": [{"port": 80}]}}, found) == [
        'spec.ports[80, TCP].name: "web" -> not set'
    ]


def test_secrets_are_compared_as_the_server_keeps_them() -> None:
    wanted = {"kind": "Secret", "stringData": {"url": "x"}}

    assert texts(wanted, {"kind": "Secret", "data": {"url": "eA=="}}) == []
    assert texts(wanted, {"kind": "Secret", "data": {"url": "eQ=="}}) == [
        'data.url: "eQ==" -> "eA=="'
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("250m", 0.25), ("1Ki", 1024), ("1e3", 1000), ("2E", 2e18)],
)
def test_amounts_are_read(text: str, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "a", "1 Gi", "1Gib", True, None])
def test_what_is_no_amount_is_none(text: Any) -> None:
    assert quantity(text) is None
