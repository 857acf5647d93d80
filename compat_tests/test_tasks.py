"""Remote functions: definition, closures, recursion, several results."""

from __future__ import annotations

import functools
import os

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")

FACTOR = 3


@ray.remote
def plus(a, b=1):
    return a + b


@ray.remote
def scaled(x):
    return x * FACTOR


@ray.remote
def factorial(n):
    if n <= 1:
        return 1
    return n * ray.get(factorial.remote(n - 1))


def plain_double(x):
    return 2 * x


def test_task_returns_a_ref():
    ref = plus.remote(1)
    assert isinstance(ref, ray.ObjectRef)
    assert ray.get(ref) == 2


def test_task_runs_in_another_process():
    @ray.remote
    def pid():
        return os.getpid()

    assert ray.get(pid.remote()) != os.getpid()


def test_decorator_with_options():
    @ray.remote(num_cpus=0.5, max_retries=0)
    def one():
        return 1

    assert ray.get(one.remote()) == 1


def test_remote_called_with_options_then_function():
    remote_double = ray.remote(num_cpus=1)(plain_double)
    assert ray.get(remote_double.remote(4)) == 8


def test_remote_as_a_plain_call():
    assert ray.get(ray.remote(plain_double).remote(5)) == 10
    assert plain_double(5) == 10


def test_lambda():
    assert ray.get(ray.remote(lambda x: x + 1).remote(1)) == 2


def test_builtin_wrapped_in_lambda_with_star_args():
    total = ray.remote(lambda *xs: sum(xs))
    assert ray.get(total.remote(1, ray.put(2), 3)) == 6


def test_partial_is_refused_and_wrapping_it_works():
    half = functools.partial(plain_double, 21)
    assert ray.get(ray.remote(lambda: half()).remote()) == 42


def test_global_is_seen():
    assert ray.get(scaled.remote(2)) == 6


def test_closure_is_captured_at_the_first_call():
    captured = ["old"]

    @ray.remote
    def read():
        return captured[0]

    assert ray.get(read.remote()) == "old"
    captured[0] = "new"
    assert ray.get(read.remote()) == "old"


def test_closure_change_before_the_first_call_is_seen():
    captured = ["old"]

    @ray.remote
    def read():
        return captured[0]

    captured[0] = "new"
    assert ray.get(read.remote()) == "new"


def test_task_cannot_change_the_drivers_variables():
    box = []

    @ray.remote
    def add():
        box.append(1)
        return len(box)

    assert ray.get(add.remote()) >= 1
    assert box == []


def test_recursion():
    assert ray.get(factorial.remote(5)) == 120


def test_function_defined_in_a_task():
    @ray.remote
    def outer():
        @ray.remote
        def inner(x):
            return x + 1

        return ray.get([inner.remote(i) for i in range(3)])

    assert ray.get(outer.remote()) == [1, 2, 3]


def test_remote_function_passed_as_an_argument():
    @ray.remote
    def apply(function, x):
        return ray.get(function.remote(x))

    assert ray.get(apply.remote(plus, 10)) == 11


def test_remote_function_returned_from_a_task():
    @ray.remote
    def make(n):
        return ray.remote(lambda x: x + n)

    adder = ray.get(make.remote(5))
    assert ray.get(adder.remote(1)) == 6


def test_mutually_recursive_functions():
    @ray.remote
    def is_even(n):
        return True if n == 0 else ray.get(is_odd.remote(n - 1))

    @ray.remote
    def is_odd(n):
        return False if n == 0 else ray.get(is_even.remote(n - 1))

    assert ray.get(is_even.remote(4)) is True


def test_chain_of_refs():
    ref = plus.remote(0)
    for _ in range(20):
        ref = plus.remote(ref)
    assert ray.get(ref) == 21


def test_tree_reduction():
    refs = [ray.put(i) for i in range(16)]
    while len(refs) > 1:
        refs = [plus.remote(a, b) for a, b in zip(refs[::2], refs[1::2], strict=True)]
    assert ray.get(refs[0]) == sum(range(16))


def test_many_tasks():
    assert ray.get([plus.remote(i) for i in range(300)]) == list(range(1, 301))


def test_tasks_run_in_parallel(tmp_path):
    """Two tasks that wait for each other only finish when both run."""

    @ray.remote
    def meet(mine, other):
        import time

        mine.touch()
        deadline = time.monotonic() + 20
        while not other.exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    a, b = tmp_path / "a", tmp_path / "b"
    assert ray.get([meet.remote(a, b), meet.remote(b, a)]) == [True, True]


def test_remote_function_has_no_name_attribute():
    with pytest.raises(AttributeError):
        plus.__name__  # noqa: B018


def test_direct_call_is_type_error():
    with pytest.raises(TypeError, match=r"cannot be called directly"):
        plus(1)


def test_direct_call_error_names_remote():
    with pytest.raises(TypeError, match=r"plus\.remote\(\)"):
        plus(1)


def test_decorated_function_with_wraps():
    def doubled(function):
        @functools.wraps(function)
        def wrapper(*args):
            return 2 * function(*args)

        return wrapper

    @ray.remote
    @doubled
    def three():
        return 3

    assert ray.get(three.remote()) == 6


def test_static_method_of_a_class_as_task():
    class Tool:
        @staticmethod
        def add(a, b):
            return a + b

    assert ray.get(ray.remote(Tool.add).remote(1, 2)) == 3


def test_async_function_as_task_is_refused():
    with pytest.raises(ValueError, match="async"):

        @ray.remote
        async def coroutine():
            return 1

        coroutine.remote()


def test_none_is_a_value():
    @ray.remote
    def nothing():
        pass

    assert ray.get(nothing.remote()) is None


def test_num_returns_zero_gives_none():
    @ray.remote(num_returns=0)
    def nothing():
        return None

    assert nothing.remote() is None


def test_num_returns_two():
    @ray.remote(num_returns=2)
    def pair():
        return 1, 2

    first, second = pair.remote()
    assert ray.get(first) == 1
    assert ray.get(second) == 2


@pytest.mark.parametrize("kind", [tuple, list])
def test_num_returns_accepts_tuple_and_list(kind):
    @ray.remote(num_returns=3)
    def three():
        return kind([1, 2, 3])

    refs = three.remote()
    assert len(refs) == 3
    assert ray.get(refs) == [1, 2, 3]


def test_num_returns_by_options():
    @ray.remote
    def pair():
        return "a", "b"

    assert ray.get(pair.remote()) == ("a", "b")
    assert ray.get(pair.options(num_returns=2).remote()) == ["a", "b"]


def test_num_returns_one_by_options_gives_the_tuple():
    @ray.remote(num_returns=2)
    def pair():
        return "a", "b"

    assert ray.get(pair.options(num_returns=1).remote()) == ("a", "b")


def test_num_returns_with_too_few_values_fails_every_ref():
    @ray.remote(num_returns=3, max_retries=0)
    def two():
        return 1, 2

    for ref in two.remote():
        with pytest.raises(ValueError, match="num_returns=3"):
            ray.get(ref)


def test_num_returns_with_too_many_values_fails():
    @ray.remote(num_returns=2, max_retries=0)
    def three():
        return 1, 2, 3

    for ref in three.remote():
        with pytest.raises(ValueError, match="num_returns=2"):
            ray.get(ref)


def test_num_returns_two_but_none_is_type_error():
    @ray.remote(num_returns=2, max_retries=0)
    def none():
        return None

    for ref in none.remote():
        with pytest.raises(TypeError):
            ray.get(ref)


def test_error_reaches_all_refs_of_a_task():
    @ray.remote(num_returns=2)
    def fails():
        raise KeyError("both")

    for ref in fails.remote():
        with pytest.raises(KeyError, match="both"):
            ray.get(ref)


def test_refs_of_one_task_can_be_used_apart():
    @ray.remote(num_returns=2)
    def pair():
        return 1, b"x" * 200_000

    _, big = pair.remote()
    del _
    assert len(ray.get(big)) == 200_000


def test_task_imports_modules_beside_the_script(run_driver, tmp_path):
    (tmp_path / "beside_script.py").write_text("def answer():\n    return 42\n")
    done = run_driver(
        """
        import ray
        import beside_script

        ray.init(num_cpus=1, include_dashboard=False)
        print("got", ray.get(ray.remote(beside_script.answer).remote()))
        """
    )
    assert "got 42" in done.stdout


def test_module_missing_on_the_worker_is_runtime_error(tmp_path, monkeypatch):
    """Only the script's folder and the current one are handed to workers."""
    (tmp_path / "only_on_driver.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_on_driver

    ref = ray.remote(only_on_driver.answer).options(max_retries=0).remote()
    with pytest.raises(RuntimeError, match="only_on_driver"):
        ray.get(ref)


def test_module_function_with_imported_names():
    @ray.remote
    def use():
        import json

        return json.dumps({"a": 1})

    assert ray.get(use.remote()) == '{"a": 1}'


def test_class_defined_in_the_test_travels():
    class Point:
        def __init__(self, x):
            self.x = x

        def moved(self):
            return Point(self.x + 1)

    @ray.remote
    def move(point):
        return point.moved()

    assert ray.get(move.remote(Point(1))).x == 2
