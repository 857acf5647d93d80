"""Calling methods: arguments, ``num_returns``, mistakes at the call."""

from __future__ import annotations

import threading

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
class Target:
    attribute = 5

    def __init__(self):
        self.x = 1

    @property
    def prop(self):
        return self.x

    def mixed(self, a, b=2, *args, k=4, **kwargs):
        return a, b, args, k, kwargs

    def positional(self, a, /, b):
        return a, b

    def nothing(self):
        return None

    def pair(self):
        return 1, 2

    @ray.method(num_returns=2)
    def two(self):
        return 1, 2

    @ray.method(num_returns=0)
    def silent(self):
        self.x = 99

    def echo(self, value):
        return value

    def kinds(self, *values):
        return [type(value).__name__ for value in values]

    def _hidden(self):
        return "hidden"

    def __len__(self):
        return 7

    def __call__(self, value):
        return value + 1

    def get_x(self):
        return self.x

    lambda_method = lambda self, v: v * 2  # noqa: E731


@pytest.fixture
def target():
    return Target.remote()


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {}, (1, 2, (), 4, {})),
        ((1, 3), {}, (1, 3, (), 4, {})),
        ((1,), {"b": 5}, (1, 5, (), 4, {})),
        ((1, 2, 3, 4), {"k": 5, "z": 6}, (1, 2, (3, 4), 5, {"z": 6})),
    ],
)
def test_arguments_bind_as_in_python(target, args, kwargs, expected):
    assert ray.get(target.mixed.remote(*args, **kwargs)) == expected


def test_wrong_arguments_fail_at_the_call_and_not_in_the_actor(target):
    with pytest.raises(TypeError, match="missing a required argument"):
        target.mixed.remote()
    with pytest.raises(TypeError, match="too many positional arguments"):
        target.echo.remote(1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        target.echo.remote(value=1, other=2)
    with pytest.raises(TypeError, match="positional"):
        target.positional.remote(a=1, b=2)
    assert ray.get(target.echo.remote(value=3)) == 3


def test_unknown_method_is_an_attribute_error(target):
    with pytest.raises(AttributeError, match="nope"):
        target.nope.remote()


@pytest.mark.parametrize("name", ["x", "prop", "attribute"])
def test_only_methods_are_attributes_of_a_handle(target, name):
    with pytest.raises(AttributeError, match=name):
        getattr(target, name)


def test_calling_a_method_directly_is_refused(target):
    with pytest.raises(TypeError, match="cannot be called directly"):
        target.echo(1)


def test_calling_or_measuring_a_handle_is_refused(target):
    with pytest.raises(TypeError, match="not callable"):
        target(1)
    with pytest.raises(TypeError, match="has no len"):
        len(target)


def test_special_and_private_methods_can_be_called_remotely(target):
    assert ray.get(target.__len__.remote()) == 7
    assert ray.get(target.__call__.remote(1)) == 2
    assert ray.get(target._hidden.remote()) == "hidden"
    assert ray.get(target.lambda_method.remote(4)) == 8


def test_dir_of_a_handle_lists_the_methods(target):
    names = dir(target)
    assert {"mixed", "two", "_hidden"} <= set(names)
    assert "prop" not in names


def test_two_handles_of_a_method_work(target):
    method = target.echo
    assert ray.get([method.remote(1), method.remote(2)]) == [1, 2]


def test_ref_arguments_are_resolved_and_nested_ones_kept(target):
    ref = ray.put(3)
    assert ray.get(target.kinds.remote(ref, [ref], {"a": ref})) == [
        "int",
        "list",
        "dict",
    ]
    assert ray.get(target.mixed.remote(1, k=ref))[3] == 3
    assert ray.get(target.echo.remote([ref])) == [ref]


def test_result_of_one_call_is_argument_of_the_next(target):
    ref = target.echo.remote(1)
    for _ in range(5):
        ref = target.__call__.remote(ref)
    assert ray.get(ref) == 6


def test_result_of_one_actor_is_argument_of_another(target):
    other = Target.remote()
    assert ray.get(other.echo.remote(target.pair.remote())) == (1, 2)


def test_method_returning_a_ref_is_not_flattened(target):
    @ray.remote
    class Putter:
        def put(self):
            return ray.put(5)

    inner = ray.get(Putter.remote().put.remote())
    assert isinstance(inner, ray.ObjectRef)


def test_tuple_is_one_object_by_default(target):
    assert ray.get(target.pair.remote()) == (1, 2)


def test_method_decorator_sets_num_returns(target):
    refs = target.two.remote()
    assert isinstance(refs, list)
    assert ray.get(refs) == [1, 2]


def test_options_override_num_returns(target):
    first, second = target.pair.options(num_returns=2).remote()
    assert (ray.get(first), ray.get(second)) == (1, 2)
    assert ray.get(target.two.options(num_returns=1).remote()) == (1, 2)
    assert ray.get(target.pair.remote()) == (1, 2)


def test_num_returns_zero_gives_none_and_still_runs(target):
    assert target.silent.remote() is None
    assert ray.get(target.get_x.remote()) == 99
    assert target.echo.options(num_returns=0).remote(1) is None


def test_num_returns_that_does_not_match_fails_in_every_ref(target):
    refs = target.pair.options(num_returns=3).remote()
    for ref in refs:
        with pytest.raises(ValueError, match="num_returns=3"):
            ray.get(ref)


def test_num_returns_of_a_single_value_is_a_type_error(target):
    refs = target.nothing.options(num_returns=2).remote()
    for ref in refs:
        with pytest.raises(TypeError):
            ray.get(ref)


def test_negative_num_returns_is_refused_at_decoration():
    with pytest.raises(ValueError, match="num_returns"):
        ray.method(num_returns=-1)(lambda self: 1)


def test_unknown_keyword_of_ray_method_is_refused():
    with pytest.raises(AssertionError, match="bogus"):
        ray.method(bogus=1)


@pytest.mark.parametrize("keyword", ["num_cpus", "bogus", "max_restarts"])
def test_options_of_a_method_refuse_what_is_not_theirs(target, keyword):
    with pytest.raises(TypeError, match=keyword):
        target.echo.options(**{keyword: 1}).remote(1)


def test_option_name_changes_the_task_name():
    @ray.remote
    class Named:
        def task_name(self):
            return ray.get_runtime_context().get_task_name()

    actor = Named.remote()
    assert ray.get(actor.task_name.remote()) == "Named.task_name"
    assert ray.get(actor.task_name.options(name="special").remote()) == "special"


def test_unserializable_argument_fails_at_the_call(target):
    with pytest.raises(TypeError, match="Could not serialize the argument"):
        target.echo.remote(threading.Lock())
    assert ray.get(target.echo.remote(1)) == 1


def test_unserializable_result_fails_at_get():
    @ray.remote
    class Makes:
        def lock(self):
            return threading.Lock()

        def ping(self):
            return 1

    actor = Makes.remote()
    with pytest.raises(TypeError):
        ray.get(actor.lock.remote())
    assert ray.get(actor.ping.remote()) == 1


def test_functions_can_be_arguments_and_results(target):
    function = ray.get(target.echo.remote(lambda value: value + 1))
    assert function(1) == 2


def test_ray_ready_answers_true(target):
    assert ray.get(target.__ray_ready__.remote()) is True


def test_ray_call_runs_a_function_on_the_instance(target):
    def read(self, extra, factor=1):
        return (self.x + extra) * factor

    assert ray.get(target.__ray_call__.remote(read, 3)) == 4
    assert ray.get(target.__ray_call__.remote(read, 3, factor=2)) == 8


def test_method_of_an_actor_calls_tasks_and_waits(target):
    @ray.remote
    def square(x):
        return x * x

    @ray.remote
    class Caller:
        def run(self, count):
            return sum(ray.get([square.remote(i) for i in range(count)]))

    assert ray.get(Caller.remote().run.remote(4)) == 14


def test_large_argument_and_result(target):
    data = b"x" * 2_000_000
    assert ray.get(target.echo.remote(data)) == data


def test_methods_with_decorators_and_wrappers():
    import functools

    def doubled(function):
        @functools.wraps(function)
        def wrapper(self, value):
            return function(self, value) * 2

        return wrapper

    @ray.remote
    class Wrapped:
        @doubled
        def plus_one(self, value):
            return value + 1

    actor = Wrapped.remote()
    assert ray.get(actor.plus_one.remote(1)) == 4
    with pytest.raises(TypeError, match="too many positional"):
        actor.plus_one.remote(1, 2)
