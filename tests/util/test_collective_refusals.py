"""What collective operations say when they cannot work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import rayshim as ray
from rayshim.experimental import (
    TensorTransportManager,
    register_nixl_memory,
    register_tensor_transport,
    wait_tensor_freed,
)
from rayshim.util.collective.collective_group import torch_gloo_collective_group


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.init(num_cpus=2, log_to_driver=False)
    yield
    ray.shutdown()


def join_without_torch(_actor: Any) -> None:
    from rayshim.util import collective

    torch_gloo_collective_group.find_spec = lambda name: None  # type: ignore[assignment]
    collective.init_collective_group(1, 0, "gloo")


def write_to_a_shared_array(_actor: Any, values: Any) -> str:
    from rayshim.util import collective

    collective.init_collective_group(1, 0, "gloo", "alone")
    try:
        collective.allreduce(values, "alone")
    except ValueError as error:
        return str(error)
    finally:
        collective.destroy_collective_group("alone")
    return ""


def wait_for_others(_actor: Any) -> None:
    from rayshim.util import collective

    collective.init_collective_group(2, 0, "gloo", "lonely", gloo_timeout=200)


@ray.remote(num_cpus=0)
class Actor:
    pass


@pytest.mark.slow
def test_without_torch_the_extra_is_named(session: None) -> None:
    with pytest.raises(RuntimeError, match=r"rayshim\[collective\]"):
        ray.get(Actor.remote().__ray_call__.remote(join_without_torch))


@pytest.mark.slow
def test_arrays_of_the_store_are_not_written(session: None) -> None:
    np = pytest.importorskip("numpy")
    pytest.importorskip("torch")
    ref = ray.put(np.zeros(100_000))
    said = ray.get(Actor.remote().__ray_call__.remote(write_to_a_shared_array, ref))
    assert "array.copy()" in said


@pytest.mark.slow
def test_who_does_not_join_is_named(session: None) -> None:
    pytest.importorskip("torch")
    with pytest.raises(TimeoutError, match=r"ranks \[1\] did not join"):
        ray.get(Actor.remote().__ray_call__.remote(wait_for_others))


def test_transports_of_tensors_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="register_nixl_memory"):
        register_nixl_memory(None)
    with pytest.raises(ValueError, match="subclass"):
        register_tensor_transport("own", ["cpu"], dict, list)
    with pytest.raises(NotImplementedError, match="'own'"):
        register_tensor_transport("own", ["cpu"], TensorTransportManager, list)
    wait_tensor_freed(None)
