"""Clusters for end-to-end tests: one for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rayshim.k8s.testing.localkube import LocalCluster


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    """A cluster without operator, with the default nodes."""
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def operator_cluster() -> Iterator[LocalCluster]:
    """A cluster with the real operator, with the default nodes."""
    with LocalCluster(operator=True) as cluster:
        yield cluster
