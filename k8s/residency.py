"""Whether all of a platform lies in the region that it must stay in."""

from __future__ import annotations

from rayshim.k8s.config import ConfigError, Platform


def check_residency(platform: Platform) -> list[ConfigError]:
    """What lies outside ``residency.region``; empty: nothing, or it may lie anywhere.

    Looks at the region, zones, buckets, the endpoint of the head's state, and the
    registries of the images.
    """
    raise NotImplementedError
