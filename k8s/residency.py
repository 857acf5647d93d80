"""Whether all of a platform lies in the region that it must stay in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rayshim.k8s.config import ConfigError, Platform

#: A region of AWS anywhere in a text, with or without the letter of a zone.
_REGION = re.compile(
    r"(?<![a-z0-9])((?:af|ap|ca|cn|eu|il|me|mx|sa|us)(?:-gov|-iso[a-z]?)?"
    r"-(?:north|south|east|west|central)(?:east|west)?-[0-9])[a-z]?(?![a-z0-9])"
)
#: ElastiCache: "...cache.amazonaws.com" behind the short name of a region.
_CACHE = re.compile(r"\.([a-z]+[0-9])\.cache\.amazonaws\.com(?:\.cn)?$")
_DIRECTIONS = {
    "north": "n",
    "south": "s",
    "east": "e",
    "west": "w",
    "central": "c",
    "northeast": "ne",
    "northwest": "nw",
    "southeast": "se",
    "southwest": "sw",
}
#: Hosts inside the Kubernetes cluster.
_INSIDE = re.compile(r"(?:[-a-z0-9]+|.*\.svc|.*\.svc\.cluster\.local)")


def check_residency(platform: Platform) -> list[ConfigError]:
    """What lies outside ``residency.region``; empty: nothing, or it may lie anywhere.

    Looks at the region, the zones, the buckets (those that are only read may lie
    elsewhere with ``may_share_storage``), the endpoint of the head's state, the
    registries of the images, and at regions that stand in environment variables, node
    selectors and pod specs.
    """
    if platform.residency is None:
        return []
    region = platform.residency.region
    return [
        ConfigError(path, f"{problem}; residency.region is {region}", platform.source)
        for path, problem in _problems(platform, region)
    ]


def short_region(region: str) -> str:
    """The name of a region in the host names of ElastiCache.

    Example:
        >>> short_region("eu-central-1"), short_region("ap-southeast-2")
        ('euc1', 'apse2')
    """
    area, *middle, number = region.split("-")
    return area + "".join(_DIRECTIONS.get(one, one[:1]) for one in middle) + number


def _problems(platform: Platform, region: str) -> Iterator[tuple[str, str]]:
    if platform.region != region:
        yield "region", f"the platform runs in {platform.region}"
    for n, zone in enumerate(platform.zones):
        if not zone.startswith(region):
            yield f"zones[{n}]", f"zone {zone} lies outside"
    shares = platform.residency is not None and platform.residency.may_share_storage
    for bucket in platform.buckets:
        path = f"buckets.{bucket.name}.region"
        if bucket.region != region and not shares:
            yield path, f"bucket {bucket.name} lies in {bucket.region}; use a copy here"
        elif bucket.region != region and bucket.write:
            yield (
                path,
                f"bucket {bucket.name} lies in {bucket.region} and is written to",
            )
    yield from _endpoint(platform, region)
    images = {
        "images.cpu": platform.images.cpu,
        "images.gpu": platform.images.gpu,
        "head.state.image": platform.head.state.image,
    }
    for path, image in images.items():
        for found in _regions(image, region):
            yield path, f"the registry of {image} lies in {found}; push the image here"
    for path, value in _free_values(platform):
        for found in _regions(value, region):
            yield path, f"{value!r} names {found}"


def _endpoint(platform: Platform, region: str) -> Iterator[tuple[str, str]]:
    state = platform.head.state
    if state.kind != "external":
        return
    if state.region and state.region != region:
        yield "head.state.region", f"{state.endpoint} lies in {state.region}"
        return
    cache = _CACHE.search(state.endpoint)
    outside = list(_regions(state.endpoint, region))
    if cache is not None and cache[1] != short_region(region):
        yield (
            "head.state.endpoint",
            f"{state.endpoint} is an ElastiCache of the region {cache[1]}, not of "
            f"{short_region(region)}",
        )
    elif outside:
        yield "head.state.endpoint", f"{state.endpoint} lies in {outside[0]}"
    elif (
        cache is None
        and not state.region
        and not _REGION.search(state.endpoint)
        and not _INSIDE.fullmatch(state.endpoint)
    ):
        yield (
            "head.state.endpoint",
            f"the region of {state.endpoint} cannot be told from its name; write "
            "head.state.region",
        )


def _regions(text: str, region: str) -> Iterator[str]:
    """Other regions than one that a text names."""
    return (one[1] for one in _REGION.finditer(text) if one[1] != region)


def _free_values(platform: Platform) -> Iterator[tuple[str, str]]:
    """Texts in which users may write what they like, with their paths."""
    yield from _texts("head.env", platform.head.env)
    for group in platform.groups:
        at = f"groups.{group.name}"
        yield from _texts(f"{at}.env", group.env)
        yield from _texts(f"{at}.node_selector", group.node_selector)
        yield from _texts(f"{at}.pod_spec", group.pod_spec)


def _texts(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(f"{path}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for n, inner in enumerate(value):
            yield from _texts(f"{path}[{n}]", inner)
