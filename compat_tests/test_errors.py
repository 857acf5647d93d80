"""Errors of tasks: dual types, causes, texts, propagation, crashes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading

import pytest

import ray
from ray.exceptions import (
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

pytestmark = pytest.mark.usefixtures("ray_start")


class PlainUserError(Exception):
    pass


class DetailedError(Exception):
    def __init__(self, text, code):
        super().__init__(text, code)
        self.text = text
        self.code = code


class MismatchedError(Exception):
    """Its pickle calls ``__init__`` with one argument, which fails."""

    def __init__(self, text, code):
        super().__init__(text)
        self.code = code


@ray.remote
def fail(error):
    raise error


@ray.remote
def divide(a, b):
    return a / b


@ray.remote
def echo(value):
    return value


def error_of(ref):
    with pytest.raises(RayError) as caught:
        ray.get(ref)
    return caught.value


def text_of(error):
    """Return the message without colour codes."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        TypeError("x"),
        KeyError("x"),
        IndexError("x"),
        AttributeError("x"),
        NotImplementedError("x"),
        RuntimeError("x"),
        OSError(2, "x"),
        FileNotFoundError(2, "x"),
        TimeoutError("x"),
        AssertionError("x"),
        ImportError("x"),
        ArithmeticError("x"),
        StopIteration("x"),
        UnicodeDecodeError("utf8", b"x", 0, 1, "x"),
        PlainUserError("x"),
        DetailedError("x", 3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_is_instance_of_the_users_type(error):
    caught = error_of(fail.remote(error))
    assert isinstance(caught, type(error))
    assert isinstance(caught, RayTaskError)
    assert type(caught.cause) is type(error)
    assert caught.cause.args == error.args


def test_dual_type_has_the_documented_mro():
    error = error_of(fail.remote(ValueError("x")))
    assert type(error).__name__ == "RayTaskError(ValueError)"
    mro = type(error).__mro__
    assert mro.index(RayTaskError) < mro.index(RayError) < mro.index(ValueError)


def test_dual_types_of_one_class_catch_each_other():
    error = error_of(fail.remote(KeyError("a")))
    with pytest.raises(LookupError):
        raise error


def test_except_clause_with_the_users_type():
    try:
        ray.get(divide.remote(1, 0))
    except ZeroDivisionError as error:
        assert "division by zero" in str(error)
    else:
        pytest.fail("no error")


def test_text_begins_with_function_pid_and_ip():
    text = text_of(error_of(divide.remote(1, 0)))
    assert re.match(r"ray::divide\(\) \(pid=\d+, ip=[\d.]+", text)


def test_text_ends_with_the_original_error():
    text = text_of(error_of(fail.remote(ValueError("the message"))))
    assert text.rstrip().endswith("ValueError: the message")


def test_text_has_the_remote_traceback():
    text = text_of(error_of(divide.remote(1, 0)))
    assert os.path.basename(__file__) in text
    assert "in divide" in text
    assert "return a / b" in text


def test_text_uses_the_tasks_name_option():
    text = text_of(error_of(divide.options(name="half").remote(1, 0)))
    assert text.startswith("ray::half()")


def test_cause_attribute_has_the_users_attributes():
    error = error_of(fail.remote(DetailedError("details", 7)))
    assert error.cause.text == "details"
    assert error.cause.code == 7


def test_args_hold_the_cause():
    error = error_of(fail.remote(ValueError("x")))
    assert len(error.args) == 1
    assert isinstance(error.args[0], ValueError)


def test_repr_names_both_types():
    error = error_of(fail.remote(ValueError("x")))
    assert repr(error) == "RayTaskError(ValueError)(ValueError('x'))"


def test_explicit_cause_chain_is_in_the_text():
    @ray.remote
    def chained():
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError as error:
            raise KeyError("outer") from error

    error = error_of(chained.remote())
    text = text_of(error)
    assert isinstance(error, KeyError)
    assert "ZeroDivisionError: division by zero" in text
    assert "direct cause of the following exception" in text
    assert text.index("ZeroDivisionError") < text.index("KeyError: 'outer'")


def test_implicit_chain_is_in_the_text():
    @ray.remote
    def chained():
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            raise KeyError("outer")  # noqa: B904

    text = text_of(error_of(chained.remote()))
    assert "During handling of the above exception" in text


def test_error_through_two_levels_keeps_its_type():
    @ray.remote
    def outer():
        return ray.get(divide.remote(1, 0))

    error = error_of(outer.remote())
    assert type(error).__name__ == "RayTaskError(ZeroDivisionError)"
    assert type(error.cause) is ZeroDivisionError
    text = text_of(error)
    assert text.index("ray::outer()") < text.index("ray::divide()")


def test_error_caught_inside_a_task():
    @ray.remote
    def outer():
        try:
            ray.get(divide.remote(1, 0))
        except ZeroDivisionError as error:
            return type(error).__name__

    assert ray.get(outer.remote()) == "RayTaskError(ZeroDivisionError)"


def test_caught_error_raised_from_another():
    @ray.remote
    def outer():
        try:
            ray.get(divide.remote(1, 0))
        except ZeroDivisionError as error:
            raise ValueError("wrapped") from error

    error = error_of(outer.remote())
    assert isinstance(error, ValueError)
    assert "division by zero" in text_of(error)


def test_failed_argument_stops_the_task(tmp_path):
    marker = tmp_path / "ran"

    @ray.remote
    def consumer(value):
        marker.touch()

    error = error_of(consumer.remote(divide.remote(1, 0)))
    assert isinstance(error, ZeroDivisionError)
    assert text_of(error).startswith("ray::consumer()")
    assert not marker.exists()


def test_failed_keyword_argument_stops_the_task():
    error = error_of(echo.remote(value=divide.remote(1, 0)))
    assert isinstance(error, ZeroDivisionError)


def test_failed_argument_goes_down_a_chain():
    ref = divide.remote(1, 0)
    for _ in range(3):
        ref = echo.remote(ref)
    assert isinstance(error_of(ref), ZeroDivisionError)


def test_failed_ref_in_a_list_does_not_stop_the_task():
    @ray.remote
    def count(refs):
        return len(refs)

    assert ray.get(count.remote([divide.remote(1, 0)])) == 1


def test_returned_exception_is_a_value():
    got = ray.get(echo.remote(ValueError("value")))
    assert type(got) is ValueError


def test_error_whose_init_does_not_fit_its_pickle():
    """The user's class cannot be rebuilt, but the text of it arrives."""
    with pytest.raises(RayError, match="MismatchedError") as caught:
        ray.get(
            ray.remote(lambda: (_ for _ in ()).throw(MismatchedError("a", 1))).remote()
        )
    assert not isinstance(caught.value, MismatchedError)


def test_error_that_cannot_be_pickled_arrives_as_text():
    @ray.remote
    def unpicklable():
        error = ValueError("holds a lock")
        error.lock = threading.Lock()
        raise error

    error = error_of(unpicklable.remote())
    assert isinstance(error, RayTaskError)
    assert "holds a lock" in str(error)


def test_exception_class_made_in_the_task():
    @ray.remote
    def local():
        class LocalError(Exception):
            pass

        raise LocalError("inner class")

    error = error_of(local.remote())
    assert type(error).__name__ == "RayTaskError(LocalError)"


def test_base_exception_is_a_task_error():
    class Fatal(BaseException):
        pass

    @ray.remote(max_retries=0)
    def fatal():
        raise Fatal("very bad")

    error = error_of(fatal.remote())
    assert isinstance(error, RayTaskError)
    assert "very bad" in str(error)


def test_exception_group():
    @ray.remote
    def group():
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

    error = error_of(group.remote())
    assert isinstance(error, ExceptionGroup)
    assert [type(e) for e in error.exceptions] == [ValueError, KeyError]


def test_except_star():
    @ray.remote
    def group():
        raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

    seen = []
    try:
        ray.get(group.remote())
    except* ValueError as part:
        seen.append(len(part.exceptions))
    except* KeyError as part:
        seen.append(len(part.exceptions))
    assert seen == [1, 1]


def test_keyboard_interrupt_in_a_task_counts_as_cancelled():
    @ray.remote
    def interrupted():
        raise KeyboardInterrupt

    error = error_of(interrupted.remote())
    assert isinstance(error, ray.exceptions.TaskCancelledError)


def test_task_error_inside_a_list_is_a_value():
    error = error_of(divide.remote(1, 0))
    (got,) = ray.get(echo.remote([error]))
    assert isinstance(got, ZeroDivisionError)


def test_task_error_as_the_whole_value_raises_at_get():
    error = error_of(divide.remote(1, 0))
    with pytest.raises(ZeroDivisionError):
        ray.get(ray.put(error))


def test_task_error_as_argument_fails_the_task():
    error = error_of(divide.remote(1, 0))
    with pytest.raises(ZeroDivisionError):
        ray.get(echo.remote(error))


def test_error_round_trips_through_cloudpickle():
    import ray.cloudpickle as cloudpickle

    error = error_of(fail.remote(DetailedError("t", 1)))
    copy = cloudpickle.loads(cloudpickle.dumps(error))
    assert isinstance(copy, DetailedError)
    assert isinstance(copy, RayTaskError)
    assert copy.cause.code == 1


def test_error_of_asyncio_code_in_a_task():
    @ray.remote
    def runs_loop():
        async def main():
            await asyncio.sleep(0)
            raise LookupError("from the loop")

        asyncio.run(main())

    with pytest.raises(LookupError, match="from the loop"):
        ray.get(runs_loop.remote())


def crash_by_exit():
    os._exit(1)


def crash_by_signal():
    os.kill(os.getpid(), signal.SIGKILL)


def crash_by_segfault():
    os.kill(os.getpid(), signal.SIGSEGV)


def crash_by_null_pointer():
    import ctypes

    ctypes.string_at(0)


def crash_by_sys_exit():
    sys.exit(3)


def crash_by_sys_exit_zero():
    sys.exit(0)


@pytest.mark.parametrize(
    "crash",
    [
        crash_by_exit,
        crash_by_signal,
        crash_by_segfault,
        crash_by_null_pointer,
        crash_by_sys_exit,
        crash_by_sys_exit_zero,
    ],
    ids=lambda function: function.__name__,
)
def test_crash_is_worker_crashed_error(crash):
    with pytest.raises(WorkerCrashedError, match="died unexpectedly"):
        ray.get(ray.remote(crash).options(max_retries=0).remote())


def test_crash_leaves_other_tasks_alone():
    crashed = ray.remote(crash_by_exit).options(max_retries=0).remote()
    others = [divide.remote(i, 1) for i in range(10)]
    with pytest.raises(WorkerCrashedError):
        ray.get(crashed)
    assert ray.get(others) == [float(i) for i in range(10)]


def test_crash_of_a_task_does_not_lose_earlier_results():
    import numpy as np

    @ray.remote
    def big():
        return np.ones(200_000)

    ref = big.remote()
    ray.wait([ref])
    with pytest.raises(WorkerCrashedError):
        ray.get(ray.remote(crash_by_exit).options(max_retries=0).remote())
    assert ray.get(ref).sum() == 200_000


def test_crashed_argument_fails_the_consumer():
    crashed = ray.remote(crash_by_exit).options(max_retries=0).remote()
    with pytest.raises(RayError) as caught:
        ray.get(echo.remote(crashed))
    assert "WorkerCrashedError" in str(caught.value) or isinstance(
        caught.value, WorkerCrashedError
    )
