"""``ray.autoscaler.sdk.request_resources``: what it takes and what it refuses."""

from __future__ import annotations

import pytest

import ray
from ray.autoscaler import sdk

ONE = [{"CPU": 1}]


@pytest.fixture(scope="module", autouse=True)
def session(shared_cluster):
    shared_cluster.stop()
    with pytest.raises(RuntimeError, match="not initialized"):
        sdk.request_resources(num_cpus=1)
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_cpus": 2},
        {"num_cpus": 0},
        {"num_cpus": -1},
        {"bundles": [{"CPU": 1}, {"GPU": 0.5}]},
        {"bundles": []},
        {"num_cpus": 1, "bundles": ONE},
        {"bundles": ONE, "bundle_label_selectors": [{"zone": "in(a,b)"}]},
    ],
    ids=str,
)
def test_requests_are_taken(arguments):
    assert sdk.request_resources(**arguments) is None


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"num_cpus": 1.5}, TypeError, "num_cpus should be of type int"),
        ({"num_cpus": "1"}, TypeError, "num_cpus should be of type int"),
        ({"bundles": {"CPU": 1}}, TypeError, "bundles should be of type List"),
        ({"bundles": [1]}, TypeError, "each bundle should be a Dict"),
        ({"bundles": [{"CPU": "1"}]}, TypeError, "each bundle value should be a"),
        ({"bundle_label_selectors": [{}]}, ValueError, "`bundles` must be provided"),
        (
            {"num_cpus": 1, "bundle_label_selectors": [{"zone": "a"}]},
            ValueError,
            "`bundles` must be provided",
        ),
        (
            {"bundles": ONE, "bundle_label_selectors": [{}, {}]},
            ValueError,
            "must be a list with length equal to the number",
        ),
        (
            {"bundles": ONE, "bundle_label_selectors": [{"zone": 1}]},
            ValueError,
            "Bundle label selector must be a list of",
        ),
        (
            {"bundles": ONE, "bundle_label_selectors": [{"zone": "in("}]},
            ValueError,
            "Invalid label selector provided in bundle_label_selectors list",
        ),
    ],
    ids=str,
)
def test_others_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        sdk.request_resources(**arguments)


def test_the_first_argument_is_a_number_of_cpus():
    assert sdk.request_resources(3) is None
