"""Compiled graphs: experimental_compile, execute, references, limits, teardown."""

from __future__ import annotations

import asyncio
import copy
import pickle
import time

import numpy as np
import pytest

import ray
from ray.dag import InputNode, MultiOutputNode
from ray.dag.context import DAGContext
from ray.exceptions import (
    RayCgraphCapacityExceeded,
    RayChannelError,
    RayChannelTimeoutError,
    RayTaskError,
)

pytestmark = [pytest.mark.usefixtures("ray_start"), pytest.mark.timeout(120)]


@ray.remote(num_cpus=0)
class Actor:
    def __init__(self, amount=1):
        self.amount = amount
        self.seen = 0

    def add(self, value):
        self.seen += 1
        return value + self.amount

    def join(self, *values):
        return list(values)

    def sleep(self, seconds):
        time.sleep(seconds)
        return seconds

    def fail(self, value):
        raise ZeroDivisionError(f"no {value}")

    def fail_for(self, value):
        if value == 1:
            raise ZeroDivisionError("no 1")
        return value

    def count(self):
        return self.seen

    @ray.method(num_returns=2)
    def split(self, value):
        return value, value + 1


@pytest.fixture(scope="module")
def actors(shared_cluster):
    shared_cluster.start()
    return [Actor.remote(), Actor.remote(10)]


@pytest.fixture
def compiled():
    """Compile, and tear down at the end."""
    made = []

    def compile_graph(node, **options):
        graph = node.experimental_compile(**options)
        made.append(graph)
        return graph

    yield compile_graph
    for graph in made:
        graph.teardown()


def one(actor, method="add"):
    with InputNode() as given:
        return getattr(actor, method).bind(given)


def test_one_call(actors, compiled):
    graph = compiled(one(actors[0]))
    assert [ray.get(graph.execute(i)) for i in range(5)] == [1, 2, 3, 4, 5]


def test_a_chain_over_two_actors(actors, compiled):
    with InputNode() as given:
        node = actors[1].add.bind(actors[0].add.bind(given))
    assert ray.get(compiled(node).execute(1)) == 12


def test_constants_and_several_nodes_as_arguments(actors, compiled):
    a, b = actors
    with InputNode() as given:
        node = a.join.bind("x", b.add.bind(given), a.add.bind(given), 5)
    assert ray.get(compiled(node).execute(1)) == ["x", 11, 2, 5]


def test_several_outputs(actors, compiled):
    a, b = actors
    with InputNode() as given:
        node = MultiOutputNode([a.add.bind(given), b.add.bind(given)])
    graph = compiled(node)
    refs = graph.execute(1)
    assert isinstance(refs, list)
    assert ray.get(refs) == [2, 11]
    first, second = graph.execute(2)
    assert ray.get(second) == 12
    assert ray.get(first) == 3


def test_one_output_in_a_list(actors, compiled):
    with InputNode() as given:
        node = MultiOutputNode([actors[0].add.bind(given)])
    assert ray.get(compiled(node).execute(1)) == [2]


def test_parts_of_the_input(actors, compiled):
    with InputNode() as given:
        node = actors[0].join.bind(given[0], given[1], given.name)
    graph = compiled(node)
    assert ray.get(graph.execute(1, 2, name="x")) == [1, 2, "x"]
    with pytest.raises(ValueError, match="2 positional args, got 1"):
        graph.execute(1, name="x")
    with pytest.raises(ValueError, match="kwarg `name`"):
        graph.execute(1, 2)


def test_the_one_argument_is_needed(actors, compiled):
    graph = compiled(one(actors[0]))
    with pytest.raises(ValueError, match="1 positional args, got 2"):
        graph.execute(1, 2)


def test_several_results_of_a_method(actors, compiled):
    a, b = actors
    with InputNode() as given:
        left, right = a.split.bind(given)
        node = b.join.bind(right, left)
    assert ray.get(compiled(node).execute(1)) == [2, 1]


def test_arrays(actors, compiled):
    graph = compiled(one(actors[0]))
    values = np.arange(300_000)
    result = ray.get(graph.execute(values))
    assert np.array_equal(result, values + 1)


def test_a_result_is_fetched_once(actors, compiled):
    ref = compiled(one(actors[0])).execute(1)
    assert ref.get() == 2
    with pytest.raises(ValueError, match="only be called once"):
        ray.get(ref)


def test_results_in_another_order(actors, compiled):
    graph = compiled(one(actors[0]))
    refs = [graph.execute(i) for i in range(4)]
    assert ray.get(refs[3]) == 4
    assert ray.get(refs[0]) == 1
    assert ray.get(refs[1:3]) == [2, 3]


def test_references_stay_here(actors, compiled):
    ref = compiled(one(actors[0])).execute(1)
    with pytest.raises(ValueError, match="cannot be copied"):
        copy.copy(ref)
    with pytest.raises(ValueError, match="cannot be deep copied"):
        copy.deepcopy(ref)
    with pytest.raises(ValueError, match="cannot be pickled"):
        pickle.dumps(ref)
    with pytest.raises(TypeError):
        ray.wait([ref])
    assert ray.get(ref) == 2


def test_errors_come_out_and_the_graph_goes_on(actors, compiled):
    graph = compiled(one(actors[0], "fail_for"))
    assert ray.get(graph.execute(0)) == 0
    with pytest.raises(ZeroDivisionError, match="no 1") as caught:
        ray.get(graph.execute(1))
    assert isinstance(caught.value, RayTaskError)
    assert ray.get(graph.execute(2)) == 2


def test_errors_pass_through_the_chain(actors, compiled):
    a, b = actors
    with InputNode() as given:
        node = b.add.bind(a.fail.bind(given))
    with pytest.raises(ZeroDivisionError, match="no 7"):
        ray.get(compiled(node).execute(7))


@pytest.mark.differs("errors-of-other-outputs")
def test_an_error_of_one_output(actors, compiled):
    a, b = actors
    with InputNode() as given:
        node = MultiOutputNode([a.fail.bind(given), b.add.bind(given)])
    bad, good = compiled(node).execute(1)
    assert ray.get(good) == 11
    with pytest.raises(ZeroDivisionError):
        ray.get(bad)


def test_too_many_executions_under_way(actors, compiled):
    graph = compiled(one(actors[0]), _max_inflight_executions=2)
    refs = [graph.execute(i) for i in range(2)]
    with pytest.raises(RayCgraphCapacityExceeded, match="2 in-flight"):
        graph.execute(2)
    assert ray.get(refs[0]) == 1
    refs.append(graph.execute(2))
    assert ray.get(refs[1:]) == [2, 3]


def test_ten_executions_by_default(actors, compiled):
    graph = compiled(one(actors[0]))
    refs = [graph.execute(i) for i in range(10)]
    with pytest.raises(RayCgraphCapacityExceeded):
        graph.execute(10)
    assert ray.get(refs) == list(range(1, 11))


def test_too_many_buffered_results(actors, compiled):
    graph = compiled(one(actors[0]), _max_buffered_results=1)
    refs = [graph.execute(i) for i in range(3)]
    with pytest.raises(RayCgraphCapacityExceeded, match="1 buffered"):
        ray.get(refs[2])


def test_dropped_references_make_room(actors, compiled):
    graph = compiled(one(actors[0]), _max_inflight_executions=2)
    for i in range(6):
        graph.execute(i)
    assert ray.get(graph.execute(6)) == 7


def test_a_result_in_time(actors, compiled):
    graph = compiled(one(actors[0], "sleep"))
    ref = graph.execute(1.5)
    with pytest.raises(RayChannelTimeoutError):
        ref.get(timeout=0.1)
    ref = graph.execute(0)
    with pytest.raises(TimeoutError):
        ray.get(ref, timeout=0.05)
    assert ray.get(graph.execute(0), timeout=-1) == 0


def test_the_actor_takes_other_calls(actors, compiled):
    actor = Actor.remote()
    graph = compiled(one(actor))
    ray.get(graph.execute(1))
    assert ray.get(actor.count.remote()) == 1
    ray.get(graph.execute(1))
    assert ray.get(actor.count.remote()) == 2


def test_after_teardown(actors):
    actor = Actor.remote()
    graph = one(actor).experimental_compile()
    ref = graph.execute(1)
    assert not graph.is_teardown
    graph.teardown()
    graph.teardown()
    assert graph.is_teardown
    with pytest.raises(RayChannelError):
        graph.execute(1)
    with pytest.raises(RayChannelError):
        ray.get(ref)
    assert ray.get(actor.add.remote(1)) == 2


def test_teardown_may_kill_the_actors(wait_until):
    actor = Actor.remote()
    graph = one(actor).experimental_compile()
    assert ray.get(graph.execute(1)) == 2
    graph.teardown(kill_actors=True)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.add.remote(1))


def test_actors_can_be_compiled_again():
    actor = Actor.remote()
    first = one(actor).experimental_compile()
    assert ray.get(first.execute(1)) == 2
    first.teardown()
    second = one(actor).experimental_compile()
    assert ray.get(second.execute(2)) == 3
    second.teardown()


def test_a_graph_is_compiled_once(actors, compiled):
    node = one(actors[0])
    compiled(node)
    with pytest.raises(ValueError, match="multiple times"):
        node.experimental_compile()


def in_loop(node, use):
    """Compile in a running event loop, as Ray needs it, and use the graph there."""

    async def main():
        graph = node.experimental_compile(enable_asyncio=True)
        try:
            return await use(graph)
        finally:
            graph.teardown()

    return asyncio.run(main())


def test_asyncio(actors):
    async def use(graph):
        futures = [await graph.execute_async(i) for i in range(3)]
        values = [await future for future in futures]
        with pytest.raises(ValueError, match="awaited upon once"):
            await futures[0]
        with pytest.raises(ValueError, match="execute_async"):
            graph.execute(1)
        return values

    assert in_loop(one(actors[0]), use) == [1, 2, 3]


def test_asyncio_with_several_outputs(actors):
    a, b = actors
    with InputNode() as given:
        node = MultiOutputNode([a.add.bind(given), b.add.bind(given)])

    async def use(graph):
        first, second = await graph.execute_async(1)
        return await first, await second

    assert in_loop(node, use) == (2, 11)


def test_asyncio_errors(actors):
    async def use(graph):
        with pytest.raises(ZeroDivisionError):
            await (await graph.execute_async(1))
        return await (await graph.execute_async(2))

    assert in_loop(one(actors[0], "fail_for"), use) == 2


def test_the_kind_of_execute_is_chosen_at_compile(actors, compiled):
    plain = compiled(one(actors[0]))
    with pytest.raises(ValueError, match="enable_asyncio=False"):
        asyncio.run(plain.execute_async(1))


def test_what_cannot_be_compiled(actors):
    a = actors[0]

    @ray.remote
    def function(value):
        return value

    with InputNode() as given:
        node = function.bind(given)
    with pytest.raises(NotImplementedError, match="actor method"):
        node.experimental_compile()
    with InputNode() as given:
        node = Actor.bind().add.bind(given)
    with pytest.raises(ValueError):
        node.experimental_compile()
    with pytest.raises(ValueError, match="InputNode"):
        a.add.bind(1).experimental_compile()
    with InputNode() as given:
        node = a.join.bind([given])
    with pytest.raises(ValueError, match="container"):
        node.experimental_compile()
    with InputNode() as given:
        node = a.add.bind(value=given)
    with pytest.raises(ValueError, match="kwargs"):
        node.experimental_compile()
    with InputNode() as given:
        node = a.join.bind(given, given[0])
    with pytest.raises(ValueError, match="must either use InputNode"):
        node.experimental_compile()


def test_what_leads_nowhere_cannot_be_compiled(actors):
    a, b = actors
    with InputNode() as given:
        a.add.bind(given)
        node = b.add.bind(given)
    with pytest.raises(ValueError, match="leaf nodes"):
        node.experimental_compile()
    with InputNode() as given:
        node = MultiOutputNode([a.add.bind(given), b.add.bind(1)])
    with pytest.raises(ValueError, match="at least one other DAGNode"):
        node.experimental_compile()
    with InputNode() as given:
        given[1]
        node = a.add.bind(given[0])
    with pytest.raises(ValueError, match="unused"):
        node.experimental_compile()


def test_tensor_transport_names(actors):
    with InputNode() as given:
        node = actors[0].add.bind(given)
    assert node.with_tensor_transport("shm") is node
    with pytest.raises(ValueError, match="Invalid transport type"):
        node.with_tensor_transport("pigeon")
    with pytest.raises(ValueError, match="Invalid device"):
        node.with_tensor_transport("shm", device="abacus")


def test_ascii_picture(actors, compiled):
    a, b = actors
    with InputNode() as given:
        node = MultiOutputNode([a.add.bind(given), b.join.bind(given)])
    graph = compiled(node)
    text = graph.visualize(format="ascii")
    for name in ("InputNode", "add", "join", "MultiOutputNode"):
        assert name in text
    with pytest.raises(ValueError, match="ascii"):
        graph.visualize(format="ascii", channel_details=True)


def test_context():
    context = DAGContext.get_current()
    assert context is DAGContext.get_current()
    assert context.buffer_size_bytes == 1_000_000
    assert (context.get_timeout, context.submit_timeout) == (10, 10)
    assert (context.max_inflight_executions, context.max_buffered_results) == (10, 1000)
    with pytest.raises(ValueError, match="read_iteration_timeout"):
        DAGContext(get_timeout=1, read_iteration_timeout=2)
