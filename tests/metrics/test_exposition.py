"""Families as text, and texts of several nodes as one."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from rayshim.adapters.metrics import grafana
from rayshim.adapters.metrics.exposition import merge, render
from rayshim.adapters.metrics.families import Bucketed, Families


def rendered(families: Families) -> list[str]:
    return render(families, {"S": "x"}).decode().splitlines()


def test_counters_have_total_behind_their_name_once() -> None:
    families = Families()
    families.counter("calls", "Calls.", 2)
    families.counter("named_total", "", 1)
    lines = rendered(families)
    assert 'ray_calls_total{S="x"} 2.0' in lines
    assert 'ray_named_total{S="x"} 1.0' in lines
    assert "# HELP ray_calls_total Calls." in lines


def test_buckets_add_up_and_end_with_infinity() -> None:
    families = Families()
    families.get("h", "histogram", "").add(Bucketed([1.0, 2.0], [1, 0, 2], 9.5))
    lines = rendered(families)
    assert 'ray_h_bucket{S="x",le="1.0"} 1.0' in lines
    assert 'ray_h_bucket{S="x",le="2.0"} 1.0' in lines
    assert 'ray_h_bucket{S="x",le="+Inf"} 3.0' in lines
    assert 'ray_h_count{S="x"} 3.0' in lines
    assert 'ray_h_sum{S="x"} 9.5' in lines


def test_label_values_are_escaped() -> None:
    families = Families()
    families.gauge("g", "", 1, name='a"b\\c\nd')
    (line,) = [one for one in rendered(families) if one.startswith("ray_g")]
    assert line == 'ray_g{S="x",name="a\\"b\\\\c\\nd"} 1.0'


def test_a_name_of_two_kinds_is_shown_as_two() -> None:
    families = Families()
    families.gauge("n", "", 1)
    families.counter("n", "", 2)
    lines = rendered(families)
    assert 'ray_n{S="x"} 1.0' in lines
    assert 'ray_n_counter_total{S="x"} 2.0' in lines


def test_merged_text_is_what_prometheus_takes() -> None:
    one, two = Families(), Families()
    for families, node in ((one, "1"), (two, "2")):
        families.gauge("g", "G.", 1, node=node)
        families.counter("c", "C.", 3, node=node)
        families.get("h", "histogram", "H.").add(
            Bucketed([1.0], [1, 1], 4.0), node=node
        )
    text = merge([render(one, {}).decode(), render(two, {}).decode()])
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert sorted(found) == ["ray_c", "ray_g", "ray_h"]
    assert len(found["ray_g"].samples) == 2
    assert len(found["ray_h"].samples) == 8
    assert text.count("# TYPE ray_g ") == 1


def test_nothing_merged_is_nothing() -> None:
    assert merge(["", ""]) == ""


def test_panels_ask_for_names_with_the_prefix() -> None:
    dashboard = grafana.dashboard()
    queries = [t["expr"] for p in dashboard["panels"] for t in p["targets"]]
    assert len(dashboard["panels"]) > 10
    assert all("ray_" in query and "$cluster" not in query for query in queries)
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dashboard["panels"]}
    assert len(places) == len(dashboard["panels"])
