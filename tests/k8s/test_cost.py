"""What a month costs, and the platform at a multiple of its load."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayshim.k8s.config import ConfigError, Platform
from rayshim.k8s.consistency import check
from rayshim.k8s.cost import CostTable, GroupCost, monthly_costs, scaled
from rayshim.k8s.loading import load_platform
from rayshim.k8s.sizes import required_workers, serve_sizes, train_sizes

DEPLOY = Path(__file__).parents[2] / "k8s" / "deploy"
EXAMPLE = load_platform(DEPLOY / "platform.yaml")


def of(table: CostTable, group: str) -> GroupCost:
    return next(one for one in table.groups if one.group == group)


def with_group(platform: Platform, name: str, **changes: float) -> Platform:
    groups = tuple(
        replace(one, **changes) if one.name == name else one for one in platform.groups
    )
    return replace(platform, groups=groups)


def test_the_month_of_the_example() -> None:
    table = monthly_costs(EXAMPLE)
    assert of(table, "gpu-serve").elastic == pytest.approx(8760)
    assert of(table, "gpu-serve").pinned == pytest.approx(8760)
    assert of(table, "gpu-train").elastic == pytest.approx(4480)
    assert of(table, "gpu-train").pinned == pytest.approx(10220)
    assert of(table, "gpu-train").hours == pytest.approx(320)
    assert of(table, "cpu-ingest").elastic == pytest.approx(8 * 0.8 * 95)
    assert [(one.name, round(one.monthly)) for one in table.fixed] == [
        ("head", 146),
        ("control plane", 73),
        ("training data", 46),
    ]
    assert table.elastic == pytest.approx(14_113)
    assert table.pinned == pytest.approx(23_917)


def test_the_tables_of_the_example() -> None:
    table = monthly_costs(EXAMPLE)
    assert table.to_text() == (
        "group          workers  $/h each  hours  $/month  $/month if pinned\n"
        "cpu-ingest           8      0.80     95     $608             $4,672\n"
        "gpu-train            4      3.50    320   $4,480            $10,220\n"
        "gpu-serve           12      1.00    730   $8,760             $8,760\n"
        "head                                        $146               $146\n"
        "control plane                                $73                $73\n"
        "training data                                $46                $46\n"
        "total                                    $14,113            $23,917\n"
    )
    lines = table.to_markdown().splitlines()
    assert lines[1] == "| --- | ---: | ---: | ---: | ---: | ---: |"
    assert lines[3] == "| gpu-train | 4 | 3.50 | 320 | $4,480 | $10,220 |"
    told = json.loads(json.dumps(table.to_json()))
    assert told["currency"] == "USD"
    assert told["groups"][2]["elastic"] == pytest.approx(8760)
    assert told["fixed"][0]["formula"] == "$0.20/h x 730 h"


def test_ten_times_the_load() -> None:
    table = monthly_costs(load_platform(DEPLOY / "platform.yaml", scale=10))
    rows = [(one.platform, one.group, one.workers) for one in table.groups]
    assert rows == [
        ("rank", "cpu-ingest", 68),
        ("rank", "gpu-train", 38),
        ("rank-serve", "gpu-serve", 114),
    ]
    assert of(table, "gpu-serve").elastic == pytest.approx(114 * 730)
    hours = 30 * 18e9 / (38 * 40_000) / 3600 + 1.25 + 4 * 2250 / 38
    assert of(table, "gpu-train").elastic == pytest.approx(38 * 3.5 * hours)
    assert [one.platform for one in table.fixed].count("rank-serve") == 2
    assert table.to_text().startswith("platform    group ")


def test_the_overlay_is_the_scale() -> None:
    overlay = load_platform(DEPLOY / "overlays" / "10x" / "platform.yaml")
    larger = load_platform(DEPLOY / "platform.yaml", scale=10)
    assert overlay.groups == larger.groups
    assert overlay.scale == larger.scale == 10
    assert [one.name for one in overlay.others] == ["rank-serve"]


def test_a_search_that_starts_machines_pays_for_it() -> None:
    assert EXAMPLE.tune is not None
    alone = replace(EXAMPLE, tune=replace(EXAMPLE.tune, after_training=False))
    assert of(monthly_costs(alone), "gpu-train").hours == pytest.approx(
        320 + 4 * 150 / 3600
    )


def test_pinned_minimum_is_paid_always_and_the_rest_when_used() -> None:
    cost = of(monthly_costs(with_group(EXAMPLE, "gpu-train", min=2)), "gpu-train")
    assert cost.elastic == pytest.approx(3.5 * (2 * 730 + 2 * 320))
    assert cost.steps[-3].arithmetic == (
        "(2 x 730 h + 2 x 93.75 h + 2 x 1.25 h + 2 x 225 h) / 4 workers"
    )


def test_warm_workers_are_paid_beside_those_in_use() -> None:
    cost = of(monthly_costs(with_group(EXAMPLE, "gpu-serve", warm=1)), "gpu-serve")
    assert cost.elastic == pytest.approx(13 * 730)


def test_a_group_without_a_level_costs_its_minimum() -> None:
    bare = replace(EXAMPLE, serve=None, serve_host="")
    cost = of(monthly_costs(with_group(bare, "gpu-serve", min=0)), "gpu-serve")
    assert (cost.elastic, cost.pinned) == (0, 24 * 730)
    assert of(monthly_costs(bare), "gpu-serve").elastic == pytest.approx(12 * 730)


def test_what_has_no_price_is_not_counted() -> None:
    free = replace(EXAMPLE, prices=replace(EXAMPLE.prices, control_plane=0))
    assert [one.name for one in monthly_costs(free).fixed] == ["head", "training data"]


# -- scaling --------------------------------------------------------------------------


def test_limits_and_quotas_follow_the_need() -> None:
    larger = scaled(EXAMPLE, 5)
    train, serve = larger.group("gpu-train"), larger.group("gpu-serve")
    assert (train.min, train.max) == (0, 2 * 19)
    assert (serve.min, serve.max) == (57, 114)
    assert larger.queues[1].quota["nvidia.com/gpu"] == 38
    assert larger.others == ()
    assert larger.scale == 5


def test_serving_moves_to_a_cluster_of_its_own() -> None:
    larger = scaled(EXAMPLE, 10)
    (serving,) = larger.others
    assert [one.name for one in larger.groups] == ["cpu-ingest", "gpu-train"]
    assert [one.name for one in serving.groups] == ["gpu-serve"]
    assert (larger.serve, serving.train, serving.tune, serving.ingest) == (None,) * 4
    assert (larger.serve_host, serving.serve_host) == ("", "rank.example.com")
    assert (serving.name, serving.eks_cluster) == ("rank-serve", "ml-prod-serve")
    assert (serving.queues, len(larger.queues)) == ((), 2)


def test_a_shared_queue_is_parted_with_its_groups() -> None:
    shared = tuple(
        replace(
            one,
            quota={"nvidia.com/gpu": 32.0},
            borrowing=None,
            groups=("gpu-train", "gpu-serve"),
        )
        for one in EXAMPLE.queues
        if one.name == "train"
    )
    larger = scaled(replace(EXAMPLE, queues=shared), 10)
    (batch,), (serving,) = larger.queues, larger.others[0].queues
    assert batch.groups == ("gpu-train",)
    assert serving.groups == ("gpu-serve",)
    assert (batch.quota, serving.quota) == (
        {"nvidia.com/gpu": 76.0},
        {"nvidia.com/gpu": 228.0},
    )


def test_serving_alone_stays_where_it_is() -> None:
    alone = replace(
        EXAMPLE,
        groups=(EXAMPLE.group("gpu-serve"),),
        queues=(),
        train=None,
        ingest=None,
        tune=None,
    )
    larger = scaled(alone, 10)
    assert larger.others == ()
    assert larger.name == "rank"


def test_a_factor_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="scale: must be above 0"):
        scaled(EXAMPLE, 0)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.floats(0.05, 500))
def test_any_scale_keeps_what_the_levels_promise(factor: float) -> None:
    larger = scaled(EXAMPLE, factor)
    for one in (larger, *larger.others):
        if len(one.name) < 12:
            check(one)
        for group in one.groups:
            assert group.min <= group.max
            assert group.max >= required_workers(one, group.name)
        if one.serve is not None:
            sizes = serve_sizes(one.serve)
            left = sizes.workers.value * (1 - 1 / one.serve.zones)
            needed = one.serve.requests_per_s / sizes.usable.value
            assert left >= needed * (1 - 1e-9)
        if one.train is not None:
            train = train_sizes(one.train)
            assert one.train.workers >= train.needed.value
            assert train.run.value <= one.train.window_h * one.train.window_share * (
                1 + 1e-9
            )
    assert monthly_costs(larger).elastic > 0
