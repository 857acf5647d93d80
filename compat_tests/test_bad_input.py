"""Mistakes in calls of the API: each a clear error, at the call."""

from __future__ import annotations

import functools
import os
import pickle
import warnings

import pytest

import ray

pytestmark = pytest.mark.usefixtures("ray_start")


@ray.remote
def echo(value):
    return value


class Callable:
    def __call__(self):
        return 1

    def method(self):
        return 1


@pytest.mark.parametrize(
    "target",
    [sum, len, Callable(), Callable().method, functools.partial(int), echo],
    ids=["sum", "len", "callable", "bound method", "partial", "remote function"],
)
def test_remote_of_neither_function_nor_class_is_type_error(target):
    with pytest.raises(TypeError, match="function or a class"):
        ray.remote(target)


def test_remote_with_function_and_options_is_assertion_error():
    with pytest.raises(AssertionError):
        ray.remote(lambda: 1, num_cpus=1)


def test_remote_with_a_positional_option_is_assertion_error():
    with pytest.raises(AssertionError):
        ray.remote(2)(lambda: 1)


def test_get_timeout_is_keyword_only():
    with pytest.raises(TypeError):
        ray.get(ray.put(1), 5)


def test_get_with_unknown_keyword():
    with pytest.raises(TypeError):
        ray.get(ray.put(1), nope=1)


def test_get_without_arguments():
    with pytest.raises(TypeError):
        ray.get()


def test_get_of_a_bad_timeout_type():
    with pytest.raises((TypeError, ValueError, OverflowError)):
        ray.get(ray.put(1), timeout="soon")


@pytest.mark.parametrize("options", [{"timeout": "1"}, {"num_returns": "1"}], ids=str)
def test_wait_of_bad_option_types(options):
    with pytest.raises(TypeError):
        ray.wait([ray.put(1)], **options)


@pytest.mark.parametrize("bad", ["x", None, 1, ["x"]], ids=repr)
def test_kill_of_a_non_actor_is_value_error(bad):
    with pytest.raises(ValueError, match="actor"):
        ray.kill(bad)


def test_unknown_attribute_of_a_remote_function():
    with pytest.raises(AttributeError):
        echo.nope  # noqa: B018


def test_unknown_attribute_of_ray():
    with pytest.raises(AttributeError):
        ray.no_such_name  # noqa: B018


def test_unknown_submodule_of_ray():
    with pytest.raises(ModuleNotFoundError):
        import ray.no_such_module  # noqa: F401


def test_calling_options_result_directly():
    with pytest.raises(TypeError):
        echo.options(num_cpus=1)(1)


def test_ref_in_a_boolean_test_is_just_true():
    assert (ray.put(False) and "yes") == "yes"


def test_ref_used_in_arithmetic_in_the_driver():
    with pytest.raises(TypeError):
        sum([ray.put(1), ray.put(2)])


def test_comparing_ref_with_a_value_is_false():
    assert (ray.put(1) == 1) is False
    assert ray.put(1) not in [1, 2]


def test_generator_passed_to_get_is_value_error():
    with pytest.raises(ValueError):
        ray.get(echo.remote(i) for i in range(3))


def test_map_passed_to_wait_is_type_error():
    with pytest.raises(TypeError):
        ray.wait(map(echo.remote, range(3)))


def test_python_generator_as_argument_is_type_error():
    with pytest.raises(TypeError, match="Could not serialize the argument"):
        echo.remote(i for i in range(3))


def test_open_file_as_argument_is_refused(tmp_path):
    with (tmp_path / "f").open("w") as file:
        with pytest.raises((TypeError, pickle.PicklingError)):
            echo.remote(file)


def test_socket_as_argument_is_type_error():
    import socket

    with socket.socket() as sock, pytest.raises(TypeError):
        echo.remote(sock)


def test_refused_call_leaves_the_session_working():
    with pytest.raises(TypeError):
        echo.remote(i for i in ())
    with pytest.raises(TypeError):
        echo.remote()
    assert ray.get(echo.remote(1)) == 1


def test_big_argument_needs_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ray.get(ray.remote(lambda data: len(data)).remote(bytes(10**7))) == 10**7


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_child_of_the_driver_does_not_break_the_parent():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ray.get(echo.remote("parent works")) == "parent works"


def test_deep_data_structure():
    value = None
    for _ in range(200):
        value = [value]
    got, depth = ray.get(echo.remote(value)), 0
    while got is not None:
        (got,) = got
        depth += 1
    assert depth == 200


def test_hopelessly_deep_data_structure_is_an_error():
    value = None
    for _ in range(100_000):
        value = (value,)
    with pytest.raises(Exception):  # noqa: B017
        ray.put(value)
    while value is not None:
        (value,) = value
    assert ray.get(echo.remote(1)) == 1


def test_deep_recursion_inside_a_task():
    @ray.remote
    def recurse():
        def down(n):
            return down(n + 1)

        return down(0)

    with pytest.raises(RecursionError):
        ray.get(recurse.remote())


def test_memory_error_of_python_in_a_task():
    @ray.remote
    def greedy():
        return bytearray(2**60)

    with pytest.raises(MemoryError):
        ray.get(greedy.remote())
