"""Sizes follow from the service levels; what is printed is what was computed."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rayshim.k8s.config import Halving, Platform, ServeLevel, TrainLevel, TuneLevel
from rayshim.k8s.figures import Input, Size
from rayshim.k8s.loading import load_platform
from rayshim.k8s.sizes import (
    ingest_sizes,
    required_workers,
    rungs,
    serve_sizes,
    train_sizes,
    tune_sizes,
)
from rayshim.k8s.sizing import explain

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "k8s" / "deploy"
FILES = ["platform.yaml", "overlays/10x/platform.yaml", "overlays/eu/platform.yaml"]


@pytest.fixture(scope="module")
def platform() -> Platform:
    return load_platform(DEPLOY / "platform.yaml")


def serve_level(platform: Platform) -> ServeLevel:
    assert platform.serve is not None
    return platform.serve


def train_level(platform: Platform) -> TrainLevel:
    assert platform.train is not None
    return platform.train


def tune_level(platform: Platform) -> TuneLevel:
    assert platform.tune is not None
    return platform.tune


def test_the_latency_budget_adds_up(platform: Platform) -> None:
    sizes = serve_sizes(serve_level(platform))
    assert sizes.p50.arithmetic == "8 ms + 3 ms + 5 ms + 6 ms + 10 ms"
    assert (sizes.p50.value, sizes.p99.value, sizes.spare.value) == (32, 67, 13)
    assert sizes.p99.note == "of 80 ms allowed"


def test_serving_survives_the_loss_of_a_zone(platform: Platform) -> None:
    sizes = serve_sizes(serve_level(platform))
    assert sizes.capacity.value == pytest.approx(8 / 0.011)
    assert sizes.usable.value == pytest.approx(400)
    assert (sizes.replicas.value, sizes.per_zone.value, sizes.workers.value) == (
        8,
        4,
        12,
    )
    odd = serve_sizes(replace(serve_level(platform), requests_per_s=3201.0))
    assert (odd.replicas.value, odd.workers.value) == (9, 15)


def test_one_zone_has_no_reserve(platform: Platform) -> None:
    sizes = serve_sizes(replace(serve_level(platform), zones=1))
    assert (sizes.workers.value, sizes.per_zone.note) == (
        8,
        "a lost zone stops serving",
    )


def test_replicas_share_workers(platform: Platform) -> None:
    sizes = serve_sizes(replace(serve_level(platform), replicas_per_worker=3, zones=2))
    assert (sizes.needed.value, sizes.workers.value) == (3, 6)


def test_a_run_and_a_crash_fit_the_window(platform: Platform) -> None:
    sizes = train_sizes(train_level(platform))
    assert sizes.run.value == 3.125
    assert sizes.epoch.value == pytest.approx(0.2604, abs=1e-4)
    assert sizes.spare.value == pytest.approx(6 - 3.125 - 3.125 / 12)
    assert sizes.needed.value == 4


def test_reading_keeps_up_with_training(platform: Platform) -> None:
    assert platform.ingest is not None
    sizes = ingest_sizes(platform.ingest, train_level(platform))
    assert sizes.rate.value == pytest.approx(2133.33, abs=0.01)
    assert sizes.workers.value == 8


def test_a_search_costs_a_quarter_with_successive_halving(platform: Platform) -> None:
    sizes = tune_sizes(tune_level(platform), workers=4, gpus=1)
    assert sizes.full.value == pytest.approx(793.6)
    assert sizes.full.note == "about 800"
    by_three, by_two = sizes.halved
    assert by_three.value == pytest.approx((64 / 9 + 21 * 2 / 9 + 7 * 6 / 9) * 12.4)
    assert by_two.value == pytest.approx(248)
    assert (by_three.note, by_two.note) == ("about 200", "about 250")
    assert sizes.search.value == 56.25


def test_rungs_end_with_a_whole_run(platform: Platform) -> None:
    level = replace(tune_level(platform), configurations=10)
    assert rungs(level, Halving(2, 3)) == [
        (10, 0.0, 1 / 3),
        (5, 1 / 3, 2 / 3),
        (2, 2 / 3, 1.0),
    ]


def test_training_and_search_may_run_at_once(platform: Platform) -> None:
    needs = {one.name: required_workers(platform, one.name) for one in platform.groups}
    assert needs == {"cpu-ingest": 8, "gpu-train": 8, "gpu-serve": 12}


@pytest.mark.parametrize("file", FILES)
def test_each_printed_result_is_that_of_its_arithmetic(file: str) -> None:
    sections = explain(load_platform(DEPLOY / file))
    sizes = [line.size for one in sections for line in one.lines]
    checked = [one for one in sizes if isinstance(one, Size)]
    assert len(checked) > 30
    for size in checked:
        assert calculated(size.arithmetic) == pytest.approx(size.value, rel=4e-3), size


@pytest.mark.parametrize("file", FILES)
def test_each_input_stands_in_the_file_or_was_computed(file: str) -> None:
    sections = explain(load_platform(DEPLOY / file))
    listed = {one.size.path for one in sections[0].lines if isinstance(one.size, Input)}
    assert sections[0].title == "Inputs"
    assert listed == {path for size in sizes_of(sections) for path in paths(size)}


def sizes_of(sections: list) -> list[Size]:
    lines = [line.size for one in sections for line in one.lines]
    return [one for one in lines if isinstance(one, Size)]


def paths(size: Size | Input) -> set[str]:
    if isinstance(size, Size):
        return set().union(*map(paths, size.inputs))
    return {size.path} if size.path else set()


def calculated(text: str) -> float:
    """What the figures of an arithmetic come to, without their units."""
    bare = re.sub(r"\$|,(?=\d{3})", "", text.replace(" x ", " * "))
    bare = re.sub(r"(?<![A-Za-z])/[A-Za-z]+", "", bare)  # of a price
    bare = re.sub(r"(?!ceil\()[A-Za-z][-A-Za-z]*(/[A-Za-z]+)?", "", bare)
    return float(_value(ast.parse(bare, mode="eval").body))


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)
    if isinstance(node, ast.Call):
        # What is printed is rounded, so that a whole number may come out above itself.
        return math.ceil(_value(node.args[0]) - 1e-3)
    assert isinstance(node, ast.BinOp), ast.dump(node)
    left, right = _value(node.left), _value(node.right)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    return left * right if isinstance(node.op, ast.Mult) else left / right


def test_sections_are_told_as_text_and_json(platform: Platform) -> None:
    sections = explain(platform)
    text = "\n".join(one.to_text() for one in sections)
    for line in [
        "p99 = 32 ms + 35 ms = 67 ms (of 80 ms allowed)",
        "workers = 4 workers/zone x 3 zones = 12 workers (always there)",
        "one run = 150,000,000 rows x 12 epochs / 160,000 rows/s / 3600 s/h = 3.125 h",
        "all to the end = 64 configurations x 12.4 GPU-h = 793.6 GPU-h (about 800)",
        "gpu-train, hours paid in a month = 93.75 h + 1.25 h + 225 h = 320 h",
        "gpu-train, a month = 4 workers x $3.50/h x 320 h = $4,480",
        "gpu-serve: min 12 -> 114, max 24 -> 228",
        "training data, a month = 2 TB x 1000 GB/TB x $0.023/GB = $46",
    ]:
        assert f"  {line}" in text
    told = json.loads(json.dumps([one.to_json() for one in sections]))
    serving = next(one for one in told if one["title"] == "Serving: gpu-serve")
    assert serving["lines"][0]["size"]["value"] == 32
    assert serving["lines"][0]["size"]["inputs"][0]["path"].endswith("network")


def test_a_platform_alone_in_its_region_says_so() -> None:
    titles = [one.title for one in explain(load_platform(DEPLOY / FILES[2]))]
    assert titles[-1] == "Alone in eu-central-1"


def test_too_few_pinned_workers_are_told(platform: Platform) -> None:
    groups = tuple(
        replace(one, min=3) if one.name == "gpu-serve" else one
        for one in platform.groups
    )
    text = explain(replace(platform, groups=groups))[1].to_text()
    assert "12 workers (min of gpu-serve is only 3: fewer may be there)" in text


def test_a_platform_without_levels_has_only_money(platform: Platform) -> None:
    bare = replace(
        platform, serve=None, train=None, ingest=None, tune=None, serve_host=""
    )
    titles = [one.title for one in explain(bare)]
    assert "Cost of a month" in titles
    assert not [one for one in titles if one.startswith(("Serving", "Training"))]


def test_the_page_is_up_to_date() -> None:
    path = ROOT / "docs" / "generate_sizing.py"
    spec = importlib.util.spec_from_file_location("generate_sizing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), (
        "run: python docs/generate_sizing.py"
    )
