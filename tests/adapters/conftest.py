"""Fixtures of the tests with real head and node processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster_process import ClusterProcesses
from node_process import Peer


@pytest.fixture
def cluster() -> Iterator[ClusterProcesses]:
    with ClusterProcesses() as made:
        yield made


@pytest.fixture
def owner(cluster: ClusterProcesses) -> Iterator[Peer]:
    """A driver's channel to the head."""
    peer = cluster.head.peer(job_id=(1).to_bytes(4, "little"))
    yield peer
    peer.close()
