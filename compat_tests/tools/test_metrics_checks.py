"""What ``ray.util.metrics`` accepts, and what it refuses."""

from __future__ import annotations

import pickle

import pytest

import ray
from ray.util.metrics import Counter, Gauge, Histogram

pytestmark = pytest.mark.usefixtures("ray_start")


def test_info_of_a_counter_says_what_it_was_made_with():
    counter = Counter("cm_info", description="words", tag_keys=("a", "b"))
    assert counter.info == {
        "name": "cm_info",
        "description": "words",
        "tag_keys": ("a", "b"),
        "default_tags": {},
    }


def test_info_of_a_histogram_has_its_boundaries():
    histogram = Histogram("cm_hinfo", boundaries=[1, 2])
    assert histogram.info["boundaries"] == [1, 2]


def test_default_tags_are_kept_and_the_metric_is_returned():
    gauge = Gauge("cm_default", tag_keys=("a",))
    assert gauge.set_default_tags({"a": "1"}) is gauge
    assert gauge.info["default_tags"] == {"a": "1"}


def test_default_tags_replace_earlier_ones():
    gauge = Gauge("cm_replaced", tag_keys=("a", "b"))
    gauge.set_default_tags({"a": "1"})
    gauge.set_default_tags({"b": "2"})
    assert gauge.info["default_tags"] == {"b": "2"}


@pytest.mark.parametrize(
    ("name", "error"), [("", ValueError), (5, TypeError)], ids=["empty", "number"]
)
def test_names_that_are_refused(name, error):
    with pytest.raises(error):
        Counter(name)


@pytest.mark.parametrize("name", ["a b", "1x", "x-y"])
def test_names_that_prometheus_lacks_warn_and_count_nothing(name):
    with pytest.warns(UserWarning, match="Invalid metric name"):
        counter = Counter(name)
    counter.inc()


@pytest.mark.parametrize("keys", ["a", ["a"]])
def test_tag_keys_are_a_tuple(keys):
    with pytest.raises(TypeError, match="tuple"):
        Counter("cm_keys", tag_keys=keys)


def test_tag_keys_are_text():
    with pytest.raises(TypeError, match="str"):
        Counter("cm_text_keys", tag_keys=(1,))


@pytest.mark.parametrize("value", [0, -1, 0.0, -0.5])
def test_counters_grow(value):
    with pytest.raises(ValueError, match=">0"):
        Counter("cm_grow").inc(value)


@pytest.mark.parametrize("value", ["1", None, [1]])
def test_counters_take_numbers(value):
    with pytest.raises(TypeError, match="int or float"):
        Counter("cm_numbers").inc(value)


def test_gauges_take_numbers():
    with pytest.raises(TypeError, match="int or float"):
        Gauge("cm_gauge_numbers").set("1")


def test_gauges_ignore_none():
    assert Gauge("cm_none").set(None) is None


def test_histograms_take_numbers():
    with pytest.raises(TypeError, match="int or float"):
        Histogram("cm_hist_numbers", boundaries=[1]).observe("1")


@pytest.mark.parametrize("boundaries", [None, []])
def test_histograms_need_boundaries(boundaries):
    with pytest.raises(ValueError, match="boundaries"):
        Histogram("cm_no_bounds", boundaries=boundaries)


@pytest.mark.parametrize("boundaries", [[0, 1], [-1, 1], [1, 0]])
def test_boundaries_are_above_zero(boundaries):
    with pytest.raises(ValueError, match="boundaries"):
        Histogram("cm_bounds", boundaries=boundaries)


def test_every_tag_key_needs_a_value():
    counter = Counter("cm_missing", tag_keys=("a", "b"))
    with pytest.raises(ValueError, match=r"Missing value for tag key\(s\): b"):
        counter.inc(1, {"a": "1"})


def test_default_tags_are_values():
    counter = Counter("cm_defaults_count", tag_keys=("a",))
    counter.set_default_tags({"a": "1"})
    assert counter.inc() is None


def test_tag_values_are_text():
    counter = Counter("cm_values", tag_keys=("a",))
    with pytest.raises(TypeError, match="str"):
        counter.inc(1, {"a": 1})


def test_default_tags_must_be_tag_keys():
    with pytest.raises(ValueError, match="Unrecognized tag key"):
        Counter("cm_unknown").set_default_tags({"q": "1"})


def test_default_tag_values_are_text():
    with pytest.raises(TypeError, match="str"):
        Counter("cm_default_text", tag_keys=("q",)).set_default_tags({"q": 1})


def test_metrics_travel_to_tasks():
    counter = Counter("cm_travel", description="d", tag_keys=("a",))

    @ray.remote
    def count(metric):
        metric.inc(2, {"a": "1"})
        return metric.info

    assert ray.get(count.remote(counter)) == counter.info


def test_metrics_survive_pickling():
    histogram = Histogram("cm_pickled", boundaries=[1.0, 2.0], tag_keys=("a",))
    assert pickle.loads(pickle.dumps(histogram)).info == histogram.info
