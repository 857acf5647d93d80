"""What graphs have here and not in Ray, and what they refuse."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rayshim as ray
from rayshim.dag import InputNode, MultiOutputNode, plot
from rayshim.experimental import collective

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@ray.remote(num_cpus=0)
class Actor:
    def scale(self, values: Any, factor: int = 1) -> Any:
        return values * factor

    def address(self, values: Any) -> int:
        return int(values.__array_interface__["data"][0])


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    ray.init(num_cpus=2, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def actors(session: None) -> list[Any]:
    return [Actor.remote() for _ in range(2)]


def test_collective_nodes_in_both_kinds_of_graphs(actors: list[Any]) -> None:
    with InputNode() as given:
        parts = [actor.scale.bind(given, rank + 1) for rank, actor in enumerate(actors)]
        graph = MultiOutputNode(collective.allreduce.bind(parts))
    found = ray.get(graph.execute(np.ones(2)))
    assert [value.tolist() for value in found] == [[3, 3], [3, 3]]
    compiled = graph.experimental_compile()
    found = ray.get(compiled.execute(np.ones(2)))
    assert [value.tolist() for value in found] == [[3, 3], [3, 3]]
    compiled.teardown()


def test_gather_and_scatter_nodes(actors: list[Any]) -> None:
    with InputNode() as given:
        parts = [actor.scale.bind(given, rank + 1) for rank, actor in enumerate(actors)]
        gathered = MultiOutputNode(collective.allgather.bind(parts))
        scattered = MultiOutputNode(collective.reducescatter.bind(parts))
    found = ray.get(gathered.execute(np.ones(1)))
    assert [value.tolist() for value in found] == [[1, 2], [1, 2]]
    found = ray.get(scattered.execute(np.arange(4)))
    assert [value.tolist() for value in found] == [[0, 3], [6, 9]]


def test_collective_nodes_need_different_actors(actors: list[Any]) -> None:
    with InputNode() as given:
        part = actors[0].scale.bind(given)
    with pytest.raises(ValueError, match="unique actor handles"):
        collective.allreduce.bind([part, part])
    with pytest.raises(NotImplementedError, match="shared store"):
        collective.allreduce.bind([part], transport="nccl")


def test_a_large_input_of_several_calls_is_stored_once(actors: list[Any]) -> None:
    with InputNode() as given:
        calls = [actors[0].address.bind(given), actors[0].address.bind(given)]
        graph = MultiOutputNode(calls).experimental_compile()
    first, second = ray.get(graph.execute(np.zeros(100_000)))
    assert first == second
    graph.teardown()


@pytest.mark.parametrize(
    "options",
    [{"_overlap_gpu_communication": True}, {"_default_communicator": object()}],
)
def test_what_needs_gpus_is_refused(actors: list[Any], options: dict[str, Any]) -> None:
    with InputNode() as given:
        node = actors[0].scale.bind(given)
    with pytest.raises(NotImplementedError, match=next(iter(options))):
        node.experimental_compile(**options)


@pytest.mark.parametrize(
    "arguments", [("nccl",), ("accelerator",), (object(),), ("shm", "cuda")]
)
def test_transports_between_gpus_are_refused(
    actors: list[Any], arguments: tuple[Any, ...]
) -> None:
    node = actors[0].scale.bind(1)
    with pytest.raises(NotImplementedError, match="with_tensor_transport"):
        node.with_tensor_transport(*arguments)


def test_pictures_name_the_library_that_they_need(
    actors: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    monkeypatch.setitem(sys.modules, "pydot", None)
    with InputNode() as given:
        node = actors[0].scale.bind(given)
    with pytest.raises(ImportError, match="pip install pydot"):
        plot(node)
    compiled = node.experimental_compile()
    with pytest.raises(ImportError, match="pip install graphviz"):
        compiled.visualize()
    compiled.teardown()


def test_a_long_chain_needs_no_recursion(actors: list[Any]) -> None:
    @ray.remote
    def increment(value: int) -> int:
        return value + 1

    node = increment.bind(0)
    for _ in range(1500):
        node = increment.bind(node)
    assert ray.get(node.execute()) == 1501


def test_an_actor_that_dies_says_so(session: None) -> None:
    actor = Actor.remote()
    with InputNode() as given:
        compiled = actor.scale.bind(given).experimental_compile()
    assert ray.get(compiled.execute(1)) == 1
    ray.kill(actor)
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(compiled.execute(1))
    compiled.teardown()
