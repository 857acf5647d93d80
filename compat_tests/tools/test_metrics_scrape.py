"""What Prometheus gets from a node."""

from __future__ import annotations

import re
import socket
import time
import urllib.request

import pytest

import ray
from ray.util.metrics import Counter, Gauge, Histogram


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def token(backend):
    """Of the session: rayshim's endpoints ask for it."""
    if backend == "ray":
        return ""
    from rayshim._core import current

    with open(f"{current.peer.session_dir}/token") as file:
        return file.read().strip()


@pytest.fixture(scope="module")
def port(shared_cluster):
    shared_cluster.stop()
    number = free_port()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        _metrics_export_port=number,
        _system_config={"metrics_report_interval_ms": 500},
    )

    @ray.remote
    def work(number):
        counter = Counter("cs_calls", description="Calls.", tag_keys=("kind",))
        counter.set_default_tags({"kind": "fast"})
        counter.inc(2)
        counter.inc(1, {"kind": "slow"})
        histogram = Histogram("cs_seconds", boundaries=[1, 10], tag_keys=())
        for value in (0.5, 5, 50):
            histogram.observe(value)
        return number

    @ray.remote
    class Holder:
        def ready(self):
            Gauge("cs_held", tag_keys=("what",)).set(7, {"what": "things"})
            return True

    holder = Holder.remote()
    ray.get([work.remote(1), holder.ready.remote()])
    Gauge("cs_driver").set(4.5)
    Counter("cs_named_total").inc()
    yield number
    del holder
    ray.shutdown()


@pytest.fixture(scope="module")
def scrape(port, backend):
    """Asks until a condition holds; real Ray takes a while, and forgets gauges."""
    headers = {"Authorization": f"Bearer {token(backend)}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", None, headers)

    def ask(condition):
        deadline = time.monotonic() + 40
        while True:
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    found = answer.read().decode()
            except OSError:
                found = ""
            if condition(found) or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    return ask


@pytest.fixture(scope="module")
def text(scrape):
    """What has everything that was counted."""
    wanted = ("ray_cs_calls_total{", "ray_cs_held{", "ray_cs_driver{")
    return scrape(lambda found: all(name in found for name in wanted))


def values(text, name, **tags):
    """Values of a name with the given tags."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
        if match is None:
            continue
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match.group(1) or ""))
        if all(labels.get(key) == value for key, value in tags.items()):
            found.append(float(match.group(2)))
    return found


def test_nodes_say_the_port(port):
    assert ray.nodes()[0]["MetricsExportPort"] == port


def test_counters_have_total_behind_their_name(text):
    assert values(text, "ray_cs_calls_total", kind="fast") == [2.0]


def test_tags_of_a_call_go_over_default_tags(text):
    assert values(text, "ray_cs_calls_total", kind="slow") == [1.0]


def test_total_is_not_put_there_twice(text):
    assert values(text, "ray_cs_named_total") == [1.0]


def test_gauges_of_actors_are_there(text):
    assert values(text, "ray_cs_held", what="things") == [7.0]


def test_metrics_of_drivers_are_there(text):
    assert values(text, "ray_cs_driver") == [4.5]


@pytest.mark.parametrize(
    ("bound", "count"), [("1.0", 1.0), ("10.0", 2.0), ("+Inf", 3.0)]
)
def test_buckets_of_histograms_add_up(text, bound, count):
    assert values(text, "ray_cs_seconds_bucket", le=bound) == [count]


def test_histograms_have_their_count(text):
    assert values(text, "ray_cs_seconds_count") == [3.0]


def test_descriptions_are_help(text):
    assert "# HELP ray_cs_calls_total Calls." in text


def test_types_are_told(text):
    assert "# TYPE ray_cs_calls_total counter" in text
    assert "# TYPE ray_cs_seconds histogram" in text


def test_values_say_whose_they_are(text):
    worker = ray.get_runtime_context().get_worker_id()
    assert values(text, "ray_cs_driver", WorkerId=worker, Component="core_worker")


@pytest.mark.parametrize(
    "name",
    [
        "ray_node_cpu_utilization",
        "ray_node_cpu_count",
        "ray_node_mem_used",
        "ray_node_mem_available",
        "ray_node_mem_total",
        "ray_node_disk_usage",
        "ray_node_disk_free",
        "ray_node_disk_utilization_percentage",
        "ray_node_network_sent",
        "ray_node_network_received",
        "ray_object_store_available_memory",
        "ray_object_store_used_memory",
        "ray_component_rss_mb",
        "ray_component_cpu_percentage",
    ],
)
def test_nodes_are_measured(text, name):
    assert values(text, name)


def test_resources_are_told_by_name_and_state(text):
    free = values(text, "ray_resources", Name="CPU", State="AVAILABLE")
    used = values(text, "ray_resources", Name="CPU", State="USED")
    assert sum(free) + sum(used) == 2.0


def test_object_store_memory_is_told_by_location(text):
    assert values(text, "ray_object_store_memory", Location="SPILLED") == [0.0]
