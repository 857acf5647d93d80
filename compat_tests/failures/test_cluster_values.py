"""Values that cross from node to node: results, puts, arguments, streams, errors."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import ray
from failures.placed import (
    GET_LIMIT_S,
    LARGE,
    Keeper,
    filled,
    nap,
    on,
    plus,
    total,
)
from ray.exceptions import GetTimeoutError, RayTaskError

#: Real Ray takes seconds to start nodes and to notice their death.
pytestmark = pytest.mark.timeout(180)


def get(ref):
    return ray.get(ref, timeout=GET_LIMIT_S)


@pytest.fixture(autouse=True)
def two_nodes(nodes):
    """Nodes ``a`` and ``b`` beside the head's."""
    nodes.stand("a")
    nodes.stand("b")


@ray.remote(num_cpus=0)
def echo(value):
    return value


@ray.remote(num_cpus=0)
def keys(mapping):
    return {key: float(ray.get(ref).sum()) for key, ref in mapping.items()}


@ray.remote(num_cpus=0)
def put_there(value):
    return [ray.put(np.full(LARGE, float(value)))]


@ray.remote(num_cpus=0)
def stream(count, large):
    for number in range(count):
        yield np.full(LARGE if large else 3, float(number))


@ray.remote(num_cpus=0)
def fail(text):
    raise KeyError(text)


@pytest.mark.parametrize(
    "dtype", ["float64", "int8", "complex64", "bool", "datetime64[s]", "U7"]
)
def test_a_large_result_of_another_node(dtype):
    made = np.arange(200_000).astype("int64") % 100
    expected = made.astype(dtype)

    @ray.remote(**on("a"))
    def make():
        return expected

    value = get(make.remote())
    assert value.dtype == expected.dtype
    assert np.array_equal(value, expected)
    # Not what a buffer can describe; that is pickled as a whole.
    assert value.flags.writeable is (dtype == "datetime64[s]")


def test_a_value_put_by_the_driver_is_read_on_another_node():
    ref = ray.put(np.full(LARGE, 2.0))
    assert get(total.options(**on("a")).remote(ref)) == 2 * LARGE
    assert get(total.options(**on("b")).remote(ref, ref)) == 4 * LARGE


def test_a_large_argument_is_sent_along():
    array = np.full(LARGE, 3.0)
    assert get(total.options(**on("a")).remote(array)) == 3 * LARGE


def test_a_value_goes_from_one_node_to_another():
    first = filled.options(**on("a")).remote(1)
    second = plus.options(**on("b")).remote(first)
    third = plus.options(**on("a")).remote(second, first)
    assert get(total.options(**on("head")).remote(third)) == 3 * LARGE
    assert get(third)[0] == 3


def test_one_value_read_by_all_nodes():
    ref = filled.options(**on("a")).remote(1)
    readers = [total.options(**on(name)).remote(ref) for name in ("a", "b", "head") * 3]
    assert get(readers) == [LARGE] * 9


def test_keyword_arguments_cross_nodes():
    @ray.remote(**on("b"))
    def combine(*, left, right, factor=1):
        return float((left.sum() + right.sum()) * factor)

    left = filled.options(**on("a")).remote(1)
    right = ray.put(np.full(LARGE, 2.0))
    assert get(combine.remote(left=left, right=right, factor=2)) == 6 * LARGE


def test_references_inside_arguments_cross_nodes():
    mapping = {
        "there": filled.options(**on("a")).remote(1),
        "here": ray.put(np.full(LARGE, 2.0)),
        "other": filled.options(**on("b")).remote(3),
    }
    expected = {"there": LARGE, "here": 2 * LARGE, "other": 3 * LARGE}
    assert get(keys.options(**on("b")).remote(mapping)) == expected
    ref = ray.put(mapping)
    assert get(keys.options(**on("a")).remote(ref)) == expected


def test_a_returned_reference_to_a_value_of_another_node():
    (inner,) = get(put_there.options(**on("a")).remote(4))
    assert get(inner)[0] == 4
    assert get(total.options(**on("b")).remote(inner)) == 4 * LARGE


def test_references_in_references():
    inner = filled.options(**on("a")).remote(5)
    middle = echo.options(**on("b")).remote([inner])
    outer = echo.options(**on("a")).remote([middle])
    ((first,), _) = get([get(outer)[0], outer])
    assert get(first)[0] == 5


def test_a_value_outlives_the_reference_that_another_node_was_given():
    keeper = Keeper.options(**on("a")).remote()
    ref = filled.options(**on("b")).remote(2)
    get(keeper.keep.remote([ref]))
    del ref
    assert get(keeper.total_kept.remote()) == 2 * LARGE
    get(keeper.drop.remote())


def test_a_closure_captures_a_reference():
    ref = filled.options(**on("a")).remote(2)

    @ray.remote(**on("b"))
    def captured():
        return float(ray.get(ref).sum())

    assert get(captured.remote()) == 2 * LARGE


def test_twenty_megabytes_there_and_back():
    array = np.random.default_rng(7).integers(0, 255, 20_000_000, dtype=np.uint8)
    back = get(echo.options(**on("a")).remote(ray.put(array)))
    assert np.array_equal(back, array)


def test_bytes_and_objects_of_another_node():
    value = {"bytes": b"x" * 500_000, "text": "é" * 200_000, "list": list(range(1000))}
    assert get(echo.options(**on("a")).remote(value)) == value


@pytest.mark.parametrize("value", [None, 0, "", b"", [], {"a": (1, 2)}, float("inf")])
def test_small_values_of_another_node(value):
    assert get(echo.options(**on("a")).remote(value)) == value


def test_get_keeps_the_order_over_nodes():
    names = ["a", "head", "b"] * 4
    refs = [
        filled.options(**on(name)).remote(number) for number, name in enumerate(names)
    ]
    assert [int(value[0]) for value in get(refs)] == list(range(12))


def test_several_returns_of_another_node():
    @ray.remote(num_returns=3, **on("a"))
    def three():
        return np.full(LARGE, 1.0), "small", np.full(LARGE, 3.0)

    first, second, third = three.remote()
    assert get(total.options(**on("b")).remote(first, third)) == 4 * LARGE
    assert get(second) == "small"


@pytest.mark.parametrize("fetch_local", [True, False])
def test_wait_for_a_large_value_of_another_node(fetch_local):
    ref = filled.options(**on("a")).remote(1)
    ready, pending = ray.wait([ref], timeout=GET_LIMIT_S, fetch_local=fetch_local)
    assert (ready, pending) == ([ref], [])
    assert get(ref)[0] == 1


def test_wait_returns_the_quick_ones_of_all_nodes():
    slow = nap.options(**on("a")).remote(300)
    quick = [filled.options(**on(name)).remote(1) for name in ("b", "head")]
    ready, pending = ray.wait([slow, *quick], num_returns=2, timeout=GET_LIMIT_S)
    assert set(ready) == set(quick)
    assert pending == [slow]
    ray.cancel(slow)


def test_get_with_timeout_while_another_node_works():
    slow = nap.options(**on("a")).remote(300)
    with pytest.raises(GetTimeoutError):
        ray.get(slow, timeout=0.3)
    ray.cancel(slow)


def test_awaiting_values_of_other_nodes():
    async def both():
        refs = [filled.options(**on(name)).remote(1) for name in ("a", "b")]
        return await asyncio.gather(*refs)

    first, second = asyncio.run(both())
    assert first.sum() + second.sum() == 2 * LARGE


@pytest.mark.parametrize("large", [False, True])
def test_a_stream_of_another_node(large):
    refs = stream.options(**on("a")).remote(5, large)
    assert [int(get(ref)[0]) for ref in refs] == [0, 1, 2, 3, 4]


def test_an_async_reader_of_a_stream_of_another_node():
    async def read():
        refs = stream.options(**on("a")).remote(4, True)
        return [int((await ref)[0]) async for ref in refs]

    assert asyncio.run(read()) == [0, 1, 2, 3]


def test_items_of_a_stream_are_passed_to_a_third_node():
    refs = stream.options(**on("a")).remote(3, True)
    sums = [total.options(**on("b")).remote(ref) for ref in refs]
    assert get(sums) == [0, LARGE, 2 * LARGE]


def test_a_stream_fails_midway_on_another_node():
    @ray.remote(**on("a"))
    def broken():
        yield 1
        raise KeyError("midway")

    refs = broken.remote()
    assert get(next(refs)) == 1
    with pytest.raises(KeyError, match="midway"):
        get(next(refs))
    with pytest.raises(StopIteration):
        next(refs)


@pytest.mark.filterwarnings("ignore:.*dynamic")
def test_dynamic_returns_of_another_node():
    dynamic = stream.options(num_returns="dynamic", **on("a")).remote(3, True)
    assert [int(get(ref)[0]) for ref in get(dynamic)] == [0, 1, 2]


def test_an_error_of_another_node():
    with pytest.raises(KeyError, match="far away") as caught:
        get(fail.options(**on("a")).remote("far away"))
    assert isinstance(caught.value, RayTaskError)
    assert "in fail" in str(caught.value)


def test_an_error_passes_through_calls_of_several_nodes():
    failed = fail.options(**on("a")).remote("first")
    second = plus.options(**on("b")).remote(failed)
    third = total.options(**on("head")).remote(second)
    with pytest.raises(KeyError, match="first"):
        get(third)


def test_a_nested_error_of_another_node():
    @ray.remote(**on("b"))
    def outer():
        try:
            ray.get(fail.options(**on("a")).remote("inner"))
        except KeyError as error:
            return str(error)

    assert "inner" in get(outer.remote())


def test_an_error_class_of_the_script_crosses_nodes():
    class Odd(Exception):
        def __init__(self, number):
            super().__init__(f"odd {number}")
            self.number = number

    @ray.remote(**on("a"))
    def odd():
        raise Odd(7)

    with pytest.raises(Odd, match="odd 7"):
        get(odd.remote())
