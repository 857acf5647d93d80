"""A node dies with the only copies of many values; an owner dies while others wait."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from rayshim.cluster_utils import Cluster

VALUES = 100
VALUE_BYTES = 10_000_000
OWNER_LIMIT_S = 5.0
BORROWERS = 8


@ray.remote(num_cpus=0.5, resources={"far": 0.1})
def make(number: int, notes: str) -> np.ndarray:
    """A large value, and a note of each run."""
    with open(f"{notes}/{number}", "a") as file:
        file.write("x")
    return np.full(VALUE_BYTES // 8, float(number))


@pytest.fixture
def cluster() -> Any:
    """A head with its node."""
    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "object_store_memory": 3 << 30},
    )
    yield made
    ray.shutdown()
    made.shutdown()


def far_node(cluster: Cluster) -> Any:
    """A node that only the far tasks run on."""
    return cluster.add_node(
        num_cpus=2, resources={"far": 10}, object_store_memory=3 << 30
    )


def test_a_node_with_the_only_copies_dies(
    cluster: Cluster, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    node = far_node(cluster)
    ray.init(address=cluster.address, log_to_driver=False)
    refs = [make.remote(number, str(tmp_path)) for number in range(VALUES)]
    ready, _ = ray.wait(refs, num_returns=len(refs), timeout=300, fetch_local=False)
    assert len(ready) == VALUES
    far_node(cluster)
    cluster.remove_node(node, allow_graceful=False)
    begun = time.monotonic()
    for start in range(0, VALUES, 10):
        values = ray.get(refs[start : start + 10], timeout=300)
        for number, value in enumerate(values, start):
            assert value.shape == (VALUE_BYTES // 8,)
            assert (value[0], value[-1]) == (number, number)
        del value, values
    took = time.monotonic() - begun
    runs = [os.path.getsize(tmp_path / str(number)) for number in range(VALUES)]
    figure(
        f"{VALUES} values of {VALUE_BYTES / 1e6:g} MB rebuilt in {took:.1f} s; runs of "
        f"a task: {min(runs)} to {max(runs)}"
    )
    assert set(runs) == {2}


@ray.remote(num_cpus=0)
class Owner:
    """Owns a task that never ends, and a value."""

    def pid(self) -> int:
        """Of the owner."""
        return os.getpid()

    def lend(self) -> list[Any]:
        """References that this process owns."""

        @ray.remote(num_cpus=0)
        def never() -> None:
            time.sleep(3600)

        self.kept = [never.remote(), never.remote()]
        return self.kept


@ray.remote(num_cpus=0)
def borrow(refs: list[Any], started: str, number: int) -> str:
    """Waits for what the owner will never have."""
    Path(started, str(number)).touch()
    try:
        ray.get(refs[number % 2])
    except ray.exceptions.OwnerDiedError as error:
        return type(error).__name__
    return "a value"


@pytest.mark.parametrize("how", ["process", "node"])
def test_an_owner_dies_while_borrowers_wait(
    cluster: Cluster, tmp_path: Path, how: str, figure: Callable[[str], None]
) -> None:
    node = far_node(cluster)
    ray.init(address=cluster.address, log_to_driver=False)
    owner = Owner.options(resources={"far": 1}).remote()
    pid = ray.get(owner.pid.remote())
    lent = ray.get(owner.lend.remote())
    started = str(tmp_path)
    waiting = [borrow.remote(lent, started, number) for number in range(BORROWERS)]
    caught: list[float] = []

    def wait_here() -> None:
        with pytest.raises(ray.exceptions.OwnerDiedError):
            ray.get(lent[0])
        caught.append(time.monotonic())

    here = threading.Thread(target=wait_here)
    here.start()
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < BORROWERS:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    begun = time.monotonic()
    if how == "process":
        os.kill(pid, signal.SIGKILL)
    else:
        cluster.remove_node(node, allow_graceful=False)
    assert ray.get(waiting, timeout=30) == ["OwnerDiedError"] * BORROWERS
    here.join(30)
    took = time.monotonic() - begun
    figure(f"owner's {how} killed: the last of {BORROWERS + 1} knew it {took:.2f} s on")
    assert caught and caught[0] - begun < OWNER_LIMIT_S
    assert took < OWNER_LIMIT_S
    with pytest.raises(ray.exceptions.OwnerDiedError):
        ray.get(lent[1], timeout=10)
