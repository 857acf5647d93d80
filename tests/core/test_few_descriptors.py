"""A cluster whose processes may open few files."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

#: Far more values than descriptors, each so large that it lies in a store.
PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
import numpy as np
import rayshim as ray
from rayshim.cluster_utils import Cluster

@ray.remote(resources={"far": 0.001})
def make(number):
    return np.full(15_000, number)

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1, resources={"far": 1})
ray.init(address=cluster.address)
refs = [make.remote(number) for number in range(400)]
ray.wait(refs, num_returns=len(refs), fetch_local=False, timeout=60)
for number, value in enumerate(ray.get(refs, timeout=60)):
    assert (value == number).all()
ray.shutdown()
cluster.shutdown()
"""


def test_many_values_come_from_another_node() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
