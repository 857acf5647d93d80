"""A platform that must stay in its region names nothing outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rayshim.k8s.config import ConfigError
from rayshim.k8s.loading import load_platform
from rayshim.k8s.residency import check_residency, short_region

DEPLOY = Path(__file__).parents[2] / "k8s" / "deploy"
EU = DEPLOY / "overlays" / "eu" / "platform.yaml"


def overlay(folder: Path, change: dict[str, Any]) -> Path:
    """A file that changes the committed overlay."""
    path = folder / "platform.yaml"
    path.write_text(yaml.safe_dump({"extends": str(EU), **change}))
    return path


def state(endpoint: str, **more: str) -> dict[str, Any]:
    return {"head": {"state": {"endpoint": endpoint, **more}}}


def test_the_overlay_stays_in_its_region() -> None:
    platform = load_platform(EU)
    assert platform.residency is not None
    assert check_residency(platform) == []
    assert [one.name for one in platform.buckets] == ["acme-ranking-eu"]


def test_without_residency_all_may_lie_anywhere() -> None:
    assert check_residency(load_platform(DEPLOY / "platform.yaml")) == []


OUTSIDE: list[tuple[dict[str, Any], str, str]] = [
    (
        {"buckets": {"acme-ranking-us": {"region": "us-east-1", "read": ["models/"]}}},
        "buckets.acme-ranking-us.region",
        "lies in us-east-1; use a copy here",
    ),
    (
        {"zones": ["eu-central-1a", "us-east-1a"]},
        "zones[1]",
        "us-east-1a is no zone of eu-central-1",
    ),
    (
        {"region": "eu-west-1", "zones": ["eu-west-1a", "eu-west-1b", "eu-west-1c"]},
        "region",
        "the platform runs in eu-west-1",
    ),
    (
        state("rank.abc123.ng.0001.use1.cache.amazonaws.com"),
        "head.state.endpoint",
        "is an ElastiCache of the region use1, not of euc1",
    ),
    (
        state("valkey.us-east-1.example.com"),
        "head.state.endpoint",
        "lies in us-east-1",
    ),
    (state("valkey.example.com"), "head.state.endpoint", "write head.state.region"),
    (
        state("valkey.example.com", region="us-east-1"),
        "head.state.region",
        "lies in us-east-1",
    ),
    (
        {"images": {"gpu": "111122223333.dkr.ecr.us-east-1.amazonaws.com/rayshim:1"}},
        "images.gpu",
        "lies in us-east-1; push the image here",
    ),
    (
        {"groups": {"gpu-train": {"env": {"AWS_REGION": "us-east-1"}}}},
        "groups.gpu-train.env.AWS_REGION",
        "names us-east-1",
    ),
    (
        {"head": {"env": {"S3": "https://s3.us-gov-west-1.amazonaws.com"}}},
        "head.env.S3",
        "names us-gov-west-1",
    ),
    (
        {"groups": {"gpu-train": {"node_selector": {"zone": "us-east-1b"}}}},
        "groups.gpu-train.node_selector.zone",
        "names us-east-1",
    ),
    (
        {"groups": {"gpu-train": {"pod_spec": {"hostAliases": [{"ip": "us-east-2"}]}}}},
        "groups.gpu-train.pod_spec.hostAliases[0].ip",
        "names us-east-2",
    ),
]


@pytest.mark.parametrize(("change", "where", "words"), OUTSIDE)
def test_refuses_what_lies_outside(
    change: dict[str, Any], where: str, words: str, tmp_path: Path
) -> None:
    path = overlay(tmp_path, change)
    with pytest.raises(ConfigError) as caught:
        load_platform(path)
    assert caught.value.path == where
    assert words in caught.value.problem
    assert str(caught.value).startswith(f"{path}: {where}: ")


@pytest.mark.parametrize(
    "endpoint",
    [
        "rank.serverless.euc1.cache.amazonaws.com",
        "valkey.eu-central-1.example.com",
        "valkey",
        "valkey.ray-prod.svc",
        "valkey.ray-prod.svc.cluster.local",
    ],
)
def test_takes_endpoints_of_the_region(endpoint: str, tmp_path: Path) -> None:
    load_platform(overlay(tmp_path, state(endpoint)))


def test_a_host_whose_name_says_nothing_may_be_told(tmp_path: Path) -> None:
    load_platform(overlay(tmp_path, state("db.example.com", region="eu-central-1")))


def test_shared_storage_may_be_read_and_not_written(tmp_path: Path) -> None:
    bucket = {"region": "us-east-1", "read": ["models/"]}
    shared = {"residency": {"may_share_storage": True}}
    load_platform(overlay(tmp_path, {**shared, "buckets": {"us-models": bucket}}))
    written = {"us-models": {**bucket, "write": ["models/"]}}
    with pytest.raises(ConfigError, match="and is written to"):
        load_platform(overlay(tmp_path, {**shared, "buckets": written}))


@pytest.mark.parametrize(
    ("region", "short"),
    [
        ("us-east-1", "use1"),
        ("eu-central-1", "euc1"),
        ("ap-southeast-2", "apse2"),
        ("ap-northeast-1", "apne1"),
        ("ca-central-1", "cac1"),
    ],
)
def test_short_names_of_regions(region: str, short: str) -> None:
    assert short_region(region) == short
