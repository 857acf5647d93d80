"""Task graphs that are executed as they are: bind, InputNode, execute."""

from __future__ import annotations

import asyncio
import warnings

import pytest

import ray
from ray.dag import (
    ClassMethodNode,
    ClassNode,
    DAGInputData,
    DAGNode,
    FunctionNode,
    InputAttributeNode,
    InputNode,
    MultiOutputNode,
)

pytestmark = [
    pytest.mark.usefixtures("ray_start"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@ray.remote
def add(a, b=1):
    return a + b


@ray.remote
def total(values):
    return sum(ray.get(list(values)))


@ray.remote
def fail(value):
    raise ZeroDivisionError(f"no {value}")


@ray.remote
class Counter:
    def __init__(self, start=0):
        self.value = start

    def add(self, amount):
        self.value += amount
        return self.value

    def read(self):
        return self.value

    @ray.method(num_returns=2)
    def split(self, pair):
        return pair[0], pair[1]


def run(node, *args, **kwargs):
    return ray.get(node.execute(*args, **kwargs))


def test_a_function_without_input_runs():
    assert run(add.bind(1, 2)) == 3


def test_bind_makes_no_call():
    node = fail.bind(1)
    assert isinstance(node, FunctionNode) and isinstance(node, DAGNode)


def test_the_input_is_the_one_argument():
    with InputNode() as given:
        graph = add.bind(given, 10)
    assert run(graph, 5) == 15
    assert run(graph, 6) == 16


def test_nodes_are_arguments_by_position_and_name():
    with InputNode() as given:
        graph = add.bind(add.bind(given), b=add.bind(given, 2))
    assert run(graph, 3) == 9


def test_input_parts_by_index_and_name():
    with InputNode() as given:
        graph = add.bind(given[0], given.other)
    assert run(graph, 1, other=2) == 3


def test_input_parts_of_one_value():
    with InputNode() as given:
        graph = add.bind(given["a"], given["b"])
    assert run(graph, {"a": 4, "b": 5}) == 9
    with InputNode() as given:
        graph = add.bind(given[0], given[1])
    assert run(graph, [6, 7]) == 13


def test_input_parts_are_attributes_of_an_object():
    class Pair:
        left, right = 2, 3

    with InputNode() as given:
        graph = add.bind(given.left, given.right)
    assert run(graph, Pair()) == 5


def test_the_same_part_is_the_same_node():
    with InputNode() as given:
        part = given[0]
        assert given[0] is part
    assert isinstance(part, InputAttributeNode)
    assert part.key == 0


def test_a_shared_node_runs_once():
    counter = Counter.remote()
    with InputNode() as given:
        shared = counter.add.bind(given)
        graph = add.bind(shared, shared)
    assert run(graph, 5) == 10
    assert ray.get(counter.read.remote()) == 5


def test_several_outputs_are_a_list_of_references():
    with InputNode() as given:
        graph = MultiOutputNode([add.bind(given, 1), add.bind(given, 2)])
    refs = graph.execute(1)
    assert isinstance(refs, list)
    assert ray.get(refs) == [2, 3]


def test_outputs_may_be_a_tuple_and_nothing_else():
    assert len(MultiOutputNode((add.bind(1), add.bind(2))).get_args()) == 2
    with pytest.raises(ValueError, match="Invalid input type"):
        MultiOutputNode(add.bind(1))


def test_nodes_in_containers_become_references():
    graph = total.bind([add.bind(1), add.bind(2)])
    assert run(graph) == 5


def test_nodes_deep_in_containers_are_found():
    @ray.remote
    def read(value):
        return ray.get(value["a"][0][1])

    assert run(read.bind({"a": [(0, add.bind(1, 1))]})) == 2


def test_nodes_in_objects_are_found():
    class Holder:
        def __init__(self, held):
            self.held = held

    @ray.remote
    def read(holder):
        return ray.get(holder.held)

    assert run(read.bind(Holder(add.bind(1, 1)))) == 2


def test_a_bound_class_is_created_for_each_execution():
    counter = Counter.bind(10)
    with InputNode() as given:
        graph = counter.add.bind(given)
    assert isinstance(counter, ClassNode)
    assert isinstance(graph, ClassMethodNode)
    assert run(graph, 1) == 11
    assert run(graph, 1) == 11


def test_methods_of_a_bound_class_run_in_the_order_of_binds():
    counter = Counter.bind()
    counter.add.bind(2)
    counter.add.bind(3)
    assert run(counter.read.bind()) == 5


def test_a_bound_class_executes_to_a_handle():
    handle = Counter.bind(4).execute()
    assert ray.get(handle.read.remote()) == 4


def test_constructor_arguments_may_be_nodes_but_no_input():
    assert run(Counter.bind(add.bind(1, 2)).read.bind()) == 3
    with InputNode() as given:
        with pytest.raises(ValueError, match="InputNode"):
            Counter.bind(given)


def test_options_of_functions_and_classes():
    counter = Counter.options(num_cpus=0, max_restarts=1).bind(1)
    assert run(counter.read.bind()) == 1
    node = add.options(num_cpus=0.5).bind(1, 1)
    assert node.get_options()["num_cpus"] == 0.5
    assert run(node) == 2


def test_methods_of_a_living_actor():
    counter = Counter.remote(1)
    with InputNode() as given:
        graph = counter.add.bind(given)
    assert run(graph, 2) == 3
    assert run(graph, 2) == 5


def test_several_results_of_a_method_are_several_nodes():
    counter = Counter.remote()
    with InputNode() as given:
        left, right = counter.split.bind(given)
        graph = add.bind(left, right)
    assert left.is_class_method_output and not left.is_class_method_call
    assert (left.output_idx, right.output_idx) == (0, 1)
    assert left.class_method_call.num_returns == 2
    assert run(graph, (3, 4)) == 7


def test_several_results_by_option():
    counter = Counter.remote()
    nodes = counter.split.options(num_returns=2).bind((1, 2))
    assert len(nodes) == 2
    assert ray.get([node.execute() for node in nodes]) == [1, 2]


def test_errors_come_out_at_the_end():
    with InputNode() as given:
        graph = add.bind(fail.bind(given), 1)
    with pytest.raises(ZeroDivisionError, match="no 3"):
        run(graph, 3)


def test_an_input_outside_of_with_is_refused():
    graph = add.bind(InputNode(), 1)
    with pytest.raises(AssertionError, match="context manager"):
        graph.execute(1)


def test_two_inputs_are_refused():
    with InputNode() as one, InputNode() as two:
        graph = add.bind(one, two)
    with pytest.raises(AssertionError, match="one unique InputNode"):
        graph.execute(1)


def test_an_input_takes_no_arguments():
    with pytest.raises(ValueError, match="should not take any args"):
        InputNode(1)


def test_input_keys_are_indexes_or_names():
    with InputNode() as given:
        with pytest.raises(AssertionError, match="int index or str"):
            given[1.5]


def test_nodes_have_no_remote_and_no_second_bind():
    node = add.bind(1)
    with pytest.raises(AttributeError, match="execute"):
        node.remote()
    with pytest.raises(AttributeError, match="cannot be used again"):
        node.bind(1)


def test_unknown_methods_of_a_bound_class():
    node = Counter.bind()
    with pytest.raises(AttributeError):
        getattr(node, "nothing")  # noqa: B009  # that it is missing is the test


def test_execute_warns():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        add.bind(1).execute()
    assert any("deprecated" in str(warning.message) for warning in caught)


def test_getters():
    inner = add.bind(1)
    node = add.options(num_cpus=1).bind(inner, b=3)
    assert list(node.get_args()) == [inner]
    assert node.get_kwargs() == {"b": 3}
    assert node.get_options() == {"num_cpus": 1}
    assert node.get_stable_uuid() != inner.get_stable_uuid()


def test_references_of_the_last_execution():
    inner = add.bind(1)
    node = add.bind(inner, 2)
    ref = node.execute(_ray_cache_refs=True)
    cached = asyncio.run(node.get_object_refs_from_last_execute())
    assert cached[node.get_stable_uuid()] == ref
    assert ray.get(cached[inner.get_stable_uuid()]) == 2
    node.clear_cache()
    assert asyncio.run(node.get_object_refs_from_last_execute()) == {}


def test_apply_recursive_goes_bottom_up():
    inner = add.bind(1)
    node = add.bind(inner, 2)
    names = []

    def visit(copy):
        names.append(copy.get_stable_uuid())
        return ("done", list(copy.get_args()))

    assert node.apply_recursive(visit) == ("done", [("done", [1]), 2])
    assert names == [inner.get_stable_uuid(), node.get_stable_uuid()]


def test_apply_functional_replaces_nodes():
    one, two = add.bind(1), add.bind(2)
    replaced = one.apply_functional(
        [one, [two]],
        predicate_fn=lambda node: True,
        apply_fn=lambda node: list(node.get_args()),
    )
    assert replaced == [[1], [[2]]]


def test_input_data_by_index_and_name():
    data = DAGInputData(1, 2, x=3)
    assert (data[1], data["x"]) == (2, 3)
    with pytest.raises(ValueError, match="int index or str"):
        data[1.5]


def test_a_reference_as_input():
    with InputNode() as given:
        graph = add.bind(given, 1)
    assert run(graph, ray.put(4)) == 5


def test_graphs_can_be_sent_to_tasks():
    @ray.remote
    def execute(nodes):
        return ray.get(nodes[0].execute(5))

    with InputNode() as given:
        graph = add.bind(given, 1)
    assert ray.get(execute.remote([graph])) == 6
