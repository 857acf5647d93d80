"""Arguments of tasks: refs, keywords, defaults, arity, snapshots."""

from __future__ import annotations

import time

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(*args, **kwargs):
    return args, kwargs


@ray.remote
def two(a, b=10):
    return a, b


@ray.remote
def keyword_only(a, *, b=2):
    return a, b


@ray.remote
def positional_only(a, b=5, /):
    return a, b


@ray.remote
def kinds(*args, **kwargs):
    return [type(a).__name__ for a in (*args, *kwargs.values())]


def test_ref_argument_is_replaced_by_its_value():
    assert ray.get(two.remote(ray.put("x"))) == ("x", 10)


def test_ref_keyword_argument_is_replaced_by_its_value():
    assert ray.get(two.remote(1, b=ray.put("kw"))) == (1, "kw")


def test_refs_through_star_args_are_replaced():
    refs = [ray.put(i) for i in range(3)]
    assert ray.get(echo.remote(*refs)) == ((0, 1, 2), {})


def test_refs_through_double_star_are_replaced():
    assert ray.get(echo.remote(**{"k": ray.put(1)})) == ((), {"k": 1})


def test_same_ref_twice():
    ref = ray.put(7)
    assert ray.get(echo.remote(ref, ref, k=ref)) == ((7, 7), {"k": 7})


@pytest.mark.parametrize(
    "wrap",
    [lambda r: [r], lambda r: (r,), lambda r: {"k": r}, lambda r: [[r]]],
    ids=["list", "tuple", "dict", "nested list"],
)
def test_ref_inside_a_container_stays_a_ref(wrap):
    @ray.remote
    def leaf(value):
        while not isinstance(value, ray.ObjectRef):
            value = next(iter(value.values() if isinstance(value, dict) else value))
        return ray.get(value)

    assert ray.get(leaf.remote(wrap(ray.put("deep")))) == "deep"


def test_ref_attribute_of_an_object_stays_a_ref():
    class Holder:
        def __init__(self, ref):
            self.ref = ref

    @ray.remote
    def read(holder):
        return type(holder.ref).__name__, ray.get(holder.ref)

    assert ray.get(read.remote(Holder(ray.put(1)))) == ("ObjectRef", 1)


def test_result_ref_as_argument_before_it_is_ready():
    assert ray.get(two.remote(two.remote(1), b=two.remote(2))) == ((1, 10), (2, 10))


def test_defaults_and_keywords():
    assert ray.get(two.remote(1)) == (1, 10)
    assert ray.get(two.remote(b=2, a=1)) == (1, 2)
    assert ray.get(keyword_only.remote(1)) == (1, 2)
    assert ray.get(keyword_only.remote(1, b=3)) == (1, 3)
    assert ray.get(positional_only.remote(1)) == (1, 5)


def test_mixed_args_and_kwargs():
    assert ray.get(echo.remote(1, "a", x=2, y=[3])) == ((1, "a"), {"x": 2, "y": [3]})


def test_no_arguments():
    assert ray.get(echo.remote()) == ((), {})


def test_many_arguments():
    args, kwargs = ray.get(echo.remote(*range(100)))
    assert args == tuple(range(100))
    assert kwargs == {}


def test_default_value_is_evaluated_at_definition():
    @ray.remote
    def default(items=(1, 2)):
        return items

    assert ray.get(default.remote()) == (1, 2)


def test_too_many_positional_arguments_fails_in_the_caller():
    with pytest.raises(TypeError, match="too many positional arguments"):
        two.remote(1, 2, 3)


def test_missing_argument_fails_in_the_caller():
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        two.remote()


def test_unknown_keyword_fails_in_the_caller():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        two.remote(1, nope=2)


def test_argument_given_twice_fails_in_the_caller():
    with pytest.raises(TypeError, match="multiple values for argument 'a'"):
        two.remote(1, a=2)


def test_keyword_only_given_by_position_fails_in_the_caller():
    with pytest.raises(TypeError, match="too many positional arguments"):
        keyword_only.remote(1, 2)


def test_positional_only_given_by_keyword_fails_in_the_caller():
    with pytest.raises(TypeError):
        positional_only.remote(a=1)


def test_argument_is_a_snapshot_of_the_call():
    value = [1]
    ref = echo.remote(value)
    value.append(2)
    assert ray.get(ref) == (([1],), {})


def test_task_mutating_its_argument_does_not_change_the_caller():
    @ray.remote
    def mutate(items):
        items.append("task")
        return items

    items = ["mine"]
    assert ray.get(mutate.remote(items)) == ["mine", "task"]
    assert items == ["mine"]


def test_task_mutating_a_put_value_does_not_change_it():
    @ray.remote
    def mutate(items):
        items.append("task")
        return len(items)

    ref = ray.put([1])
    assert ray.get([mutate.remote(ref), mutate.remote(ref)]) == [2, 2]
    assert ray.get(ref) == [1]


def test_big_argument():
    assert ray.get(kinds.remote(b"x" * 2_000_000)) == ["bytes"]


def test_big_keyword_argument():
    args, kwargs = ray.get(echo.remote(data=b"x" * 500_000))
    assert args == ()
    assert len(kwargs["data"]) == 500_000


def test_argument_types_are_kept():
    assert ray.get(kinds.remote(1, 1.5, "s", b"b", None, [1], (1,), {1}, {})) == [
        "int",
        "float",
        "str",
        "bytes",
        "NoneType",
        "list",
        "tuple",
        "set",
        "dict",
    ]


def test_keyword_named_like_internals():
    kwargs = {"self": 1, "args": 2, "kwargs": 3, "name": 4, "function": 5}
    assert ray.get(echo.remote(**kwargs)) == ((), kwargs)


def test_a_late_argument_does_not_keep_the_cpu_afterwards(wait_until):
    @ray.remote
    def late_by(seconds):
        time.sleep(seconds)
        return 1

    ray.get(echo.remote())
    # By the time that the argument is known, nothing is left of the first call.
    assert ray.get(echo.remote(late_by.remote(2.5))) == ((1,), {})
    wait_until(lambda: ray.available_resources().get("CPU") == 4)
