"""Calls that tests send to a named node of a cluster."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import ray

#: Elements of an array that is too large to be inlined (800 kB of float64).
LARGE = 100_000
#: Limit of a ``get`` that must succeed.
GET_LIMIT_S = 60


def on(name: str, /, **options: Any) -> dict[str, Any]:
    """Return options that place a call on the node with the resource ``name``."""
    return {"num_cpus": 0, "resources": {name: 0.01}, **options}


@ray.remote(num_cpus=0)
def where() -> str:
    """Return the id of the node that runs this."""
    return ray.get_runtime_context().get_node_id()


@ray.remote(num_cpus=0)
def filled(value: float) -> np.ndarray:
    """Return a large array of the value."""
    return np.full(LARGE, float(value))


@ray.remote(num_cpus=0)
def total(*arrays: np.ndarray) -> float:
    """Return the sum over all arrays."""
    return float(sum(array.sum() for array in arrays))


@ray.remote(num_cpus=0)
def plus(array: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """Return the sum of arrays, or one plus the only one."""
    return array + (sum(others) if others else 1)


@ray.remote(num_cpus=0)
def nap(seconds: float) -> str:
    """Sleep in small steps; return the id of the node."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)
    return ray.get_runtime_context().get_node_id()


@ray.remote(num_cpus=0)
class Keeper:
    """An actor that knows where it is and keeps a count and references."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: Any = None

    def node(self) -> str:
        """Return the id of its node."""
        return ray.get_runtime_context().get_node_id()

    def add(self) -> int:
        """Count one more."""
        self.count += 1
        return self.count

    def put(self, value: float) -> list[ray.ObjectRef]:
        """Return a reference that this actor owns."""
        return [ray.put(np.full(LARGE, float(value)))]

    def filled(self, value: float) -> np.ndarray:
        """Return a large array."""
        return np.full(LARGE, float(value))

    def keep(self, refs: Any) -> None:
        """Hold references."""
        self.kept = refs

    def total_kept(self) -> float:
        """Read the references that it holds."""
        return float(sum(array.sum() for array in ray.get(self.kept)))

    def drop(self) -> None:
        """Hold nothing any more."""
        self.kept = None

    def nap(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def fail(self) -> None:
        """Raise an error of the user."""
        raise KeyError("no such key here")
